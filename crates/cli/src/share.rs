//! Results computed from a shard of the prompts, in a folder that all shards are written to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hooklens_hooks::{FolderLock, check_own_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::json_result::ModelId;
use super::out::{Names, OutFile, said, write};
use super::shard_arg::{ShardArg, name_of, shares_of};
use super::terminal::note;
use super::{CliResult, Failure};
use hooklens_data::dump::{Shard, SplitByShard};
use hooklens_io::excerpt::excerpt;
use hooklens_io::json_memory::estimate_lists;
use hooklens_io::json_shape::UpTo;
use hooklens_io::object_stores::is_url;

/// The `format` field of a shard's file.
const FORMAT: &str = "hooklens-share";

/// `--shard`, and `--out`, which then names a folder of shards.
#[derive(Debug, Args)]
pub(super) struct ShareArgs {
    /// Process only the I-th of N shards of the prompts, and write its results to the folder --out; `hooklens merge`
    /// combines them. `auto` takes the shard from a Slurm job array or a Kubernetes indexed job (`auto/N`: with N
    /// shards in total)
    #[arg(long, value_name = "I/N|auto", requires = "out")]
    shard: Option<ShardArg>,
    /// Write all results to a file: .json, .csv, .svg, .png or .html; with --shard, write the shard's results to a
    /// folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The shard that this process computes, and its output file.
pub(super) struct Share {
    shard: Shard,
    path: PathBuf,
    kind: Kind,
    settings: BTreeMap<String, String>,
    /// Lock on the folder, held until the results are written.
    _lock: Option<FolderLock>,
}

/// The command that computed the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Patch,
    FeaturesEval,
    AttributeEdges,
}

/// Maximum memory of the settings in a shard's file in bytes.
const SETTINGS: usize = 16 << 20;
/// Maximum memory of the results in a shard's file, in bytes. Results may always take four times the size of the file.
const RESULTS: usize = 190 << 20;

/// Metadata in a shard's file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    format: String,
    pub(super) kind: Kind,
    shard: Shard,
    pub(super) settings: BTreeMap<String, String>,
    /// Path of the file.
    #[serde(skip)]
    pub(super) path: PathBuf,
    /// Text of the file, from which the results are parsed once their type is known.
    #[serde(skip)]
    text: Vec<u8>,
}

/// Contents of a shard's file.
#[derive(Serialize)]
struct Written<'p, T> {
    #[serde(flatten)]
    part: &'p Part,
    /// `None` if the shard has no prompts.
    result: Option<&'p T>,
}

/// The results in a shard's file.
#[derive(Deserialize)]
struct Results<T> {
    result: Option<T>,
}

/// The settings in a shard's file, which are checked before they are kept.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only its size is checked")]
struct Outline {
    settings: UpTo<SETTINGS>,
}

impl ShareArgs {
    /// The path of `--out`.
    pub(super) fn path(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    /// What `--out` names: a folder for shards, else a file.
    pub(super) fn names(&self) -> Names {
        if self.shard.is_some() { Names::Folder } else { Names::File }
    }

    /// The output file given with `--out`; `None` with `--shard`.
    pub(super) fn file(&self) -> Result<Option<OutFile>, Failure> {
        let file = |path: &PathBuf| path.to_string_lossy().parse().map_err(|e| Failure::Usage(format!("--out: {e}")));
        match self.shard {
            Some(_) => Ok(None),
            None => self.out.as_ref().map(file).transpose(),
        }
    }

    /// The shard, if there is one. Checks the arguments before anything is loaded.
    pub(super) fn shard(&self) -> Result<Option<Shard>, Failure> {
        let (Some(arg), Some(out)) = (self.shard, self.out.as_ref()) else { return Ok(None) };
        if out.is_file() || out.to_string_lossy().parse::<OutFile>().is_ok() {
            let message = format!(
                "--shard requires a folder, but {} is a file; pass that file to `hooklens merge --results`",
                out.display()
            );
            return Err(Failure::Usage(message));
        }
        if is_url(out) {
            return Err(Failure::Usage(format!(
                "--shard requires a local folder, not an object store: {}",
                out.display()
            )));
        }
        let shard = arg.shard()?;
        arg.check(shard, out)?;
        Ok(Some(shard))
    }

    /// The shard with its output file, which may exist already (see [`Share::is_done`]).
    ///
    /// # Errors
    /// Fails if the existing file has different settings.
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
        // An existing file is only read, so it needs no lock.
        let lock = if path.exists() { None } else { Some(locked(&path)?) };
        let share = Share { shard, path, kind, settings, _lock: lock };
        if let Some(part) = share.path.exists().then(|| Part::read(&share.path)).transpose()? {
            part.check(kind, &share.settings, &share.path)?;
        }
        // Results are only written at the end, so a `SIGTERM` means that the command must restart.
        super::signals::begin_again();
        Ok(Some(share))
    }
}

/// Locks a shard's file, creating its folder if needed.
fn locked(path: &Path) -> Result<FolderLock, Failure> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| super::out::unwritten(folder, &e))?;
    }
    FolderLock::take_for(path).map_err(|e| Failure::Failed(e.into()))
}

/// Name of a value on the command line, which is also how shards store it.
pub(super) fn setting_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

impl Share {
    /// Whether the results exist already. Prints a note if so.
    pub(super) fn is_done(&self) -> bool {
        let there = self.path.exists();
        if there {
            note(format!("shard {} is already complete: {}", self.shard, self.path.display()));
        }
        there
    }

    /// This shard's range out of `count` prompts.
    pub(super) fn of(&self, count: usize) -> Range<usize> {
        self.shard.share_of(count)
    }

    /// Writes the results atomically.
    pub(super) fn write(&self, result: Option<&impl Serialize>) -> CliResult {
        let (kind, shard, settings) = (self.kind, self.shard, self.settings.clone());
        let part = Part { format: FORMAT.into(), kind, shard, settings, path: self.path.clone(), text: Vec::new() };
        write(&self.path, &serde_json::to_vec(&Written { part: &part, result })?)?;
        said(&self.path)
    }
}

impl Part {
    fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
        let text = hooklens_io::regular::read(path).map_err(|e| failed(e.to_string()))?;
        let invalid = |e: serde_json::Error| failed(format!("not a shard of results: {}", excerpt(e)));
        serde_json::from_slice::<Outline>(&text).map_err(invalid)?;
        let mut part: Self = serde_json::from_slice(&text).map_err(invalid)?;
        if part.format != FORMAT {
            return Err(failed(format!("not a shard of results: its format is `{}`", excerpt(&part.format))));
        }
        if estimate_lists(&text) > RESULTS.max(4 * text.len()) {
            return Err(failed(
                "not a shard of results: it has far more values than the results of any command".into(),
            ));
        }
        // A renamed copy would be counted twice.
        if path.file_stem().and_then(|name| name.to_str()) != Some(&*name_of(part.shard)) {
            return Err(failed(format!(
                "contains shard {}, so its name must be {}.json",
                part.shard,
                name_of(part.shard)
            )));
        }
        (part.path, part.text) = (path.to_path_buf(), text);
        Ok(part)
    }

    fn check(&self, kind: Kind, settings: &BTreeMap<String, String>, path: &Path) -> CliResult {
        let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
        if self.kind != kind {
            return Err(failed("contains a shard of another command's results".into()));
        }
        for name in self.settings.keys().chain(settings.keys()) {
            let of = |settings: &BTreeMap<String, String>| settings.get(name).cloned().unwrap_or("nothing".into());
            let (own, other) = (of(&self.settings), of(settings));
            if own != other {
                let (name, own, other) = (excerpt(name), excerpt(own), excerpt(other));
                return Err(failed(format!("`{name}` is {own}, but {other} was expected; use another folder")));
            }
        }
        Ok(())
    }

    /// A setting of the shard; empty if it has none of this name.
    pub(super) fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    /// Name of the metric, with which the description of the prompts begins.
    pub(super) fn metric(&self) -> &str {
        self.setting("prompts").split(' ').next().unwrap_or_default()
    }

    /// The model that the shard was computed with.
    pub(super) fn model(&self) -> ModelId {
        let name = self.settings.get("model").cloned().unwrap_or_default();
        ModelId { name, fingerprint: self.settings.get("weights").cloned() }
    }

    /// Deserializes the results.
    pub(super) fn result<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        let failed =
            |e| Failure::Failed(format!("{}: its results are invalid: {}", self.path.display(), excerpt(e)).into());
        Ok(serde_json::from_slice::<Results<T>>(&self.text).map_err(failed)?.result)
    }
}

/// Description of the merged shards, for JSON results.
pub(super) fn described(parts: &[Part]) -> Value {
    json!({"count": parts.len(), "settings": parts.first().map(|part| &part.settings)})
}

/// Shards of results found in a folder: all shards, or the list of missing ones.
pub(super) enum Found {
    Whole(Vec<Part>),
    Missing { of: usize, missing: Vec<Shard> },
}

/// Looks for shards of results in a folder. `None` if there are none.
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
            let message = format!(
                "{}: contains shard {}, but the other files are shards of a job with {} tasks",
                path.display(),
                part.shard,
                first.shard.of()
            );
            return Err(Failure::Failed(message.into()));
        }
    }
    parts.sort_by_key(|part| part.shard.index());
    let of = parts[0].shard.of();
    let there: BTreeSet<usize> = parts.iter().map(|part| part.shard.index()).collect();
    let missing = (1..=of).filter(|index| !there.contains(index));
    let missing: Vec<Shard> = missing.filter_map(|index| Shard::new(index, of).ok()).collect();
    Ok(Some(if missing.is_empty() { Found::Whole(parts) } else { Found::Missing { of, missing } }))
}
