//! The options that choose prompt files and which of their prompts to read.

use std::fs::Metadata;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressFinish};
use serde_json::{Map, Value, json};

use super::progress::styled;
use super::terminal::note;
use super::{CliResult, Failure, signals};
use hooklens_data::corpus::{Corpus, PlacedPrompts, Watch, files_of, watched};
use hooklens_io::object_stores::is_url;

/// Minimum total input size, in bytes, for which a progress bar is shown.
const SHOWN: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct PromptFiles {
    /// Files with one prompt per line or, ending in .jsonl, one JSON string, {"text": ...} or {"tokens": [...]} per
    /// line, optionally compressed; also .parquet and .arrow, and s3://, gs:// and az:// URLs, in a build that reads
    /// them. Accepts glob patterns such as 'corpus/*.jsonl.gz' and 's3://bucket/corpus/*.jsonl.gz', and - for standard
    /// input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) prompts: Vec<PathBuf>,
    /// JSON field or column to read
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// Skip the first N prompts
    #[arg(long, value_name = "N")]
    skip: Option<usize>,
    /// Read at most N prompts
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Randomly sample N of these prompts, keeping their order
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Random seed for --sample
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    sample_seed: u64,
}

impl PromptFiles {
    /// Reads another field of the same lines.
    pub(super) fn read_field(&self, field: &str) -> Result<PlacedPrompts, Failure> {
        if self.prompts.iter().any(|path| path.as_os_str() == "-") {
            return Err(Failure::Usage(
                "--decoder-field requires files: two fields cannot be read from standard input".into(),
            ));
        }
        if self.prompts.is_empty() {
            return Err(Failure::Usage("--decoder-field requires --prompts".into()));
        }
        self.placed(Some(field))
    }

    /// The corpus, if its files can be read in parts and as often as needed; `None` for streams.
    pub(super) fn in_pieces(&self) -> Result<Option<Corpus>, Failure> {
        if self.prompts.is_empty() {
            return Ok(None);
        }
        self.check_files()?;
        let corpus = self.corpus(self.field.as_deref());
        let is_stream = |path: &PathBuf| {
            path.as_os_str() == "-" || !is_url(path) && std::fs::metadata(path).is_ok_and(|file| !file.is_file())
        };
        if files_of(&corpus)?.iter().any(is_stream) {
            return Ok(None);
        }
        // To select prompts by their numbers, they are counted first.
        let selects = self.skip.is_some() || self.limit.is_some() || self.sample.is_some();
        Ok(Some(if selects { watched(corpus, self.watch()) } else { corpus }))
    }

    fn placed(&self, field: Option<&str>) -> Result<PlacedPrompts, Failure> {
        Ok(watched(self.corpus(field), self.watch()).placed()?)
    }

    fn corpus(&self, field: Option<&str>) -> Corpus {
        let corpus = Corpus::new(&self.prompts).skip(self.skip.unwrap_or(0));
        let corpus = field.into_iter().fold(corpus, Corpus::field);
        let corpus = self.limit.into_iter().fold(corpus, Corpus::limit);
        self.sample.into_iter().fold(corpus, |corpus, count| corpus.sample(count, self.sample_seed))
    }

    /// The prompts, or `None` if no file is given.
    pub(super) fn read(&self) -> Result<Option<PlacedPrompts>, Failure> {
        if self.prompts.is_empty() {
            // These options require `--prompts`, but clap also accepts them with an option that conflicts with
            // `--prompts`.
            let given = [
                ("--field", self.field.is_some()),
                ("--skip", self.skip.is_some()),
                ("--limit", self.limit.is_some()),
                ("--sample", self.sample.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(Failure::Usage(format!("{option} requires --prompts"))),
                None => Ok(None),
            };
        }
        self.check_files()?;
        let mut prompts = self.placed(self.field.as_deref())?.peekable();
        if prompts.peek().is_none() && !signals::stopped() {
            return Err(self.are_empty());
        }
        Ok(Some(Box::new(prompts)))
    }

    /// The error for files without prompts.
    pub(super) fn are_empty(&self) -> Failure {
        let files: Vec<String> = self.files().iter().map(|path| path.display().to_string()).collect();
        let left = if self.skip.is_some() || self.limit == Some(0) || self.sample == Some(0) { " left" } else { "" };
        Failure::Failed(format!("--prompts {}: there are no prompts{left}", files.join(" ")).into())
    }

    /// Checks files before they are read.
    fn check_files(&self) -> CliResult {
        if let Some(path) =
            self.prompts.iter().find(|path| path.extension().is_some_and(|own| own == "csv" || own == "tsv"))
        {
            return Err(Failure::Usage(format!(
                "--prompts {}: CSV and TSV files are not supported; write one prompt per line, or JSON lines in a \
                 .jsonl file",
                path.display()
            )));
        }
        let is_plain =
            |path: &Path| !is_url(path) && path != Path::new("-") && !path.to_string_lossy().contains(['*', '?', '[']);
        for path in self.prompts.iter().filter(|path| is_plain(path)) {
            if let Err(error) = std::fs::metadata(path) {
                return Err(Failure::Failed(format!("--prompts {}: {error}", path.display()).into()));
            }
        }
        self.tell_json();
        Ok(())
    }

    /// Prints a note if a file of texts seems to have JSON lines, which would be read as texts.
    fn tell_json(&self) {
        let is_text = |path: &&PathBuf| path.extension().is_none_or(|ending| ending != "jsonl") && path.is_file();
        for path in self.files().iter().filter(is_text) {
            let mut start = [0; 2];
            let begun = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
            if begun.is_ok() && &start == b"{\"" {
                let path = path.display();
                note(format!("{path}: its lines are read as text, but look like JSON; rename it to {path}.jsonl"));
            }
        }
    }

    /// The files and options, for a dump's manifest.
    pub(super) fn described(&self) -> Map<String, Value> {
        let files: Vec<String> = self.files().iter().map(|path| path.display().to_string()).collect();
        let given = [
            ("files", (!files.is_empty()).then(|| json!(files))),
            ("field", self.field.as_ref().map(|field| json!(field))),
            ("skip", self.skip.map(Value::from)),
            ("limit", self.limit.map(Value::from)),
            ("sample", self.sample.map(Value::from)),
            ("sample_seed", self.sample.map(|_| self.sample_seed.into())),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
    }

    /// A progress bar over the bytes read, counting compressed files by their compressed size. A signal ends the
    /// reading.
    fn watch(&self) -> Watch {
        let length = |path: &PathBuf| std::fs::metadata(path).ok().filter(Metadata::is_file).map(|file| file.len());
        // The length of a stream is unknown.
        let files = self.files();
        let all: Option<u64> = files.iter().map(length).sum();
        // A small file may be large when it is decompressed.
        let is_packed = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gz" || ending == "zst");
        let bar = match all {
            Some(all) if all < SHOWN && !files.iter().any(is_packed) => ProgressBar::hidden(),
            Some(all) => ProgressBar::new(all),
            None => ProgressBar::new_spinner(),
        };
        let form = if all.is_some() { "{bar:30} {bytes}/{total_bytes} read {eta}" } else { "{spinner} {bytes} read" };
        let bar = styled(bar, form).with_finish(ProgressFinish::AndClear);
        Watch::new(move |bytes| {
            bar.inc(bytes as u64);
            !signals::stopped()
        })
    }

    /// The matching files; patterns that match nothing are returned as they are.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        files_of(&Corpus::new(&self.prompts)).unwrap_or_else(|_| self.prompts.clone())
    }
}
