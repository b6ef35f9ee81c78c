//! A folder of files, one a batch, that can be continued.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use hooklens_hooks::{HookError, remove_unfinished, write_views};
use rayon::prelude::*;

use super::batch::Batch;
use super::lock::{self, Lock};
use super::manifest::{BatchFile, LOG, Log, Manifest, NAME};
use super::placing::FileTensor;
use super::sparse::by_entries;
use super::writer::Sink;
use super::{Dump, DumpReport};
use crate::error::DumpError;

/// Writes a file a batch, and for each a line of the log that lists the finished ones.
pub(super) struct FolderSink {
    folder: PathBuf,
    manifest: Manifest,
    log: Log,
    tables: bool,
    _lock: Lock,
}

impl FolderSink {
    /// Opens the folder, making it if need be. If the dump resumes, finished files of a run with the
    /// same settings are kept.
    pub(super) fn open(
        folder: &Path,
        mut manifest: Manifest,
        dump: &Dump,
        first_row: usize,
    ) -> Result<Self, DumpError> {
        let failed = |source: std::io::Error| DumpError::File { path: folder.to_path_buf(), source };
        let refused = |reason: &str| DumpError::Refused { path: folder.to_path_buf(), reason: reason.into() };
        if folder.exists() && !folder.is_dir() {
            return Err(refused("it is a file; a dump goes to a folder or to a name ending in .safetensors"));
        }
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = Lock::take(folder)?;
        match Manifest::read(folder)? {
            Some(_) if !dump.resume => return Err(DumpError::Exists { path: folder.join(NAME) }),
            Some(before) => {
                before.check_same(&manifest, folder)?;
                if before.shard != manifest.shard {
                    let of = |manifest: &Manifest| manifest.shard.map_or("all".to_string(), |shard| shard.to_string());
                    let (path, what) = (folder.join(NAME), "shard".to_string());
                    return Err(DumpError::Mismatch { path, what, before: of(&before), now: of(&manifest) });
                }
                remove_unfinished(folder).map_err(failed)?;
                let listed = if before.complete { before.files } else { Log::read(folder)? };
                manifest.files = sound_files(folder, listed, dump, manifest.rows, first_row);
            }
            None => {
                remove_unfinished(folder).map_err(failed)?;
                for entry in fs::read_dir(folder).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    // A log of nothing is what an interrupted start leaves.
                    let empty_log =
                        entry.file_name() == LOG && entry.metadata().is_ok_and(|metadata| metadata.len() == 0);
                    if empty_log || entry.file_name() == lock::NAME {
                        continue;
                    }
                    return Err(refused("the folder is not empty and holds no dump"));
                }
            }
        }
        // The log first: a manifest without one would say that nothing is finished.
        let log = Log::begin(folder, &manifest.files)?;
        manifest.write(folder)?;
        Ok(Self { folder: folder.to_path_buf(), manifest, log, tables: dump.tables, _lock: lock })
    }

    /// How many batches, from the first on, need not be computed again.
    pub(super) fn finished(&self) -> usize {
        self.manifest.files.len()
    }
}

/// The files, from the first on, that follow each other and are as they were written.
fn sound_files(
    folder: &Path,
    mut listed: Vec<BatchFile>,
    dump: &Dump,
    rows: usize,
    first_row: usize,
) -> Vec<BatchFile> {
    let end = first_row + dump.own_rows(rows);
    let expected = |number: usize, entry: &BatchFile| {
        let row = first_row + number * dump.batch_size;
        let own = file_name(row / dump.batch_size, dump.tables);
        // A merged dump's files lie in folders.
        let named = entry.is_within() && Path::new(&entry.file).file_name() == Some(own.as_ref());
        named && row < end && entry.first_row == row && entry.rows == dump.batch_size.min(end - row)
    };
    let count = listed.iter().enumerate().take_while(|(number, entry)| expected(*number, entry)).count();
    listed.truncate(count);
    let sound = |entry: &BatchFile| entry.is_sound(&folder.join(&entry.file), dump.verify);
    let sound: Vec<bool> = listed.par_iter().map(sound).collect();
    listed.into_iter().zip(sound).take_while(|(_, sound)| *sound).map(|(entry, _)| entry).collect()
}

/// The name of a batch's file.
fn file_name(batch: usize, tables: bool) -> String {
    format!("shard-{batch:05}.{}", if tables { "parquet" } else { "safetensors" })
}

/// Writes a batch's tensors; gives the hash of the file.
fn write_tensors(path: &Path, tensors: Vec<FileTensor>, batch: &Batch) -> Result<u128, DumpError> {
    let placed = tensors.into_iter().zip(&batch.tensors);
    let tensors: Vec<_> = placed.flat_map(|(tensor, named)| by_entries(tensor, named.axes)).collect();
    let named = tensors.iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    // The error names the file already.
    let cause = |error: HookError| match error {
        HookError::Io { source, .. } => source.downcast().map_or_else(std::io::Error::other, |io| *io),
        other => std::io::Error::other(other),
    };
    write_views(path, named, metadata)
        .map_err(|error| DumpError::File { path: path.to_path_buf(), source: cause(error) })
}

impl Sink for FolderSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let file = file_name(batch.number, self.tables);
        let path = self.folder.join(&file);
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        let tensors = batch.place(batch.placing.widths(), &path)?;
        let hash = match self.tables {
            #[cfg(feature = "arrow")]
            true => {
                let bytes = super::table::bytes(&batch, &tensors);
                let bytes = bytes.map_err(|error| failed(std::io::Error::other(error)))?;
                hooklens_hooks::write_file(&path, &bytes).map_err(failed)?;
                xxhash_rust::xxh3::xxh3_128(&bytes)
            }
            _ => write_tensors(&path, tensors, &batch)?,
        };
        let bytes = fs::metadata(&path).map_err(failed)?.len();
        let entry = BatchFile::new(file, batch.first_row, batch.placing.rows(), bytes, hash);
        self.log.add(&entry)?;
        self.manifest.files.push(entry);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<DumpReport, DumpError> {
        let done: usize = self.manifest.files.iter().map(|entry| entry.rows).sum();
        if done == self.manifest.own_rows() {
            self.manifest.complete = true;
            self.manifest.write(&self.folder)?;
            let log = self.folder.join(LOG);
            fs::remove_file(&log).map_err(|source| DumpError::File { path: log, source })?;
        }
        Ok(DumpReport {
            bytes: self.manifest.files.iter().map(|entry| entry.bytes).sum(),
            files: self.manifest.files.iter().map(|entry| self.folder.join(&entry.file)).collect(),
            ..DumpReport::default()
        })
    }
}
