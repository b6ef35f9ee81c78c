//! The shards of a dump, made one by one, as one dump.

use std::path::{Component, Path, PathBuf};

use hooklens_hooks::FolderLock;
use rayon::prelude::*;

use super::DumpReport;
use super::manifest::{BatchFile, Manifest, NAME};
use super::place::{self, Files, Own};
use crate::error::DumpError;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::Result;

/// Writes a manifest over the shards that several jobs made with [`Dump::shard`](super::Dump::shard): the files stay
/// where they are, in folders within `folder`, and the manifest names them all.
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
/// let shards = [folder.join("a"), folder.join("b")]; // made by two jobs, on two machines
/// dump(1, &shards[0])?;
/// assert!(merge(folder, &shards[..1]).is_err()); // not all of it
/// dump(2, &shards[1])?;
/// assert_eq!(merge(folder, &shards)?.rows, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A shard that is not within the folder, not complete, of another run, or of which a file is gone or not as it was
/// written; rows that no shard has, or two have.
pub fn merge(folder: impl AsRef<Path>, shards: &[PathBuf]) -> Result<DumpReport> {
    merged(folder.as_ref(), shards, true)
}

/// [`merge`], which looks at the lengths of files only and not at their bytes.
///
/// # Errors
/// As [`merge`].
pub fn merge_unverified(folder: impl AsRef<Path>, shards: &[PathBuf]) -> Result<DumpReport> {
    merged(folder.as_ref(), shards, false)
}

fn merged(folder: &Path, shards: &[PathBuf], verify: bool) -> Result<DumpReport> {
    let failed = |path: &Path, reason: String| DumpError::Refused { path: path.to_path_buf(), reason };
    let mut whole: Option<Manifest> = None;
    for path in shards {
        let inside = relative(folder, path)
            .ok_or_else(|| failed(path, format!("a shard lies in a folder within {}", folder.display())))?;
        let mut shard = Manifest::read(path)?.ok_or_else(|| failed(path, format!("it has no {NAME}")))?;
        if !shard.complete {
            return Err(failed(path, "its dump is not complete; go on with --resume".into()).into());
        }
        if shard.shard.is_none() {
            return Err(failed(path, "it is a whole dump, not a shard of one".into()).into());
        }
        let files = Files::of(path)?;
        let sound = |entry: &BatchFile| entry.is_within() && files.is_sound(entry, verify);
        let damaged = shard.files.par_iter().find_first(|entry| !sound(entry));
        if let Some(entry) = damaged {
            let told = "it is not there, or not as it was written; --resume makes it anew";
            return Err(failed(&path.join(&entry.file), told.into()).into());
        }
        for entry in &mut shard.files {
            entry.file = format!("{inside}/{}", entry.file);
        }
        match &mut whole {
            None => whole = Some(Manifest { shard: None, shard_rows: None, ..shard }),
            Some(whole) => {
                whole.check_same(&shard, path)?;
                whole.files.append(&mut shard.files);
            }
        }
    }
    let mut whole = whole.ok_or_else(|| failed(folder, "there are no shards to merge".into()))?;
    whole.files.sort_by_key(|entry| entry.first_row);
    let mut next = 0;
    for entry in &whole.files {
        if entry.first_row != next {
            let what = if entry.first_row > next { "no shard has" } else { "two shards have" };
            let row = next.min(entry.first_row) + 1;
            return Err(failed(folder, format!("{what} prompt {row} of {}", whole.rows)).into());
        }
        next = entry.rows.checked_add(next).ok_or_else(|| failed(folder, "its files have too many rows".into()))?;
    }
    if next != whole.rows {
        return Err(failed(folder, format!("no shard has prompt {} of {}", next + 1, whole.rows)).into());
    }
    // Another merge, or a dump, may be about to write its manifest.
    let _lock = if is_url(folder) { None } else { Some(FolderLock::take(folder).map_err(DumpError::from)?) };
    if place::is_there(&folder.join(NAME))? {
        return Err(DumpError::Exists { path: folder.join(NAME) }.into());
    }
    whole.write(&mut Own::new(folder.join(NAME)))?;
    Ok(DumpReport {
        rows: whole.rows,
        bytes: whole.files.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add),
        files: whole.files.iter().map(|entry| folder.join(&entry.file)).collect(),
        ..DumpReport::default()
    })
}

/// The way from a folder to one within it, with `/` between names.
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
