//! Hugging Face tokenizer. For decoders, special tokens are added by hooklens, not by the file's post-processor.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokenizers::PostProcessor;

use super::batch::PaddingSide;
use super::declared::Declarations;
use super::growth::Parts;
use super::marian::{FILES, Pieces};
use super::outline;
use super::python_json;
use super::residues;
use super::templates;
use crate::error::{InputError, LoadError, load_errors};
use hooklens_io::caught::caught;
use hooklens_io::json_memory::estimate;
use hooklens_io::regular;

/// Maximum estimated memory, in bytes, of a JSON file's text and values. A list of ninety thousand added tokens takes
/// about this much.
const MOST_MEMORY: usize = 190 << 20;
/// Maximum length in bytes of a protein model's `vocab.txt`, which has a few dozen lines.
const LONGEST_LIST: usize = 1 << 20;

/// Options for tokenization. Unset options use the model's defaults.
///
/// ```
/// use hooklens::{PaddingSide, TokenizeOptions};
/// let options = TokenizeOptions { padding_side: PaddingSide::Left, truncate: Some(1024), ..Default::default() };
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizeOptions {
    /// Whether to prepend a beginning-of-sequence token to each text.
    pub prepend_bos: Option<bool>,
    /// Side on which shorter texts in a batch are padded.
    pub padding_side: PaddingSide,
    /// Maximum number of tokens; the end of a longer text is dropped. By default nothing is dropped, and running a text
    /// longer than the model's position table is an error.
    pub truncate: Option<usize>,
}

/// Converts text to token ids and back, using a model's `tokenizer.json` or a Marian model's SentencePiece files.
///
/// For decoders, the file's own post-processor is not used: a beginning-of-sequence token is added once, according to
/// [`TokenizeOptions::prepend_bos`], and never doubled.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokenizer = model.tokenizer()?;
/// assert_eq!((tokenizer.bos(), tokenizer.vocab_size()), (Some(0), 63));
/// let ids = tokenizer.encode("king drum")?; // no special tokens
/// assert_eq!((ids.clone(), tokenizer.decode(&ids, true)?), (vec![51, 59], "king drum".to_string()));
/// assert_eq!(tokenizer.token(59).as_deref(), Some("drum"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(super) inner: Arc<tokenizers::Tokenizer>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    sep: Option<u32>,
    mask: Option<u32>,
    /// Chat templates, by name.
    templates: Arc<Vec<(String, String)>>,
    /// Text of the special tokens, under the names that chat templates use.
    pub(super) special_texts: Arc<Vec<(String, Value)>>,
    /// Mapping from the inner tokenizer's pieces to a separate vocabulary, if there is one.
    pieces: Option<Pieces>,
    /// Tokenizer of a translation model's target language, if it differs.
    pub(super) target: Option<Arc<Tokenizer>>,
}

impl Tokenizer {
    /// Ids of tokens in a separate vocabulary; none if there is no separate vocabulary.
    pub(super) fn separate_ids(&self) -> BTreeMap<String, u32> {
        let ids = self.pieces.iter().flat_map(|pieces| pieces.ids());
        ids.map(|(token, id)| (token.clone(), *id)).collect()
    }

    /// Loads the tokenizer of a model folder; `None` if it has none.
    ///
    /// Reads `tokenizer.json`, or else Marian's `source.spm`, `target.spm` and `vocab.json`, or else ESM's `vocab.txt`.
    /// Special tokens are read from `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`,
    /// `generation_config.json` and `config.json`, if these exist; tokens declared only there get the ids that Hugging
    /// Face gives them. Chat templates are read from `chat_template.jinja` and `additional_chat_templates`, or else
    /// from `tokenizer_config.json`.
    ///
    /// ```
    /// use hooklens::Tokenizer;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// assert!(Tokenizer::from_folder(folder)?.is_none());
    /// model.save_pretrained(folder)?; // saves the tokenizer too
    /// assert_eq!(Tokenizer::from_folder(folder)?.map(|own| own.vocab_size()), Some(63));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LoadError::Tokenizer`] if a file exists but cannot be used.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, LoadError> {
        let read = |path: &Path| regular::read(path).map_err(load_errors::cant_read(path));
        let (path, list) = (folder.join("tokenizer.json"), folder.join("vocab.txt"));
        let marian = !path.is_file() && FILES.iter().all(|name| folder.join(name).is_file());
        if !path.is_file() && !marian && !list.is_file() {
            return Ok(None);
        }
        let json = |name: &str| -> Result<Option<Value>, LoadError> {
            let path = folder.join(name);
            if path.is_file() { read_json(path).map(Some) } else { Ok(None) }
        };
        let declared = Declarations {
            config: json("tokenizer_config.json")?,
            map: json("special_tokens_map.json")?,
            added: json("added_tokens.json")?,
        };
        let more = [json("generation_config.json")?, json("config.json")?];
        let side: Vec<&Value> = declared.in_order().chain(more.iter().flatten()).collect();
        let files = templates::of_folder(folder)?;
        let finished = |own: Self| match files.is_empty() {
            true => own,
            false => Self { templates: Arc::new(files), ..own },
        };
        if marian {
            return Self::of_marian(folder, &side).map(|own| Some(finished(own)));
        }
        if path.is_file() {
            let own = Self::of_parts(&read(&path)?, &declared, &side, &path)?;
            return Ok(Some(finished(own)));
        }
        let tokens = read(&list)?;
        if tokens.len() > LONGEST_LIST {
            return Ok(None);
        }
        let tokens = String::from_utf8_lossy(&tokens);
        let Some(made) = residues::described(&tokens, &side) else { return Ok(None) };
        Self::of_parts(made.to_string().as_bytes(), &Declarations::default(), &side, &list)
            .map(|own| Some(finished(own)))
    }

    fn of_parts(json: &[u8], declared: &Declarations, side: &[&Value], path: &Path) -> Result<Self, LoadError> {
        let bad = |source: tokenizers::Error| LoadError::Tokenizer { path: path.to_path_buf(), source };
        outline::check(json).map_err(|message| bad(message.into()))?;
        let parts: Parts = serde_json::from_slice(json).map_err(|error| bad(error.into()))?;
        parts.check().map_err(|message| bad(message.into()))?;
        // The library panics on some invalid files.
        let read = caught(|| tokenizers::Tokenizer::from_bytes(json));
        let mut inner = read.unwrap_or_else(|_| Err("its contents are not a valid tokenizer".into())).map_err(bad)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(bad)?;
        let listed = inner.get_added_tokens_decoder();
        let is_listed = |text: &str| listed.values().any(|token| token.content == text);
        let tokens = declared.tokens(is_listed).map_err(|message| bad(message.into()))?;
        inner.add_tokens(tokens).map_err(bad)?;
        let [bos, eos, pad, mask, sep] = special(side, |token| inner.token_to_id(token));
        let templates =
            Arc::new(side.iter().map(|json| templates::of_json(json)).find(|own| !own.is_empty()).unwrap_or_default());
        let mut special_texts = declared.texts();
        for (key, id) in [("bos_token", bos), ("eos_token", eos), ("pad_token", pad), ("sep_token", sep)] {
            if let (false, Some(text)) =
                (special_texts.iter().any(|(own, _)| own == key), id.and_then(|id| inner.id_to_token(id)))
            {
                special_texts.push((key.into(), text.into()));
            }
        }
        let (inner, special_texts) = (Arc::new(inner), Arc::new(special_texts));
        Ok(Self { inner, bos, eos, pad, sep, mask, templates, special_texts, pieces: None, target: None })
    }

    /// Replaces the ids with the ids of a separate vocabulary.
    pub(super) fn with_pieces(self, pieces: Pieces, side: &[&Value]) -> Self {
        let [bos, eos, pad, mask, sep] = special(side, |token| pieces.id(token));
        let (eos, pad) = (eos.or(Some(pieces.end())), pad.or(pieces.id("<pad>")));
        Self { bos, eos, pad, sep, mask, pieces: Some(pieces), ..self }
    }

    /// Tokenizer for the text that an encoder-decoder generates. Marian models have one per language; for other models,
    /// it is the tokenizer itself.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/marian-text")?;
    /// let tokenizer = model.tokenizer()?;
    /// let (read, written) = (tokenizer.encode("the old house")?, tokenizer.target().encode("the old house")?);
    /// assert_ne!(read, written); // each language has its own tokenization
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn target(&self) -> &Tokenizer {
        self.target.as_deref().unwrap_or(self)
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Id of the end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Id of the padding token: the tokenizer's own, else the end- or beginning-of-sequence token, else 0. Padding is
    /// masked, so the choice never changes a result.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokenizer = model.tokenizer()?;
    /// assert_eq!((tokenizer.eos(), tokenizer.bos(), tokenizer.pad()), (None, Some(0), 0));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn pad(&self) -> u32 {
        self.pad.or(self.eos).or(self.bos).unwrap_or(0)
    }

    /// Number of tokens, including special tokens.
    pub fn vocab_size(&self) -> usize {
        self.pieces.as_ref().map_or_else(|| self.inner.get_vocab_size(true), |own| own.ids().len())
    }

    /// Id of a token as spelled in the vocabulary, such as `fra_Latn` or `>>fra<<`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!((model.tokenizer()?.id("fox"), model.tokenizer()?.id("ox")), (Some(9), None));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.pieces {
            Some(own) => own.id(token),
            None => self.inner.token_to_id(token),
        }
    }

    /// Token ids of a text, without special tokens added by the tokenizer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.tokenizer()?.encode("king fox")?, [51, 9]);
    /// let message = model.tokenizer()?.encode("king foxes").unwrap_err().to_string();
    /// assert!(message.starts_with("the vocabulary of 63 tokens lacks `foxes`"), "{message}");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::UnknownWords`] if the vocabulary lacks a word and has no token for unknown words,
    /// [`InputError::Tokenize`] if the tokenizer fails for another reason.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, InputError> {
        if self.pieces.is_some() {
            return Ok(self.encode_with_spans(text)?.into_iter().map(|(id, _)| id).collect());
        }
        let encoding = used(|| self.inner.encode(text, false)).map_err(|e| self.refused(text, e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids and token types of a text or pair of texts, with the special tokens that the tokenizer adds.
    pub(crate) fn encode_special(&self, text: &str, pair: Option<&str>) -> Result<(Vec<u32>, Vec<u32>), InputError> {
        if let Some(own) = &self.pieces {
            let mut ids = self.encode(text)?;
            ids.extend(pair.map(|second| self.encode(second)).transpose()?.unwrap_or_default());
            ids.push(own.end());
            let types = vec![0; ids.len()];
            return Ok((ids, types));
        }
        let encoding = match pair {
            Some(second) => used(|| self.inner.encode((text, second), true)),
            None => used(|| self.inner.encode(text, true)),
        };
        let encoding = encoding.map_err(|e| self.refused(&[text, pair.unwrap_or_default()].join(" "), e))?;
        Ok((encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec()))
    }

    /// Like [`Tokenizer::encode_special`] for one text, which is truncated so that there are at most `longest` tokens,
    /// including special ones.
    pub(crate) fn encode_special_truncated(&self, text: &str, longest: usize) -> Result<Vec<u32>, InputError> {
        if let Some(own) = &self.pieces {
            let mut ids = self.encode_first(text, longest.saturating_sub(1))?;
            ids.push(own.end());
            return Ok(ids);
        }
        let text = self.enough(text, longest)?;
        let failed = |e: tokenizers::Error| self.refused(text, e);
        let mut encoding = used(|| self.inner.encode(text, false)).map_err(failed)?;
        let added = self.inner.get_post_processor().map_or(0, |own| own.added_tokens(false));
        encoding.truncate(longest.saturating_sub(added), 0, tokenizers::TruncationDirection::Right);
        let whole = used(|| self.inner.post_process(encoding, None, true)).map_err(failed)?;
        Ok(whole.get_ids().to_vec())
    }

    /// Token ids of a text, each with its byte range.
    pub(crate) fn encode_with_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, InputError> {
        let encoding = |text: &str| used(|| self.inner.encode(text, false)).map_err(|e| self.refused(text, e));
        let spans = |encoding: &tokenizers::Encoding| -> Vec<(u32, Range<usize>)> {
            let spans = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
            encoding.get_ids().iter().copied().zip(spans).collect()
        };
        match &self.pieces {
            None => Ok(spans(&encoding(text)?)),
            Some(own) => own.encode(text, |text| {
                let encoding = encoding(text)?;
                let tokens = encoding.get_tokens().iter().cloned();
                Ok(spans(&encoding).into_iter().zip(tokens).map(|((id, at), token)| (id, at, token)).collect())
            }),
        }
    }

    /// Names and texts of all chat templates. A template without a name is called `default`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.tokenizer()?.chat_templates().count(), 0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn chat_templates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.templates.iter().map(|(name, template)| (name.as_str(), template.as_str()))
    }

    /// Decodes ids to text. Special tokens are kept unless `skip_special` is set.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokenizer = model.tokenizer()?;
    /// assert_eq!(tokenizer.decode(&[0, 51], false)?, "<bos> king");
    /// assert_eq!(tokenizer.decode(&[0, 51], true)?, "king");
    /// let message = tokenizer.decode(&[51, 999], false).unwrap_err().to_string();
    /// assert_eq!(message, "no token has the id 999: the vocabulary has 63 tokens");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NoToken`] if an id has no token, [`InputError::Tokenize`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, InputError> {
        match ids.iter().find(|id| self.token(**id).is_none()) {
            Some(id) => Err(InputError::NoToken { id: *id, vocabulary: self.vocab_size() }),
            None => decode_generated(self, ids, skip_special),
        }
    }

    /// Token with this id, as spelled in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.pieces {
            Some(own) => own.token(id).map(str::to_string),
            None => self.inner.id_to_token(id),
        }
    }

    /// Ids of all tokens, keyed by token.
    pub(super) fn all_ids(&self) -> std::collections::HashMap<String, u32> {
        self.pieces.as_ref().map_or_else(|| self.inner.get_vocab(true), |own| own.ids().clone())
    }
}

/// Ids of the bos, eos, pad, mask and sep tokens, which the files give as text or as an id.
fn special(side: &[&Value], id_of: impl Fn(&str) -> Option<u32>) -> [Option<u32>; 5] {
    ["bos", "eos", "pad", "mask", "sep"].map(|name| {
        let text_key = format!("{name}_token");
        let by_text = side.iter().find_map(|json| match json.get(&text_key)? {
            Value::String(text) => id_of(text),
            other => id_of(other.get("content")?.as_str()?),
        });
        let id_key = format!("{name}_token_id");
        let by_id = |json: &Value| match json.get(&id_key)? {
            Value::Array(ids) => ids.first()?.as_u64(),
            id => id.as_u64(),
        };
        by_text.or_else(|| side.iter().find_map(|json| by_id(json)).and_then(|id| u32::try_from(id).ok()))
    })
}

/// Reads a JSON file.
pub fn read_json(path: PathBuf) -> Result<Value, LoadError> {
    let text = regular::read(&path).map_err(load_errors::cant_read(&path))?;
    if text.len() + estimate(&text) > MOST_MEMORY {
        let most = MOST_MEMORY >> 20;
        let reason = format!("its text and values take more than {most} MiB of memory");
        return Err(LoadError::Content { path, reason });
    }
    python_json::parse(&text).map_err(|source| LoadError::Json { path, source })
}

/// Runs the tokenizer library, converting panics caused by inconsistent files into errors.
fn used<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    caught(work).unwrap_or_else(|_| Err("the library panicked, so the tokenizer file is probably inconsistent".into()))
}

/// Builds a tokenizer from the contents of `tokenizer.json` and the JSON files beside it. `path` is for error messages.
pub fn tokenizer_of_parts(json: &[u8], side: &[Value], path: &Path) -> Result<Tokenizer, LoadError> {
    Tokenizer::of_parts(json, &Declarations::default(), &side.iter().collect::<Vec<_>>(), path)
}

/// Drops a tokenizer's padding token if it is outside the model's vocabulary.
pub fn fitted_to_vocabulary(tokenizer: Tokenizer, d_vocab: usize) -> Tokenizer {
    Tokenizer { pad: tokenizer.pad.filter(|pad| (*pad as usize) < d_vocab), ..tokenizer }
}

/// Names and contents of the files to save a tokenizer to, in the form that [`Tokenizer::from_folder`] reads.
pub fn tokenizer_files(tokenizer: &Tokenizer) -> Result<[(&'static str, String); 2], LoadError> {
    let bad = |source: tokenizers::Error| LoadError::Tokenizer { path: PathBuf::from("tokenizer.json"), source };
    if tokenizer.pieces.is_some() {
        return Err(bad("a tokenizer loaded from SentencePiece files can't be saved".into()));
    }
    let json = tokenizer.inner.to_string(true).map_err(bad)?;
    let named = [
        ("bos", tokenizer.bos),
        ("eos", tokenizer.eos),
        ("pad", tokenizer.pad),
        ("sep", tokenizer.sep),
        ("mask", tokenizer.mask),
    ];
    let special =
        named.into_iter().filter_map(|(name, id)| Some((format!("{name}_token"), tokenizer.token(id?)?.into())));
    let mut special: serde_json::Map<String, Value> = special.collect();
    for (name, text) in tokenizer.special_texts.iter() {
        special.entry(name.clone()).or_insert_with(|| text.clone());
    }
    match &tokenizer.templates[..] {
        [] => {}
        [(name, template)] if name == templates::DEFAULT => {
            special.insert("chat_template".into(), template.as_str().into());
        }
        named => {
            let one = |(name, template): &(String, String)| json!({"name": name, "template": template});
            special.insert("chat_template".into(), named.iter().map(one).collect());
        }
    }
    Ok([("tokenizer.json", json), ("tokenizer_config.json", format!("{:#}\n", Value::Object(special)))])
}

/// Decodes generated ids. Ids without a token are skipped: in GPT-J and Qwen, for example, embeddings are padded to a
/// round size, so a model has more ids than its tokenizer has tokens.
pub fn decode_generated(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, InputError> {
    if let Some(own) = &tokenizer.pieces {
        return Ok(own.decode(ids, skip_special));
    }
    used(|| tokenizer.inner.decode(ids, skip_special)).map_err(|source| InputError::Tokenize { source })
}

/// Ids of a tokenizer's structural tokens (beginning, end, padding, separator), each once.
pub fn structural_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    let own = [tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.sep];
    let mut ids: Vec<u32> = own.into_iter().flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Token id of a text that is exactly one token.
///
/// # Errors
/// [`InputError::NotOneToken`] if the text is not a single token, and the errors of [`Tokenizer::encode`].
pub fn single_token(tokenizer: &Tokenizer, text: &str) -> Result<u32, InputError> {
    match tokenizer.encode(text)?[..] {
        [id] => Ok(id),
        ref ids => Err(InputError::NotOneToken { text: text.to_string(), count: ids.len() }),
    }
}

/// Id of a tokenizer's mask token, which a masked language model fills in.
pub fn mask_token(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.mask
}
