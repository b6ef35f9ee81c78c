//! Replacing a group of files together: either all are replaced or none.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

use crate::leftovers::{Leftovers, leftovers};
use crate::unfinished::{UNFINISHED, Unfinished, check_own_file, without_path};

/// A group of output files, the last of which describes the others.
///
/// All files are written under hidden names first. Then the existing description is removed, the files are renamed into
/// place, and the new description is renamed last, so that a description never exists without the files it describes.
/// If one of these steps fails, the previous files are restored.
///
/// ```
/// use std::io::Write;
/// use hooklens_hooks::Together;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let mut together = Together::new();
/// together.add(&folder.join("weights.bin"))?.write_all(b"weights")?;
/// together.add(&folder.join("config.json"))?.write_all(b"{}")?; // describes the other files
/// assert!(!folder.join("weights.bin").exists());
/// together.finish()?;
/// assert_eq!(std::fs::read(folder.join("config.json"))?, b"{}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Together {
    files: Vec<(PathBuf, Unfinished)>,
    removed: Vec<PathBuf>,
}

impl Together {
    /// Creates an empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a file that will be renamed to `path`.
    ///
    /// # Errors
    /// An error if the folder is not writable, or an error from [`check_own_file`].
    pub fn add(&mut self, path: &Path) -> io::Result<&mut Unfinished> {
        check_own_file(path)?;
        let unfinished = Unfinished::beside(path)?;
        self.files.push((path.to_path_buf(), unfinished));
        self.files.last_mut().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Marks a file of the previous group for removal. If the file exists, it is removed when the new files are renamed
    /// into place.
    pub fn remove(&mut self, path: &Path) {
        self.removed.push(path.to_path_buf());
    }

    /// Renames all files into place.
    ///
    /// # Errors
    /// If the disk is full, a folder is no longer writable, or a file to be removed is a symbolic link. The previous
    /// files are kept in that case.
    pub fn finish(self) -> io::Result<()> {
        for path in &self.removed {
            check_own_file(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        }
        // Sync first: running out of space must fail before anything is replaced.
        self.files.iter().try_for_each(|(_, file)| file.as_file()?.sync_all())?;
        let (mut files, mut replaced) = (self.files.into_iter(), Replaced::default());
        // A signal that ends the process waits until all files are renamed.
        let mut leftovers = leftovers();
        let switched = switch(&mut files, &self.removed, &mut replaced, &mut leftovers);
        if switched.is_err() {
            replaced.put_back();
        }
        // Release the lock, because dropping the remaining files takes it again.
        drop(leftovers);
        switched
    }
}

fn switch(
    files: &mut std::vec::IntoIter<(PathBuf, Unfinished)>,
    removed: &[PathBuf],
    replaced: &mut Replaced,
    leftovers: &mut Leftovers,
) -> io::Result<()> {
    for (path, _) in files.as_slice() {
        replaced.keep(path)?;
    }
    removed.iter().try_for_each(|path| replaced.keep(path))?;
    if let Some((description, file)) = files.as_slice().last() {
        file.keep_permissions()?;
        replaced.remove(description)?;
    }
    removed.iter().try_for_each(|path| replaced.remove(path))?;
    files.try_for_each(|(_, file)| file.named(leftovers).map(drop))
}

/// The previous files, kept under hidden names until all steps have succeeded.
#[derive(Default)]
struct Replaced {
    earlier: Vec<Earlier>,
    /// Paths where nothing existed before.
    new: Vec<PathBuf>,
}

struct Earlier {
    /// Original path, with symbolic links resolved.
    place: PathBuf,
    hidden: TempPath,
    /// Locked, so that no other process mistakes the hidden file for a leftover of a killed process.
    _file: File,
}

impl Replaced {
    /// Keeps the file at a path under a second, hidden name.
    fn keep(&mut self, path: &Path) -> io::Result<()> {
        let place = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.new.push(path.to_path_buf());
                return Ok(());
            }
            place => place?,
        };
        let folder = place.parent().unwrap_or(Path::new("."));
        let hidden = Builder::new().prefix(UNFINISHED).make_in(folder, |hidden| {
            // Some file systems do not support hard links.
            fs::hard_link(&place, hidden).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Err(error),
                _ => fs::copy(&place, hidden).map(drop),
            })
        });
        let hidden = hidden.map_err(without_path)?.into_temp_path();
        let file = File::open(&hidden)?;
        file.try_lock_shared().ok();
        self.earlier.push(Earlier { place, hidden, _file: file });
        Ok(())
    }

    /// Removes the file at a path; its hidden name remains.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match path.canonicalize().and_then(fs::remove_file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Restores the previous state.
    fn put_back(&mut self) {
        for Earlier { place, hidden, .. } in &self.earlier {
            if fs::rename(hidden, place).is_err() && !place.exists() {
                fs::copy(hidden, place).ok();
            }
        }
        for path in &self.new {
            fs::remove_file(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;
    use std::io::Write;

    fn contents(folder: &Path) -> BTreeMap<String, String> {
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        files
            .map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap_or_default()))
            .collect()
    }

    fn of(folder: &Path, names: &[&str], content: &str) -> Together {
        let mut together = Together::new();
        for name in names {
            together.add(&folder.join(name)).unwrap().write_all(content.as_bytes()).unwrap();
        }
        together
    }

    #[test]
    fn files_appear_together_and_replace_others() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("notes"), "the user's").unwrap();
        let first = of(folder, &["a", "b", "of-first", "description"], "first");
        assert!(!contents(folder).contains_key("a"));
        first.finish().unwrap();
        let mut second = of(folder, &["a", "b", "description"], "second");
        second.remove(&folder.join("of-first"));
        second.remove(&folder.join("of-none"));
        drop(of(folder, &["a", "b"], "given up"));
        assert_eq!(contents(folder)["a"], "first");
        second.finish().unwrap();
        let expected = [("a", "second"), ("b", "second"), ("description", "second"), ("notes", "the user's")];
        assert_eq!(contents(folder), expected.map(|(name, text)| (name.into(), text.into())).into());
    }

    /// Whichever file fails to be renamed, the previous files are kept and nothing else is left.
    #[test]
    fn a_failing_step_leaves_what_was_there() {
        let names = ["a", "b", "c", "description"];
        for blocked in names {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            of(folder, &["a", "b", "old", "description"], "earlier").finish().unwrap();
            let before = contents(folder);
            let mut together = Together::new();
            for name in names {
                let there = contents(folder);
                together.add(&folder.join(name)).unwrap().write_all(b"new").unwrap();
                if name == blocked {
                    let hidden = contents(folder).into_keys().find(|name| !there.contains_key(name)).unwrap();
                    fs::remove_file(folder.join(hidden)).unwrap();
                }
            }
            together.remove(&folder.join("old"));
            together.finish().unwrap_err();
            assert_eq!(contents(folder), before, "{blocked}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn targets_of_links_are_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("shared"), "the user's").unwrap();
        std::os::unix::fs::symlink(folder.join("shared"), folder.join("labels")).unwrap();
        let mut together = of(folder, &["a", "description"], "new");
        together.remove(&folder.join("labels"));
        let error = together.finish().unwrap_err().to_string();
        assert!(error.contains("labels: it is a symbolic link"), "{error}");
        let left = [("shared", "the user's"), ("labels", "the user's")];
        assert_eq!(contents(folder), left.map(|(name, text)| (name.into(), text.into())).into());
    }

    #[test]
    fn folders_of_these_names_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        of(folder, &["a", "description"], "earlier").finish().unwrap();
        let together = of(folder, &["a", "b", "description"], "new");
        fs::create_dir(folder.join("b")).unwrap();
        fs::write(folder.join("b/within"), "the user's").unwrap();
        together.finish().unwrap_err();
        assert_eq!(contents(folder)["a"], "earlier");
        assert_eq!(contents(&folder.join("b"))["within"], "the user's");
    }
}
