//! An error's message with those of its causes.

use std::error::Error;

/// The message of an error and of each of its causes, joined by `: `.
///
/// An error's own message does not repeat its cause, which [`Error::source`] gives: this is what to print. What the
/// causes say is put on one line.
///
/// ```
/// let error = hooklens::dump::read_prompts("no/such/file").unwrap_err();
/// assert_eq!(error.to_string(), "can't read or write no/such/file");
/// assert!(hooklens::error_chain(&error).starts_with("can't read or write no/such/file: ")); // and what the system says
/// ```
pub fn error_chain(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string().replace('\n', " ");
        // Messages of other crates may end in that of their own cause.
        if !told.ends_with(&words) {
            told.push_str(": ");
            told.push_str(&words);
        }
        cause = error.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;
    use hooklens_data::error::DumpError;

    #[test]
    fn a_chain_says_everything_once() {
        let refused = std::io::Error::other("no\nroom");
        let text = InputError::Text {
            number: 2,
            source: Box::new(DumpError::File { path: "x".into(), source: refused }.into()),
        };
        assert_eq!(error_chain(&text), "text 2, counted from 0: can't read or write x: no room");
        // What repeats its cause is not told twice.
        let zip = zip_like(std::io::Error::other("full"));
        assert_eq!(error_chain(&zip), "archive: full");
    }

    fn zip_like(source: std::io::Error) -> impl Error {
        #[derive(Debug, thiserror::Error)]
        #[error("archive: {source}")]
        struct Repeats {
            source: std::io::Error,
        }
        Repeats { source }
    }
}
