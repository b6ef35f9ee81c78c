//! A dump folder with one file per batch, which can be resumed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

#[cfg(feature = "arrow")]
use hooklens_hooks::Axis;
use hooklens_hooks::{FolderLock, HookError, remove_unfinished, write_views, write_views_to};
use rayon::prelude::*;

use super::batch::Batch;
use super::manifest::{BatchFile, LOG, Log, Manifest, NAME};
#[cfg(feature = "arrow")]
use super::packed_file::PackedFile;
use super::place::{self, Files, VersionedFile};
use super::placing::{FileTensor, Widths};
use super::sparse::by_entries;
use super::writer::Sink;
use super::{Dump, DumpReport, object_log};
use crate::error::DumpError;
use hooklens_io::object_stores::Object;

/// Writes one file per batch, and a log line for each finished file.
pub(super) struct FolderSink {
    folder: PathBuf,
    manifest: Manifest,
    /// Sizes of the whole dump or shard.
    widths: Widths,
    own: VersionedFile,
    /// Log of finished files; `None` if the folder is in a store and an earlier run finished the dump.
    log: Option<Log>,
    tables: bool,
    _lock: Option<FolderLock>,
}

impl FolderSink {
    /// Opens the folder, creating it if necessary. If the dump resumes, finished files of a run with the same settings
    /// are kept.
    pub(super) fn open(
        folder: &Path,
        mut manifest: Manifest,
        dump: &Dump,
        first_row: usize,
        widths: Widths,
    ) -> Result<Self, DumpError> {
        let of_store = place::object(folder)?.is_some();
        let lock = if of_store { None } else { Some(made(folder)?) };
        let mut own = VersionedFile::new(folder.join(NAME));
        match Manifest::read(folder)? {
            Some(_) if !dump.resume => return Err(DumpError::Exists { path: folder.join(NAME) }),
            Some(before) => {
                before.check_same(&manifest, folder)?;
                if before.shard != manifest.shard {
                    let of = |manifest: &Manifest| manifest.shard.map_or("all".to_string(), |shard| shard.to_string());
                    let (path, what) = (folder.join(NAME), "shard".to_string());
                    return Err(DumpError::Mismatch { path, what, before: of(&before), now: of(&manifest) });
                }
                if !of_store {
                    remove_unfinished(folder).map_err(place::failed(folder))?;
                }
                let was_complete = before.complete;
                let own_rows = before.own_rows();
                let listed = if was_complete { before.files } else { Log::read(folder)? };
                // Earlier versions split shards at batch boundaries.
                if let Some(begins) = listed.first().map(|entry| entry.first_row)
                    && manifest.shard.is_some()
                    && (begins, own_rows) != (first_row, manifest.own_rows())
                {
                    let of = |first: usize, rows: usize| format!("{rows} starting at prompt {}", first + 1);
                    let (path, what) = (folder.join(NAME), "prompts of the shard".to_string());
                    let now = of(first_row, manifest.own_rows());
                    return Err(DumpError::Mismatch { path, what, before: of(begins, own_rows), now });
                }
                manifest.files = sound_files(folder, listed, dump, manifest.rows, first_row)?;
                manifest.tensors = before.tensors;
                if of_store && was_complete && manifest.rows_done() == manifest.own_rows() {
                    let folder = folder.to_path_buf();
                    return Ok(Self { folder, manifest, widths, own, log: None, tables: dump.tables, _lock: lock });
                }
                own = VersionedFile::taken(folder.join(NAME));
            }
            None => check_empty(folder, of_store)?,
        }
        // Write the log first: a manifest without a log would mean that nothing is finished.
        let log = Some(Log::begin(folder, &manifest.files)?);
        manifest.write(&mut own)?;
        let (folder, tables) = (folder.to_path_buf(), dump.tables);
        Ok(Self { folder, manifest, widths, own, log, tables, _lock: lock })
    }

    /// Number of leading batches that need not be recomputed.
    pub(super) fn finished(&self) -> usize {
        self.manifest.files.len()
    }
}

fn refused(folder: &Path, reason: &str) -> DumpError {
    DumpError::Refused { path: folder.to_path_buf(), reason: reason.into() }
}

/// Creates a local folder and locks it.
pub(super) fn made(folder: &Path) -> Result<FolderLock, DumpError> {
    if folder.exists() && !folder.is_dir() {
        return Err(refused(folder, "it is a file; write the dump to a folder or to a name ending in .safetensors"));
    }
    fs::create_dir_all(folder).map_err(place::failed(folder))?;
    Ok(FolderLock::take(folder)?)
}

/// Fails if a folder contains something other than a dump. Removes what an interrupted start left behind.
pub(super) fn check_empty(folder: &Path, of_store: bool) -> Result<(), DumpError> {
    let held = "the folder is not empty and does not contain a dump";
    if of_store {
        let files = Files::of(folder)?;
        let other = files.names().find(|name| !object_log::is_own(name));
        return other.map_or(Ok(()), |_| Err(refused(folder, held)));
    }
    let failed = place::failed(folder);
    remove_unfinished(folder).map_err(&failed)?;
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        // An interrupted start may leave an empty log.
        let empty_log = entry.file_name() == LOG && entry.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if !empty_log && !FolderLock::is_lock(&entry.file_name()) {
            return Err(refused(folder, held));
        }
    }
    Ok(())
}

/// Leading files that are consecutive and intact.
fn sound_files(
    folder: &Path,
    mut listed: Vec<BatchFile>,
    dump: &Dump,
    rows: usize,
    first_row: usize,
) -> Result<Vec<BatchFile>, DumpError> {
    let end = first_row + dump.own(rows).len();
    let expected = |number: usize, entry: &BatchFile| {
        let row = first_row + number * dump.batch_size;
        let own = file_name(row / dump.batch_size, dump.tables);
        // Files of a merged dump are in subfolders.
        let named = entry.is_within() && Path::new(&entry.file).file_name() == Some(own.as_ref());
        named && row < end && entry.first_row == row && entry.rows == dump.batch_size.min(end - row)
    };
    let count = listed.iter().enumerate().take_while(|(number, entry)| expected(*number, entry)).count();
    listed.truncate(count);
    let files = Files::of(folder)?;
    let sound: Vec<bool> = listed.par_iter().map(|entry| files.is_sound(entry, dump.verify)).collect();
    Ok(listed.into_iter().zip(sound).take_while(|(_, sound)| *sound).map(|(entry, _)| entry).collect())
}

/// Name of a batch's file.
fn file_name(batch: usize, tables: bool) -> String {
    format!("shard-{batch:05}.{}", if tables { "parquet" } else { "safetensors" })
}

/// Converts a batch's tensors to the form stored in a file.
fn tensors_of(tensors: Vec<FileTensor>, batch: &Batch) -> Vec<FileTensor> {
    let placed = tensors.into_iter().zip(&batch.tensors);
    placed.flat_map(|(tensor, named)| by_entries(tensor, named.axes)).collect()
}

/// Writes a batch's tensors to a file; returns its length and hash.
fn write_tensors(path: &Path, tensors: &[FileTensor]) -> Result<(u64, u128), DumpError> {
    // The error already names the file.
    let cause = |error: HookError| match error {
        HookError::Io { source, .. } => source.downcast().map_or_else(std::io::Error::other, |io| *io),
        other => std::io::Error::other(other),
    };
    let hash = write_views(path, named(tensors), metadata()).map_err(|error| place::failed(path)(cause(error)))?;
    Ok((fs::metadata(path).map_err(place::failed(path))?.len(), hash))
}

/// Uploads a batch's tensors to a store as one file; returns its length and hash.
fn put_tensors(object: &Object, tensors: &[FileTensor]) -> std::io::Result<(u64, u128)> {
    let mut writer = object.writer();
    let hash = write_views_to(&mut writer, named(tensors), metadata())?;
    Ok((writer.finish()?, hash))
}

fn named(tensors: &[FileTensor]) -> Vec<(String, &FileTensor)> {
    tensors.iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn metadata() -> HashMap<String, String> {
    HashMap::from([("format".to_string(), "pt".to_string())])
}

#[cfg(feature = "arrow")]
impl FolderSink {
    fn write_table(&self, path: &Path, object: Option<&Object>, batch: &Batch) -> Result<(u64, u128), DumpError> {
        let mut file = PackedFile::new(&self.folder, 0);
        let lengths = batch.placing.kept().map(|kept| kept.len());
        let numbers: Vec<usize> = (batch.first_row..).take(batch.placing.rows()).collect();
        let is_latents = |name: &str| {
            batch.tensors.iter().any(|named| named.name == name && named.axes.last() == Some(&Axis::Feature))
        };
        let added = file.add(&batch.pack(path)?, lengths, &numbers, is_latents);
        added.and_then(|()| file.finish_table(path, object)).map_err(place::failed(path))
    }
}

impl Sink for FolderSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let file = file_name(batch.number, self.tables);
        let path = self.folder.join(&file);
        place::check_no_link(&path)?;
        let failed = place::failed(&path);
        let object = place::object(&path)?;
        let all = (self.manifest.own_rows(), self.widths);
        if batch.describe(all, !self.tables, &mut self.manifest.tensors) && self.log.is_some() {
            self.manifest.write(&mut self.own)?;
        }
        let placed = || Ok::<_, DumpError>(tensors_of(batch.place(batch.placing.widths(), &path)?, &batch));
        let (bytes, hash) = match (self.tables, &object) {
            #[cfg(feature = "arrow")]
            (true, object) => self.write_table(&path, object.as_ref(), &batch)?,
            (_, None) => write_tensors(&path, &placed()?)?,
            (_, Some(object)) => put_tensors(object, &placed()?).map_err(failed)?,
        };
        let entry = BatchFile::new(file, batch.first_row, batch.placing.rows(), bytes, hash);
        if let Some(log) = &mut self.log {
            log.add(&entry)?;
        }
        self.manifest.files.push(entry);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<DumpReport, DumpError> {
        if self.manifest.rows_done() == self.manifest.own_rows()
            && let Some(log) = self.log.take()
        {
            self.manifest.complete = true;
            self.manifest.write(&mut self.own)?;
            log.remove()?;
        }
        let bytes = self.manifest.files.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add);
        Ok(DumpReport {
            bytes,
            files: self.manifest.files.iter().map(|entry| self.folder.join(&entry.file)).collect(),
            ..DumpReport::default()
        })
    }
}
