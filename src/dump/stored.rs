//! Dumps, read back.

use std::path::{Path, PathBuf};

use hooklens_hooks::DType;
use safetensors::SafeTensors;

use super::manifest::{Log, Manifest};
use crate::error::{DumpError, LoadError, Result};
use crate::regular;
use crate::weight_files::WeightFiles;

/// The files of a dump, opened one at a time.
pub(crate) struct StoredDump {
    path: PathBuf,
    files: Vec<PathBuf>,
    /// The one that was opened last.
    open: Option<(usize, OpenFile)>,
}

/// A file of a dump.
struct OpenFile {
    files: WeightFiles,
    /// The token at each place, nothing at padding.
    tokens: Vec<Option<u32>>,
    shape: [usize; 2],
}

impl StoredDump {
    /// Opens a file or folder that a dump wrote; of a folder, the files that are finished.
    ///
    /// # Errors
    /// What is no dump, or can't be read.
    pub(crate) fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let files = match path.is_dir() {
            false => vec![path.clone()],
            true => {
                let listed = match Manifest::read(&path)? {
                    Some(manifest) if manifest.complete => manifest.files,
                    _ => Log::read(&path)?,
                };
                let within = listed.into_iter().filter(|file| file.is_within());
                within.map(|file| path.join(file.file)).collect()
            }
        };
        let opened = Self { path, files, open: None };
        if opened.files.iter().any(|file| file.extension().is_some_and(|ending| ending == "parquet")) {
            return Err(opened.wrong("it is of tables (Parquet), which other programs read; dump safetensors"));
        }
        match opened.files.is_empty() {
            true => Err(opened.wrong("no finished file of a dump is there")),
            false => Ok(opened),
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> crate::error::Error {
        DumpError::Refused { path: self.path.clone(), reason: reason.into() }.into()
    }

    /// Number of files.
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    fn file(&mut self, file: usize) -> Result<&OpenFile> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            let path = &self.files[file];
            let bytes = regular::read_tensors(path).map_err(LoadError::file(path))?;
            let all = SafeTensors::deserialize(&bytes)
                .map_err(|error| LoadError::refused(path, "it is no safetensors file", error))?;
            let integers = |name: &str| -> Result<(Vec<i64>, Vec<usize>)> {
                let tensor = all.tensor(name).map_err(|_| self.wrong(format!("{} has no `{name}`", path.display())))?;
                let numbers = tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                Ok((numbers, tensor.shape().to_vec()))
            };
            let ((tokens, shape), (mask, _)) = (integers("tokens")?, integers("attention_mask")?);
            let shape: [usize; 2] = shape.try_into().map_err(|_| self.wrong("its tokens are no rows"))?;
            let token = |(id, real): (&i64, &i64)| (*real != 0).then(|| u32::try_from(*id).ok()).flatten();
            let tokens = tokens.iter().zip(&mask).map(token).collect();
            let files = WeightFiles::open(std::slice::from_ref(path))?;
            self.open = Some((file, OpenFile { files, tokens, shape }));
        }
        match &self.open {
            Some((_, open)) => Ok(open),
            None => Err(self.wrong("its file was not opened")),
        }
    }

    /// The tokens of a file, row by row, nothing at padding.
    pub(crate) fn tokens(&mut self, file: usize) -> Result<&[Option<u32>]> {
        Ok(&self.file(file)?.tokens)
    }

    /// The width of a point's activations.
    pub(crate) fn width(&mut self, point: &str) -> Result<usize> {
        self.file(0)?;
        let Some((_, open)) = &self.open else { return Err(self.wrong("its file was not opened")) };
        let Some(info) = open.files.info(point) else {
            let nearest = open.files.nearest(point).join(", ");
            return Err(self.wrong(format!("`{point}` was not dumped; nearest: {nearest}")));
        };
        let shape = info.shape.clone();
        if shape.len() < 3 || shape[..2] != open.shape {
            let of = open.shape;
            return Err(self.wrong(format!("`{point}` has shape {shape:?}, and its tokens {of:?}: positions were cut")));
        }
        Ok(shape[2..].iter().product())
    }

    /// A point's activations at the places that are wanted, `[place, width]`.
    pub(crate) fn rows(&mut self, file: usize, point: &str, wanted: &[bool]) -> Result<Vec<f32>> {
        let open = self.file(file)?;
        let numbers: Vec<f32> = open.files.read(point, DType::F32)?.iter().collect();
        let width = numbers.len() / wanted.len().max(1);
        let rows = numbers.chunks_exact(width.max(1)).zip(wanted).filter(|(_, wanted)| **wanted);
        let rows: Vec<f32> = rows.flat_map(|(row, _)| row).copied().collect();
        match rows.iter().all(|x| x.is_finite()) {
            true => Ok(rows),
            false => Err(crate::error::Error::NotANumber { what: format!("an activation of `{point}` in the dump") }),
        }
    }
}
