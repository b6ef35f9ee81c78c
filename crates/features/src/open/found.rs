//! The files of a dictionary whose format is not yet known.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use hooklens_hooks::DType;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::EMBEDDED;
use crate::error::FeatureError;
use crate::matrix::{Lies, Matrix, Stored};
use crate::save::WEIGHTS;
use hooklens_loading::weight_files::{RawTensors, WeightFiles, embedded_file, torch_file};
use hooklens_model::error::Result;
use hooklens_model::tokens::read_json;

/// Extensions of files that contain tensors.
const ENDINGS: [&str; 5] = ["safetensors", "npz", "pt", "pth", "bin"];
/// Stems of tensor files that are stored with a dictionary but do not contain one.
const BESIDE: [&str; 4] = ["sparsity", "trainer_state", "golden", "optimizer"];
/// Names of description files, which are in the folder of the weights or in its parent.
const DESCRIPTIONS: [&str; 3] = ["cfg.json", "config.json", "hyperparams.json"];
/// How many levels of folders are searched for weights.
const DEPTH: usize = 4;
/// Maximum number of weight files opened in a search.
const MOST: usize = 256;

/// A weight file and its description.
pub(super) struct Found {
    /// Path of the weight file.
    pub(super) path: PathBuf,
    /// The description and its path.
    pub(super) config: Option<(PathBuf, Value)>,
    files: Arc<WeightFiles>,
    device: Device,
}

impl Found {
    /// Finds the dictionary at a path: a weight file, its folder, or a parent folder that contains no other dictionary.
    pub(super) fn at(path: &Path, device: &Device, fits: impl Fn(&Self) -> bool) -> Result<Self> {
        if !path.is_dir() {
            return Self::of_file(path.to_path_buf(), device);
        }
        let mut below = Vec::new();
        weights_below(path, DEPTH, &mut below);
        below.sort();
        let unknown = || FeatureError::Unknown { path: path.into(), found: names_in(path) };
        if below.len() == 1 {
            return Self::of_file(below.swap_remove(0), device);
        }
        // Skips files that are not dictionaries or cannot be opened.
        let opened = below.into_iter().take(MOST).filter_map(|file| Self::of_file(file, device).ok());
        let mut opened: Vec<Self> = opened.filter(fits).collect();
        match opened.len() {
            1 => Ok(opened.swap_remove(0)),
            0 => Err(unknown().into()),
            _ => {
                let shown = |one: &Self| one.path.strip_prefix(path).unwrap_or(&one.path).display().to_string();
                let found = opened.iter().map(shown).collect();
                Err(FeatureError::Several { path: path.into(), found }.into())
            }
        }
    }

    /// Opens a weight file, and its description in the same folder or the parent.
    pub(super) fn of_file(weights: PathBuf, device: &Device) -> Result<Self> {
        let files = Arc::new(WeightFiles::open(std::slice::from_ref(&weights))?);
        let folder = weights.parent().unwrap_or(Path::new("."));
        let stem = weights.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let own = folder.join(format!("{stem}_cfg.json"));
        let beside = DESCRIPTIONS.iter().map(|name| folder.join(name));
        let above = folder.parent().map(|above| above.join("hyperparams.json"));
        let described = std::iter::once(own).chain(beside).chain(above).find(|path| path.is_file());
        let config = described
            .map(|path| Ok::<_, hooklens_model::error::Error>((path.clone(), read_json(path)?)))
            .transpose()?;
        // In a set, one file describes all layers.
        if config.is_none() && files.metadata(WEIGHTS).is_some() && !folder.join("config.yaml").is_file() {
            let reason = "the description saved with it (cfg.json or config.yaml) is missing; a process that was \
                          replacing it may have been killed";
            return Err(FeatureError::Setting { path: weights, reason: reason.into() }.into());
        }
        Ok(Self { path: weights, config, files, device: device.clone() })
    }

    /// Opens a weight file embedded in the binary.
    pub(super) fn of_static(name: &str, bytes: &'static [u8], config: Option<Value>, device: &Device) -> Result<Self> {
        let path = PathBuf::from(name);
        let files = Arc::new(embedded_file(name, bytes)?);
        Ok(Self { config: config.map(|config| (path.clone(), config)), path, files, device: device.clone() })
    }

    /// The value of a key in the description.
    pub(super) fn field(&self, key: &str) -> Option<&Value> {
        self.config.as_ref()?.1.get(key).filter(|value| !value.is_null())
    }

    /// The path of the description, or of the weights if there is none.
    pub(super) fn described_by(&self) -> &Path {
        self.config.as_ref().map_or(&self.path, |(path, _)| path)
    }

    /// The folder of the weights.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// An error about the description.
    pub(super) fn wrong(&self, reason: impl Into<String>) -> FeatureError {
        FeatureError::Setting { path: self.described_by().into(), reason: reason.into() }
    }

    /// The dictionary's name: the path of its folder, or the path of its file if the file is in the current folder.
    pub(super) fn name(&self) -> Arc<str> {
        let folder = self.folder();
        // Embedded dictionaries keep the requested name.
        let whole = folder.as_os_str().is_empty() || self.path.to_str().is_some_and(|path| path.starts_with(EMBEDDED));
        let path = if whole { &self.path } else { folder };
        path.display().to_string().into()
    }

    /// Fails if the hash in a description differs from the hash of the weights, which means that they belong to
    /// different dictionaries. Files written by other programs have no hash.
    pub(super) fn check_belongs(&self, described: &Path, said: &str) -> Result<(), FeatureError> {
        if self.files.metadata(WEIGHTS).is_none_or(|own| own == said) {
            return Ok(());
        }
        let reason = format!(
            "it does not describe the weights in {}; the folder mixes files of two dictionaries",
            self.path.display()
        );
        Err(FeatureError::Setting { path: described.into(), reason })
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.files.info(tensor).is_some()
    }

    pub(super) fn tensors(&self) -> Vec<String> {
        self.files.tensors().map(|(name, info)| format!("{name} {:?}", info.shape)).collect()
    }

    /// The shape of a tensor.
    pub(super) fn shape(&self, tensor: &str) -> Result<&[usize]> {
        match self.files.info(tensor) {
            Some(info) => Ok(&info.shape),
            None => {
                let (path, there) = (self.path.clone(), self.tensors());
                Err(FeatureError::Missing { path, tensor: tensor.into(), there }.into())
            }
        }
    }

    /// The shape of a tensor that must be a matrix.
    pub(super) fn matrix_shape(&self, tensor: &str) -> Result<[usize; 2]> {
        let found = self.shape(tensor)?;
        found.try_into().map_err(|_| self.misshapen(tensor, vec![0, 0], found))
    }

    fn misshapen(&self, tensor: &str, wanted: Vec<usize>, found: &[usize]) -> hooklens_model::error::Error {
        let (path, found) = (self.path.clone(), found.to_vec());
        FeatureError::Shape { path, tensor: tensor.into(), wanted, found }.into()
    }

    /// A matrix `[rows, columns]` that is read on first use.
    pub(super) fn matrix(&self, tensor: &str, shape: [usize; 2], lies: Lies) -> Result<Matrix> {
        let wanted = match lies {
            Lies::AsIs => shape.to_vec(),
            Lies::Turned => vec![shape[1], shape[0]],
            Lies::Part { of, .. } => vec![shape[0], of, shape[1]],
        };
        let found = self.shape(tensor)?;
        if *found != *wanted {
            return Err(self.misshapen(tensor, wanted, found));
        }
        let (files, path, name) = (self.files.clone(), self.path.clone(), tensor.to_string());
        Ok(Matrix::stored(shape, Stored { files, path, name, lies }, &self.device))
    }

    /// Reads a vector to the host and checks that its values are finite.
    pub(super) fn numbers(&self, tensor: &str, len: usize) -> Result<Vec<f32>> {
        let found = self.shape(tensor)?;
        if found.iter().product::<usize>() != len || found.len() > 1 && len != 1 {
            return Err(self.misshapen(tensor, vec![len], found));
        }
        let numbers: Vec<f32> = self.files.read(tensor, DType::F32)?.iter().collect();
        match numbers.iter().position(|x| !x.is_finite()) {
            Some(column) => {
                let (path, tensor, value) = (self.path.clone(), tensor.into(), numbers[column]);
                Err(FeatureError::NotFinite { path, tensor, value, row: 0, column }.into())
            }
            None => Ok(numbers),
        }
    }

    /// Reads a single number.
    pub(super) fn number(&self, tensor: &str) -> Result<f32> {
        Ok(self.numbers(tensor, 1)?[0])
    }

    /// Reads a single integer.
    pub(super) fn integer(&self, tensor: &str) -> Result<Option<usize>> {
        Ok(self.files.integer(tensor)?.and_then(|number| usize::try_from(number).ok()))
    }

    /// Contents of a PyTorch file besides tensors; `D`'s default for other types of files.
    pub(super) fn beside_tensors<D: DeserializeOwned + Default>(&self) -> Result<D> {
        match self.path.extension().and_then(|ending| ending.to_str()) {
            Some("pt" | "pth" | "bin") => Ok(torch_file::described(&self.path)?),
            _ => Ok(D::default()),
        }
    }

    /// Reads a vector.
    pub(super) fn vector(&self, tensor: &str, len: usize) -> Result<Tensor<1>> {
        Ok(self.made(self.numbers(tensor, len)?))
    }

    /// Zeros, in place of a vector that the files omit.
    pub(super) fn zeros(&self, len: usize) -> Tensor<1> {
        self.made(vec![0.0; len])
    }

    fn made(&self, numbers: Vec<f32>) -> Tensor<1> {
        let len = numbers.len();
        Tensor::from_data(TensorData::new(numbers, [len]), (&self.device, burn::tensor::DType::F32))
    }
}

/// Finds weight files in a folder, recursively.
fn weights_below(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() && ENDINGS.contains(&ending) && !BESIDE.contains(&&*stem) {
            found.push(path);
        } else if path.is_dir() && depth > 0 {
            weights_below(&path, depth - 1, found);
        }
    }
}

/// Names of all files in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}
