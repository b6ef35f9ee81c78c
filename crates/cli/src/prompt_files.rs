//! Files of prompts, and which of them are read.

use std::fs::Metadata;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::{Failure, signals};
use hooklens_data::corpus::{Corpus, PlacedPrompts, Watch};

/// Bytes from which on it is shown how much was read.
const SHOWN: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct PromptFiles {
    /// Files with a prompt a line, or, ending in .jsonl, a JSON string, {"text": ...} or {"tokens": [...]} a line, compressed
    /// or not; .parquet and .arrow, and s3://, gs:// and az:// in a build that reads them. Patterns of names, as
    /// 'corpus/*.jsonl.gz' and 's3://bucket/corpus/*.jsonl.gz', and - for standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) prompts: Vec<PathBuf>,
    /// Read this field of each JSON line, or this column
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// Leave out the first N prompts
    #[arg(long, value_name = "N")]
    skip: Option<usize>,
    /// Read N prompts at most
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Of those, N by lot, in their order
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// The lot
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    sample_seed: u64,
}

impl PromptFiles {
    /// The same lines' texts in another field.
    pub(super) fn read_field(&self, field: &str) -> Result<PlacedPrompts, Failure> {
        if self.prompts.iter().any(|path| path.as_os_str() == "-") {
            return Err(Failure::Usage("two fields are read from files, not from standard input".into()));
        }
        if self.prompts.is_empty() {
            return Err(Failure::Usage("a field is of the files of --prompts".into()));
        }
        self.placed(Some(field))
    }

    fn placed(&self, field: Option<&str>) -> Result<PlacedPrompts, Failure> {
        let corpus = Corpus::new(&self.prompts).skip(self.skip.unwrap_or(0));
        let corpus = field.into_iter().fold(corpus, Corpus::field);
        let corpus = self.limit.into_iter().fold(corpus, Corpus::limit);
        let corpus = self.sample.into_iter().fold(corpus, |corpus, count| corpus.sample(count, self.sample_seed));
        Ok(corpus.watched(self.watch()).placed()?)
    }

    /// The prompts, or nothing where no file is named.
    pub(super) fn read(&self) -> Result<Option<PlacedPrompts>, Failure> {
        if self.prompts.is_empty() {
            // clap lets these pass beside what excludes --prompts.
            let given = [
                ("--field", self.field.is_some()),
                ("--skip", self.skip.is_some()),
                ("--limit", self.limit.is_some()),
                ("--sample", self.sample.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(Failure::Usage(format!("{option} is of the files of --prompts"))),
                None => Ok(None),
            };
        }
        self.placed(self.field.as_deref()).map(Some)
    }

    /// A bar of the bytes read, those of packed files as they are packed; a signal ends the reading.
    fn watch(&self) -> Watch {
        let length = |path: &PathBuf| std::fs::metadata(path).ok().filter(Metadata::is_file).map(|file| file.len());
        // Of a stream nobody knows.
        let all: Option<u64> = self.files().iter().map(length).sum();
        let bar = match all {
            Some(all) if all < SHOWN => ProgressBar::hidden(),
            Some(all) => ProgressBar::new(all),
            None => ProgressBar::new_spinner(),
        };
        let form = if all.is_some() { "{bar:30} {bytes}/{total_bytes} read {eta}" } else { "{spinner} {bytes} read" };
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        let bar = bar.with_finish(ProgressFinish::AndClear);
        Watch::new(move |bytes| {
            bar.inc(bytes as u64);
            !signals::stopped()
        })
    }

    /// The files by name; a pattern that fits none as it is written.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        Corpus::new(&self.prompts).files().unwrap_or_else(|_| self.prompts.clone())
    }
}
