//! A dump folder of packed files. A file is complete when it reaches a given size.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hooklens_hooks::{FolderLock, remove_unfinished};
use rayon::prelude::*;

use super::batch::{Batch, WindowEnd};
use super::folder::{check_empty, made};
use super::manifest::{BatchFile, LOG, Log, Manifest, Mark, NAME, PackedEntry};
use super::packed_file::PackedFile;
use super::place::{self, Files, VersionedFile};
use super::stream_summary::StreamSummary;
use super::writer::Sink;
use super::{Dump, DumpReport};
use crate::corpus::RowSource;
use crate::error::DumpError;
use hooklens_model::error::{Error, Result, error_chain};
use hooklens_model::tokens::Tokenizer;

/// Writes packed files, and a log line for each.
pub(super) struct PackedSink {
    folder: PathBuf,
    manifest: Manifest,
    own: VersionedFile,
    log: Option<Log>,
    /// Size in bytes at which a file is complete.
    size: u64,
    tables: bool,
    /// Tokens before every prompt.
    prefix: Vec<u32>,
    /// Number of files that earlier runs finished.
    earlier: usize,
    summary: StreamSummary,
    tokenizer: Option<Tokenizer>,
    file: PackedFile,
    /// Mark at which the current file starts.
    from: Mark,
    /// Number of the current file's first prompt.
    first: usize,
    /// Number of prompts skipped since the start of the file.
    skipped: usize,
    /// Number of prompts since the start of the file that begin with the beginning-of-sequence token.
    with_bos: usize,
    /// Hash of the prompts since the start of the file.
    input: u64,
    /// Maximum numbers of tokens and of kept positions per prompt since the start of the file.
    longest: [usize; 2],
    /// Points stored as nonzero entries.
    latents: BTreeSet<String>,
    /// The end of the last finished window.
    at: Mark,
    ended: bool,
    _lock: Option<FolderLock>,
}

impl PackedSink {
    /// Opens a folder, to start a dump or to continue one.
    pub(super) fn open(
        folder: &Path,
        mut manifest: Manifest,
        dump: &Dump,
        latents: BTreeSet<String>,
        source: &(dyn RowSource + Sync),
        (summary, tokenizer): (StreamSummary, Option<Tokenizer>),
    ) -> Result<Self> {
        let of_store = place::object(folder)?.is_some();
        let lock = if of_store { None } else { Some(made(folder)?) };
        let mut own = VersionedFile::new(folder.join(NAME));
        let mut ended = false;
        match Manifest::read(folder)? {
            Some(_) if !dump.resume => return Err(DumpError::Exists { path: folder.join(NAME) }.into()),
            Some(before) => {
                before.check_same(&manifest, folder)?;
                if (before.shard, before.pieces) != (manifest.shard, manifest.pieces) {
                    let of = |manifest: &Manifest| manifest.shard.map_or("all".to_string(), |shard| shard.to_string());
                    let (path, what) = (folder.join(NAME), "shard".to_string());
                    return Err(DumpError::Mismatch { path, what, before: of(&before), now: of(&manifest) }.into());
                }
                if !of_store {
                    remove_unfinished(folder).map_err(place::failed(folder))?;
                }
                let listed = if before.complete { before.files } else { Log::read(folder)? };
                let all = listed.len();
                let files = sound(folder, listed, &manifest, dump)?;
                // A complete dump has no files if its pieces have no prompts.
                ended = before.complete && files.len() == all;
                if dump.verify {
                    check_prompts(&files, source, folder)?;
                }
                manifest.files = files;
                manifest.tensors = before.tensors;
                manifest.token_texts = before.token_texts;
                if let (Some(now), Some(before)) = (&mut manifest.model, &before.model) {
                    now.prepend_bos = before.prepend_bos;
                }
                own = VersionedFile::taken(folder.join(NAME));
                if ended {
                    manifest.rows = manifest.rows_done();
                    manifest.complete = true;
                }
            }
            None => check_empty(folder, of_store)?,
        }
        // The earlier run may have completed the dump without being able to remove the log.
        let left = folder.join(LOG);
        if ended && !of_store && left.exists() {
            std::fs::remove_file(&left).map_err(place::failed(&left))?;
        }
        let log = if ended {
            None
        } else {
            // Write the log first: a manifest without a log would mean that nothing is finished.
            let log = Log::begin(folder, &manifest.files)?;
            manifest.write(&mut own)?;
            Some(log)
        };
        let from = manifest.files.last().and_then(|entry| entry.packed).map_or(start(&manifest), |packed| packed.to);
        let first = manifest.rows_done();
        let earlier = manifest.files.len();
        Ok(Self {
            folder: folder.to_path_buf(),
            manifest,
            own,
            log,
            size: dump.file_size,
            tables: dump.tables,
            prefix: dump.prefix.clone(),
            earlier,
            at: from,
            summary,
            tokenizer,
            file: PackedFile::new(folder, first),
            from,
            first,
            skipped: 0,
            with_bos: 0,
            input: 0,
            longest: [0, 0],
            latents,
            ended,
            _lock: lock,
        })
    }

    /// Number of prompts in the finished files, the mark at which the files end, and whether the dump ends there.
    pub(super) fn finished(&self) -> (usize, Mark, bool) {
        (self.first, self.from, self.ended)
    }

    /// Number of finished files.
    pub(super) fn files(&self) -> usize {
        self.manifest.files.len()
    }

    /// Completes the current file at the end of a window.
    fn close(&mut self, mark: Mark) -> Result<(), DumpError> {
        let (rows, tokens) = (self.file.rows(), self.file.tokens());
        let file = std::mem::replace(&mut self.file, PackedFile::new(&self.folder, self.first + rows));
        if rows > 0 {
            let name = file_name(self.manifest.files.len(), self.tables);
            let path = self.folder.join(&name);
            place::check_no_link(&path)?;
            let object = place::object(&path)?;
            let (bytes, hash) = match self.tables {
                #[cfg(feature = "arrow")]
                true => file.finish_table(&path, object.as_ref()),
                _ => file.finish(&path, object.as_ref()),
            }
            .map_err(place::failed(&path))?;
            let within = mark.row > 0;
            let input = if within { PackedEntry::with_piece(self.input, mark.hash) } else { self.input };
            let packed = Some(PackedEntry {
                tokens,
                from: self.from,
                to: mark,
                input,
                longest: self.longest,
                skipped: self.skipped,
                with_bos: Some(self.with_bos),
            });
            let entry = BatchFile { packed, ..BatchFile::new(name, self.first, rows, bytes, hash) };
            if let Some(log) = &mut self.log {
                log.add(&entry)?;
            }
            self.manifest.files.push(entry);
            (self.from, self.skipped, self.with_bos, self.input, self.longest) = (mark, 0, 0, 0, [0, 0]);
            self.first += rows;
        }
        Ok(())
    }
}

/// Where the pieces of a folder start.
fn start(manifest: &Manifest) -> Mark {
    Mark { piece: manifest.pieces.map_or(0, |[start, _]| start), ..Mark::default() }
}

/// Name of a file.
fn file_name(number: usize, tables: bool) -> String {
    format!("part-{number:05}.{}", if tables { "parquet" } else { "safetensors" })
}

/// Leading files that are consecutive and intact.
fn sound(
    folder: &Path,
    mut listed: Vec<BatchFile>,
    manifest: &Manifest,
    dump: &Dump,
) -> Result<Vec<BatchFile>, DumpError> {
    let (mut at, mut row, mut count) = (start(manifest), 0, 0);
    for entry in &listed {
        let Some(packed) = entry.packed else { break };
        if !entry.is_within() || (packed.from, entry.first_row) != (at, row) {
            break;
        }
        (at, row, count) = (packed.to, row + entry.rows, count + 1);
    }
    listed.truncate(count);
    let files = Files::of(folder)?;
    let sound: Vec<bool> = listed.par_iter().map(|entry| files.is_sound(entry, dump.verify)).collect();
    Ok(listed.into_iter().zip(sound).take_while(|(_, sound)| *sound).map(|(entry, _)| entry).collect())
}

/// Fails if the prompts that files were computed from have changed. Reads them, but does not tokenize them.
fn check_prompts(files: &[BatchFile], source: &(dyn RowSource + Sync), folder: &Path) -> Result<()> {
    files.par_iter().filter_map(|file| file.packed.as_ref()).try_for_each(|packed| {
        let mut input = 0;
        for piece in packed.from.piece..packed.to.piece {
            input = PackedEntry::with_piece(input, source.hash(piece, None)?);
        }
        if packed.to.row > 0 {
            input = PackedEntry::with_piece(input, source.hash(packed.to.piece, Some(packed.to.row))?);
        }
        if input == packed.input {
            return Ok(());
        }
        let last = packed.to.piece - usize::from(packed.to.row == 0 && packed.to.piece > packed.from.piece);
        let (first, last) = (source.name(packed.from.piece), source.name(last));
        let place = if first == last { first } else { format!("{first} to {last}") };
        let reason = format!("the prompts of {place} have changed since they were dumped");
        Err(DumpError::Refused { path: folder.join(NAME), reason }.into())
    })
}

impl Sink for PackedSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let Some(stream) = &batch.stream else { return Ok(()) };
        if batch.placing.rows() > 0 {
            let tensors = batch.pack(&self.folder)?;
            if batch.describe_packed(&tensors, &mut self.manifest.tensors) && self.log.is_some() {
                self.manifest.write(&mut self.own)?;
            }
            let widths = batch.placing.widths();
            self.longest = [self.longest[0].max(widths.len), self.longest[1].max(widths.kept)];
            let lengths = batch.placing.kept().map(|kept| kept.len());
            let added = self.file.add(&tensors, lengths, &stream.numbers, |name| self.latents.contains(name));
            added.map_err(place::failed(&self.folder))?;
        }
        if let Some(WindowEnd { mark, ended, skipped, with_bos, is_last }) = &stream.end {
            let (mark, is_last) = (*mark, *is_last);
            self.skipped += skipped;
            self.with_bos += with_bos;
            self.input = ended.iter().fold(self.input, |input, hash| PackedEntry::with_piece(input, *hash));
            if is_last || self.file.bytes() >= self.size {
                self.close(mark)?;
            }
            self.file.commit();
            self.at = mark;
            self.ended |= is_last;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<DumpReport, DumpError> {
        if self.ended
            && let Some(log) = self.log.take()
        {
            self.manifest.complete = true;
            self.manifest.rows = self.manifest.rows_done();
            let longest =
                |at: usize| self.manifest.files.iter().filter_map(|file| file.packed).map(|own| own.longest[at]).max();
            let (len, kept) = (longest(0).unwrap_or(0), longest(1).unwrap_or(0));
            let rows = self.manifest.rows;
            for tensor in self.manifest.tensors.values_mut() {
                tensor.set_lengths(rows, kept, self.prefix.len() + len);
            }
            let earlier: Vec<PathBuf> =
                self.manifest.files[..self.earlier].iter().map(|entry| self.folder.join(&entry.file)).collect();
            let failed = |error: Error| DumpError::Refused { path: self.folder.clone(), reason: error_chain(&error) };
            let tokenizer = self.tokenizer.as_ref();
            self.summary.complete(&mut self.manifest, &earlier, tokenizer, &self.prefix).map_err(failed)?;
            self.manifest.write(&mut self.own)?;
            log.remove()?;
        }
        if !self.ended {
            // The rows of finished windows are kept, although the file is not full.
            self.file.roll_back().map_err(place::failed(&self.folder))?;
            self.close(self.at)?;
        }
        // Without a finished file, remove the log and the manifest, so that a later run need not resume this one.
        if self.manifest.files.is_empty()
            && let Some(log) = self.log.take()
        {
            log.remove()?;
            self.own.discard()?;
        }
        let bytes = self.manifest.files.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add);
        Ok(DumpReport {
            bytes,
            rows: self.manifest.rows_done(),
            files: self.manifest.files.iter().map(|entry| self.folder.join(&entry.file)).collect(),
            ..DumpReport::default()
        })
    }
}
