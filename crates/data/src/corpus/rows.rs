//! Rows of token ids of a corpus, tokenized when they are needed.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::pieces::pieces_of_size;
use super::{Corpus, Pieces, Place, Prompt, pieces_of};
use crate::error::DumpError;
use hooklens_model::error::{Error, Result};

/// Size in bytes of a piece whose prompts are joined into rows: each piece loses the tokens that do not fill its last
/// row, so pieces are large.
const JOINED: u64 = 4 << 20;

/// A row of token ids, or a prompt that gives none.
#[derive(Debug)]
pub struct CorpusRow {
    /// The piece that the row belongs to.
    pub piece: usize,
    /// The token ids, or why the prompt is invalid.
    pub tokens: Result<Vec<u32>>,
    /// Where the prompt comes from; `None` if it was not read from a file, was joined with others, or is invalid.
    pub place: Option<Place>,
    /// Hash of the piece's prompts up to and including this one, or of all prompts of the piece if prompts are joined;
    /// 0 for rows in memory.
    pub hash: u64,
}

/// Iterator over rows of token ids. It continues after an invalid prompt.
pub type RowIter<'r> = Box<dyn Iterator<Item = CorpusRow> + 'r>;

/// Prompts as token ids, in pieces that can be opened in any order and as often as needed.
pub trait RowSource {
    /// Number of pieces.
    fn pieces(&self) -> usize;

    /// Opens the rows of a piece.
    fn open(&self, piece: usize) -> Result<RowIter<'_>> {
        Ok(self.open_all(piece..piece + 1, 0))
    }

    /// Opens the rows of consecutive pieces, skipping the first `skipped` rows of the first piece. Invalid prompts count
    /// as rows.
    fn open_all(&self, pieces: Range<usize>, skipped: usize) -> RowIter<'_>;

    /// Hash of the first `rows` prompts of a piece, including invalid ones, as in [`CorpusRow::hash`]; of all its prompts
    /// if `rows` is `None`, if prompts are joined, or for rows in memory.
    fn hash(&self, piece: usize, rows: Option<usize>) -> Result<u64>;

    /// Describes a piece, for messages.
    fn name(&self, piece: usize) -> String;

    /// A description that identifies the prompts. Prompts in files are identified by the names and sizes of the files,
    /// without reading them.
    fn described(&self) -> Result<Value>;

    /// Called before all pieces are read again, that is, before the second and every later pass.
    fn begin_pass(&self, _number: u64) {}
}

/// Rows in memory, one per piece.
impl RowSource for Cow<'_, [Vec<u32>]> {
    fn pieces(&self) -> usize {
        self.len()
    }

    fn open_all(&self, pieces: Range<usize>, skipped: usize) -> RowIter<'_> {
        let row = |piece: usize| CorpusRow { piece, tokens: Ok(self[piece].clone()), place: None, hash: 0 };
        Box::new((pieces.start..pieces.end.min(self.len())).map(row).skip(skipped))
    }

    fn hash(&self, piece: usize, _: Option<usize>) -> Result<u64> {
        let bytes = self.get(piece).into_iter().flatten().flat_map(|id| id.to_le_bytes());
        Ok(xxh3_64(&bytes.collect::<Vec<u8>>()))
    }

    fn name(&self, piece: usize) -> String {
        format!("prompt {}", piece + 1)
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

/// The rows of a corpus. Memory holds only the row being read or, if prompts are joined, one piece.
pub struct CorpusRows<'m> {
    pieces: Pieces,
    field: Option<String>,
    /// Settings that select prompts by their numbers.
    selection: Map<String, Value>,
    tokenize: Tokenize<'m>,
    join: Option<Join<'m>>,
    tokenization: Map<String, Value>,
    on_pass: Option<Box<dyn Fn(u64) + Sync + 'm>>,
}

impl fmt::Debug for CorpusRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CorpusRows").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

impl<'m> CorpusRows<'m> {
    /// Creates rows of a corpus, one per prompt.
    pub fn new(corpus: &Corpus, tokenize: impl Fn(Prompt) -> Result<Vec<u32>> + Sync + 'm) -> Result<Self, DumpError> {
        Ok(Self::of_pieces(corpus, pieces_of(corpus)?, Box::new(tokenize), None))
    }

    /// Creates rows of a corpus whose prompts are joined and cut into rows, piece by piece.
    pub fn joined(
        corpus: &Corpus,
        tokenize: impl Fn(Prompt) -> Result<Vec<u32>> + Sync + 'm,
        join: impl Fn(&[Vec<u32>]) -> Result<Vec<Vec<u32>>> + Sync + 'm,
    ) -> Result<Self, DumpError> {
        let pieces = pieces_of_size(corpus, JOINED)?;
        Ok(Self::of_pieces(corpus, pieces, Box::new(tokenize), Some(Box::new(join))))
    }

    fn of_pieces(corpus: &Corpus, pieces: Pieces, tokenize: Tokenize<'m>, join: Option<Join<'m>>) -> Self {
        let numbers = [
            ("skip", (corpus.skip > 0).then_some(corpus.skip as u64)),
            ("limit", corpus.limit.map(|limit| limit as u64)),
            ("sample", corpus.sample.map(|(count, _)| count as u64)),
            ("sample_seed", corpus.sample.map(|(_, seed)| seed)),
        ];
        let selection =
            numbers.into_iter().filter_map(|(name, number)| Some((name.to_string(), number?.into()))).collect();
        Self { pieces, field: corpus.field.clone(), selection, tokenize, join, tokenization: Map::new(), on_pass: None }
    }

    /// Sets the description of everything that determines the token ids of a text. It is stored because hashes of
    /// prompts only cover their texts.
    #[must_use]
    pub fn tokenized_by(mut self, tokenization: Map<String, Value>) -> Self {
        self.tokenization = tokenization;
        self
    }

    /// Sets a function that is called before the second and every later pass over the corpus.
    #[must_use]
    pub fn on_pass(mut self, begun: impl Fn(u64) + Sync + 'm) -> Self {
        self.on_pass = Some(Box::new(begun));
        self
    }

    /// The prompts of consecutive pieces: the piece, the prompt and its place, and the hash of the piece's prompts up
    /// to this prompt.
    fn hashed(&self, pieces: Range<usize>) -> impl Iterator<Item = (usize, Result<(Prompt, Place)>, u64)> + use<> {
        let (mut hash, mut current) = (Xxh3::new(), pieces.start);
        self.pieces.open_all(pieces).map(move |(piece, placed)| {
            if piece != current {
                (hash, current) = (Xxh3::new(), piece);
            }
            // What can't be read as a prompt is not hashed.
            if let Ok((prompt, _)) = &placed {
                match prompt {
                    Prompt::Text(text) => hash.update(text.as_bytes()),
                    Prompt::Tokens(ids) => ids.iter().for_each(|id| hash.update(&id.to_le_bytes())),
                }
                // Mark the end of the prompt.
                hash.update(&[0xff]);
            }
            (piece, placed.map_err(Error::from), hash.digest())
        })
    }

    /// The invalid prompts of a piece, then its joined rows.
    fn joined_rows(&self, piece: usize, join: &Join<'_>, skipped: usize) -> RowIter<'static> {
        let (mut prompts, mut failed, mut hash) = (Vec::new(), Vec::new(), 0);
        for (_, prompt, own) in self.hashed(piece..piece + 1) {
            hash = own;
            match prompt.and_then(|(prompt, place)| self.row(prompt, place)) {
                Ok((tokens, _)) => prompts.push(tokens),
                Err(error) => failed.push(Err(error)),
            }
        }
        let rows = match join(&prompts) {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        let rows = failed.into_iter().chain(rows).skip(skipped);
        Box::new(rows.map(move |tokens| CorpusRow { piece, tokens, place: None, hash }))
    }

    /// Tokenizes a prompt.
    fn row(&self, prompt: Prompt, place: Place) -> Result<(Vec<u32>, Place)> {
        match (self.tokenize)(prompt) {
            Ok(tokens) => Ok((tokens, place)),
            Err(source) => Err(DumpError::PromptAt { place, source: Box::new(source) }.into()),
        }
    }
}

impl RowSource for CorpusRows<'_> {
    fn pieces(&self) -> usize {
        self.pieces.count()
    }

    fn open_all(&self, pieces: Range<usize>, skipped: usize) -> RowIter<'_> {
        let first = pieces.start;
        if let Some(join) = &self.join {
            let rows =
                pieces.flat_map(move |piece| self.joined_rows(piece, join, if piece == first { skipped } else { 0 }));
            return Box::new(rows);
        }
        let mut left = skipped;
        Box::new(self.hashed(pieces).filter_map(move |(piece, prompt, hash)| {
            if piece == first && left > 0 {
                left -= 1;
                return None;
            }
            let (tokens, place) = match prompt.and_then(|(prompt, place)| self.row(prompt, place)) {
                Ok((tokens, place)) => (Ok(tokens), Some(place)),
                Err(error) => (Err(error), None),
            };
            Some(CorpusRow { piece, tokens, place, hash })
        }))
    }

    fn hash(&self, piece: usize, rows: Option<usize>) -> Result<u64> {
        let most = rows.filter(|_| self.join.is_none()).unwrap_or(usize::MAX);
        Ok(self.hashed(piece..piece + 1).take(most).last().map_or(0, |(_, _, hash)| hash))
    }

    fn name(&self, piece: usize) -> String {
        self.pieces.name(piece)
    }

    fn described(&self) -> Result<Value> {
        let files = self.pieces.files().map(|(path, bytes)| json!({"file": path, "bytes": bytes}));
        let files: Vec<Value> = files.collect();
        let mut described = json!({
            "corpus": files,
            "pieces": self.pieces.count(),
            "field": self.field,
            "tokenization": self.tokenization,
        });
        if !self.selection.is_empty() {
            described["selection"] = self.selection.clone().into();
        }
        Ok(described)
    }

    fn begin_pass(&self, number: u64) {
        if let Some(begun) = &self.on_pass {
            begun(number);
        }
    }
}
