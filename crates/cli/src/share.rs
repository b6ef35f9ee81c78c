//! Results of a share of the prompts, in a folder that all shares write to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hooklens_hooks::{FolderLock, check_own_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::out::{OutFile, said, write};
use super::shard_arg::{ShardArg, name_of, shares_of};
use super::terminal::note;
use super::{CliResult, Failure};
use hooklens_data::dump::Shard;
use hooklens_io::object_stores::is_url;

/// What a share's file says it is.
const FORMAT: &str = "hooklens-share";

/// `--shard`, and `--out` where that may be a folder of shares.
#[derive(Debug, Args)]
pub(super) struct ShareArgs {
    /// Take only the I-th of N shares of the prompts, and write its results to the folder --out; `hooklens merge` makes one of
    /// all. `auto` is the share that this task of a Slurm array or a Kubernetes indexed job has (`auto/N`: of N)
    #[arg(long, value_name = "I/N|auto", requires = "out")]
    shard: Option<ShardArg>,
    /// Write all results to a file: .json, .csv, .svg, .png or .html; with --shard, a share of them to a folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The share of a process, and where it goes.
pub(super) struct Share {
    shard: Shard,
    path: PathBuf,
    kind: Kind,
    settings: BTreeMap<String, String>,
    /// Held until its results are written.
    _lock: Option<FolderLock>,
}

/// The command whose results they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Patch,
    FeaturesEval,
    AttributeEdges,
}

/// A share's file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    format: String,
    pub(super) kind: Kind,
    shard: Shard,
    pub(super) settings: BTreeMap<String, String>,
    /// Nothing where no prompt was left for it.
    result: Option<serde_json::Value>,
    /// Its file.
    #[serde(skip)]
    pub(super) path: PathBuf,
}

impl ShareArgs {
    /// The path of `--out`.
    pub(super) fn path(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    /// The file of `--out`.
    pub(super) fn file(&self) -> Result<Option<OutFile>, Failure> {
        let file = |path: &PathBuf| path.to_string_lossy().parse().map_err(Failure::Usage);
        match self.shard {
            Some(_) => Ok(None),
            None => self.out.as_ref().map(file).transpose(),
        }
    }

    /// The share, if there is one; an error before anything is loaded.
    pub(super) fn shard(&self) -> Result<Option<Shard>, Failure> {
        let (Some(arg), Some(out)) = (self.shard, self.out.as_ref()) else { return Ok(None) };
        if out.is_file() || out.to_string_lossy().parse::<OutFile>().is_ok() {
            let told =
                format!("--shard writes to a folder, and {} is a file; `hooklens merge` writes that", out.display());
            return Err(Failure::Usage(told));
        }
        if is_url(out) {
            return Err(Failure::Usage(format!("shares are written to a folder, not to a store: {}", out.display())));
        }
        let shard = arg.shard().map_err(Failure::Usage)?;
        arg.check(shard, out)?;
        Ok(Some(shard))
    }

    /// The share and its file, of which [`Share::is_done`] says whether it is there already.
    ///
    /// # Errors
    /// The file is of other settings.
    pub(super) fn share(
        &self,
        kind: Kind,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Option<Share>, Failure> {
        let (Some(shard), Some(out)) = (self.shard()?, self.out.as_ref()) else { return Ok(None) };
        let settings: BTreeMap<String, String> =
            settings.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let path = out.join(format!("{}.json", name_of(shard)));
        check_own_file(&path).map_err(|e| super::out::unwritten(&path, &e))?;
        // What is there already is only read.
        let lock = if path.exists() { None } else { Some(locked(&path)?) };
        let share = Share { shard, path, kind, settings, _lock: lock };
        if let Some(part) = share.path.exists().then(|| Part::read(&share.path)).transpose()? {
            part.check(kind, &share.settings, &share.path)?;
        }
        // Nothing is written before the end, so that what a `SIGTERM` ends is to be started again.
        super::signals::begin_again();
        Ok(Some(share))
    }
}

/// Locks the file of a share, in a folder that is made for it.
fn locked(path: &Path) -> Result<FolderLock, Failure> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| super::out::unwritten(folder, &e))?;
    }
    FolderLock::take_for(path).map_err(|e| Failure::Failed(e.into()))
}

/// How a setting is called on the command line, which is how shares store it.
pub(super) fn setting_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

impl Share {
    /// Whether its results are there already.
    pub(super) fn is_done(&self) -> bool {
        let there = self.path.exists();
        if there {
            note(format!("share {} is done: {}", self.shard, self.path.display()));
        }
        there
    }

    /// Its share of so many prompts.
    pub(super) fn of(&self, count: usize) -> Range<usize> {
        self.shard.share_of(count)
    }

    /// Writes its results, whole or not at all.
    pub(super) fn write(&self, result: Option<&impl Serialize>) -> CliResult {
        let result = result.map(serde_json::to_value).transpose()?;
        let (kind, shard, settings) = (self.kind, self.shard, self.settings.clone());
        let part = Part { format: FORMAT.into(), kind, shard, settings, result, path: self.path.clone() };
        write(&self.path, &serde_json::to_vec(&part)?)?;
        said(&self.path)
    }
}

impl Part {
    fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
        let bytes = hooklens_io::regular::read(path).map_err(|e| failed(e.to_string()))?;
        let mut part: Self =
            serde_json::from_slice(&bytes).map_err(|e| failed(format!("it is no share of results: {e}")))?;
        if part.format != FORMAT {
            return Err(failed(format!("it is `{}`, and no share of results", part.format)));
        }
        // A copy would be counted twice.
        if path.file_stem().and_then(|name| name.to_str()) != Some(&*name_of(part.shard)) {
            return Err(failed(format!("it is share {}, whose file is {}.json", part.shard, name_of(part.shard))));
        }
        part.path = path.to_path_buf();
        Ok(part)
    }

    fn check(&self, kind: Kind, settings: &BTreeMap<String, String>, path: &Path) -> CliResult {
        let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
        if self.kind != kind {
            return Err(failed("it is a share of another command's results".into()));
        }
        for name in self.settings.keys().chain(settings.keys()) {
            let of = |settings: &BTreeMap<String, String>| settings.get(name).cloned().unwrap_or("nothing".into());
            let (own, other) = (of(&self.settings), of(settings));
            if own != other {
                return Err(failed(format!("{name} is {own}, and here {other}; choose another place")));
            }
        }
        Ok(())
    }

    /// Its results.
    pub(super) fn result<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        Ok(self.result.clone().map(serde_json::from_value).transpose()?)
    }
}

/// The shares in a folder, if it is one of shares: all, or what keeps them from being whole.
pub(super) enum Found {
    Whole(Vec<Part>),
    Missing { of: usize, missing: Vec<Shard> },
}

/// Looks for shares in a folder; nothing where there are none.
pub(super) fn shares_in(folder: &Path) -> Result<Option<Found>, Failure> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        if name.and_then(shares_of).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut parts = Vec::new();
    for path in &paths {
        parts.push(Part::read(path)?);
    }
    let Some(first) = parts.first() else { return Ok(None) };
    for (part, path) in parts.iter().zip(&paths) {
        part.check(first.kind, &first.settings, path)?;
        if part.shard.of() != first.shard.of() {
            let told =
                format!("{}: it is share {}, the others are of {}", path.display(), part.shard, first.shard.of());
            return Err(Failure::Failed(told.into()));
        }
    }
    parts.sort_by_key(|part| part.shard.index());
    let of = parts[0].shard.of();
    let there: BTreeSet<usize> = parts.iter().map(|part| part.shard.index()).collect();
    let missing = (1..=of).filter(|index| !there.contains(index));
    let missing: Vec<Shard> = missing.filter_map(|index| Shard::new(index, of).ok()).collect();
    Ok(Some(if missing.is_empty() { Found::Whole(parts) } else { Found::Missing { of, missing } }))
}
