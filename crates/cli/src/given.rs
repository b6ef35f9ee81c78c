//! Prompts that a command is given as rows of token ids, each of which is known by its place if it can't be run.

use super::terminal::note;
use super::{Failure, signals};
use hooklens_data::corpus::{Place, PlacedPrompts, Prompt};
use hooklens_data::error::DumpError;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{Error, Result};
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::Tokens;

/// Prompts of files, or those of the command line.
pub(super) enum Given {
    Files(PlacedPrompts),
    Options(Vec<Prompt>),
}

impl Given {
    /// Texts of the command line.
    pub(super) fn texts(texts: &[String]) -> Self {
        Self::Options(texts.iter().cloned().map(Prompt::Text).collect())
    }

    /// The row of each prompt.
    pub(super) fn rows(self, row: impl Fn(Prompt) -> Result<Vec<u32>>) -> Result<GivenRows, Failure> {
        let mut given = GivenRows { rows: Vec::new(), places: Vec::new() };
        match self {
            Self::Files(prompts) => {
                for placed in prompts {
                    // Then what it holds may be the error of a reading that was stopped.
                    if signals::stopped() {
                        let told = "before the first prompt was run; the same command begins again";
                        return Err(Failure::Stopped(told.into()));
                    }
                    let (prompt, place) = placed.map_err(Error::from)?;
                    given.places.push(place);
                    given.add(row(prompt))?;
                }
            }
            Self::Options(prompts) => prompts.into_iter().try_for_each(|prompt| given.add(row(prompt)))?,
        }
        Ok(given)
    }
}

/// Rows of token ids, and where each is from.
pub(super) struct GivenRows {
    pub(super) rows: Vec<Vec<u32>>,
    /// Of none, or of each.
    places: Vec<Place>,
}

impl GivenRows {
    fn add(&mut self, row: Result<Vec<u32>>) -> Result<()> {
        let number = self.rows.len() + 1;
        let named = |source| DumpError::Row { number, source: Box::new(source) };
        let row = row.map_err(|error| self.told(named(error).into()))?;
        self.rows.push(row);
        Ok(())
    }

    /// An error that tells the number of a prompt, telling its place instead where that is known.
    pub(super) fn told(&self, error: Error) -> Error {
        match error.downcast() {
            Ok(DumpError::Row { number, source }) => match self.places.get(number.wrapping_sub(1)) {
                Some(place) => DumpError::PromptAt { place: place.clone(), source }.into(),
                None => DumpError::Row { number, source }.into(),
            },
            Ok(other) => other.into(),
            Err(other) => other,
        }
    }

    /// All joined, an end-of-sequence token between two, and cut in rows of so many tokens; what is left is told.
    pub(super) fn concatenated(
        self,
        model: &HookedTransformer,
        len: usize,
        prepend_bos: Option<bool>,
    ) -> Result<Self, Failure> {
        let (rows, left) = model.concatenated(&self.rows, len, prepend_bos)?;
        if left > 0 {
            note(format!("{left} tokens at the end fill no row of {len} and are left out"));
        }
        Ok(Self { rows, places: Vec::new() })
    }
}

/// The tokens of a prompt that is joined with others: it has no place any more when they are run.
pub(super) fn to_join(model: &HookedTransformer, prompt: Prompt) -> Result<Vec<u32>> {
    let ids = match prompt {
        Prompt::Tokens(ids) => ids,
        Prompt::Text(text) => model.tokenizer()?.encode(&text)?,
    };
    if !ids.is_empty() {
        model.check_tokens(&Tokens::new(vec![ids.clone()])?)?;
    }
    Ok(ids)
}
