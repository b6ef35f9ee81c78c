//! Reads dumps back: finds their files, and the vectors in each file.

use std::fs::File;
use std::path::{Path, PathBuf};

use hooklens_hooks::DType;

use super::DumpedModel;
use super::buffers::Buffers;
use super::manifest::{KEY, Log, Manifest};
use super::place;
use super::place_in_row::places_in_rows;
use super::shards::shards_in;
use crate::error::DumpError;
use hooklens_io::object_stores::Ranges;
use hooklens_io::regular;
use hooklens_loading::weight_files::{
    Location, RawTensors, WeightFiles, float_type, location, object_file, open_files, read_at,
};
use hooklens_model::error::{Error, Result, load_errors};

/// Key under which earlier versions recorded the model, as JSON, in the header of a single file.
const MODEL_KEY: &str = "hooklens_model";

/// A file of a dump.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    /// Number of the file's first prompt in the dump.
    pub(super) first_row: usize,
    /// Number of rows, from the manifest; 0 for a single file.
    pub(super) rows: usize,
}

/// Files of a dump: a single file, the finished files of a folder, or the finished files of all shards in a folder.
/// Also returns the number of prompts in the complete dump; `None` for a single file, which does not record it.
///
/// # Errors
/// Fails if the path is not a dump or cannot be read.
pub(super) fn files_of(dump: &Path) -> Result<(Vec<Part>, Option<usize>)> {
    let wrong = |reason: &str| DumpError::Refused { path: dump.to_path_buf(), reason: reason.into() };
    if !is_folder(dump)? {
        return Ok((vec![Part { path: dump.to_path_buf(), first_row: 0, rows: 0 }], None));
    }
    let (mut files, mut rows) = (Vec::new(), None);
    for (folder, manifest) in manifests(dump)? {
        // Rows of packed shards are counted within each shard.
        let (packed, before) = (manifest.is_packed(), rows.unwrap_or(0));
        let own = manifest.rows;
        let parts = finished(&folder, manifest)?;
        if packed {
            let own = parts.iter().map(|part| part.rows).sum::<usize>();
            files.extend(parts.into_iter().map(|part| Part { first_row: part.first_row + before, ..part }));
            rows = Some(before + own);
        } else {
            files.extend(parts);
            rows = Some(own);
        }
    }
    if files.iter().any(|file| file.path.extension().is_some_and(|ending| ending == "parquet")) {
        return Err(wrong("it contains Parquet tables, which cannot be read as a dump; dump to safetensors").into());
    }
    match files.is_empty() {
        true => Err(wrong("it contains no finished files of a dump").into()),
        false => Ok((files, rows)),
    }
}

/// Describes what is missing from a dump, if anything.
pub(super) fn lacks(dump: &Path) -> Result<Option<String>> {
    if !is_folder(dump)? {
        return Ok(None);
    }
    let at = dump.display();
    Ok(match Manifest::read(dump)? {
        Some(manifest) if manifest.complete => None,
        Some(manifest) => {
            let done: usize = Log::read(dump)?.iter().map(|file| file.rows).fold(0, usize::saturating_add);
            Some(match manifest.is_packed() {
                true => format!("{at} is not complete: {done} prompts so far"),
                false => format!("{at} is not complete: {done} of {} prompts", manifest.own_rows()),
            })
        }
        None => {
            let found = shards_in(dump)?;
            let complete = found.complete.len();
            (!found.are_whole()).then(|| format!("{at}: {complete} of {} shards are complete", found.of))
        }
    })
}

/// The model that a dump comes from, if its manifest or file header records it.
pub(super) fn model_of(dump: &Path) -> Result<Option<DumpedModel>> {
    if is_folder(dump)? {
        return Ok(manifests(dump)?.first().and_then(|(_, manifest)| manifest.model.clone()));
    }
    let (_, files) = opened(dump)?;
    let wrong = |key: &'static str| {
        move |error: serde_json::Error| {
            let reason = format!("`{key}` in its header can't be read: {error}");
            DumpError::Refused { path: dump.to_path_buf(), reason }
        }
    };
    if let Some(text) = files.metadata(KEY) {
        return Ok(serde_json::from_str::<Manifest>(text).map_err(wrong(KEY))?.model);
    }
    // Earlier versions recorded only the model.
    let Some(text) = files.metadata(MODEL_KEY) else { return Ok(None) };
    Ok(Some(serde_json::from_str(text).map_err(wrong(MODEL_KEY))?))
}

/// Why vectors of this name cannot be read from files that have no such tensor.
fn why_missing(files: &WeightFiles, name: &str) -> String {
    if files.info(&format!("{name}.indices")).is_some() {
        return format!("`{name}` contains sparse latents, which are not stored as vectors");
    }
    match &files.nearest(name)[..] {
        [] => format!("`{name}` was not dumped"),
        nearest => format!("`{name}` was not dumped; similar names: {}", nearest.join(", ")),
    }
}

/// Reads the header of a file, and for an object in a store also returns its reader.
fn opened(path: &Path) -> Result<(Option<Ranges>, WeightFiles)> {
    Ok(match place::object(path)? {
        None => (None, open_files(&[path.to_path_buf()], false)?),
        Some(object) => {
            let object = object.ranges().map_err(load_errors::cant_read(path))?;
            (Some(object.clone()), object_file(path, object)?)
        }
    })
}

/// Whether a dump is a folder. In a store, which has no folders, the name decides.
fn is_folder(dump: &Path) -> Result<bool> {
    Ok(match place::object(dump)? {
        None => dump.is_dir(),
        Some(_) => dump.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("safetensors")),
    })
}

/// Manifest of a dump's folder, or manifests of the complete shards in it; empty for a single file.
fn manifests(dump: &Path) -> Result<Vec<(PathBuf, Manifest)>> {
    if !is_folder(dump)? {
        return Ok(Vec::new());
    }
    if let Some(manifest) = Manifest::read(dump)? {
        return Ok(vec![(dump.to_path_buf(), manifest)]);
    }
    let mut all = Vec::new();
    for folder in shards_in(dump)?.complete {
        all.extend(Manifest::read(&folder)?.map(|manifest| (folder, manifest)));
    }
    Ok(all)
}

/// Finished files of a folder.
fn finished(folder: &Path, manifest: Manifest) -> Result<Vec<Part>> {
    let listed = if manifest.complete { manifest.files } else { Log::read(folder)? };
    let own = listed.into_iter().filter(|file| file.is_within());
    Ok(own.map(|file| Part { path: folder.join(file.file), first_row: file.first_row, rows: file.rows }).collect())
}

/// Points with scores `[row, head, query, key]`, which have the shape of vectors if there are as many heads as
/// positions.
const SCORES: [&str; 2] = ["hook_pattern", "hook_attn_scores"];

/// Vectors of one point in a file, stored consecutively: `[row, pos, ...]`.
#[derive(Debug, Clone, Copy)]
struct Vectors {
    start: u64,
    dtype: DType,
    width: usize,
}

/// A dump file, with the locations of its tokens, mask and the vectors of some points.
#[derive(Debug)]
pub(super) struct StoredFile {
    path: PathBuf,
    /// Reader of the object, if the file is in a store.
    object: Option<Ranges>,
    /// Number of token positions (places) in all rows, including padding.
    pub(super) places: usize,
    /// Number of places per row; zero for a packed file.
    columns: usize,
    /// Rows of a packed file.
    packed: Option<PackedRows>,
    /// Number of the first row, counted across all dumps that are read.
    pub(super) first_row: usize,
    tokens: u64,
    /// Location of the attention mask; `None` for a packed file, which has no padding.
    mask: Option<u64>,
    /// Position of each token in its prompt, if the file stores it.
    positions: Option<u64>,
    points: Vec<Vectors>,
}

/// Locations of the rows of a packed file.
#[derive(Debug)]
struct PackedRows {
    /// The place at which each row starts, and the end of the last row.
    offsets: Vec<i64>,
    /// The number of each row's prompt, counted from the file's first prompt.
    numbers: Vec<i64>,
}

/// Vectors at consecutive places in a file, in the file's encoding.
#[derive(Debug)]
pub(super) struct Piece {
    /// Token at each place; `None` for padding.
    pub(super) tokens: Vec<Option<u32>>,
    /// Prompt number and position in the prompt at each place; unspecified for padding.
    pub(super) labels: Vec<(usize, u32)>,
    points: Vec<(DType, Vec<u8>)>,
}

/// An open file or object.
enum Open<'f> {
    File(File),
    Object(&'f Ranges),
}

impl StoredFile {
    /// Locates tokens, mask and vectors; the file is not kept open.
    pub(super) fn open(path: &Path, points: &[String]) -> Result<Self> {
        let wrong = |reason: String| DumpError::Refused { path: path.to_path_buf(), reason };
        let (object, files) = opened(path)?;
        let integers = |name: &str| {
            let info = files.info(name).ok_or_else(|| wrong(format!("it has no `{name}`, so it is not a dump")))?;
            match (location(info), &*info.dtype, &info.shape[..]) {
                (Location::File { bytes, .. }, "i64", [rows, positions]) => {
                    Ok((bytes.start as u64, [*rows, *positions]))
                }
                _ => Err(wrong(format!("its `{name}` is not an i64 matrix: {} {:?}", info.dtype, info.shape))),
            }
        };
        if files.info("row_offsets").is_some() {
            return Self::open_packed(path, object, &files, points);
        }
        let ((tokens, shape), (mask, of_mask)) = (integers("tokens")?, integers("attention_mask")?);
        if shape != of_mask {
            return Err(wrong(format!("its tokens have shape {shape:?}, but their mask has shape {of_mask:?}")).into());
        }
        let positions = match files.info("positions") {
            Some(_) => Some(integers("positions")?).filter(|(_, own)| *own == shape).map(|(start, _)| start),
            None => None,
        };
        let vectors = |name: &String| {
            let info = files.info(name).ok_or_else(|| wrong(why_missing(&files, name)))?;
            let vectors = match (location(info), float_type(info)) {
                (Location::File { bytes, .. }, Some(dtype)) if info.shape.len() > 2 && info.shape[..2] == shape => {
                    Some(Vectors { start: bytes.start as u64, dtype, width: info.shape[2..].iter().product() })
                }
                _ => None,
            };
            if SCORES.iter().any(|end| name.ends_with(end)) {
                return Err(wrong(format!(
                    "`{name}` does not have one vector per token: it has scores for pairs of positions"
                )));
            }
            let own = &info.shape;
            vectors.ok_or_else(|| {
                wrong(format!(
                    "`{name}` does not have one vector per token: its shape is {own:?}, but the tokens have shape \
                     {shape:?}"
                ))
            })
        };
        let points = points.iter().map(vectors).collect::<std::result::Result<_, _>>()?;
        let (path, [rows, columns]) = (path.to_path_buf(), shape);
        Ok(Self {
            path,
            object,
            places: rows * columns,
            columns,
            packed: None,
            first_row: 0,
            tokens,
            mask: Some(mask),
            positions,
            points,
        })
    }

    /// Like [`StoredFile::open`], for a file without padding.
    fn open_packed(path: &Path, object: Option<Ranges>, files: &WeightFiles, points: &[String]) -> Result<Self> {
        let wrong = |reason: String| DumpError::Refused { path: path.to_path_buf(), reason };
        let integers = |name: &str| match files.info(name).map(|info| (location(info), &*info.dtype, &info.shape[..])) {
            Some((Location::File { bytes, .. }, "i64", [count])) => Ok((bytes.start as u64, *count)),
            _ => Err(wrong(format!("its `{name}` is missing or is not an i64 vector"))),
        };
        let ((tokens, places), (positions, of_positions)) = (integers("tokens")?, integers("positions")?);
        let ((offsets, ends), (numbers, rows)) = (integers("row_offsets")?, integers("prompt_numbers")?);
        if of_positions != places || ends != rows + 1 {
            return Err(wrong("the lengths of its tokens, positions and rows do not match".into()).into());
        }
        let vectors = |name: &String| {
            let info = files.info(name).ok_or_else(|| wrong(why_missing(files, name)))?;
            match (location(info), float_type(info)) {
                (Location::File { bytes, .. }, Some(dtype)) if info.shape.len() > 1 && info.shape[0] == places => {
                    Ok(Vectors { start: bytes.start as u64, dtype, width: info.shape[1..].iter().product() })
                }
                _ if files.info(&format!("{name}.shapes")).is_some() => Err(wrong(format!(
                    "`{name}` does not have one vector per token: it has scores for pairs of positions"
                ))),
                _ => Err(wrong(format!(
                    "`{name}` does not have one vector per token: its shape is {:?}, but there are {places} tokens",
                    info.shape
                ))),
            }
        };
        let points = points.iter().map(vectors).collect::<std::result::Result<_, _>>()?;
        let mut opened = Self {
            path: path.to_path_buf(),
            object,
            places,
            columns: 0,
            packed: None,
            first_row: 0,
            tokens,
            mask: None,
            positions: Some(positions),
            points,
        };
        let file = opened.opened()?;
        let offsets = opened.integers(&file, offsets, 0, ends)?;
        let numbers = opened.integers(&file, numbers, 0, rows)?;
        drop(file);
        let rises = offsets.first() == Some(&0) && offsets.is_sorted() && offsets.last() == Some(&(places as i64));
        if !rises || numbers.iter().any(|number| usize::try_from(*number).is_err()) {
            return Err(DumpError::Refused {
                path: path.to_path_buf(),
                reason: "its row offsets or prompt numbers are invalid".into(),
            }
            .into());
        }
        opened.packed = Some(PackedRows { offsets, numbers });
        Ok(opened)
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        match &self.packed {
            Some(packed) => packed.numbers.len(),
            None => self.places / self.columns.max(1),
        }
    }

    /// Widths of the points' vectors.
    pub(super) fn widths(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|vectors| vectors.width)
    }

    /// Total bytes of all vectors at one place.
    pub(super) fn bytes_a_place(&self) -> usize {
        self.points.iter().map(|vectors| vectors.width * vectors.dtype.size()).sum()
    }

    fn bytes(&self, file: &Open<'_>, at: u64, len: usize) -> Result<Vec<u8>> {
        self.read(file, at, vec![0; len])
    }

    /// Fills a buffer with the bytes of the file from `at` on.
    fn read(&self, file: &Open<'_>, at: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let read = match file {
            Open::File(file) => read_at(file, at, &mut bytes),
            Open::Object(object) => object.read_at(at, &mut bytes),
        };
        read.map_err(load_errors::cant_read(&self.path))?;
        Ok(bytes)
    }

    fn opened(&self) -> Result<Open<'_>> {
        match &self.object {
            Some(object) => Ok(Open::Object(object)),
            None => Ok(Open::File(regular::open(&self.path).map_err(load_errors::cant_read(&self.path))?)),
        }
    }

    fn integers(&self, file: &Open<'_>, start: u64, first: usize, count: usize) -> Result<Vec<i64>> {
        let bytes = self.bytes(file, start + 8 * first as u64, 8 * count)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// Prompt numbers and positions at the places from `first` on. `mask` starts at the beginning of the row that
    /// contains `first`.
    fn labels(&self, file: &Open<'_>, first: usize, mask: &[i64]) -> Result<Vec<(usize, u32)>> {
        let columns = self.columns.max(1);
        let begin = first / columns * columns;
        let row = |place: usize| self.first_row + place / columns;
        if let Some(start) = self.positions {
            let positions = self.integers(file, start, first, begin + mask.len() - first)?.into_iter();
            let label = |(place, position)| (row(place), u32::try_from(position).unwrap_or_default());
            return Ok((first..).zip(positions).map(label).collect());
        }
        let positions = places_in_rows(mask.iter().map(|real| *real != 0), columns);
        Ok((begin..).zip(positions).skip(first - begin).map(|(place, position)| (row(place), position)).collect())
    }

    /// The kept tokens of each row of a packed file.
    pub(super) fn packed_rows(&self) -> Result<Vec<Vec<u32>>> {
        let Some(packed) = &self.packed else { return Ok(Vec::new()) };
        let ids = self.integers(&self.opened()?, self.tokens, 0, self.places)?;
        let row = |ends: &[i64]| ids[ends[0] as usize..ends[1] as usize].iter().map(|id| *id as u32).collect();
        Ok(packed.offsets.windows(2).map(row).collect())
    }

    /// Which of `count` places from `first` on are real.
    fn mask_of(&self, file: &Open<'_>, first: usize, count: usize) -> Result<Vec<i64>> {
        self.mask.map_or_else(|| Ok(vec![1; count]), |start| self.integers(file, start, first, count))
    }

    /// Prompt numbers and positions at places of a packed file.
    fn packed_labels(
        &self,
        file: &Open<'_>,
        packed: &PackedRows,
        first: usize,
        count: usize,
    ) -> Result<Vec<(usize, u32)>> {
        let Some(start) = self.positions else { return Ok(Vec::new()) };
        let positions = self.integers(file, start, first, count)?;
        let mut row = packed.offsets.partition_point(|offset| *offset <= first as i64).saturating_sub(1);
        let label = |(place, position): (usize, i64)| {
            while packed.offsets.get(row + 1).is_some_and(|end| *end <= place as i64) {
                row += 1;
            }
            let number = packed.numbers.get(row).copied().unwrap_or(0);
            (self.first_row + number as usize, u32::try_from(position).unwrap_or_default())
        };
        Ok((first..).zip(positions).map(label).collect())
    }

    /// Tokens of a file, row by row; `None` for padding. For an object in a store, also releases the bytes
    /// that were kept in memory when the object was opened.
    pub(super) fn tokens(&mut self) -> Result<Vec<Option<u32>>> {
        let file = self.opened()?;
        let ids = self.integers(&file, self.tokens, 0, self.places)?;
        let mask = self.mask_of(&file, 0, self.places)?;
        let tokens = real_tokens(ids, &mask);
        drop(file);
        self.object.iter_mut().for_each(Ranges::let_go);
        Ok(tokens)
    }

    /// The error if the file's tokens have changed since it was opened.
    pub(super) fn changed(&self) -> Error {
        DumpError::Refused { path: self.path.clone(), reason: "it was modified while being read".into() }.into()
    }

    /// Reads tokens and vectors at consecutive places.
    pub(super) fn piece(&self, first: usize, count: usize, buffers: &Buffers<u8>) -> Result<Piece> {
        let file = self.opened()?;
        let vectors = |vectors: &Vectors| {
            let size = vectors.width * vectors.dtype.size();
            let buffer = buffers.take(count * size);
            Ok((vectors.dtype, self.read(&file, vectors.start + (first * size) as u64, buffer)?))
        };
        let points = self.points.iter().map(vectors).collect::<Result<_>>()?;
        if let Some(packed) = &self.packed {
            let labels = self.packed_labels(&file, packed, first, count)?;
            let ids = self.integers(&file, self.tokens, first, count)?;
            let tokens = ids.into_iter().map(|id| u32::try_from(id).ok()).collect();
            return Ok(Piece { tokens, labels, points });
        }
        // Positions are counted from the start of the first row, which may be padded on the left.
        let begin = first - first % self.columns.max(1);
        let mask = self.mask_of(&file, begin, first + count - begin)?;
        let labels = self.labels(&file, first, &mask)?;
        let tokens = real_tokens(self.integers(&file, self.tokens, first, count)?, &mask[first - begin..]);
        Ok(Piece { tokens, labels, points })
    }
}

/// Tokens at each place; `None` for padding.
fn real_tokens(ids: Vec<i64>, mask: &[i64]) -> Vec<Option<u32>> {
    let token = |(id, real): (i64, &i64)| (*real != 0).then(|| u32::try_from(id).ok()).flatten();
    ids.into_iter().zip(mask).map(token).collect()
}

impl Piece {
    /// Decodes a vector of one point; returns whether its values are finite.
    pub(super) fn decode(&self, point: usize, place: usize, to: &mut [f32]) -> bool {
        let (dtype, bytes) = &self.points[point];
        let size = to.len() * dtype.size();
        let bytes = &bytes[place * size..][..size];
        match dtype {
            DType::F32 => each(to, bytes.as_chunks().0, |x| f32::from_le_bytes(*x)),
            DType::BF16 => each(to, bytes.as_chunks().0, |x| half::bf16::from_le_bytes(*x).to_f32()),
            DType::F16 => each(to, bytes.as_chunks().0, |x| half::f16::from_le_bytes(*x).to_f32()),
            // `f64`, the only remaining type.
            _ => each(to, bytes.as_chunks().0, |x| f64::from_le_bytes(*x) as f32),
        }
        // An exponent of all ones means not finite. The maximum is computed so that the compiler can vectorize it.
        to.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most)) < 0x7f80_0000
    }

    /// Returns the buffers of the piece's vectors, for reuse.
    pub(super) fn into_buffers(self) -> impl Iterator<Item = Vec<u8>> {
        self.points.into_iter().map(|(_, bytes)| bytes)
    }
}

/// Decodes each value.
fn each<const N: usize>(to: &mut [f32], values: &[[u8; N]], decode: impl Fn(&[u8; N]) -> f32) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to = decode(value));
}
