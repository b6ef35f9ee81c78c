//! Formats an error with its causes.

use std::error::Error;

use hooklens_io::excerpt::message as shortened;

/// Formats the messages of an error and of all its causes, joined by `: `.
///
/// A hooklens error's own message leaves out the cause, which [`Error::source`] returns, so print the result of this
/// function instead. Line breaks in the causes' messages are replaced by spaces. A message that quotes a value of
/// thousands of characters is cut.
///
/// ```
/// let corpus = hooklens::corpus::Corpus::new(["no/such/file"]);
/// let error = corpus.prompts().and_then(|mut prompts| prompts.next().transpose()).unwrap_err();
/// assert_eq!(error.to_string(), "can't access no/such/file");
/// assert!(hooklens::error_chain(&error).starts_with("can't access no/such/file: ")); // then the cause
/// ```
pub fn error_chain(error: &dyn Error) -> String {
    let mut message = shortened(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = shortened(error).replace('\n', " ");
        // Messages of other crates may already end with their cause's message.
        if !message.ends_with(&words) {
            message.push_str(": ");
            message.push_str(&words);
        }
        cause = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;
    use crate::error::load_errors;

    #[test]
    fn a_chain_says_everything_once() {
        let refused = std::io::Error::other("no\nroom");
        let text = InputError::Text {
            number: 2,
            source: Box::new(load_errors::cant_write(std::path::Path::new("x"))(refused).into()),
        };
        assert_eq!(error_chain(&text), "text 2, counted from 0: can't write x: no room");
        // A cause that is already in the message is not repeated.
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
