//! Marian tokenizers: a SentencePiece model for each of two languages, and a shared vocabulary of ids.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::sentence_piece::SentencePieces;
use super::tokenizer::{Tokenizer, read_json, tokenizer_of_parts};
use crate::error::{LoadError, load_errors};
use hooklens_io::regular;

/// Tokenizer files of a Marian model: the source language's model, the target language's model, and the vocabulary.
pub const FILES: [&str; 3] = ["source.spm", "target.spm", "vocab.json"];

/// SentencePiece's symbol for a space.
const SPACE: &str = "\u{2581}";

/// Maps the pieces of a SentencePiece model to ids in a separate vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    /// Id of each of the model's pieces.
    of_piece: Arc<Vec<u32>>,
    vocabulary: Arc<Vocabulary>,
}

/// Vocabulary shared by both languages.
#[derive(Debug)]
struct Vocabulary {
    ids: HashMap<String, u32>,
    tokens: HashMap<u32, String>,
    unknown: u32,
    end: u32,
    /// Special tokens, which are matched verbatim in text.
    special: Vec<u32>,
    /// Pieces of the target language.
    written: HashSet<String>,
}

impl Tokenizer {
    /// Loads the tokenizer from a folder with Marian's files; its `target` is the tokenizer of the target language.
    pub(super) fn of_marian(folder: &Path, side: &[&Value]) -> Result<Self, LoadError> {
        let path = |number: usize| folder.join(FILES[number]);
        let refused = |path: &Path, reason: String| LoadError::Tokenizer { path: path.into(), source: reason.into() };
        if side.iter().any(|json| json.get("separate_vocabs") == Some(&Value::Bool(true))) {
            let reason = "separate vocabularies for the two languages (`separate_vocabs`) are not supported; remove \
                the file to use the model with token ids";
            return Err(refused(&path(0), reason.into()));
        }
        let model = |number: usize| {
            let path = path(number);
            let bytes = regular::read(&path).map_err(load_errors::cant_read(&path))?;
            SentencePieces::read(&bytes).map_err(|reason| refused(&path, reason))
        };
        let (source, target) = (model(0)?, model(1)?);
        let mut vocabulary = Vocabulary::read(&path(2), side)?;
        vocabulary.written = target.plain().map(String::from).collect();
        let vocabulary = Arc::new(vocabulary);
        let special: Vec<&str> = vocabulary.special.iter().map(|id| &*vocabulary.tokens[id]).collect();
        let of = |number: usize, model: &SentencePieces| {
            let id = |piece: Option<&str>| piece.and_then(|piece| vocabulary.ids.get(piece)).copied();
            let ids = model.pieces().map(|piece| id(piece).unwrap_or(vocabulary.unknown));
            let of_piece = Arc::new(ids.chain(vocabulary.special.iter().copied()).collect());
            let json = model.json(&special).to_string();
            let own = tokenizer_of_parts(json.as_bytes(), &[], &path(number))?;
            Ok::<_, LoadError>(own.with_pieces(Pieces { of_piece, vocabulary: vocabulary.clone() }, side))
        };
        let mut own = of(0, &source)?;
        own.target = Some(Arc::new(of(1, &target)?));
        Ok(own)
    }
}

impl Pieces {
    /// Returns the ids of a text, each with its byte range. The text may begin with a target language code, as in
    /// `>>fra<< It rains.`; `pieces` splits the rest.
    pub(super) fn encode<E>(
        &self,
        text: &str,
        pieces: impl FnOnce(&str) -> Result<Vec<(u32, Range<usize>, String)>, E>,
    ) -> Result<Vec<(u32, Range<usize>)>, E> {
        let end = text.starts_with(">>").then(|| text.find("<<")).flatten().map_or(0, |at| at + 2);
        let (code, rest) = text.split_at(end);
        let mut all = Vec::new();
        if !code.is_empty() {
            all.push((self.id(code).unwrap_or(self.vocabulary.unknown), 0..end));
        }
        let unknown = self.vocabulary.unknown;
        let id = |piece: u32, text: &str| match self.of_piece.get(piece as usize) {
            Some(id) if *id != unknown => *id,
            // A piece unknown to this language's model may be in the vocabulary because of the other language.
            _ => self.id(text).unwrap_or(unknown),
        };
        let found = pieces(rest)?.into_iter();
        let found = found.map(|(piece, at, text)| (id(piece, &text), at.start + end..at.end + end));
        let found: Vec<(u32, Range<usize>)> = found.collect();
        // A text of only spaces is reduced to the space that is prepended to every text.
        match found[..] {
            [(id, _)] if self.token(id) == Some(SPACE) => {}
            _ => all.extend(found),
        }
        Ok(all)
    }

    /// End-of-sequence token.
    pub(super) fn end(&self) -> u32 {
        self.vocabulary.end
    }

    /// Decodes ids to text.
    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        // Text since the last special token; its leading space is dropped.
        let mut part = String::new();
        for id in ids {
            let Some(token) = self.token(*id) else { continue };
            match self.vocabulary.special.contains(id) {
                true if skip_special => {}
                true => text.extend([&*std::mem::take(&mut part), token, " "]),
                // SentencePiece leaves pieces of another model unchanged.
                false if part.is_empty() && self.vocabulary.written.contains(token) => {
                    part.push_str(token.strip_prefix(SPACE).unwrap_or(token));
                }
                false => part.push_str(token),
            }
        }
        let text = (text + &part).replace(SPACE, " ");
        text.trim().to_string()
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.vocabulary.ids.get(token).copied()
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.vocabulary.tokens.get(&id).map(String::as_str)
    }

    pub(super) fn ids(&self) -> &HashMap<String, u32> {
        &self.vocabulary.ids
    }
}

impl Vocabulary {
    fn read(path: &Path, side: &[&Value]) -> Result<Self, LoadError> {
        let refused = |reason: String| LoadError::Tokenizer { path: path.into(), source: reason.into() };
        let ids: HashMap<String, u32> = serde_json::from_value(read_json(path.to_path_buf())?)
            .map_err(|error| LoadError::Tokenizer { path: path.into(), source: error.into() })?;
        let tokens: HashMap<u32, String> = ids.iter().map(|(token, id)| (*id, token.clone())).collect();
        if tokens.len() != ids.len() {
            return Err(refused(format!("its {} tokens have only {} distinct ids", ids.len(), tokens.len())));
        }
        let named = |name: &str, default: &'static str| -> Result<u32, LoadError> {
            let key = format!("{name}_token");
            let text = side.iter().find_map(|json| match json.get(&key)? {
                Value::String(text) => Some(text.as_str()),
                other => other.get("content")?.as_str(),
            });
            let token = text.unwrap_or(default);
            ids.get(token).copied().ok_or_else(|| refused(format!("it lacks `{token}`, the {name} token")))
        };
        let (unknown, end) = (named("unk", "<unk>")?, named("eos", "</s>")?);
        let special = [Some(unknown), Some(end), named("pad", "<pad>").ok()].into_iter().flatten().collect();
        Ok(Self { ids, tokens, unknown, end, special, written: HashSet::new() })
    }
}
