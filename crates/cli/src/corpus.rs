//! The prompts of a command: from `--prompt` or from files.

use std::borrow::Cow;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::Failure;
use super::given::{Given, row_of, to_join, unless_stopped};
use super::prompt_files::PromptFiles;
use super::terminal::note;
use super::tokenization::tokenization;
use hooklens_data::corpus::{CorpusRows, Prompt, RowSource};
use hooklens_data::dump::DumpModel;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer, concatenated_part};

#[derive(Debug, Args)]
pub(super) struct CorpusArg {
    /// A prompt; may be given several times. For a prompt that starts with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1.., conflicts_with = "prompts")]
    prompt: Vec<String>,
    #[command(flatten)]
    files: PromptFiles,
    /// Join the prompts, separated by end-of-sequence tokens, and cut them into rows of N tokens; an incomplete last
    /// row is dropped
    #[arg(long, value_name = "N")]
    concatenate: Option<usize>,
}

impl CorpusArg {
    /// Files that the prompts are read from.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.files()
    }

    /// The prompts as rows of token ids, which are read when they are needed if the files allow it.
    /// `prepend_bos` overrides the model's default.
    pub(super) fn source<'m>(
        &self,
        model: &'m HookedTransformer,
        prepend_bos: Option<bool>,
    ) -> Result<Box<dyn RowSource + 'm>, Failure> {
        let Some(corpus) = self.files.in_pieces()? else {
            return Ok(Box::new(Cow::<[Vec<u32>]>::Owned(self.rows(model, prepend_bos)?)));
        };
        // If there are few prompts, they are read very often, so not every pass is reported.
        let again = |number: u64| {
            if number.is_power_of_two() {
                note(format!("all prompts have been read; starting pass {number} over them"));
            }
        };
        let rows = match self.concatenate {
            None => CorpusRows::new(&corpus, move |prompt| row(model, prompt, prepend_bos)),
            Some(len) => {
                let join = move |rows: &[Vec<u32>]| Ok(concatenated_part(model, rows, len, prepend_bos)?.0);
                CorpusRows::joined(&corpus, |prompt| to_join(model, prompt), join)
            }
        };
        let rows = unless_stopped(rows.map_err(Failure::from))?;
        let options = [("concatenate", self.concatenate.map(Value::from))];
        let tokenization = tokenization(model, model.prepended(prepend_bos), &options)?;
        Ok(Box::new(rows.tokenized_by(tokenization).on_pass(again)))
    }

    /// Token ids of the prompts. `prepend_bos` overrides the model's default. A prompt that the model can't run is
    /// reported with its position in the input.
    pub(super) fn rows(&self, model: &HookedTransformer, prepend_bos: Option<bool>) -> Result<Vec<Vec<u32>>, Failure> {
        let given = Given::read(&self.files, None, &self.prompt)?;
        let given = given.ok_or_else(|| Failure::Usage("--prompt or --prompts is required".into()))?;
        let given = match self.concatenate {
            Some(len) => given.rows(|prompt| to_join(model, prompt))?.concatenated(model, len, prepend_bos)?,
            None => given.rows(|prompt| row(model, prompt, prepend_bos))?,
        };
        match given.rows.is_empty() {
            true => Err(Failure::Failed("there are no prompts".into())),
            false => Ok(given.rows),
        }
    }
}

/// Tokenizes and checks a prompt that is run on its own.
fn row(model: &HookedTransformer, prompt: Prompt, prepend_bos: Option<bool>) -> Result<Vec<u32>> {
    let ids = row_of(prompt, |text| model.prompt_row(text, prepend_bos))?;
    if ids.is_empty() {
        return Err(InputError::Empty { what: "the prompt".into() }.into());
    }
    model.check_prompt(&ids, 0)?;
    Ok(ids)
}
