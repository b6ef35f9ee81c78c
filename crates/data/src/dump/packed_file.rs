//! A file of packed rows, collected in temporary files until it is complete.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hooklens_hooks::{SafetensorsHeader, Unfinished};
use safetensors::Dtype;
use tempfile::{SpooledTempFile, spooled_tempfile_in};
use xxhash_rust::xxh3::Xxh3;

use super::placing::{Form, PackedTensor};
use hooklens_io::object_stores::{Object, is_url};

/// Number of bytes of a tensor that are kept in memory before they are written to a temporary file.
const IN_MEMORY: usize = 1 << 20;

/// Rows of a file that is not complete.
pub(super) struct PackedFile {
    /// Folder for temporary files, which have no name there; the system's for an object store.
    folder: PathBuf,
    streams: BTreeMap<String, Stream>,
    /// Index at which the tokens of each row start, without the first, and the number of each row.
    ends: Vec<usize>,
    numbers: Vec<usize>,
    bytes: u64,
    committed: Committed,
}

/// Sizes at the end of the last window, to which a file is cut back if the next one is not finished.
#[derive(Default)]
struct Committed {
    streams: BTreeMap<String, u64>,
    rows: usize,
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
}

/// What a tensor has one entry for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Token,
    Row,
    Value,
}

impl PackedFile {
    /// Creates a file without rows, to be written to a folder.
    pub(super) fn new(folder: &Path) -> Self {
        let folder = if is_url(folder) { std::env::temp_dir() } else { folder.to_path_buf() };
        let (streams, ends, numbers, committed) = Default::default();
        Self { folder, streams, ends, numbers, bytes: 0, committed }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.numbers.len()
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Size of the tensors in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the rows of a batch. `lengths` are their numbers of tokens, and `numbers` are their places among the
    /// prompts of the run. `latents` says which tensors are stored by their nonzero entries.
    pub(super) fn add(
        &mut self,
        tensors: &[PackedTensor],
        lengths: impl Iterator<Item = usize>,
        numbers: &[usize],
        latents: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let before = self.tokens();
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
        let mut end = before;
        for length in lengths {
            end += length;
            self.ends.push(end);
        }
        self.numbers.extend_from_slice(numbers);
        Ok(())
    }

    /// Keeps the rows added so far.
    pub(super) fn commit(&mut self) {
        let streams = self.streams.iter().map(|(name, stream)| (name.clone(), stream.bytes)).collect();
        self.committed = Committed { streams, rows: self.rows(), bytes: self.bytes };
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
        self.ends.truncate(self.committed.rows);
        self.numbers.truncate(self.committed.rows);
        self.bytes = self.committed.bytes;
        Ok(())
    }

    fn append(&mut self, name: &str, dtype: Dtype, of: Of, entry: Option<&[usize]>, bytes: &[u8]) -> io::Result<()> {
        let folder = &self.folder;
        let stream = self.streams.entry(name.to_string()).or_insert_with(|| Stream {
            dtype,
            entry: entry.map(<[usize]>::to_vec),
            data: spooled_tempfile_in(IN_MEMORY, folder),
            bytes: 0,
            of,
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
                // Positive or negative zero.
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
        // The number of tokens is known at the end.
        let shape = [0, latents as i64].map(i64::to_le_bytes).concat();
        let shape: &[u8] = if before == 0 { &shape } else { &[] };
        self.append(&name("shape"), Dtype::I64, Of::Value, None, shape)
    }

    /// Writes the file, durably. `first` is the number of its first prompt in the run. Returns the file's length and
    /// hash.
    ///
    /// # Errors
    /// Fails if a tensor was missing in some batches, and if the file cannot be written.
    pub(super) fn finish(mut self, path: &Path, object: Option<&Object>, first: usize) -> io::Result<(u64, u128)> {
        let (rows, tokens) = (self.rows(), self.tokens());
        let offsets = std::iter::once(&0).chain(&self.ends).flat_map(|end| (*end as i64).to_le_bytes());
        let offsets: Vec<u8> = offsets.collect();
        let numbers: Vec<u8> = self.numbers.iter().flat_map(|number| ((number - first) as i64).to_le_bytes()).collect();
        self.append("row_offsets", Dtype::I64, Of::Value, None, &offsets)?;
        self.append("prompt_numbers", Dtype::I64, Of::Value, None, &numbers)?;
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
                        let reason = format!("`{name}` fired only in some batches");
                        return Err(io::Error::other(reason));
                    }
                    [&[count], &entry[..]].concat()
                }
            };
            tensors.push((name.clone(), stream.dtype, shape));
        }
        let metadata = [("format".to_string(), "pt".to_string())];
        let header = SafetensorsHeader::new(tensors.clone(), metadata).map_err(io::Error::other)?;
        let ordered = header.order().iter().map(|place| &tensors[*place].0);
        let mut hash = Xxh3::new();
        let mut streams = std::mem::take(&mut self.streams);
        let copy = |to: &mut dyn Write| -> io::Result<u64> {
            hash.update(header.bytes());
            to.write_all(header.bytes())?;
            let mut block = vec![0; 1 << 18];
            for name in ordered {
                let Some(stream) = streams.get_mut(name) else { continue };
                loop {
                    let read = stream.data.read(&mut block)?;
                    if read == 0 {
                        break;
                    }
                    hash.update(&block[..read]);
                    to.write_all(&block[..read])?;
                }
            }
            Ok(header.bytes().len() as u64 + header.data_len())
        };
        let bytes = match object {
            Some(object) => {
                let mut writer = object.writer();
                copy(&mut writer)?;
                writer.finish()?
            }
            None => {
                let mut unfinished = Unfinished::beside(path)?;
                let bytes = copy(&mut unfinished)?;
                unfinished.finish()?;
                bytes
            }
        };
        Ok((bytes, hash.digest128()))
    }
}
