//! The parts of a dump, made one by one, as one dump.

use std::path::{Component, Path, PathBuf};

use super::DumpReport;
use super::manifest::{Manifest, NAME};
use crate::error::{DumpError, Result};

/// Writes a manifest over the parts that several jobs made with [`Dump::part`](super::Dump::part): the shards stay
/// where they are, in folders within `folder`, and the manifest names them all.
///
/// ```
/// use hooklens::dump::{Dump, Part, merge};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let dump = |index, out| Ok::<_, Box<dyn std::error::Error>>(
///     Dump::new("resid_post0").part(Part::new(index, 2)?).run(&model, &[vec![0, 5], vec![0, 6]], out)?,
/// );
/// let parts = [folder.join("a"), folder.join("b")]; // made by two jobs, on two machines
/// dump(1, &parts[0])?;
/// assert!(merge(folder, &parts[..1]).is_err()); // not all of it
/// dump(2, &parts[1])?;
/// assert_eq!(merge(folder, &parts)?.rows, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A part that is not within the folder, not complete, of another run, or of which a shard is gone; rows that no part
/// has, or two have.
pub fn merge(folder: impl AsRef<Path>, parts: &[PathBuf]) -> Result<DumpReport> {
    let folder = folder.as_ref();
    let failed = |path: &Path, reason: String| DumpError::Refused { path: path.to_path_buf(), reason };
    let mut whole: Option<Manifest> = None;
    for path in parts {
        let inside = relative(folder, path)
            .ok_or_else(|| failed(path, format!("a part lies in a folder within {}", folder.display())))?;
        let mut part = Manifest::read(path)?.ok_or_else(|| failed(path, format!("it has no {NAME}")))?;
        if !part.complete {
            return Err(failed(path, "its dump is not complete; go on with --resume".into()).into());
        }
        if part.part.is_none() {
            return Err(failed(path, "it is a whole dump, not a part of one".into()).into());
        }
        for shard in &mut part.shards {
            let file = path.join(&shard.file);
            if std::fs::metadata(&file).map(|m| m.len()).ok() != Some(shard.bytes) {
                return Err(failed(&file, "it is not there, or not as it was written".into()).into());
            }
            shard.file = format!("{inside}/{}", shard.file);
        }
        match &mut whole {
            None => whole = Some(Manifest { part: None, part_rows: None, ..part }),
            Some(whole) => {
                whole.check_same(&part, path)?;
                whole.shards.append(&mut part.shards);
            }
        }
    }
    let mut whole = whole.ok_or_else(|| failed(folder, "there are no parts to merge".into()))?;
    whole.shards.sort_by_key(|shard| shard.first_row);
    let mut next = 0;
    for shard in &whole.shards {
        if shard.first_row != next {
            let what = if shard.first_row > next { "no part has" } else { "two parts have" };
            let row = next.min(shard.first_row) + 1;
            return Err(failed(folder, format!("{what} prompt {row} of {}", whole.rows)).into());
        }
        next += shard.rows;
    }
    if next != whole.rows {
        return Err(failed(folder, format!("no part has prompt {} of {}", next + 1, whole.rows)).into());
    }
    if folder.join(NAME).exists() {
        return Err(DumpError::Exists { path: folder.join(NAME) }.into());
    }
    whole.write(folder)?;
    Ok(DumpReport {
        rows: whole.rows,
        bytes: whole.shards.iter().map(|shard| shard.bytes).sum(),
        files: whole.shards.iter().map(|shard| folder.join(&shard.file)).collect(),
        ..DumpReport::default()
    })
}

/// The way from a folder to one within it, with `/` between names.
fn relative(folder: &Path, path: &Path) -> Option<String> {
    let (folder, path) = (folder.canonicalize().ok()?, path.canonicalize().ok()?);
    let inside = path.strip_prefix(&folder).ok()?;
    let names = inside.components().map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let names = names.collect::<Option<Vec<_>>>()?;
    if names.is_empty() { None } else { Some(names.join("/")) }
}
