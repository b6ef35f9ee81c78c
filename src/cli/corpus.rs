//! Prompts that a command takes, one or a file of them.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::terminal::note;
use crate::driver::HookedModel;
use crate::dump::{Prompt, read_prompts};
use crate::model::HookedTransformer;

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Source {
    /// A prompt; may be given several times. One that begins with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    prompt: Vec<String>,
    /// A file with a prompt a line, or, ending in .jsonl, a JSON string, {"text": ...} or {"tokens": [...]} a line
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct CorpusArg {
    #[command(flatten)]
    source: Source,
    /// Join the prompts, an end-of-sequence token between two, and cut them in rows of N tokens; what is left at the end
    /// fills no row and is left out
    #[arg(long, value_name = "N")]
    concatenate: Option<usize>,
}

impl CorpusArg {
    /// The file it reads.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.source.prompts.clone()
    }

    /// The prompts' token ids, with a token of their beginning or without, or by the model's habit.
    pub(super) fn rows(&self, model: &HookedTransformer, prepend_bos: Option<bool>) -> Result<Vec<Vec<u32>>, Failure> {
        let prompts = match &self.source.prompts {
            Some(path) => read_prompts(path)?,
            None if self.source.prompt.is_empty() => {
                return Err(Failure::Usage("--prompt or --prompts says what to read".into()));
            }
            None => self.source.prompt.iter().cloned().map(Prompt::Text).collect(),
        };
        let row = |prompt: Prompt| match (prompt, self.concatenate) {
            (Prompt::Tokens(ids), _) => Ok(ids),
            (Prompt::Text(text), Some(_)) => Ok(model.tokenizer()?.encode(&text)?),
            (Prompt::Text(text), None) => model.token_row(&text, prepend_bos),
        };
        let rows = prompts.into_iter().map(row).collect::<crate::error::Result<Vec<_>>>()?;
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
