//! Streams activations from dumps in random order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use burn::tensor::{Device, Tensor, TensorData};
use hooklens_hooks::{HookError, Selection, SelectionText, nearest};
use ndarray::ArrayView2;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::buffers::Buffers;
use super::stored::{Part, StoredFile, files_of, lacks, model_of};
use super::{DumpModel, DumpedModel, Shard, SplitByShard};
use crate::error::DumpError;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::{Error, InputError, Result, load_errors};

/// Number of bytes read together: large enough for efficient sequential reads, small enough to mix many pieces.
const PIECE: usize = 4 << 20;

/// Number of files, or pieces of files, fetched from an object store at a time.
const AT_ONCE: usize = 16;
/// Number of pieces read from a local disk at a time, so that the disk does not wait between pieces.
const AT_ONCE_HERE: usize = 2;

/// Batches of vectors from dumps larger than memory, in random order and without padding, for training dictionaries and
/// probes.
///
/// Each epoch reads pieces of the files in random order. Pieces that together contain at least
/// [`ActivationStore::buffer`] vectors are shuffled while the next ones are read, so memory holds twice that many. The
/// seed determines the order, regardless of the batch size; with [`Batches::position`], a reader can resume where
/// another stopped.
///
/// ```
/// use hooklens::dump::{ActivationStore, Dump};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// # let out = folder.path().join("activations");
/// let prompts: Vec<Vec<u32>> = (1..60).map(|id| vec![0, id, id]).collect();
/// Dump::new("resid_post1").run(&model, &prompts, &out)?;
/// let store = ActivationStore::new([&out], ["blocks.1.hook_resid_post"]).exclude_tokens([0]).batch_size(50);
/// let mut seen = 0;
/// for batch in store.batches()? {
///     let batch = batch?;
///     let vectors = batch.vectors("blocks.1.hook_resid_post")?; // [vector, d_model]
///     assert_eq!(vectors.dim(), (batch.tokens().len(), 64));
///     seen += vectors.nrows();
/// }
/// assert_eq!(seen, 59 * 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ActivationStore {
    dumps: Vec<PathBuf>,
    points: Vec<String>,
    batch: usize,
    buffer: usize,
    seed: u64,
    left_out: Vec<u32>,
    shard: Option<Shard>,
    epochs: Option<u64>,
    start: u64,
    /// The opened files, if they are kept.
    kept: Option<Arc<OnceLock<Arc<Opened>>>>,
}

/// The files of a store.
#[derive(Debug)]
struct Opened {
    files: Vec<StoredFile>,
    ranges: Vec<Range>,
    /// Number of tokens, without padding.
    tokens: usize,
    /// Hash of all tokens.
    hash: u128,
}

/// A batch of vectors, with the same tokens at every point.
#[derive(Debug, Clone)]
pub struct ActivationBatch {
    tokens: Vec<u32>,
    rows: Vec<usize>,
    positions: Vec<usize>,
    points: BTreeMap<String, Vec<f32>>,
}

/// Iterator over the batches of an [`ActivationStore`]. It ends after an error.
#[derive(Debug)]
pub struct Batches {
    points: Vec<(String, usize)>,
    batch: usize,
    of_epoch: u64,
    position: u64,
    chunks: Option<Receiver<Result<Chunk>>>,
    chunk: Option<Chunk>,
    /// Buffers of chunks that have been served, for reuse.
    buffers: Buffers<f32>,
}

/// Shuffled vectors from several pieces of the dump.
#[derive(Debug)]
struct Chunk {
    tokens: Vec<u32>,
    /// Prompt number and position in the prompt of each vector.
    labels: Vec<(usize, u32)>,
    /// Vectors of each point, `[vector, width]`.
    points: Vec<Vec<f32>>,
    /// Non-finite vectors: index of the vector, and index of the point.
    not_finite: Vec<(usize, usize)>,
    served: usize,
}

/// A range to read, and the destinations of its vectors.
struct Job<'c> {
    range: Range,
    /// Index of each vector in the chunk.
    numbers: &'c [usize],
    /// For each point, the destination of each vector.
    places: Vec<Vec<Option<&'c mut [f32]>>>,
}

/// Data read from a range besides its vectors.
#[derive(Default)]
struct Found {
    tokens: Vec<u32>,
    labels: Vec<(usize, u32)>,
    /// Non-finite vectors, as in [`Chunk::not_finite`].
    not_finite: Vec<(usize, usize)>,
}

/// Consecutive token positions (places) in a file that are read together.
#[derive(Debug, Clone, Copy)]
struct Range {
    file: usize,
    first: usize,
    places: usize,
    /// Number of vectors served from these places.
    vectors: usize,
}

/// Settings and file ranges of the reading thread.
#[derive(Debug)]
struct Reading {
    opened: Arc<Opened>,
    ranges: Vec<Range>,
    left_out: Vec<u32>,
    seed: u64,
    buffer: usize,
    epochs: Option<u64>,
    /// Number of pieces read at a time.
    at_once: usize,
    /// Width of the vectors at each point.
    widths: Vec<usize>,
    /// Buffers for pieces.
    bytes: Buffers<u8>,
    /// Buffers for chunks.
    buffers: Buffers<f32>,
}

impl ActivationStore {
    /// Creates a store of the vectors at these points. Each dump is a file, a folder, or a folder of shards. With the
    /// feature `object-stores`, dumps may also be in an object store (`s3://bucket/folder`, `gs://`, `az://`). Points
    /// are named as in any selection, except that layers cannot be counted from the end, which requires a model.
    pub fn new<P: AsRef<Path>, N: Into<Selection>>(
        dumps: impl IntoIterator<Item = P>,
        points: impl IntoIterator<Item = N>,
    ) -> Self {
        Self {
            dumps: dumps.into_iter().map(|dump| dump.as_ref().to_path_buf()).collect(),
            points: points.into_iter().map(|point| point.into().full_name()).collect(),
            batch: 1024,
            buffer: 1 << 16,
            seed: 0,
            left_out: Vec::new(),
            shard: None,
            epochs: Some(1),
            start: 0,
            kept: None,
        }
    }

    /// Sets the number of vectors per batch (default 1,024). The last batch may have fewer.
    pub fn batch_size(mut self, vectors: usize) -> Self {
        self.batch = vectors.max(1);
        self
    }

    /// Sets the minimum number of vectors that are shuffled together (default 65,536).
    pub fn buffer(mut self, vectors: usize) -> Self {
        self.buffer = vectors.max(1);
        self
    }

    /// Sets the seed that determines the random order.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Skips vectors at these tokens, such as the beginning-of-sequence token.
    pub fn exclude_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = tokens.into_iter().collect();
        self.forgetting()
    }

    /// Drops files opened with earlier settings, after a setting that affects what is read from them has changed.
    fn forgetting(mut self) -> Self {
        self.kept = self.kept.map(|_| Arc::default());
        self
    }

    /// Reads only one shard of the data, so that several readers together read everything once.
    pub fn shard(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Sets the number of epochs (default 1).
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Repeats the data without end.
    pub fn endless(mut self) -> Self {
        self.epochs = None;
        self
    }

    /// Starts after this many vectors, as if they had been served; see [`Batches::position`].
    pub fn starting_at(mut self, position: u64) -> Self {
        self.start = position;
        self
    }

    /// The model whose activations the dumps contain; `None` if no dump records it, as in files written by other
    /// programs.
    ///
    /// # Errors
    /// [`DumpError::AnotherModel`] if the dumps come from different models, or from the same model with different
    /// processing or edits. Also fails if a manifest cannot be read.
    pub fn model(&self) -> Result<Option<DumpedModel>> {
        let models = self.models()?;
        let mut known = self.dumps.iter().zip(models).filter_map(|(dump, model)| Some((dump, model?)));
        let Some((_, mut first)) = known.next() else { return Ok(None) };
        for (dump, model) in known {
            model.check_same(dump, &first)?;
            if model.prepend_bos != first.prepend_bos {
                first.prepend_bos = None;
            }
        }
        Ok(Some(first))
    }

    /// Checks that the dumps contain this model's activations, with the same spliced parts and without editing hooks.
    ///
    /// ```
    /// use hooklens::dump::{ActivationStore, Dump};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("activations");
    /// Dump::new("resid_post1").run(&model, &[vec![0, 21, 4]], &out)?;
    /// let store = ActivationStore::new([&out], ["blocks.1.hook_resid_post"]);
    /// store.check_model(&model)?;
    /// let processed = model.processed(&hooklens::Processing::standard())?;
    /// assert!(store.check_model(&processed).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Returns the model recorded in the dumps, as [`ActivationStore::model`] does.
    ///
    /// # Errors
    /// [`DumpError::AnotherModel`] if the dumps come from a different model, or from this model with different spliced
    /// parts or with edits. Also fails as [`ActivationStore::model`] does. Dumps that record no model pass.
    pub fn check_model<M: DumpModel>(&self, model: &M) -> Result<Option<DumpedModel>> {
        let Some(dumped) = self.model()? else { return Ok(None) };
        let path = self.dumps.first().map_or(Path::new(""), PathBuf::as_path);
        let own = DumpedModel::of_model(model, Vec::new())?;
        let own = if dumped.identity.is_some() && own.identity.is_some() { own } else { own.fingerprinted(model)? };
        dumped.check_same(path, &own)?;
        Ok(Some(dumped))
    }

    /// The model recorded in each dump.
    fn models(&self) -> Result<Vec<Option<DumpedModel>>> {
        self.dumps.iter().map(|dump| model_of(dump)).collect()
    }

    /// Opens the dumps and starts reading.
    ///
    /// # Errors
    /// Fails if the dumps come from different models ([`DumpError::AnotherModel`]), a file is not a dump or lacks a
    /// point (the error lists similar names), a point has different widths in different files, or there is nothing to
    /// serve.
    pub fn batches(&self) -> Result<Batches> {
        self.model()?;
        let opened = self.opened()?;
        let widths: Vec<usize> = opened.files.first().map_or(Vec::new(), |file| file.widths().collect());
        let ranges = self.own(opened.ranges.clone());
        let of_epoch = ranges.iter().map(|range| range.vectors as u64).sum();
        if of_epoch == 0 {
            let what = format!(
                "the set of vectors in {}",
                self.shard.map_or("the dumps".into(), |shard| format!("shard {shard} of the dumps"))
            );
            return Err(InputError::Empty { what }.into());
        }
        let (left_out, seed, buffer, epochs) = (self.left_out.clone(), self.seed, self.buffer, self.epochs);
        let at_once = self.at_once();
        let (bytes, buffers) = (Buffers::default(), Buffers::default());
        let points = self.points.iter().cloned().zip(widths.clone()).collect();
        let own = buffers.clone();
        let reading = Reading { opened, ranges, left_out, seed, buffer, epochs, at_once, widths, bytes, buffers: own };
        let start = self.start;
        // The channel has no buffer: one chunk is served while the next is read.
        let (sender, chunks) = sync_channel(0);
        let begun = thread::Builder::new().name("activations".into()).spawn(move || reading.all(start, &sender));
        begun.map_err(load_errors::cant_read(&self.dumps[0]))?;
        Ok(Batches { points, batch: self.batch, of_epoch, position: start, chunks: Some(chunks), chunk: None, buffers })
    }

    /// Number of files, or pieces of files, read at a time.
    fn at_once(&self) -> usize {
        if self.dumps.iter().any(|dump| is_url(dump)) { AT_ONCE } else { AT_ONCE_HERE }
    }

    /// Opens all files and reads their tokens, or returns the files that were kept. Fails if there is no file.
    fn opened(&self) -> Result<Arc<Opened>> {
        if let Some(opened) = self.kept.as_ref().and_then(|kept| kept.get()) {
            return Ok(opened.clone());
        }
        let (mut parts, mut rows_before) = (Vec::new(), 0);
        for dump in &self.dumps {
            let (files, rows) = files_of(dump)?;
            parts.extend(files.into_iter().map(|part| Part { first_row: part.first_row + rows_before, ..part }));
            // The rows of a single file are known once it is opened. A later dump's rows continue after them.
            rows_before += match rows {
                Some(rows) => rows,
                None => StoredFile::open(dump, &[])?.rows(),
            };
        }
        let open = &|part: &Part| -> Result<(StoredFile, Vec<Range>, Vec<u8>, usize)> {
            let mut file = StoredFile::open(&part.path, &self.points)?;
            file.first_row = part.first_row;
            let tokens = file.tokens()?;
            let ranges = self.ranges(&file, &tokens);
            let bytes = tokens.iter().flat_map(|token| token.map_or(-1, i64::from).to_le_bytes()).collect();
            Ok((file, ranges, bytes, tokens.iter().flatten().count()))
        };
        let at_once = self.at_once();
        let mut opened = Opened { files: Vec::new(), ranges: Vec::new(), tokens: 0, hash: 0 };
        let mut hash = Xxh3::new();
        for parts in parts.chunks(4 * at_once) {
            for (part, one) in parts.iter().zip(together(parts.iter().collect(), at_once, open)) {
                let (file, ranges, bytes, tokens) = one?;
                let first = opened.files.first().unwrap_or(&file);
                let differs = first.widths().zip(file.widths()).zip(&self.points).find(|((a, b), _)| *a != *b);
                if let Some(((first, own), point)) = differs {
                    let reason = format!("vectors of `{point}` have width {own}, but width {first} in another file");
                    return Err(DumpError::Refused { path: part.path.clone(), reason }.into());
                }
                let number = opened.files.len();
                opened.ranges.extend(ranges.into_iter().map(|range| Range { file: number, ..range }));
                opened.files.push(file);
                opened.tokens += tokens;
                hash.update(&bytes);
            }
        }
        if opened.files.is_empty() {
            return Err(InputError::Empty { what: "the list of dumps".into() }.into());
        }
        opened.hash = hash.digest128();
        let opened = Arc::new(opened);
        Ok(match &self.kept {
            Some(kept) => kept.get_or_init(|| opened).clone(),
            None => opened,
        })
    }

    /// Ranges of a file. Masks are small, so the number of vectors in each range is known before any vector is read.
    fn ranges(&self, file: &StoredFile, tokens: &[Option<u32>]) -> Vec<Range> {
        let together = (PIECE / file.bytes_a_place().max(1)).clamp(1, u32::MAX as usize);
        let range = |(part, tokens): (usize, &[Option<u32>])| {
            let vectors = tokens.iter().filter(|token| is_served(token, &self.left_out)).count();
            Range { file: 0, first: part * together, places: tokens.len(), vectors }
        };
        tokens.chunks(together).enumerate().map(range).collect()
    }

    /// The ranges that belong to this reader's shard.
    fn own(&self, mut ranges: Vec<Range>) -> Vec<Range> {
        if let Some(shard) = self.shard {
            ranges = ranges.into_iter().skip(shard.index() - 1).step_by(shard.of()).collect();
        }
        ranges.retain(|range| range.vectors > 0);
        ranges
    }
}

/// What training needs to know about a store before the first batch.
pub trait DescribeStore: Sized {
    /// Describes what is missing from each incomplete dump, one line per dump. Finished files of a dump that is in
    /// progress or failed can still be read.
    ///
    /// # Errors
    /// Fails if a manifest cannot be read.
    fn incomplete(&self) -> Result<Vec<String>>;

    /// Dumps that do not record which model they come from.
    ///
    /// # Errors
    /// Fails if a manifest cannot be read.
    fn unidentified(&self) -> Result<Vec<&Path>>;

    /// Reads the first buffer of vectors, which are shuffled together.
    fn first(&self) -> Result<ActivationBatch>;

    /// Width of the vectors at each point, by point name.
    fn widths(&self) -> Result<BTreeMap<String, usize>>;

    /// Description that identifies this store's vectors: models, hash of all tokens, and skipped tokens.
    fn described(&self) -> Result<Value>;

    /// Replaces the points.
    fn of(self, points: &[String]) -> Self;

    /// Keeps the files open, for this store and its clones: files that are added to the dumps later are not read, and
    /// opening files takes time only once.
    #[must_use]
    fn keeping_files(self) -> Self;
}

impl DescribeStore for ActivationStore {
    fn incomplete(&self) -> Result<Vec<String>> {
        let lacks = self.dumps.iter().map(|dump| lacks(dump)).collect::<Result<Vec<_>>>()?;
        Ok(lacks.into_iter().flatten().collect())
    }

    fn unidentified(&self) -> Result<Vec<&Path>> {
        let models = self.models()?;
        let unknown = self.dumps.iter().zip(models).filter(|(_, model)| model.is_none());
        Ok(unknown.map(|(dump, _)| dump.as_path()).collect())
    }

    fn first(&self) -> Result<ActivationBatch> {
        let first = self.clone().batch_size(self.buffer).starting_at(0).batches()?.next();
        first.unwrap_or_else(|| Err(InputError::Empty { what: "the set of vectors in the dumps".into() }.into()))
    }

    fn widths(&self) -> Result<BTreeMap<String, usize>> {
        let none = || InputError::Empty { what: "the list of dumps".into() };
        let (files, _) = files_of(self.dumps.first().ok_or_else(none)?)?;
        // A dump has at least one file; the others are compared with it when they are opened.
        Ok(self.points.iter().cloned().zip(StoredFile::open(&files[0].path, &self.points)?.widths()).collect())
    }

    fn described(&self) -> Result<Value> {
        let opened = self.opened()?;
        let known = |model: DumpedModel| model.fingerprint.or(model.identity);
        let models: Vec<String> = self.models()?.into_iter().flatten().filter_map(known).collect();
        Ok(json!({
            "tokens": opened.tokens,
            "files": opened.files.len(),
            "hash": format!("{:032x}", opened.hash),
            "exclude_tokens": self.left_out,
            "models": models,
        }))
    }

    fn of(mut self, points: &[String]) -> Self {
        if self.points == points {
            return self;
        }
        self.points = points.to_vec();
        self.forgetting()
    }

    fn keeping_files(mut self) -> Self {
        self.kept = Some(Arc::default());
        self
    }
}

/// Applies `make` to all items, `at_once` at a time, because requests to an object store spend most of their time
/// waiting.
fn together<I: Send, O: Send>(all: Vec<I>, at_once: usize, make: impl Fn(I) -> O + Sync) -> Vec<O> {
    let threads = (at_once > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(at_once).build());
    match threads {
        Some(Ok(threads)) => threads.install(|| all.into_par_iter().with_max_len(1).map(&make).collect()),
        // Fall back to one at a time if there is only one thread or none can be started.
        _ => all.into_iter().map(make).collect(),
    }
}

/// Whether the vector at a token is served.
fn is_served(token: &Option<u32>, left_out: &[u32]) -> bool {
    token.is_some_and(|id| !left_out.contains(&id))
}

impl Reading {
    /// Random number generator for one epoch and chunk.
    fn random(&self, epoch: u64, chunk: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(epoch.wrapping_mul(1 << 32).wrapping_add(chunk));
        random
    }

    /// Reads chunks until the receiver is dropped.
    fn all(&self, start: u64, sender: &SyncSender<Result<Chunk>>) {
        let of_epoch: u64 = self.ranges.iter().map(|range| range.vectors as u64).sum();
        let (mut epoch, mut skip) = (start / of_epoch, start % of_epoch);
        while self.epochs.is_none_or(|epochs| epoch < epochs) {
            let mut order = self.ranges.clone();
            order.shuffle(&mut self.random(epoch, 0));
            let (mut first, mut number) = (0, 0);
            while first < order.len() {
                let (mut end, mut vectors) = (first, 0);
                while end < order.len() && vectors < self.buffer {
                    vectors += order[end].vectors;
                    end += 1;
                }
                number += 1;
                if skip >= vectors as u64 {
                    skip -= vectors as u64;
                } else {
                    let chunk = self.chunk(&order[first..end], self.random(epoch, number), skip as usize);
                    let failed = chunk.is_err();
                    if sender.send(chunk).is_err() || failed {
                        return;
                    }
                    skip = 0;
                }
                first = end;
            }
            epoch += 1;
        }
    }

    /// Reads ranges, and puts their vectors in random order.
    fn chunk(&self, ranges: &[Range], mut random: ChaCha8Rng, served: usize) -> Result<Chunk> {
        let count = ranges.iter().map(|range| range.vectors).sum();
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut random);
        let mut numbers = vec![0; count];
        order.iter().enumerate().for_each(|(number, vector)| numbers[*vector] = number);
        let mut points: Vec<Vec<f32>> = self.widths.iter().map(|width| self.buffers.take(count * width)).collect();
        let mut places: Vec<Vec<Option<&mut [f32]>>> = Vec::new();
        for (values, width) in points.iter_mut().zip(&self.widths) {
            places.push(values.chunks_mut((*width).max(1)).map(Some).collect());
        }
        let mut left = &numbers[..];
        let mut jobs = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (numbers, rest) = left.split_at(range.vectors);
            let own = |places: &mut Vec<Option<_>>| {
                numbers.iter().map(|number| places.get_mut(*number).and_then(Option::take)).collect()
            };
            jobs.push(Job { range: *range, numbers, places: places.iter_mut().map(own).collect() });
            left = rest;
        }
        let found = together(jobs, self.at_once, |job| self.read(job)).into_iter().collect::<Result<Vec<Found>>>()?;
        let (mut tokens, mut labels, mut not_finite) = (vec![0; count], vec![(0, 0); count], Vec::new());
        let mut number = numbers.iter();
        for found in found {
            not_finite.extend(found.not_finite);
            for ((token, label), number) in found.tokens.into_iter().zip(found.labels).zip(&mut number) {
                (tokens[*number], labels[*number]) = (token, label);
            }
        }
        Ok(Chunk { tokens, labels, points, not_finite, served })
    }

    /// Reads a range, and decodes its vectors to their destinations while the read bytes are still in the CPU cache.
    fn read(&self, job: Job<'_>) -> Result<Found> {
        let file = &self.opened.files[job.range.file];
        let piece = file.piece(job.range.first, job.range.places, &self.bytes)?;
        let served = || {
            let all = piece.tokens.iter().enumerate().filter(|(_, token)| is_served(token, &self.left_out));
            all.filter_map(|(place, token)| Some((place, (*token)?)))
        };
        // Positions for resuming depend on these counts.
        if served().count() != job.range.vectors {
            return Err(file.changed());
        }
        let mut found = Found::default();
        for (place, token) in served() {
            found.tokens.push(token);
            found.labels.push(piece.labels[place]);
        }
        for (point, places) in job.places.into_iter().enumerate() {
            for ((to, (place, _)), number) in places.into_iter().zip(served()).zip(job.numbers) {
                if to.is_some_and(|to| !piece.decode(point, place, to)) {
                    found.not_finite.push((*number, point));
                }
            }
        }
        self.bytes.give(piece.into_buffers());
        Ok(found)
    }
}

impl Batches {
    /// Number of vectors served so far, over all epochs; pass it to [`ActivationStore::starting_at`] to resume.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits for the next chunk, after the last one has been served; `None` at the end.
    fn chunk_after(&mut self, served: Option<Chunk>) -> Result<Option<Chunk>> {
        self.buffers.give(served.into_iter().flat_map(|chunk| chunk.points));
        self.chunks.as_ref().and_then(|chunks| chunks.recv().ok()).transpose()
    }

    /// Appends vectors to a batch until it is full or no data is left.
    fn fill(&mut self, to: &mut ActivationBatch) -> Result<()> {
        while to.tokens.len() < self.batch {
            let chunk = match self.chunk.take() {
                Some(chunk) if chunk.served < chunk.tokens.len() => chunk,
                served => match self.chunk_after(served)? {
                    Some(chunk) => chunk,
                    None => return Ok(()),
                },
            };
            let chunk = self.chunk.insert(chunk);
            let end = (chunk.served + self.batch - to.tokens.len()).min(chunk.tokens.len());
            let own = chunk.served..end;
            to.tokens.extend(&chunk.tokens[own.clone()]);
            for (row, position) in &chunk.labels[own.clone()] {
                to.rows.push(*row);
                to.positions.push(*position as usize);
            }
            if let Some((_, point)) = chunk.not_finite.iter().find(|(number, _)| own.contains(number)) {
                let name = &self.points[*point].0;
                return Err(Error::NotANumber { what: format!("an activation of `{name}` in the dump") });
            }
            for ((name, width), values) in self.points.iter().zip(&chunk.points) {
                let vectors = to.points.entry(name.clone()).or_insert_with(|| Vec::with_capacity(self.batch * width));
                vectors.extend_from_slice(&values[own.start * width..own.end * width]);
            }
            chunk.served = end;
        }
        Ok(())
    }
}

/// Number of vectors per epoch.
pub fn vectors_an_epoch(batches: &Batches) -> u64 {
    batches.of_epoch
}

impl Iterator for Batches {
    type Item = Result<ActivationBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (rows, positions) = (Vec::with_capacity(self.batch), Vec::with_capacity(self.batch));
        let tokens = Vec::with_capacity(self.batch);
        let mut batch = ActivationBatch { tokens, rows, positions, points: BTreeMap::new() };
        if let Err(error) = self.fill(&mut batch) {
            (self.chunks, self.chunk) = (None, None);
            return Some(Err(error));
        }
        self.position += batch.tokens.len() as u64;
        (!batch.tokens.is_empty()).then_some(Ok(batch))
    }
}

impl From<ActivationBatch> for BTreeMap<String, Vec<f32>> {
    /// Returns the vectors of each point, concatenated in token order.
    fn from(batch: ActivationBatch) -> Self {
        batch.points
    }
}

impl ActivationBatch {
    /// Token that each vector was computed at.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of each vector's prompt, counted from 0 across all dumps of the store in the given order: the rows of the
    /// second dump follow those of the first.
    ///
    /// ```
    /// use hooklens::dump::{ActivationStore, Dump};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("activations");
    /// let (prompts, labels) = ([vec![0, 51, 59], vec![0, 9], vec![0, 50, 21]], ["color", "drink", "color"]);
    /// Dump::new("resid_post1").run(&model, &prompts, &out)?;
    /// for batch in ActivationStore::new([&out], ["resid_post1"]).batches()? {
    ///     let batch = batch?;
    ///     for ((row, position), token) in batch.rows().iter().zip(batch.positions()).zip(batch.tokens()) {
    ///         assert_eq!(prompts[*row][*position], *token);
    ///         println!("{} at position {position} of prompt {row}", labels[*row]);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Position of each vector's token in its prompt, not counting padding or a dump's prefix. In a file of selected
    /// positions without the tensor `positions`, positions are counted from the first one kept.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Vectors of a point, `[vector, width]`.
    ///
    /// # Errors
    /// Fails if the store does not read this point.
    pub fn vectors(&self, point: impl Into<Selection>) -> Result<ArrayView2<'_, f32>> {
        let point = &point.into().full_name();
        let vectors = self.numbers(point)?;
        let shape = [self.tokens.len(), vectors.len() / self.tokens.len().max(1)];
        ArrayView2::from_shape(shape, vectors).map_err(|_| self.lacks(point))
    }

    /// Like [`ActivationBatch::vectors`], as a tensor on a device.
    ///
    /// # Errors
    /// Same as [`ActivationBatch::vectors`].
    pub fn tensor(&self, point: impl Into<Selection>, device: &Device) -> Result<Tensor<2>> {
        let vectors = self.numbers(&point.into().full_name())?;
        let shape = [self.tokens.len(), vectors.len() / self.tokens.len().max(1)];
        Ok(Tensor::from_data(TensorData::new(vectors.to_vec(), shape), device))
    }

    fn numbers(&self, point: &str) -> Result<&[f32]> {
        self.points.get(point).map(Vec::as_slice).ok_or_else(|| self.lacks(point))
    }

    fn lacks(&self, point: &str) -> Error {
        let (held, nearest) = (self.points.len(), nearest(point, self.points.keys().map(String::as_str)));
        HookError::NotRecorded { name: point.to_string(), held, nearest }.into()
    }
}
