//! Checks large tokenizer files before the tokenizer library parses them, because parsing takes a hundred times the
//! memory of their text.
//!
//! Of the vocabulary, only a hash of each token is kept; each merge is checked against these hashes. Only the types of
//! the added tokens are checked. All other fields must be small; the library itself checks them, with an empty
//! vocabulary.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::from_slice;
use xxhash_rust::xxh3::xxh3_64;

use hooklens_io::caught::caught;
use hooklens_io::excerpt::excerpt;
use hooklens_io::json_memory::estimate;
use hooklens_io::json_shape::Each;

/// Maximum size in bytes of a file that only the library checks.
const SMALL: usize = 1 << 20;
/// Maximum number of tokens. The largest vocabularies have a million.
const MOST_TOKENS: usize = 1 << 21;
/// Maximum number of fields in an object. Does not apply to the vocabulary and the merges.
const MOST_FIELDS: usize = 100;
/// Maximum estimated memory, in bytes, of all fields other than tokens and merges. The largest of these fields are
/// normalization tables, which take less than a million bytes.
const MOST_MEMORY: usize = 12 << 20;

/// Checks the contents of a `tokenizer.json`. The error describes what is wrong with them.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    if json.len() <= SMALL {
        return Ok(());
    }
    from_slice::<IgnoredAny>(json).map_err(|error| error.to_string())?;
    let mut small = Small::default();
    let mut models = Vec::new();
    small.open();
    for (name, value) in fields(json, "the tokenizer")? {
        match name {
            b"\"model\"" => {
                small.name(name);
                models.push(Model::read(value, &mut small)?);
            }
            b"\"added_tokens\"" => {
                read::<Each<AddedToken>>("added_tokens", value)?;
            }
            _ => small.add(name, value)?,
        }
    }
    small.close();
    small.check()?;
    models.iter().try_for_each(Model::check)
}

/// A model with its vocabulary, and the text of its merges.
struct Model<'j> {
    tokens: Tokens,
    merges: Option<&'j [u8]>,
    /// Prefix of tokens that continue a word.
    prefix: String,
    unknown: Option<usize>,
}

impl<'j> Model<'j> {
    /// Reads the vocabulary and the merges, and adds the other fields to `small`.
    fn read(json: &'j [u8], small: &mut Small) -> Result<Self, String> {
        let mut model = Self { tokens: Tokens::default(), merges: None, prefix: String::new(), unknown: None };
        small.open();
        for (name, value) in fields(json, "its `model`")? {
            match name {
                b"\"vocab\"" => {
                    model.tokens = read("model.vocab", value)?;
                    small.add(name, if model.tokens.are_scored { br#"[["a", 0]]"# } else { b"{}" })?;
                }
                b"\"merges\"" => {
                    model.merges = Some(value);
                    small.add(name, b"[]")?;
                }
                b"\"unk_id\"" => {
                    model.unknown = read("model.unk_id", value)?;
                    small.add(name, if model.unknown.is_some() { b"0" } else { b"null" })?;
                }
                _ => {
                    small.add(name, value)?;
                    if name == b"\"continuing_subword_prefix\"" {
                        model.prefix = from_slice::<Option<String>>(value).ok().flatten().unwrap_or_default();
                    }
                }
            }
        }
        small.close();
        Ok(model)
    }

    /// Checks the fields that refer to the vocabulary.
    fn check(&self) -> Result<(), String> {
        let count = self.tokens.count;
        if let Some(unknown) = self.unknown.filter(|unknown| *unknown >= count) {
            return Err(format!("its `model.unk_id` is {unknown}, but its vocabulary has {count} tokens"));
        }
        let Some(merges) = self.merges else { return Ok(()) };
        let merges = self.deserialize(&mut serde_json::Deserializer::from_slice(merges));
        merges.map_err(|error| wrong("model.merges", &error))
    }

    /// Checks that a merge's two parts and their concatenation are in the vocabulary.
    fn check_merge(&self, left: &str, right: &str, whole: &mut String) -> Result<(), String> {
        whole.clear();
        whole.push_str(left);
        whole.push_str(right.get(self.prefix.len()..).unwrap_or_default());
        match [left, right, whole].into_iter().find(|token| !self.tokens.hashes.contains(&xxh3_64(token.as_bytes()))) {
            Some(token) => Err(format!("`{}` is not in the vocabulary", excerpt(token))),
            None => Ok(()),
        }
    }
}

/// Fields that are small in any tokenizer, written as the JSON text of a tokenizer with an empty vocabulary.
#[derive(Default)]
struct Small {
    text: Vec<u8>,
    /// Estimated memory.
    memory: usize,
}

impl Small {
    fn open(&mut self) {
        self.text.push(b'{');
    }

    fn close(&mut self) {
        self.text.push(b'}');
    }

    fn name(&mut self, name: &[u8]) {
        if !self.text.ends_with(b"{") {
            self.text.push(b',');
        }
        self.text.extend_from_slice(name);
        self.text.push(b':');
    }

    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        self.memory += estimate(name) + estimate(value);
        if self.memory > MOST_MEMORY {
            let name = String::from_utf8_lossy(name);
            return Err(format!(
                "its fields other than tokens and merges are too large (limit reached at {})",
                excerpt(name)
            ));
        }
        self.name(name);
        self.text.extend_from_slice(value);
        Ok(())
    }

    /// Lets the library parse the fields.
    fn check(&self) -> Result<(), String> {
        // The library panics on some invalid files.
        let parsed = caught(|| tokenizers::Tokenizer::from_bytes(&self.text).map(drop));
        parsed
            .unwrap_or_else(|_| Err("its contents are not a valid tokenizer".into()))
            .map_err(|error| unplaced(&*error))
    }
}

/// An error's message without its line and column, which are not those in the file.
fn unplaced(error: &(dyn std::error::Error + 'static)) -> String {
    let message = excerpt(error);
    message.split(" at line ").next().unwrap_or_default().to_string()
}

fn wrong(field: &str, error: &serde_json::Error) -> String {
    format!("its `{field}` is invalid: {}", unplaced(error))
}

fn read<'j, T: Deserialize<'j>>(field: &str, json: &'j [u8]) -> Result<T, String> {
    from_slice(json).map_err(|error| wrong(field, &error))
}

/// Name, with quotes, and value of an object's field, as text.
type Field<'j> = (&'j [u8], &'j [u8]);

/// The fields of an object.
fn fields<'j>(object: &'j [u8], what: &str) -> Result<Vec<Field<'j>>, String> {
    let inside = object.trim_ascii().strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    let inside = inside.ok_or_else(|| format!("{what} is not an object"))?;
    let mut fields = Vec::new();
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let (mut start, mut colon) = (0, None);
    for (at, byte) in inside.iter().chain(b",").enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b':' if depth == 0 => colon = Some(at),
            b',' if depth == 0 => {
                let field = colon.take().map(|colon| (&inside[start..colon], &inside[colon + 1..at]));
                fields.extend(field.map(|(name, value)| (name.trim_ascii(), value.trim_ascii())));
                start = at + 1;
                if fields.len() > MOST_FIELDS {
                    return Err(format!("{what} has more than {MOST_FIELDS} fields"));
                }
            }
            _ => {}
        }
    }
    Ok(fields)
}

/// A token outside the model's vocabulary.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only the types of the fields are checked")]
struct AddedToken {
    id: u32,
    content: Hash,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// Hash of a text.
struct Hash(u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct HashVisitor;

        impl Visitor<'_> for HashVisitor {
            type Value = Hash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Hash, E> {
                Ok(Hash(xxh3_64(text.as_bytes())))
            }
        }

        from.deserialize_str(HashVisitor)
    }
}

/// A vocabulary: an object with the id of each token, or a list of tokens with scores.
#[derive(Default)]
struct Tokens {
    hashes: HashSet<u64>,
    count: usize,
    are_scored: bool,
}

impl Tokens {
    fn add<E: Error>(&mut self, token: Hash) -> Result<(), E> {
        self.hashes.insert(token.0);
        self.count += 1;
        if self.count > MOST_TOKENS {
            return Err(E::custom(format!("it has more than {MOST_TOKENS} tokens")));
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self::default())
    }
}

impl<'de> Visitor<'de> for Tokens {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tokens, or a list of tokens with scores")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        while let Some((token, _)) = tokens.next_entry::<Hash, u32>()? {
            self.add(token)?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        self.are_scored = true;
        while let Some((token, _)) = tokens.next_element::<(Hash, f64)>()? {
            self.add(token)?;
        }
        Ok(self)
    }
}

/// The parts of a merge: a pair of tokens, or a line with a space between them.
enum Merge<'j> {
    Pair([Cow<'j, str>; 2]),
    Line(Cow<'j, str>),
}

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair of tokens")
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Merge<'de>, E> {
                Ok(Merge::Line(line.into()))
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Merge<'de>, E> {
                Ok(Merge::Line(line.to_string().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge<'de>, A::Error> {
                #[derive(Deserialize)]
                struct Token<'j>(#[serde(borrow)] Cow<'j, str>);

                let (left, right) = (pair.next_element::<Token<'_>>()?, pair.next_element::<Token<'_>>()?);
                match (left, right, pair.next_element::<IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(Merge::Pair([left.0, right.0])),
                    _ => Err(A::Error::custom("a merge does not have two tokens")),
                }
            }
        }

        from.deserialize_any(MergeVisitor)
    }
}

impl<'de> DeserializeSeed<'de> for &Model<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &Model<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut merges: A) -> Result<(), A::Error> {
        let (mut are_lines, mut whole) = (None, String::new());
        while let Some(merge) = merges.next_element::<Merge<'_>>()? {
            let is_line = matches!(merge, Merge::Line(_));
            if *are_lines.get_or_insert(is_line) != is_line {
                return Err(A::Error::custom("some merges are pairs and some are strings"));
            }
            let checked = match &merge {
                Merge::Pair([left, right]) => self.check_merge(left, right, &mut whole),
                Merge::Line(line) if line.starts_with("#version") => Ok(()),
                Merge::Line(line) => match line.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
                    Some((left, right)) => self.check_merge(left, right, &mut whole),
                    None => Err(format!("`{}` is not a pair of tokens", excerpt(line))),
                },
            };
            checked.map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Applies `change` to a valid tokenizer, pads it with spaces so that it counts as large, and checks it.
    fn checked(change: impl Fn(&mut Value)) -> Result<(), String> {
        let letters = || (0..60).map(|letter| char::from(b'A' + letter).to_string());
        let pairs = || letters().flat_map(|left| letters().map(move |right| (left.clone(), right)));
        let more = (0..60_000).map(|number| format!("token {number}"));
        let tokens = letters().chain(pairs().map(|(left, right)| left + &right)).chain(more);
        let vocabulary: serde_json::Map<String, Value> = tokens.zip((0..).map(Value::from)).collect();
        let mut tokenizer = json!({
            "version": "1.0",
            "added_tokens": [{"id": 0, "content": "A", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": null,
            "model": {"type": "BPE", "unk_token": null, "vocab": vocabulary, "merges": pairs().collect::<Vec<_>>()},
        });
        change(&mut tokenizer);
        let text = tokenizer.to_string() + &" ".repeat(SMALL);
        let read = tokenizers::Tokenizer::from_bytes(&text);
        let checked = check(text.as_bytes());
        assert_eq!(read.is_ok(), checked.is_ok(), "{:?} {checked:?}", read.err());
        checked
    }

    /// Files that the library accepts are accepted, and no others.
    #[test]
    fn what_the_library_accepts_is_accepted() {
        checked(|_| ()).unwrap();
        let lines = |merges: &Value| -> Vec<Value> {
            let pairs = merges.as_array().unwrap().iter();
            pairs.map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()).into()).collect()
        };
        checked(|file| {
            let mut merges = lines(&file["model"]["merges"]);
            merges.insert(0, "#version: 0.2".into());
            file["model"]["merges"] = merges.into();
        })
        .unwrap();
        let scored = |file: &mut Value, unknown: usize| {
            let vocabulary = file["model"]["vocab"].as_object().unwrap();
            let scores: Vec<Value> = vocabulary.keys().map(|token| json!([token, -1.5])).collect();
            file["model"] = json!({"unk_id": unknown, "type": "Unigram", "vocab": scores});
        };
        checked(|file| scored(file, 3)).unwrap();
        checked(|file| file["model"] = json!({"vocab": file["model"]["vocab"], "type": "WordLevel", "unk_token": "A"}))
            .unwrap();
        checked(|file| {
            let model = &mut file["model"];
            model["continuing_subword_prefix"] = "B".into();
            model["merges"] = json!([["A", "BC"], ["CD", "B"]]);
        })
        .unwrap();
        let message = checked(|file| scored(file, 1 << 20)).unwrap_err();
        assert!(message.starts_with("its `model.unk_id` is 1048576, but its vocabulary has 63"), "{message}");
        let wrong: [(&str, &str, Value); 10] = [
            ("/model/merges", "invalid type: map, expected a list of merges", json!({})),
            ("/model/merges/7", "a merge does not have two tokens", json!(["A", "B", "C"])),
            ("/model/merges/7", "a merge does not have two tokens", json!(["A"])),
            ("/model/merges/7", "some merges are pairs and some are strings", json!("A B")),
            ("/model/merges/7", "its `model.merges` is invalid: `é` is not in the vocabulary", json!(["é", "A"])),
            ("/model/merges/7", "`AAA` is not in the vocabulary", json!(["AA", "A"])),
            ("/model/vocab/B", "its `model.vocab` is invalid: invalid type: floating point", json!(0.5)),
            ("/model/vocab", "expected an object of tokens, or a list of tokens with scores", json!(7)),
            ("/added_tokens", "its `added_tokens` is invalid: missing field `id`", json!([{"content": "A"}])),
            ("/normalizer/type", "untagged enum NormalizerUntagged", json!("NFX")),
        ];
        for (place, reason, value) in wrong {
            let message = checked(|file| *file.pointer_mut(place).unwrap() = value.clone()).unwrap_err();
            assert!(message.contains(reason) && !message.contains(" at line "), "{place}: {message}");
        }
    }

    #[test]
    fn other_large_fields_are_refused() {
        let long = vec![0; 1 << 20];
        for file in [json!({"normalizer": long}), json!({"model": {"vocab": {}, "x": long}}), json!(long)] {
            assert!(check(file.to_string().as_bytes()).is_err());
        }
        let names: serde_json::Map<String, Value> = (0..200_000).map(|name| (name.to_string(), json!(0))).collect();
        let message = check(Value::from(names).to_string().as_bytes()).unwrap_err();
        assert_eq!(message, "the tokenizer has more than 100 fields");
    }
}
