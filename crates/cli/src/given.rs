//! Prompts as rows of token ids. A prompt that can't be run is reported with its position in the input.

use super::args::TokenRows;
use super::prompt_files::PromptFiles;
use super::terminal::note;
use super::{Failure, signals};
use hooklens_data::corpus::{Place, PlacedPrompts, Prompt};
use hooklens_data::error::DumpError;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{Error, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer, concatenated};
use hooklens_model::tokens::Tokens;

/// Prompts from files or from the command line.
pub(super) enum Given {
    Files(PlacedPrompts),
    Options(Vec<Prompt>),
}

impl Given {
    /// The prompts given as `--prompts`, `--tokens` or `--prompt`. `None` if none of them is given.
    pub(super) fn read(
        files: &PromptFiles,
        tokens: Option<&TokenRows>,
        texts: &[String],
    ) -> Result<Option<Self>, Failure> {
        let files = files.read()?.map(Self::Files);
        Ok(files.or_else(|| match (tokens, texts) {
            (Some(rows), _) => Some(Self::Options(rows.0.iter().cloned().map(Prompt::Tokens).collect())),
            (None, []) => None,
            (None, texts) => Some(Self::Options(texts.iter().cloned().map(Prompt::Text).collect())),
        }))
    }

    /// Tokenizes each prompt with `row`.
    pub(super) fn rows(self, row: impl Fn(Prompt) -> Result<Vec<u32>>) -> Result<GivenRows, Failure> {
        let mut given = GivenRows { rows: Vec::new(), places: Vec::new() };
        match self {
            Self::Files(prompts) => {
                for placed in prompts {
                    let (prompt, place) = unless_stopped(placed.map_err(Failure::from))?;
                    given.places.push(place);
                    given.add(row(prompt))?;
                }
            }
            Self::Options(prompts) => prompts.into_iter().try_for_each(|prompt| given.add(row(prompt)))?,
        }
        Ok(given)
    }
}

/// Returns `read`, but fails if a signal has arrived, because an error may then mean only that reading was interrupted.
pub(super) fn unless_stopped<T>(read: Result<T, Failure>) -> Result<T, Failure> {
    if signals::stopped() {
        let message = "before running the first prompt; run the same command again to restart";
        return Err(Failure::Stopped(message.into()));
    }
    read
}

/// Rows of token ids, and where each comes from.
pub(super) struct GivenRows {
    pub(super) rows: Vec<Vec<u32>>,
    /// Position of each row in the input files; empty for prompts from the command line.
    places: Vec<Place>,
}

impl GivenRows {
    fn add(&mut self, row: Result<Vec<u32>>) -> Result<()> {
        let number = self.rows.len() + 1;
        let named = |source| DumpError::Row { number, source: Box::new(source) };
        let row = row.map_err(|error| self.with_place(named(error).into()))?;
        self.rows.push(row);
        Ok(())
    }

    /// Replaces the row number in an error with the prompt's position in its file, if known.
    pub(super) fn with_place(&self, error: Error) -> Error {
        let Error::Other(error) = error else { return error };
        match error.downcast().map(|error| *error) {
            Ok(DumpError::Row { number, source }) => match self.places.get(number.wrapping_sub(1)) {
                Some(place) => DumpError::PromptAt { place: place.clone(), source }.into(),
                None => DumpError::Row { number, source }.into(),
            },
            Ok(other) => other.into(),
            Err(other) => Error::Other(other),
        }
    }

    /// Concatenates all rows, separated by end-of-sequence tokens, and cuts them into rows of `len` tokens. Prints a
    /// note on tokens dropped at the end.
    pub(super) fn concatenated(
        self,
        model: &HookedTransformer,
        len: usize,
        prepend_bos: Option<bool>,
    ) -> Result<Self, Failure> {
        let (rows, left) = concatenated(model, &self.rows, len, prepend_bos)?;
        if left > 0 {
            note(format!("dropped the last {left} tokens, which do not fill a row of {len}"));
        }
        Ok(Self { rows, places: Vec::new() })
    }
}

/// Token ids of a prompt, with texts tokenized by `tokenize`.
pub(super) fn row_of(prompt: Prompt, tokenize: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<u32>> {
    match prompt {
        Prompt::Tokens(ids) => Ok(ids),
        Prompt::Text(text) => tokenize(&text),
    }
}

/// Tokenizes a prompt to be concatenated. It is checked here, because its position in the input is lost afterwards.
pub(super) fn to_join(model: &HookedTransformer, prompt: Prompt) -> Result<Vec<u32>> {
    let ids = row_of(prompt, |text| Ok(model.tokenizer()?.encode(text)?))?;
    if !ids.is_empty() {
        model.check_tokens(&Tokens::new(vec![ids.clone()])?)?;
    }
    Ok(ids)
}
