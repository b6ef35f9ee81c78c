//! The token that clients must present.

use std::env::VarError;

use super::super::Failure;
use hooklens_model::device::TOKEN_VARIABLE;

/// Minimum token length. Shorter tokens could be guessed.
const SHORTEST: usize = 16;

/// The token from the environment, if set.
pub(super) fn from_environment() -> Result<Option<String>, Failure> {
    match std::env::var(TOKEN_VARIABLE) {
        Ok(token) => checked(token).map(Some).map_err(Failure::Usage),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Failure::Usage(format!("{TOKEN_VARIABLE} is not valid UTF-8"))),
    }
}

fn checked(token: String) -> Result<String, String> {
    // Surrounding whitespace does not count as part of the secret.
    match token.trim().chars().count() {
        0 => Err(format!("{TOKEN_VARIABLE} is empty or blank; unset it to require no token")),
        count if count < SHORTEST => Err(format!(
            "{TOKEN_VARIABLE} has {count} characters; a token needs at least {SHORTEST} (try `openssl rand -hex 16`)"
        )),
        _ => Ok(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tokens_are_refused() {
        assert!(checked(String::new()).is_err());
        assert!(checked("x".repeat(15)).is_err());
        assert!(checked("é".repeat(15)).is_err());
        assert!(checked("x".repeat(16)).is_ok());
        assert!(checked(" ".repeat(16)).is_err());
        assert!(checked(format!("{}x\t", " ".repeat(20))).is_err());
    }
}
