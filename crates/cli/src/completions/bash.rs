//! Completions in bash, which splits words at `:` and `=`.

use std::ffi::OsString;
use std::io::{Error, Write};
use std::path::Path;

use clap::Command;
use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

/// Environment variable with the index of the word at the cursor.
const INDEX: &str = "HOOKLENS_COMPLETE_INDEX";

const SCRIPT: &str = r#"_hooklens() {
    local words=("${COMP_WORDS[@]}")
    # The part of the word in front of the cursor; it is empty after a colon or an equals sign.
    [[ "${words[COMP_CWORD]}" == [:=] ]] || words[COMP_CWORD]="$2"
    local value
    COMPREPLY=()
    # Read line by line, since bash would expand globs in a list to file names.
    while IFS= read -r value; do
        COMPREPLY+=("$value")
    done < <(VARIABLE=bash INDEX="$COMP_CWORD" "COMPLETER" -- "${words[@]}" 2> /dev/null)
    if [[ "${COMPREPLY-}" =~ [=/:,]$ ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -o bashdefault -F _hooklens BINARY
"#;

/// Like [`clap_complete::env::Bash`], which does not complete `embedded:io` and `--model=embedded:io`.
pub(super) struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        binary: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let script = SCRIPT.replace("VARIABLE", variable).replace("INDEX", INDEX);
        out.write_all(script.replace("COMPLETER", completer).replace("BINARY", binary).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let index = std::env::var(INDEX).ok().and_then(|index| index.parse().ok()).unwrap_or(0);
        let at = words.len().saturating_sub(1).min(index);
        // bash does not pass an empty word after a colon or an equals sign.
        let typed = if words[at] == ":" || words[at] == "=" { OsString::new() } else { words[at].clone() };
        let joined = joined(&words[..=at]);
        let last = joined.last().cloned().unwrap_or_default();
        let found = complete(command, joined.clone(), joined.len() - 1, folder)?;
        // bash replaces only the part that it considers the last word.
        let kept = last.len() - typed.len();
        for candidate in found {
            let value = candidate.get_value().to_string_lossy();
            writeln!(out, "{}", value.get(kept..).unwrap_or(&value))?;
        }
        Ok(())
    }
}

/// Joins words that bash split at colons and equals signs, to restore what the user typed.
pub(super) fn joined(words: &[OsString]) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut glued = false;
    for (at, word) in words.iter().enumerate() {
        let splits = at > 1 && (word == ":" || word == "=" || word == "::");
        match joined.last_mut() {
            Some(last) if glued || splits => last.push(word),
            _ => joined.push(word.clone()),
        }
        glued = splits;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_joined_where_bash_splits_them() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let split = words(&["hooklens", "hooks", "--model", "=", "embedded", ":", "ioi", "--hooks", "bl"]);
        assert_eq!(joined(&split), words(&["hooklens", "hooks", "--model=embedded:ioi", "--hooks", "bl"]));
        let ends = words(&["hooklens", "info", "--model", "embedded", ":"]);
        assert_eq!(joined(&ends), words(&["hooklens", "info", "--model", "embedded:"]));
        assert_eq!(joined(&words(&["hooklens", ""])), words(&["hooklens", ""]));
    }
}
