//! Merges separately computed shards into one dump.

use std::path::{Component, Path, PathBuf};

use hooklens_hooks::FolderLock;
use rayon::prelude::*;

use super::DumpReport;
use super::manifest::{BatchFile, Manifest, NAME};
use super::place::{self, Files, VersionedFile};
use crate::error::DumpError;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::Result;

/// Merges shards that several jobs made with [`Dump::shard`](super::Dump::shard) by writing a manifest that lists all
/// of their files. The files stay in their folders, which must be inside `folder`.
///
/// ```
/// use hooklens::dump::{Dump, Shard, merge};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let dump = |index, out| Ok::<_, Box<dyn std::error::Error>>(
///     Dump::new("resid_post0").shard(Shard::new(index, 2)?).run(&model, &[vec![0, 5], vec![0, 6]], out)?,
/// );
/// let shards = [folder.join("a"), folder.join("b")]; // written by two jobs on two machines
/// dump(1, &shards[0])?;
/// assert!(merge(folder, &shards[..1]).is_err()); // incomplete
/// dump(2, &shards[1])?;
/// assert_eq!(merge(folder, &shards)?.rows, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails if a shard is outside the folder, incomplete or from another run, if one of its files is missing or modified,
/// or if rows are missing or occur twice.
pub fn merge(folder: impl AsRef<Path>, shards: &[PathBuf]) -> Result<DumpReport> {
    merged(folder.as_ref(), shards, true)
}

/// Like [`merge`], but checks only the lengths of files, not their contents.
///
/// # Errors
/// Same as [`merge`].
pub fn merge_unverified(folder: impl AsRef<Path>, shards: &[PathBuf]) -> Result<DumpReport> {
    merged(folder.as_ref(), shards, false)
}

fn merged(folder: &Path, shards: &[PathBuf], verify: bool) -> Result<DumpReport> {
    let failed = |path: &Path, reason: String| DumpError::Refused { path: path.to_path_buf(), reason };
    let mut whole: Option<Manifest> = None;
    let mut pieces = Vec::new();
    for path in shards {
        let inside = relative(folder, path)
            .ok_or_else(|| failed(path, format!("a shard must be in a folder inside {}", folder.display())))?;
        let mut shard = Manifest::read(path)?.ok_or_else(|| failed(path, format!("it has no {NAME}")))?;
        if !shard.complete {
            return Err(failed(path, "its dump is not complete; finish it with --resume".into()).into());
        }
        if shard.shard.is_none() {
            return Err(failed(path, "it is a complete dump, not a shard".into()).into());
        }
        let files = Files::of(path)?;
        let sound = |entry: &BatchFile| entry.is_within() && files.is_sound(entry, verify);
        let damaged = shard.files.par_iter().find_first(|entry| !sound(entry));
        if let Some(entry) = damaged {
            let message = "it is missing or was modified; recompute it with --resume";
            return Err(failed(&path.join(&entry.file), message.into()).into());
        }
        pieces.push((shard.pieces.unwrap_or_default(), shard.files.len()));
        for entry in &mut shard.files {
            entry.file = format!("{inside}/{}", entry.file);
        }
        match &mut whole {
            None => whole = Some(Manifest { shard: None, shard_rows: None, ..shard }),
            Some(whole) => {
                whole.check_same(&shard, path)?;
                whole.join(shard);
            }
        }
    }
    let mut whole = whole.ok_or_else(|| failed(folder, "there are no shards to merge".into()))?;
    if whole.is_packed() {
        join_pieces(folder, &mut whole, &mut pieces)?;
    }
    whole.files.sort_by_key(|entry| entry.first_row);
    let mut next = 0;
    for entry in &whole.files {
        if entry.first_row != next {
            let what = if entry.first_row > next { "no shard contains" } else { "two shards contain" };
            let row = next.min(entry.first_row) + 1;
            return Err(failed(folder, format!("{what} prompt {row} of {}", whole.rows)).into());
        }
        next = entry.rows.checked_add(next).ok_or_else(|| failed(folder, "its files have too many rows".into()))?;
    }
    if next != whole.rows {
        return Err(failed(folder, format!("no shard contains prompt {} of {}", next + 1, whole.rows)).into());
    }
    // Another merge or dump may be about to write its manifest.
    let _lock = if is_url(folder) { None } else { Some(FolderLock::take(folder).map_err(DumpError::from)?) };
    if place::is_there(&folder.join(NAME))? {
        return Err(DumpError::Exists { path: folder.join(NAME) }.into());
    }
    whole.write(&mut VersionedFile::new(folder.join(NAME)))?;
    let bytes = whole.files.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add);
    Ok(DumpReport {
        rows: whole.rows,
        bytes,
        files: whole.files.iter().map(|entry| folder.join(&entry.file)).collect(),
        ..DumpReport::default()
    })
}

/// Numbers the rows of packed shards consecutively, in the order of their pieces. `shards` contains each shard's pieces
/// and number of files, in the order in which the files are listed.
fn join_pieces(folder: &Path, whole: &mut Manifest, shards: &mut [([usize; 2], usize)]) -> Result<(), DumpError> {
    let failed = |reason: String| DumpError::Refused { path: folder.to_path_buf(), reason };
    let mut listed = std::mem::take(&mut whole.files).into_iter();
    let mut parts: Vec<([usize; 2], Vec<BatchFile>)> =
        shards.iter().map(|(own, count)| (*own, listed.by_ref().take(*count).collect())).collect();
    parts.sort_by_key(|(own, _)| *own);
    let (mut next, mut rows) = (0, 0);
    let all = whole.corpus.as_ref().and_then(|corpus| corpus["pieces"].as_u64()).unwrap_or(0) as usize;
    for ([start, end], files) in parts {
        if start != next {
            let what = if start > next { "no shard contains" } else { "two shards contain" };
            return Err(failed(format!("{what} piece {} of the {all} pieces of the corpus", start.min(next) + 1)));
        }
        next = end;
        let first = rows;
        for mut entry in files {
            entry.first_row += first;
            rows += entry.rows;
            whole.files.push(entry);
        }
    }
    if next != all {
        return Err(failed(format!("no shard contains piece {} of the {all} pieces of the corpus", next + 1)));
    }
    (whole.rows, whole.pieces) = (rows, Some([0, all]));
    Ok(())
}

/// Relative path of a folder within another, with `/` as the separator.
fn relative(folder: &Path, path: &Path) -> Option<String> {
    let (folder, path) = match is_url(folder) {
        true => (folder.to_path_buf(), path.to_path_buf()),
        false => (folder.canonicalize().ok()?, path.canonicalize().ok()?),
    };
    let inside = path.strip_prefix(&folder).ok()?;
    let names = inside.components().map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let names = names.collect::<Option<Vec<_>>>()?;
    if names.is_empty() { None } else { Some(names.join("/")) }
}
