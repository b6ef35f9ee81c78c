//! Rows of token ids of a corpus, tokenized when they are needed.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::{Corpus, Pieces, PlacedPrompts, Prompt};
use crate::error::DumpError;
use hooklens_model::error::{Error, Result};

/// Number of bytes of a piece whose prompts are joined to rows: each piece loses the tokens that do not fill its last
/// row, so pieces are large.
const JOINED: u64 = 4 << 20;

/// Iterator over rows of token ids.
pub type RowIter<'r> = Box<dyn Iterator<Item = Result<Vec<u32>>> + 'r>;

/// Prompts as token ids, in pieces that can be opened in any order and as often as needed.
pub trait RowSource {
    /// Number of pieces.
    fn pieces(&self) -> usize;

    /// Opens the rows of a piece.
    fn open(&self, piece: usize) -> Result<RowIter<'_>>;

    /// Identifies the prompts, without reading them all if that takes long.
    fn described(&self) -> Result<Value>;

    /// Called when all pieces have been read and are read again, for the second pass and every later one.
    fn begin_pass(&self, _number: u64) {}
}

/// Rows in memory, one per piece.
impl RowSource for Cow<'_, [Vec<u32>]> {
    fn pieces(&self) -> usize {
        self.len()
    }

    fn open(&self, piece: usize) -> Result<RowIter<'_>> {
        Ok(Box::new(self.get(piece).cloned().map(Ok).into_iter()))
    }

    fn described(&self) -> Result<Value> {
        let mut hash = Xxh3::new();
        let mut count = 0;
        for row in self.iter() {
            hash.update(&(row.len() as u64).to_le_bytes());
            row.iter().for_each(|id| hash.update(&id.to_le_bytes()));
            count += row.len();
        }
        Ok(json!({"tokens": count, "prompts": self.len(), "hash": format!("{:032x}", hash.digest128())}))
    }
}

/// Tokenizes a prompt.
type Tokenize<'m> = Box<dyn Fn(Prompt) -> Result<Vec<u32>> + Sync + 'm>;
/// Joins the prompts of a piece and cuts them into rows.
type Join<'m> = Box<dyn Fn(&[Vec<u32>]) -> Result<Vec<Vec<u32>>> + Sync + 'm>;

/// The rows of a corpus. Nothing is kept in memory but the row being read or, where prompts are joined, a piece.
pub struct CorpusRows<'m> {
    pieces: Pieces,
    tokenize: Tokenize<'m>,
    join: Option<Join<'m>>,
    on_pass: Option<Box<dyn Fn(u64) + 'm>>,
}

impl fmt::Debug for CorpusRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CorpusRows").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

impl<'m> CorpusRows<'m> {
    /// Creates rows of a corpus, one per prompt.
    pub fn new(
        corpus: &Corpus,
        tokenize: impl Fn(Prompt) -> Result<Vec<u32>> + Sync + 'm,
    ) -> Result<Self, DumpError> {
        Ok(Self { pieces: corpus.pieces()?, tokenize: Box::new(tokenize), join: None, on_pass: None })
    }

    /// Creates rows of a corpus whose prompts are joined and cut, piece by piece.
    pub fn joined(
        corpus: &Corpus,
        tokenize: impl Fn(Prompt) -> Result<Vec<u32>> + Sync + 'm,
        join: impl Fn(&[Vec<u32>]) -> Result<Vec<Vec<u32>>> + Sync + 'm,
    ) -> Result<Self, DumpError> {
        let pieces = corpus.pieces_of(JOINED)?;
        Ok(Self { pieces, tokenize: Box::new(tokenize), join: Some(Box::new(join)), on_pass: None })
    }

    /// Calls a function when another pass over the corpus begins.
    #[must_use]
    pub fn on_pass(mut self, begun: impl Fn(u64) + 'm) -> Self {
        self.on_pass = Some(Box::new(begun));
        self
    }

    /// Tokenizes prompts. An error names the prompt's position.
    fn tokenized<'s>(&'s self, prompts: PlacedPrompts) -> impl Iterator<Item = Result<Vec<u32>>> + 's
    where
        'm: 's,
    {
        prompts.map(|placed| {
            let (prompt, place) = placed.map_err(Error::from)?;
            (self.tokenize)(prompt).map_err(|source| DumpError::PromptAt { place, source: Box::new(source) }.into())
        })
    }
}

impl RowSource for CorpusRows<'_> {
    fn pieces(&self) -> usize {
        self.pieces.count()
    }

    fn open(&self, piece: usize) -> Result<RowIter<'_>> {
        let prompts = self.pieces.open(piece)?;
        let rows = self.tokenized(prompts);
        match &self.join {
            None => Ok(Box::new(rows)),
            Some(join) => Ok(Box::new(join(&rows.collect::<Result<Vec<_>>>()?)?.into_iter().map(Ok))),
        }
    }

    fn described(&self) -> Result<Value> {
        let files = self.pieces.files().map(|(path, bytes)| json!({"file": path, "bytes": bytes}));
        Ok(json!({"corpus": files.collect::<Vec<_>>()}))
    }

    fn begin_pass(&self, number: u64) {
        if let Some(begun) = &self.on_pass {
            begun(number);
        }
    }
}
