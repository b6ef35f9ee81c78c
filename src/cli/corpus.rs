//! Prompts that a command takes, one or a file of them.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::prompt_files::PromptFiles;
use super::terminal::note;
use crate::corpus::{Prompt, Prompts};
use crate::driver::HookedModel;
use crate::model::HookedTransformer;

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

    /// The prompts' token ids, with a token of their beginning or without, or by the model's habit.
    pub(super) fn rows(&self, model: &HookedTransformer, prepend_bos: Option<bool>) -> Result<Vec<Vec<u32>>, Failure> {
        let prompts: Prompts = match self.files.read()? {
            Some(prompts) => prompts,
            None if self.prompt.is_empty() => {
                return Err(Failure::Usage("--prompt or --prompts says what to read".into()));
            }
            None => Box::new(self.prompt.clone().into_iter().map(|text| Ok(Prompt::Text(text)))),
        };
        let row = |prompt: Prompt| match (prompt, self.concatenate) {
            (Prompt::Tokens(ids), _) => Ok(ids),
            (Prompt::Text(text), Some(_)) => Ok(model.tokenizer()?.encode(&text)?),
            (Prompt::Text(text), None) => model.token_row(&text, prepend_bos),
        };
        let rows = prompts.map(|prompt| row(prompt?)).collect::<crate::error::Result<Vec<_>>>()?;
        let rows = match self.concatenate {
            None => rows,
            Some(len) => {
                let (whole, left) = model.concatenated(&rows, len, prepend_bos)?;
                if left > 0 {
                    note(format!("{left} tokens at the end fill no row of {len} and are left out"));
                }
                whole
            }
        };
        match rows.is_empty() {
            true => Err(Failure::Failed("there are no prompts".into())),
            false => Ok(rows),
        }
    }
}
