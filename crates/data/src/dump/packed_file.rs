//! A file of packed rows, collected in temporary files until it is complete.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hooklens_hooks::{SafetensorsHeader, Unfinished};
use safetensors::Dtype;
use tempfile::{SpooledTempFile, spooled_tempfile_in};
use xxhash_rust::xxh3::Xxh3;

use super::placing::{Form, PackedTensor};
#[cfg(feature = "arrow")]
use super::table;
use hooklens_io::object_stores::{Object, is_url};

/// Number of bytes of a tensor that are kept in memory before they are written to a temporary file.
const IN_MEMORY: usize = 1 << 20;

/// Name of the tensor of row offsets: the index of each row's first token, and the end of the last row.
const OFFSETS: &str = "row_offsets";
/// Name of the tensor of prompt numbers: the number of each row's prompt, counted from the file's first prompt.
const NUMBERS: &str = "prompt_numbers";
/// Number of bytes of vectors that are added to a table together.
#[cfg(feature = "arrow")]
const TABLE_PART: usize = 8 << 20;

/// Rows of a file that is not complete.
pub(super) struct PackedFile {
    /// Folder for unnamed temporary files; the system's temporary folder if the dump is in an object store.
    folder: PathBuf,
    streams: BTreeMap<String, Stream>,
    /// Number of the first prompt.
    first: usize,
    rows: usize,
    tokens: usize,
    bytes: u64,
    committed: Committed,
}

/// Sizes at the end of the last window, to which the file is truncated if the next window is not finished.
#[derive(Default)]
struct Committed {
    streams: BTreeMap<String, u64>,
    rows: usize,
    tokens: usize,
    bytes: u64,
}

/// The values of one tensor.
struct Stream {
    dtype: Dtype,
    /// Shape of an entry; `None` for rows of different shapes.
    entry: Option<Vec<usize>>,
    data: SpooledTempFile,
    bytes: u64,
    of: Of,
    /// Number of streams that were added before this stream.
    #[cfg(feature = "arrow")]
    number: usize,
}

/// What each entry of a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Token,
    Row,
    Value,
}

impl PackedFile {
    /// Creates a file without rows, to be written to a folder. `first` is the number of its first prompt in the run.
    pub(super) fn new(folder: &Path, first: usize) -> Self {
        let folder = if is_url(folder) { std::env::temp_dir() } else { folder.to_path_buf() };
        let (streams, committed) = Default::default();
        Self { folder, streams, first, rows: 0, tokens: 0, bytes: 0, committed }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Size of the tensors in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the rows of a batch. `lengths` are the rows' numbers of tokens, and `numbers` are the rows' indices among
    /// the prompts of the run. `latents` says which tensors are stored as nonzero entries.
    pub(super) fn add(
        &mut self,
        tensors: &[PackedTensor],
        lengths: impl Iterator<Item = usize>,
        numbers: &[usize],
        latents: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let before = self.tokens;
        for tensor in tensors {
            match &tensor.form {
                Form::Tokens(entry) if latents(&tensor.name) => self.add_latents(tensor, entry, before)?,
                Form::Tokens(entry) => {
                    self.append(&tensor.name, tensor.dtype, Of::Token, Some(entry), &tensor.bytes)?
                }
                Form::Rows(entry) => self.append(&tensor.name, tensor.dtype, Of::Row, Some(entry), &tensor.bytes)?,
                Form::Ragged(shapes) => {
                    self.append(&tensor.name, tensor.dtype, Of::Value, None, &tensor.bytes)?;
                    let axes = shapes.first().map_or(0, Vec::len);
                    let lengths: Vec<u8> =
                        shapes.iter().flatten().flat_map(|len| (*len as i64).to_le_bytes()).collect();
                    let name = format!("{}.shapes", tensor.name);
                    self.append(&name, Dtype::I64, Of::Row, Some(&[axes]), &lengths)?;
                }
            }
        }
        // The first row of a file starts at offset 0.
        let mut offsets: Vec<u8> = if self.rows == 0 { vec![0; 8] } else { Vec::new() };
        for length in lengths {
            self.rows += 1;
            self.tokens += length;
            offsets.extend((self.tokens as i64).to_le_bytes());
        }
        let numbers = numbers.iter().flat_map(|number| ((number - self.first) as i64).to_le_bytes());
        let numbers: Vec<u8> = numbers.collect();
        self.append(OFFSETS, Dtype::I64, Of::Value, None, &offsets)?;
        self.append(NUMBERS, Dtype::I64, Of::Value, None, &numbers)
    }

    /// Keeps the rows added so far.
    pub(super) fn commit(&mut self) {
        let streams = self.streams.iter().map(|(name, stream)| (name.clone(), stream.bytes)).collect();
        self.committed = Committed { streams, rows: self.rows, tokens: self.tokens, bytes: self.bytes };
    }

    /// Removes the rows added since the last commit.
    pub(super) fn roll_back(&mut self) -> io::Result<()> {
        for (name, stream) in &mut self.streams {
            let bytes = self.committed.streams.get(name).copied().unwrap_or(0);
            stream.data.set_len(bytes)?;
            stream.data.seek(SeekFrom::Start(bytes))?;
            stream.bytes = bytes;
        }
        self.streams.retain(|name, _| self.committed.streams.contains_key(name));
        (self.rows, self.tokens, self.bytes) = (self.committed.rows, self.committed.tokens, self.committed.bytes);
        Ok(())
    }

    fn append(&mut self, name: &str, dtype: Dtype, of: Of, entry: Option<&[usize]>, bytes: &[u8]) -> io::Result<()> {
        let folder = &self.folder;
        #[cfg(feature = "arrow")]
        let number = self.streams.len();
        let stream = self.streams.entry(name.to_string()).or_insert_with(|| Stream {
            dtype,
            entry: entry.map(<[usize]>::to_vec),
            data: spooled_tempfile_in(IN_MEMORY, folder),
            bytes: 0,
            of,
            #[cfg(feature = "arrow")]
            number,
        });
        stream.data.write_all(bytes)?;
        stream.bytes += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Adds latents as a sparse matrix `[token, latent]`.
    fn add_latents(&mut self, tensor: &PackedTensor, entry: &[usize], before: usize) -> io::Result<()> {
        let latents = entry.iter().product::<usize>().max(1);
        let size = tensor.dtype.bitsize() / 8;
        let stored = self.streams.get(&format!("{}.indices", tensor.name)).map_or(0, |stream| stream.bytes / 4);
        let (mut indices, mut values, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        if before == 0 {
            offsets.extend(0i64.to_le_bytes());
        }
        for token in tensor.bytes.chunks_exact(latents * size) {
            for (latent, value) in token.chunks_exact(size).enumerate() {
                // Skip positive and negative zeros.
                if value[..size - 1].iter().any(|byte| *byte != 0) || value[size - 1] & 0x7f != 0 {
                    indices.extend((latent as i32).to_le_bytes());
                    values.extend(value);
                }
            }
            offsets.extend((stored as i64 + (indices.len() / 4) as i64).to_le_bytes());
        }
        let name = |part: &str| format!("{}.{part}", tensor.name);
        self.append(&name("indices"), Dtype::I32, Of::Value, None, &indices)?;
        self.append(&name("values"), tensor.dtype, Of::Value, None, &values)?;
        self.append(&name("offsets"), Dtype::I64, Of::Value, None, &offsets)?;
        // The number of tokens is filled in at the end.
        let shape = [0, latents as i64].map(i64::to_le_bytes).concat();
        let shape: &[u8] = if before == 0 { &shape } else { &[] };
        self.append(&name("shape"), Dtype::I64, Of::Value, None, shape)
    }

    /// Prepares the tensors for reading, and checks that each has one entry per token or per row. Returns the names,
    /// types and shapes of the tensors.
    fn rewind(&mut self) -> io::Result<Vec<(String, Dtype, Vec<usize>)>> {
        let (rows, tokens) = (self.rows, self.tokens);
        let mut tensors = Vec::new();
        for (name, stream) in &mut self.streams {
            if name.ends_with(".shape") && stream.dtype == Dtype::I64 && stream.of == Of::Value {
                stream.data.rewind()?;
                stream.data.write_all(&(tokens as i64).to_le_bytes())?;
            }
            stream.data.rewind()?;
            let size = (stream.dtype.bitsize() / 8) as u64;
            let shape = match (stream.of, &stream.entry) {
                (Of::Value, _) | (_, None) => vec![(stream.bytes / size) as usize],
                (of, Some(entry)) => {
                    let count = if of == Of::Token { tokens } else { rows };
                    let expected = (count * entry.iter().product::<usize>()) as u64 * size;
                    if stream.bytes != expected {
                        let reason = format!("`{name}` fired only in some batches; leave the point out");
                        return Err(io::Error::other(reason));
                    }
                    [&[count], &entry[..]].concat()
                }
            };
            tensors.push((name.clone(), stream.dtype, shape));
        }
        Ok(tensors)
    }

    /// Writes the file and syncs it to disk. Returns the file's length and hash.
    ///
    /// # Errors
    /// Fails if a tensor was missing in some batches, or if the file cannot be written.
    pub(super) fn finish(mut self, path: &Path, object: Option<&Object>) -> io::Result<(u64, u128)> {
        let tensors = self.rewind()?;
        let metadata = [("format".to_string(), "pt".to_string())];
        let header = SafetensorsHeader::new(tensors.clone(), metadata).map_err(io::Error::other)?;
        written(path, object, |to| {
            to.write_all(header.bytes())?;
            let mut block = vec![0; 1 << 18];
            for place in header.order() {
                let Some(stream) = self.streams.get_mut(&tensors[*place].0) else { continue };
                loop {
                    let read = stream.data.read(&mut block)?;
                    if read == 0 {
                        break;
                    }
                    to.write_all(&block[..read])?;
                }
            }
            Ok(())
        })
    }

    /// Like [`PackedFile::finish`], but writes a table with one row per token.
    #[cfg(feature = "arrow")]
    pub(super) fn finish_table(mut self, path: &Path, object: Option<&Object>) -> io::Result<(u64, u128)> {
        self.rewind()?;
        let bytes_per_token = |stream: &Stream| match (stream.of, &stream.entry) {
            (Of::Token, Some(entry)) => entry.iter().product::<usize>() * stream.dtype.bitsize() / 8,
            _ => 0,
        };
        let bytes: usize = self.streams.values().map(bytes_per_token).sum();
        let together = (TABLE_PART / bytes.max(1)).max(1);
        let [mut offsets, mut numbers] = [OFFSETS, NUMBERS].map(|name| self.streams.remove(name));
        let mut next_integer = |of_numbers: bool| match if of_numbers { &mut numbers } else { &mut offsets } {
            Some(stream) => Ok(stream.integers(1)?.first().copied().unwrap_or(0)),
            None => Ok::<_, io::Error>(0),
        };
        let (mut at, mut end, mut number) = (0, next_integer(false)? as usize, 0);
        let mut next = || {
            let until = (at + together).min(self.tokens);
            let mut prompts = Vec::new();
            while at < until {
                if at == end {
                    (end, number) = (next_integer(false)? as usize, next_integer(true)?);
                }
                let own = until.min(end) - at;
                prompts.extend(std::iter::repeat_n(self.first as i64 + number, own));
                at += own;
            }
            let is_first = until == prompts.len();
            if prompts.is_empty() { Ok(None) } else { table_part(&mut self.streams, prompts, is_first).map(Some) }
        };
        written(path, object, |to| table::write(to, &mut next))
    }
}

/// Reads the next tokens, one per entry of `prompts`: from the start of the streams if `is_first`, else after the
/// previous part.
#[cfg(feature = "arrow")]
fn table_part(streams: &mut BTreeMap<String, Stream>, prompts: Vec<i64>, is_first: bool) -> io::Result<table::Tokens> {
    let count = prompts.len();
    let mut points = Vec::new();
    let latents: Vec<String> = streams.keys().filter_map(|name| Some(name.strip_suffix(".offsets")?.into())).collect();
    for name in latents {
        let mut part = |part: &str| streams.remove_entry(&format!("{name}.{part}"));
        let (Some(mut offsets), Some(mut indices), Some(mut values)) =
            (part("offsets"), part("indices"), part("values"))
        else {
            continue;
        };
        // The last offset of the previous part is where this part starts.
        let own = if is_first { offsets.1.integers(count + 1)? } else { offsets.1.integers_after(count)? };
        let counts: Vec<usize> = own.windows(2).map(|ends| (ends[1] - ends[0]) as usize).collect();
        let all: usize = counts.iter().sum();
        let latents = indices.1.bytes(all * 4)?.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        let (dtype, number) = (values.1.dtype, values.1.number);
        let values_read = values.1.bytes(all * dtype.bitsize() / 8)?;
        let form = table::PointForm::Entries { counts, latents };
        points.push((number, table::Point { name, dtype, values: values_read, form }));
        streams.extend([offsets, indices, values]);
    }
    let mut integers = |name: &str| match streams.get_mut(name) {
        Some(stream) => stream.integers(count),
        None => Ok(Vec::new()),
    };
    let (positions, ids) = (integers("positions")?, integers("tokens")?);
    for (name, stream) in streams.iter_mut().filter(|(name, _)| !["positions", "tokens"].contains(&&***name)) {
        let (Of::Token, Some(entry)) = (stream.of, &stream.entry) else { continue };
        let width = entry.iter().product::<usize>();
        let (name, dtype, number) = (name.clone(), stream.dtype, stream.number);
        let values = stream.bytes(count * width * dtype.bitsize() / 8)?;
        points.push((number, table::Point { name, dtype, values, form: table::PointForm::Vectors(width) }));
    }
    points.sort_by_key(|(number, _)| *number);
    let points = points.into_iter().map(|(_, point)| point).collect();
    Ok(table::Tokens { prompts, positions, ids, points })
}

#[cfg(feature = "arrow")]
impl Stream {
    fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.data.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn integers(&mut self, count: usize) -> io::Result<Vec<i64>> {
        Ok(self.bytes(8 * count)?.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The last integer read, followed by the next `count` integers.
    fn integers_after(&mut self, count: usize) -> io::Result<Vec<i64>> {
        self.data.seek(SeekFrom::Current(-8))?;
        self.integers(count + 1)
    }
}

/// Writes a file, syncing it to disk, or an object. Returns its length and hash.
fn written(
    path: &Path,
    object: Option<&Object>,
    fill: impl FnOnce(&mut Hashed<'_>) -> io::Result<()>,
) -> io::Result<(u64, u128)> {
    let hashed = |to: &mut (dyn Write + Send)| {
        let mut to = Hashed { to, hash: Xxh3::new(), bytes: 0 };
        fill(&mut to)?;
        Ok::<_, io::Error>((to.bytes, to.hash.digest128()))
    };
    match object {
        Some(object) => {
            let mut writer = object.writer();
            let written = hashed(&mut writer)?;
            writer.finish()?;
            Ok(written)
        }
        None => {
            let mut unfinished = Unfinished::beside(path)?;
            let written = hashed(&mut unfinished)?;
            unfinished.finish()?;
            Ok(written)
        }
    }
}

/// A writer that hashes and counts what is written.
struct Hashed<'w> {
    to: &'w mut (dyn Write + Send),
    hash: Xxh3,
    bytes: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
