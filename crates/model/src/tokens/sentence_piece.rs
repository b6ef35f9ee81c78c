//! Converts a SentencePiece model (`source.spm`) to the equivalent `tokenizer.json`.
//!
//! Only the parts of the protocol buffer that affect tokenization are read: the pieces with their scores and types, and
//! the normalizer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Type of the piece for unknown text. Pieces of types other than this one and the three below are normal pieces.
const UNKNOWN: u64 = 2;
/// Type of control pieces, which match no text.
const CONTROL: u64 = 3;
/// Type of user-defined pieces, which are used wherever they match.
const USER_DEFINED: u64 = 4;
/// Type of unused pieces, which match no text.
const UNUSED: u64 = 5;
/// Prefix for a piece that must not match any text.
const UNREACHABLE: char = '\u{10FFFF}';

/// The parts of a SentencePiece model that affect tokenization.
pub(super) struct SentencePieces {
    pieces: Vec<Piece>,
    /// Precompiled character map of the normalizer.
    characters: Vec<u8>,
    prefix: bool,
    trims: bool,
}

#[derive(Debug, Default)]
struct Piece {
    text: String,
    score: f32,
    kind: u64,
}

impl SentencePieces {
    /// Parses a model; the error says what is wrong with it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut own = Self { pieces: Vec::new(), characters: Vec::new(), prefix: true, trims: true };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => own.pieces.push(Piece::read(piece)?),
                (2, Wire::Bytes(training)) => check_training(training)?,
                (3, Wire::Bytes(normalizer)) => own.set_normalizer(normalizer)?,
                _ => {}
            }
        }
        let unknown = own.pieces.iter().filter(|piece| piece.kind == UNKNOWN).count();
        match unknown {
            1 => Ok(own),
            _ => Err(format!(
                "{unknown} of its {} pieces are of the unknown type; expected exactly one",
                own.pieces.len()
            )),
        }
    }

    fn set_normalizer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (2, Wire::Bytes(table)) => self.characters = table.to_vec(),
                (3, Wire::Number(flag)) => self.prefix = flag != 0,
                (4, Wire::Number(flag)) => self.trims = flag != 0,
                (5, Wire::Number(0)) => return Err("it does not escape spaces, which is not supported".into()),
                (6, Wire::Bytes([_, ..])) => {
                    return Err(
                        "it has custom normalization rules (`normalization_rule_tsv`), which are not supported".into(),
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Text of each piece, in id order; `None` for the unknown piece.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Option<&str>> {
        self.pieces.iter().map(|piece| (piece.kind != UNKNOWN).then_some(&*piece.text))
    }

    /// Text of all pieces except unknown and control pieces.
    pub(super) fn plain(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter(|piece| !matches!(piece.kind, UNKNOWN | CONTROL)).map(|piece| &*piece.text)
    }

    /// Builds a `tokenizer.json` whose ids are the piece numbers, followed by `special` as added tokens.
    pub(super) fn json(&self, special: &[&str]) -> Value {
        let most = self.pieces.iter().filter(|p| p.kind < UNKNOWN).map(|p| p.score).fold(f32::MIN, f32::max);
        let vocabulary: Vec<(String, f64)> = (self.pieces.iter())
            .map(|piece| match piece.kind {
                UNKNOWN | CONTROL | UNUSED => (format!("{UNREACHABLE}{}", piece.text), 0.0),
                // A user-defined piece is used wherever it matches.
                USER_DEFINED => (piece.text.clone(), f64::from(piece.text.len() as f32 * most - 0.1)),
                _ => (piece.text.clone(), f64::from(piece.score)),
            })
            .collect();
        let unknown = self.pieces.iter().position(|piece| piece.kind == UNKNOWN);
        let table = (!self.characters.is_empty())
            .then(|| json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&self.characters)}));
        // Trim only spaces: a newline that the character map keeps is an ordinary character.
        let replaced = |pattern, by| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": by});
        let trimmed = [replaced("^ +| +$", ""), replaced(" {2,}", " ")].into_iter().filter(|_| self.trims);
        let normalizers: Vec<Value> = table.into_iter().chain(trimmed).collect();
        let added: Vec<Value> = (special.iter().enumerate())
            .map(|(number, text)| {
                json!({
                    "id": self.pieces.len() + number, "content": text, "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false,
                })
            })
            .collect();
        json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            // Pieces may span words, so the text is not split first.
            "pre_tokenizer": {
                "type": "Metaspace", "replacement": "\u{2581}", "split": false,
                "prepend_scheme": if self.prefix { "always" } else { "never" },
            },
            "model": {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": false},
        })
    }
}

impl Piece {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut own = Self { kind: 1, ..Self::default() };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(text)) => {
                    own.text =
                        String::from_utf8(text.to_vec()).map_err(|_| "a piece is not valid UTF-8".to_string())?;
                }
                (2, Wire::Four(bits)) => own.score = f32::from_le_bytes(bits),
                (3, Wire::Number(kind)) => own.kind = kind,
                _ => {}
            }
        }
        if own.score.is_finite() { Ok(own) } else { Err(format!("the score of `{}` is {}", own.text, own.score)) }
    }
}

/// Rejects training options under which text would be split differently.
fn check_training(bytes: &[u8]) -> Result<(), String> {
    for field in Fields(bytes) {
        match field? {
            (3, Wire::Number(kind)) if kind != 1 => {
                let name = ["", "unigram", "bpe", "word", "char"].get(kind as usize).copied().unwrap_or("other");
                return Err(format!(
                    "its type is `{name}`, but only `unigram` is supported; save a tokenizer.json next to it"
                ));
            }
            (24, Wire::Number(flag)) if flag != 0 => {
                return Err(
                    "it treats spaces as suffixes of words (`treat_whitespace_as_suffix`), which is not supported"
                        .into(),
                );
            }
            (35, Wire::Number(flag)) if flag != 0 => {
                return Err("it falls back to bytes (`byte_fallback`), which is not supported".into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Value of a protocol buffer field.
#[derive(Debug)]
enum Wire<'b> {
    Number(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'b [u8]),
}

/// Iterator over the fields of a message, with their numbers.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for place in 0..10 {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(first & 0x7F) << (7 * place).min(63);
            if first & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'b>)> {
        let tag = self.number()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => self.take(8).map(|_| Wire::Eight)?,
            2 => {
                let count = self.number()?;
                Wire::Bytes(self.take(count)?)
            }
            5 => Wire::Four(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((tag >> 3, wire))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u64, Wire<'b>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or_else(|| "it is not a SentencePiece model, or it is damaged".to_string());
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn piece(text: &str, kind: u8) -> Vec<u8> {
        field(1, &[&field(1, text.as_bytes())[..], &[2 << 3 | 5], &1.5f32.to_le_bytes(), &[3 << 3, kind]].concat())
    }

    #[test]
    fn messages_are_read_and_damage_is_told() {
        let model = [piece("<unk>", 2), piece("\u{2581}a", 1)].concat();
        let read = SentencePieces::read(&model).unwrap();
        assert_eq!(read.pieces().collect::<Vec<_>>(), [None, Some("\u{2581}a")]);
        assert_eq!(read.json(&["x"])["model"]["vocab"][1], json!(["\u{2581}a", 1.5]));
        let message = |bytes: &[u8]| SentencePieces::read(bytes).err().unwrap();
        assert!(message(&model[..model.len() - 1]).contains("damaged"));
        assert!(message(&[0xFF; 11]).contains("damaged"));
        assert!(message(&piece("a", 1)).contains("0 of its 1 pieces"));
        assert!(message(&[model.clone(), field(2, &[3 << 3, 2])].concat()).contains("`bpe`"));
    }
}
