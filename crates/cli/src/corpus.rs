//! Prompts that a command takes, one or a file of them.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::given::{Given, to_join};
use super::prompt_files::PromptFiles;
use hooklens_data::corpus::Prompt;
use hooklens_data::dump::DumpModel;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::HookedTransformer;

#[derive(Debug, Args)]
pub(super) struct CorpusArg {
    /// A prompt; may be given several times. One that begins with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1.., conflicts_with = "prompts")]
    prompt: Vec<String>,
    #[command(flatten)]
    files: PromptFiles,
    /// Join the prompts, an end-of-sequence token between two, and cut them in rows of N tokens; what is left at the end
    /// fills no row and is left out
    #[arg(long, value_name = "N")]
    concatenate: Option<usize>,
}

impl CorpusArg {
    /// The files it reads.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.files()
    }

    /// The prompts' token ids, with a token of their beginning or without, or by the model's habit. One that the model can't
    /// run is an error here, where its place is known.
    pub(super) fn rows(&self, model: &HookedTransformer, prepend_bos: Option<bool>) -> Result<Vec<Vec<u32>>, Failure> {
        let given = match self.files.read()? {
            Some(prompts) => Given::Files(prompts),
            None if self.prompt.is_empty() => {
                return Err(Failure::Usage("--prompt or --prompts says what to read".into()));
            }
            None => Given::texts(&self.prompt),
        };
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

/// A prompt that is run by itself.
fn row(model: &HookedTransformer, prompt: Prompt, prepend_bos: Option<bool>) -> Result<Vec<u32>> {
    let ids = match prompt {
        Prompt::Tokens(ids) => ids,
        Prompt::Text(text) => model.prompt_row(&text, prepend_bos)?,
    };
    if ids.is_empty() {
        return Err(InputError::Empty { what: "it".into() }.into());
    }
    model.check_prompt(&ids, 0)?;
    Ok(ids)
}
