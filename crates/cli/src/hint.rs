//! Hints for arguments that another command would take.

use std::path::Path;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds a hint to the error for an unknown argument, if what was meant is clear.
pub(super) fn hinted(mut error: Error) -> Error {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(given))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return error;
    };
    let command = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let is_model = given.starts_with("embedded:") || Path::new(given).join("config.json").is_file();
    let hint = match given.as_str() {
        "--prompt" | "--prompts" if ["patch", "attribute"].contains(&command.as_str()) => {
            "pairs are given with '--clean', '--corrupted', '--answer' and '--wrong', or in a file with '--pairs'"
                .to_string()
        }
        _ if is_model => format!("a model is given with '--model {given}'"),
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    error
}
