//! Special tokens declared in the files beside `tokenizer.json`.

use serde_json::Value;
use tokenizers::AddedToken;

use hooklens_io::excerpt::excerpt;

/// Names of special tokens, in the order in which Hugging Face adds them.
const NAMES: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// Files beside `tokenizer.json` that declare tokens.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    /// Contents of `tokenizer_config.json`.
    pub(super) config: Option<Value>,
    /// Contents of `special_tokens_map.json`.
    pub(super) map: Option<Value>,
    /// Contents of `added_tokens.json`.
    pub(super) added: Option<Value>,
}

impl Declarations {
    /// The files that name special tokens, in order of precedence. `tokenizer_config.json` comes first if it has
    /// `added_tokens_decoder`, which is newer than `special_tokens_map.json`.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Value> {
        let [first, second] = if self.lists_all() { [&self.config, &self.map] } else { [&self.map, &self.config] };
        first.iter().chain(second)
    }

    /// Whether `tokenizer_config.json` lists all added tokens, so that the older files are ignored.
    fn lists_all(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.get("added_tokens_decoder").is_some_and(Value::is_object))
    }

    /// Declared tokens, in the order in which they are assigned ids. Tokens for which `listed` returns true are already
    /// in the vocabulary and stay as they are.
    ///
    /// # Errors
    /// Describes what is wrong with a declaration.
    pub(super) fn tokens(&self, listed: impl Fn(&str) -> bool) -> Result<Vec<AddedToken>, String> {
        let special = self.special()?;
        let is_special = |token: &AddedToken| special.iter().any(|own| own.content == token.content);
        let mut tokens = self.listed_by_id()?;
        for token in tokens.iter_mut().filter(|token| is_special(token)) {
            // Without `added_tokens_decoder`, special tokens are matched in unnormalized text.
            token.normalized &= self.lists_all();
            token.special = true;
        }
        let new = special.iter().filter(|token| !listed(&token.content)).cloned().collect::<Vec<_>>();
        for token in new {
            if !tokens.iter().any(|own| own.content == token.content) {
                tokens.push(token);
            }
        }
        Ok(tokens)
    }

    /// Tokens declared with ids, in id order.
    fn listed_by_id(&self) -> Result<Vec<AddedToken>, String> {
        let listed =
            self.config.as_ref().filter(|_| self.lists_all()).and_then(|config| config.get("added_tokens_decoder"));
        let mut tokens: Vec<(u64, AddedToken)> = match (listed, &self.added) {
            (Some(listed), _) => (listed.as_object().into_iter().flatten())
                .map(|(id, token)| {
                    Ok((id.parse().map_err(|_| wrong("added_tokens_decoder", token))?, described(token)?))
                })
                .collect::<Result<_, String>>()?,
            (None, Some(added)) => (added.as_object().ok_or_else(|| wrong("added_tokens.json", added))?.iter())
                .map(|(text, id)| {
                    let id = id.as_u64().ok_or_else(|| wrong("added_tokens.json", id))?;
                    Ok((id, AddedToken::from(text.as_str(), false)))
                })
                .collect::<Result<_, String>>()?,
            (None, None) => Vec::new(),
        };
        tokens.sort_by_key(|(id, _)| *id);
        Ok(tokens.into_iter().map(|(_, token)| token).collect())
    }

    /// Special tokens, without duplicates.
    fn special(&self) -> Result<Vec<AddedToken>, String> {
        let mut tokens: Vec<AddedToken> = Vec::new();
        let mut add = |value: &Value| -> Result<(), String> {
            let token = AddedToken { special: true, ..described(value)? };
            if !tokens.iter().any(|own| own.content == token.content) {
                tokens.push(token);
            }
            Ok(())
        };
        // The older file is ignored if the newer one lists all tokens.
        let files = || self.in_order().take(if self.lists_all() { 1 } else { 2 });
        let given = |key: &str| files().find_map(|json| json.get(key).filter(|value| !value.is_null()));
        for name in NAMES {
            // Some files give `false` for a missing token.
            given(&format!("{name}_token")).filter(|value| !value.is_boolean()).map_or(Ok(()), &mut add)?;
        }
        for json in files() {
            for key in ["additional_special_tokens", "extra_special_tokens"] {
                match json.get(key) {
                    Some(Value::Array(tokens)) => tokens.iter().try_for_each(&mut add)?,
                    Some(Value::Object(tokens)) => tokens.values().try_for_each(&mut add)?,
                    _ => {}
                }
            }
        }
        Ok(tokens)
    }

    /// Text of each special token, under the name that chat templates use.
    pub(super) fn texts(&self) -> Vec<(String, Value)> {
        let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(Value::from);
        let named = NAMES.iter().filter_map(|name| {
            let key = format!("{name}_token");
            let value = self.in_order().find_map(|json| text(json.get(&key)?))?;
            Some((key, value))
        });
        let more = self.in_order().find_map(|json| {
            let tokens: Vec<Value> =
                json.get("additional_special_tokens")?.as_array()?.iter().filter_map(text).collect();
            (!tokens.is_empty()).then(|| ("additional_special_tokens".to_string(), tokens.into()))
        });
        named.chain(more).collect()
    }
}

/// Parses a token declaration: a string, or an object with matching options.
fn described(value: &Value) -> Result<AddedToken, String> {
    if let Some(text) = value.as_str() {
        return Ok(AddedToken::from(text, true));
    }
    let text =
        value.get("content").and_then(Value::as_str).ok_or_else(|| wrong("the list of special tokens", value))?;
    let flag = |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    let special = flag("special", false);
    Ok(AddedToken {
        content: text.into(),
        single_word: flag("single_word", false),
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
        normalized: flag("normalized", !special),
        special,
    })
}

fn wrong(what: &str, value: &Value) -> String {
    format!("{what} contains {}, which does not describe a token", excerpt(value))
}
