//! Dumps a corpus while reading it.
//!
//! One thread reads and tokenizes ahead of the model, and another thread writes. Consecutive prompts form a window; the
//! prompts of a window are computed in batches of similar length. Files end where windows do, so a resumed run has the
//! same windows.

use hooklens_hooks::SelectionText;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::Device;
use hooklens_hooks::Axis;

use super::batch::{Batch, FromStream, Noted, WindowEnd};
use super::compute::{batches, positions_computed, worth_sharing};
use super::manifest::{Manifest, Mark};
use super::packed_folder::PackedSink;
use super::placing::{Placing, PromptRow};
use super::stream_summary::StreamSummary;
use super::writer::Writer;
use super::{Dump, DumpModel, DumpReport, DumpedModel, Seen, SplitByShard};
use crate::corpus::RowSource;
use crate::error::DumpError;
use hooklens_model::device::synchronize;
use hooklens_model::error::{Error, Place, Result};

/// Maximum number of prompts per window, unless four batches contain more.
const WINDOW: usize = 512;
/// Number of windows that are read ahead.
const AHEAD: usize = 2;

/// An event of a dump that reads its prompts from a corpus.
#[derive(Debug)]
#[non_exhaustive]
pub enum SeenInStream<'b> {
    /// An event that dumps of all kinds report.
    Dump(Seen<'b>),
    /// Number of pieces read so far, and total number of pieces.
    Pieces(usize, usize),
    /// A prompt was skipped because it is invalid.
    LeftOut(&'b Error),
}

/// Callback for the progress of a dump that reads its prompts from a corpus.
pub type StreamWatcher<'w> = dyn FnMut(SeenInStream<'_>) + 'w;

/// A prompt of a window.
struct WindowRow {
    tokens: Vec<u32>,
    place: Option<Place>,
}

/// Prompts that are computed together.
#[derive(Default)]
struct Window {
    rows: Vec<WindowRow>,
    /// Errors of skipped prompts.
    failed: Vec<Error>,
    /// Hashes of the pieces that ended in this window.
    ended: Vec<u64>,
    mark: Mark,
    is_last: bool,
}

impl Dump {
    pub(super) fn stream_corpus<M: DumpModel>(
        &self,
        model: &M,
        source: &(dyn RowSource + Sync),
        folder: &Path,
        watcher: &mut StreamWatcher<'_>,
    ) -> Result<DumpReport> {
        self.check_run(model, 2)?;
        self.check_points(model, 0, false)?;
        let own = self.shard.map_or(0..source.pieces(), |shard| shard.share_of(source.pieces()));
        let dumped = DumpedModel::of(self, model, &[], self.edits_of(model)?)?.fingerprinted(model)?;
        let selection = self.selection.spelled_out(model.catalog())?;
        let manifest = Manifest::packed(&Self { selection, ..self.clone() }, dumped, source.described()?, own.clone());
        let points = self.selection.resolve(model.catalog())?;
        let latents: BTreeSet<String> = (points.iter().map(|id| model.catalog().info(*id)))
            .filter(|point| point.axes.last() == Some(&Axis::Feature))
            .map(|point| point.name.to_string())
            .collect();
        let bos = manifest.model.as_ref().and_then(|model| model.bos);
        let summary = StreamSummary::default();
        let known = (summary.clone(), model.tokenizer().ok().cloned());
        let sink = PackedSink::open(folder, manifest, self, latents, source, known)?;
        let (done, from, ended) = sink.finished();
        let resumed = sink.files();
        if done > 0 {
            watcher(SeenInStream::Dump(Seen::Resumed(done)));
        }
        let non_finite = self.allow_non_finite.then(Noted::default);
        let writer = Writer::start(Box::new(sink))?;
        let (mut report, shared) = if ended {
            (writer.finish()?, 0)
        } else {
            thread::scope(|scope| {
                let (sender, windows) = sync_channel(AHEAD);
                let reader = Reader { source, from, end: own.end, most: WINDOW.max(4 * self.batch_size) };
                let skips = self.skip_errors;
                thread::Builder::new()
                    .name("hooklens-corpus".into())
                    .spawn_scoped(scope, move || reader.run(skips, &sender))
                    .map_err(|source| DumpError::Thread { source })?;
                let mut computing = Computing {
                    dump: self,
                    model,
                    writer,
                    done,
                    non_finite: non_finite.clone(),
                    tokens: 0,
                    rows: 0,
                    summary,
                    bos,
                };
                let shared = computing.run(&windows, watcher, own.start..own.end);
                // Unblocks the reader if it is waiting to send.
                drop(windows);
                let late = synchronize(&model.devices());
                let Computing { writer, tokens, rows, .. } = computing;
                let mut report = writer.finish()?;
                let (shared, left) = shared?;
                late?;
                (report.tokens, report.left) = (tokens, left);
                report.rows = done + rows;
                Ok::<_, Error>((report, shared))
            })?
        };
        report.resumed = resumed;
        report.shared = shared;
        if let Some(noted) = non_finite {
            report.non_finite = noted.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        }
        Ok(report)
    }
}

/// Reads windows.
struct Reader<'s> {
    source: &'s (dyn RowSource + Sync),
    from: Mark,
    end: usize,
    most: usize,
}

impl Reader<'_> {
    /// Sends all windows. After an error, sends the error and ends. Also ends if the receiver is gone.
    fn run(&self, skips: bool, to: &SyncSender<Result<Window>>) {
        if let Err(error) = self.windows(skips, to) {
            // Sending fails only if the receiver is gone.
            let _ = to.send(Err(error));
        }
    }

    fn windows(&self, skips: bool, to: &SyncSender<Result<Window>>) -> Result<()> {
        let Mark { mut piece, mut row, mut hash } = self.from;
        let mut rows = self.source.open_all(piece..self.end, row).peekable();
        loop {
            let mut window = Window::default();
            while window.rows.len() < self.most
                && let Some(next) = rows.next()
            {
                while piece < next.piece {
                    window.ended.push(self.ended(piece, row, hash)?);
                    (piece, row, hash) = (piece + 1, 0, 0);
                }
                (row, hash) = (row + 1, next.hash);
                match next.tokens {
                    Ok(tokens) => window.rows.push(WindowRow { tokens, place: next.place }),
                    Err(error) if skips && is_of_prompt(&error) => window.failed.push(error),
                    Err(error) => return Err(error),
                }
            }
            window.is_last = rows.peek().is_none();
            if window.is_last {
                while piece < self.end {
                    window.ended.push(self.ended(piece, row, hash)?);
                    (piece, row, hash) = (piece + 1, 0, 0);
                }
            }
            window.mark = Mark { piece, row, hash };
            let is_last = window.is_last;
            if to.send(Ok(window)).is_err() || is_last {
                return Ok(());
            }
        }
    }

    /// The hash of a whole piece, given the hash of its first `row` rows. Prompts that are joined may be too short for a
    /// single row.
    fn ended(&self, piece: usize, row: usize, hash: u64) -> Result<u64> {
        if row > 0 { Ok(hash) } else { self.source.hash(piece, None) }
    }
}

/// Whether an error is about a single prompt, so that later prompts can still be read.
fn is_of_prompt(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(DumpError::Prompt { .. } | DumpError::PromptAt { .. }))
}

/// How the computation of a window ended.
enum Went {
    On,
    /// The run was asked to stop. The writer removes the window's rows.
    Stopped,
    /// The writer has failed.
    Failed,
}

/// Computes windows and hands them to the writer.
struct Computing<'d, M> {
    dump: &'d Dump,
    model: &'d M,
    writer: Writer,
    /// Number of prompts computed by earlier runs.
    done: usize,
    non_finite: Option<Noted>,
    tokens: usize,
    rows: usize,
    summary: StreamSummary,
    bos: Option<u32>,
}

impl<M: DumpModel> Computing<'_, M> {
    /// Computes all windows. Returns the number of tokens that were not computed because prompts share a beginning, and
    /// the number of pieces left if the run was stopped.
    fn run(
        &mut self,
        windows: &Receiver<Result<Window>>,
        watcher: &mut StreamWatcher<'_>,
        pieces: Range<usize>,
    ) -> Result<(usize, usize)> {
        let mut prefix = self.dump.prefilled(self.model)?;
        let (mut left, mut saved) = (0, 0);
        let mut at = pieces.start;
        while let Ok(window) = windows.recv() {
            if self.is_stopped() {
                left = (pieces.end - at).max(1);
                break;
            }
            let Window { rows, mut failed, ended, mark, is_last } = window?;
            let mut checked: Vec<(WindowRow, PromptRow)> = Vec::with_capacity(rows.len());
            for row in rows {
                match self.dump.check_row(self.model, &row.tokens) {
                    Ok(kept) => checked.push((row, kept)),
                    Err(source) => {
                        let error = placed(row.place, self.done + self.rows + checked.len(), source);
                        match self.dump.skip_errors && is_of_prompt(&error) {
                            true => failed.push(error),
                            false => return Err(error),
                        }
                    }
                }
            }
            failed.iter().for_each(|error| watcher(SeenInStream::LeftOut(error)));
            let count = checked.len();
            self.summary.add(checked.iter().map(|(row, kept)| &row.tokens[kept.kept.clone()]));
            let with_bos = checked.iter().filter(|(row, _)| self.begins_with_bos(row)).count();
            let end = WindowEnd { mark, ended, skipped: failed.len(), with_bos, is_last };
            // Each window computes its own shared prefix, so that a window's values do not depend on earlier ones.
            let mut shared_prefix = self.dump.shared_prefix(self.model)?;
            let went = self.window(checked, end, prefix.as_mut(), shared_prefix.as_mut(), watcher)?;
            saved += shared_prefix.map_or(0, |shared| shared.saved());
            match went {
                Went::On => {}
                Went::Stopped => {
                    self.rows -= count;
                    left = (pieces.end - at).max(1);
                    break;
                }
                Went::Failed => break,
            }
            at = mark.piece;
            watcher(SeenInStream::Pieces(at - pieces.start, pieces.len()));
        }
        Ok((saved, left))
    }

    /// Whether a prompt, with the prefix, begins with the beginning-of-sequence token.
    fn begins_with_bos(&self, row: &WindowRow) -> bool {
        self.bos.is_some() && self.dump.prefix.first().or(row.tokens.first()).copied() == self.bos
    }

    /// Computes the rows of a window in batches.
    fn window(
        &mut self,
        rows: Vec<(WindowRow, PromptRow)>,
        end: WindowEnd,
        mut prefix: Option<&mut hooklens_model::kv_cache::KeyValueCache>,
        mut shared_prefix: Option<&mut hooklens_analysis::experiments::SharedPrefix<'_>>,
        watcher: &mut StreamWatcher<'_>,
    ) -> Result<Went> {
        let size = self.dump.batch_size;
        let first = self.done + self.rows;
        self.rows += rows.len();
        let mut tokens = Vec::with_capacity(rows.len());
        let (mut places, mut kept): (Vec<Option<Place>>, Vec<PromptRow>) = (Vec::new(), Vec::new());
        for (row, own) in rows {
            self.tokens += row.tokens.len();
            tokens.push(row.tokens);
            places.push(row.place);
            kept.push(own);
        }
        let (order, batches) = order(&mut tokens, size, &self.model.devices(), shared_prefix.is_some());
        let numbers: Vec<usize> = order.iter().map(|row| first + row).collect();
        let places: Vec<Option<Place>> = order.iter().map(|row| places[*row].take()).collect();
        let kept: Vec<PromptRow> = order.iter().map(|row| kept[*row].clone()).collect();
        if tokens.is_empty() {
            let placing = Placing::new(Vec::new(), self.dump.padding_side, 0, &self.dump.positions);
            let stream = FromStream { numbers: Vec::new(), places: Vec::new(), end: Some(end) };
            return Ok(if self.send(0, placing, Vec::new(), stream) { Went::On } else { Went::Failed });
        }
        for own in batches {
            let batch = &tokens[own.clone()];
            let prefix_len = self.dump.prefix.len();
            let mut placing =
                Placing::new(kept[own.clone()].to_vec(), self.dump.padding_side, prefix_len, &self.dump.positions);
            let seen = &mut |seen: Seen<'_>| watcher(SeenInStream::Dump(seen));
            let computed = match (&mut shared_prefix, worth_sharing(&tokens, own.clone())) {
                (Some(shared_prefix), Some(shared)) => {
                    placing.padded_right();
                    self.dump.compute_shared(self.model, batch, shared_prefix, shared, seen)?
                }
                _ => self.dump.compute(self.model, batch, 0, &placing, prefix.as_deref_mut(), seen)?,
            };
            let is_end = own.end == tokens.len();
            let stream = FromStream {
                numbers: numbers[own.clone()].to_vec(),
                places: places[own.clone()].to_vec(),
                end: is_end.then(|| end.clone()),
            };
            if !self.send(own.start, placing, computed, stream) {
                return Ok(Went::Failed);
            }
            if !is_end && self.is_stopped() {
                return Ok(Went::Stopped);
            }
        }
        Ok(Went::On)
    }

    fn is_stopped(&self) -> bool {
        self.dump.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn send(
        &self,
        first_row: usize,
        placing: Placing,
        tensors: Vec<super::placing::Named>,
        stream: FromStream,
    ) -> bool {
        let non_finite = self.non_finite.clone();
        self.writer.send(Batch { number: 0, first_row, placing, tensors, non_finite, stream: Some(stream) })
    }
}

/// Puts rows into the order in which batches of at most `size` rows compute fewer positions: sorted by length, which
/// reduces padding, or unchanged, which may let batches share the prefixes of neighboring rows. Returns the order and
/// the batches.
fn order(rows: &mut Vec<Vec<u32>>, size: usize, devices: &[Device], shares: bool) -> (Vec<usize>, Vec<Range<usize>>) {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| rows[*row].len());
    let sorted: Vec<Vec<u32>> = order.iter().map(|row| rows[*row].clone()).collect();
    let (as_is, by_length) = (batches(rows, size, devices), batches(&sorted, size, devices));
    if shares && positions_computed(rows, &as_is) < positions_computed(&sorted, &by_length) {
        return ((0..rows.len()).collect(), as_is);
    }
    *rows = sorted;
    (order, by_length)
}

/// Names the prompt that an error is about.
fn placed(place: Option<Place>, number: usize, source: Error) -> Error {
    match place {
        Some(place) => DumpError::PromptAt { place, source: Box::new(source) }.into(),
        None => DumpError::Row { number: number + 1, source: Box::new(source) }.into(),
    }
}
