//! [`PromptSetError`].

use std::fmt::Write;

use thiserror::Error;

use hooklens_model::error::InputError;

/// An error of a [`PromptSet`](crate::prompt_sets::PromptSet) or a [`Template`](crate::prompt_sets::Template).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptSetError {
    /// There is no prompt set with this name.
    #[error("there is no prompt set `{given}`; {}", suggested(nearest, known))]
    Unknown {
        /// The name.
        given: String,
        /// The nearest names.
        nearest: Vec<String>,
        /// All names.
        known: Vec<String>,
    },
    /// No pairs were requested.
    #[error("0 pairs were requested; request at least 1")]
    NoCount,
    /// A text has a brace that does not belong to a slot.
    #[error("`{text}` has a brace that does not belong to a slot such as {{name}}; write {{{{ or }}}} for a brace")]
    Brace {
        /// The text.
        text: String,
    },
    /// A text has a slot without words.
    #[error("there are no words for the slot `{slot}` of `{text}`; {}", suggested(nearest, known))]
    Slot {
        /// The slot.
        slot: String,
        /// The text.
        text: String,
        /// The nearest slots that have words.
        nearest: Vec<String>,
        /// All slots that have words.
        known: Vec<String>,
    },
    /// A slot has words, but occurs in no text.
    #[error("the slot `{slot}` has words, but occurs in none of the template's texts")]
    Unused {
        /// The slot.
        slot: String,
    },
    /// A slot has two lists of words.
    #[error("the slot `{slot}` has two lists of words; pass one")]
    Repeated {
        /// The slot.
        slot: String,
    },
    /// A row of words does not fit its slots.
    #[error("a row of {words} words cannot fill the slots {}: expected one word per slot in every row", listed(slots))]
    Row {
        /// The slots.
        slots: Vec<String>,
        /// Number of words in the row.
        words: usize,
    },
    /// Too few words are single tokens.
    #[error(
        "too few words for {}: expected at least {needed}, but only {kept} of {given} are single tokens{}",
        listed(slots),
        examples(dropped)
    )]
    TooFewWords {
        /// The slots that the words are for.
        slots: Vec<String>,
        /// Number of words needed.
        needed: usize,
        /// Number of words that are single tokens.
        kept: usize,
        /// Number of words given.
        given: usize,
        /// The words that are not single tokens.
        dropped: Vec<String>,
    },
    /// There are fewer different pairs than requested.
    #[error("{requested} pairs were requested, but {}{}", there_are(*found, *drawn), skips(*skipped, reason))]
    TooFewPairs {
        /// Number of pairs requested.
        requested: usize,
        /// Number of different pairs that exist, or that were found in a limited number of draws.
        found: usize,
        /// Number of random draws; `None` if all combinations of words were tried or counted.
        drawn: Option<usize>,
        /// Number of combinations of words that the tokenizer does not permit.
        skipped: usize,
        /// Why the first of these combinations was skipped.
        reason: String,
    },
    /// The tokenizer cannot encode a text.
    #[error("cannot tokenize `{text}`")]
    Text {
        /// The text.
        text: String,
        /// The reason.
        source: InputError,
    },
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn suggested(nearest: &[String], known: &[String]) -> String {
    match (nearest, known) {
        ([], []) => "no slot has words".into(),
        ([], known) => format!("expected one of {}", listed(known)),
        (nearest, _) => format!("did you mean {}?", listed(nearest)),
    }
}

/// The first words that were dropped.
fn examples(dropped: &[String]) -> String {
    match dropped {
        [] => String::new(),
        [a, b, c, d, _, _, ..] => {
            format!("; these are not: {}, ...", listed(&[a, b, c, d].map(String::clone)))
        }
        all => format!("; these are not: {}", listed(all)),
    }
}

fn there_are(found: usize, drawn: Option<usize>) -> String {
    match drawn {
        Some(drawn) => format!("{drawn} random draws gave only {found}"),
        None => format!("there are only {found}; request fewer, or add words"),
    }
}

fn skips(skipped: usize, reason: &str) -> String {
    let mut text = String::new();
    if skipped > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, "; {skipped} combinations of words were skipped, the first because {reason}");
    }
    text
}
