//! Finds the shards of a dump in a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::manifest::{Log, Manifest};
use super::place;
use super::{Shard, SplitByShard};
use crate::error::DumpError;

/// Shards of a dump found in the subfolders of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shards {
    /// Total number of shards of the dump; zero if no shard was found.
    pub of: usize,
    /// Folders of complete shards, by shard number.
    pub complete: Vec<PathBuf>,
    /// Shards that are in progress or failed.
    pub unfinished: Vec<UnfinishedShard>,
    /// Shards that no folder contains.
    pub missing: Vec<Shard>,
    /// Folders that contain a different dump than most folders, or a duplicate shard.
    pub foreign: Vec<ForeignShard>,
}

/// A shard that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnfinishedShard {
    /// Folder of the shard.
    pub folder: PathBuf,
    /// The shard.
    pub shard: Shard,
    /// Number of finished prompts.
    pub done: usize,
    /// Total number of prompts in the shard.
    pub rows: usize,
}

/// A folder that does not belong to the dump.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignShard {
    /// Path of the folder.
    pub folder: PathBuf,
    /// Why the folder does not belong.
    pub reason: String,
}

impl Shards {
    /// Whether every shard is present and complete, and no foreign folder is present.
    pub fn are_whole(&self) -> bool {
        self.of > 0 && self.unfinished.is_empty() && self.missing.is_empty() && self.foreign.is_empty()
    }
}

/// Properties that the shards of one dump share.
type Common<'m> = (usize, &'m str, u32, usize, &'m str, BTreeMap<&'m str, String>);

fn common(manifest: &Manifest) -> Option<Common<'_>> {
    let Manifest { format, version, rows, input, shard, .. } = manifest;
    let rows = if manifest.is_packed() { 0 } else { *rows };
    shard.map(|shard| (shard.of(), &**format, *version, rows, &**input, manifest.common()))
}

/// Finds a dump's shards in the subfolders of `folder` by their manifests. The files themselves are not checked;
/// [`merge`](super::merge()) does that.
///
/// ```
/// use hooklens::dump::{Dump, Shard};
/// use hooklens_data::dump::shards_in;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let rows = vec![vec![0, 5], vec![0, 6]];
/// Dump::new("z0").batch_size(1).shard(Shard::new(2, 2)?).run(&model, &rows, folder.join("b"))?;
/// let found = shards_in(folder)?;
/// assert_eq!((found.complete, found.missing), (vec![folder.join("b")], vec![Shard::new(1, 2)?]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DumpError::File`] if a folder cannot be read, [`DumpError::Manifest`] if a manifest is corrupt.
pub fn shards_in(folder: impl AsRef<Path>) -> Result<Shards, DumpError> {
    let folder = folder.as_ref();
    let mut all: Vec<(PathBuf, Manifest)> = Vec::new();
    for path in place::folders(folder)? {
        if let Some(manifest) = Manifest::read(&path)? {
            all.push((path, manifest));
        }
    }
    all.sort_by_key(|(path, manifest)| (manifest.shard.map(|shard| (shard.of(), shard.index())), path.clone()));
    // The dump that most folders belong to is the reference; the others are foreign.
    let mut alike = BTreeMap::new();
    all.iter().filter_map(|(_, manifest)| common(manifest)).for_each(|common| *alike.entry(common).or_insert(0) += 1);
    let mut most: Option<(usize, &Manifest)> = None;
    for (_, manifest) in &all {
        let count = common(manifest).map_or(0, |common| alike[&common]);
        if count > most.map_or(0, |(count, _)| count) {
            most = Some((count, manifest));
        }
    }
    let Some((_, most)) = most else {
        let foreign = all.iter().map(|(folder, _)| ForeignShard {
            folder: folder.clone(),
            reason: "it is a complete dump, not a shard".into(),
        });
        return Ok(Shards { foreign: foreign.collect(), ..Shards::default() });
    };
    let mut found = Shards { of: most.shard.map_or(0, SplitByShard::of), ..Shards::default() };
    let mut seen: BTreeMap<usize, PathBuf> = BTreeMap::new();
    for (path, manifest) in &all {
        let foreign = |reason: String| ForeignShard { folder: path.clone(), reason };
        let Some(shard) = manifest.shard else {
            found.foreign.push(foreign("it is a complete dump, not a shard".into()));
            continue;
        };
        if let Err(error) = most.check_same(manifest, path) {
            found.foreign.push(foreign(match error {
                DumpError::Mismatch { what, before, now, .. } => format!("{what}: {now}, but {before} in the others"),
                other => other.to_string(),
            }));
        } else if shard.of() != found.of {
            found.foreign.push(foreign(format!(
                "it is shard {shard}, but the others belong to a dump split into {} shards",
                found.of
            )));
        } else if let Some(other) = seen.get(&shard.index()) {
            found.foreign.push(foreign(format!("it is shard {shard}, but so is {}", other.display())));
        } else {
            seen.insert(shard.index(), path.clone());
            if manifest.complete {
                found.complete.push(path.clone());
            } else {
                let done = Log::read(path)?.iter().map(|entry| entry.rows).fold(0, usize::saturating_add);
                // The number of prompts of a packed shard is unknown until the shard is complete.
                let rows = if manifest.is_packed() { done } else { manifest.own_rows() };
                found.unfinished.push(UnfinishedShard { folder: path.clone(), shard, done, rows });
            }
        }
    }
    let missing = (1..=found.of).filter(|index| !seen.contains_key(index));
    found.missing = missing.filter_map(|index| Shard::new(index, found.of).ok()).collect();
    Ok(found)
}
