//! Texts with named slots.

use crate::error::PromptSetError;

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    Slot(String),
}

/// Splits a text at its slots: `{name}`. Doubled braces are literal braces.
pub(super) fn parse(text: &str) -> Result<Vec<Piece>, PromptSetError> {
    let wrong = || PromptSetError::Brace { text: text.into() };
    let (mut pieces, mut literal, mut letters) = (Vec::new(), String::new(), text.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if letters.peek() == Some(&letter) => literal.extend(letters.next()),
            '{' => {
                let mut name = String::new();
                loop {
                    match letters.next() {
                        Some('}') if !name.is_empty() => break,
                        Some(letter) if letter.is_alphanumeric() || letter == '_' => name.push(letter),
                        _ => return Err(wrong()),
                    }
                }
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Slot(name));
            }
            '}' => return Err(wrong()),
            letter => literal.push(letter),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

/// Names of the slots of a text, in order.
pub(super) fn slots(pieces: &[Piece]) -> impl Iterator<Item = &str> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Slot(name) => Some(&**name),
        Piece::Literal(_) => None,
    })
}

/// The text with its slots filled by `word`.
pub(super) fn filled<'w>(pieces: &[Piece], word: impl Fn(&str) -> &'w str) -> String {
    let part = |piece: &Piece| match piece {
        Piece::Literal(text) => text.clone(),
        Piece::Slot(name) => word(name).to_string(),
    };
    pieces.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_braces() {
        let pieces = parse("{a} and {{{b_2}}}").unwrap();
        assert_eq!(slots(&pieces).collect::<Vec<_>>(), ["a", "b_2"]);
        assert_eq!(filled(&pieces, |name| if name == "a" { "x" } else { "y" }), "x and {y}");
        for wrong in ["{", "}", "{a", "a}", "{}", "{a b}", "{a{b}}", "{a} {a"] {
            assert!(matches!(parse(wrong), Err(PromptSetError::Brace { .. })), "{wrong}");
        }
        assert_eq!(parse("").unwrap(), []);
    }
}
