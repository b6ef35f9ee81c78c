//! Keys and values of earlier positions.

use std::sync::{Mutex, MutexGuard, TryLockError};

use hooklens::{CacheKind, KeyValueCache};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::enter::in_use;
use crate::error::raise;
use crate::model::Model;

/// Keys and values of earlier positions, with their mask.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct KvCache {
    cache: Mutex<KeyValueCache>,
}

impl KvCache {
    pub(crate) fn new(cache: KeyValueCache) -> Self {
        Self { cache: Mutex::new(cache) }
    }

    /// The cache, unless a run uses it.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, KeyValueCache>> {
        match self.cache.try_lock() {
            Ok(cache) => Ok(cache),
            // A run that panics restores its cache.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(in_use("key-value cache")),
        }
    }
}

#[pymethods]
impl KvCache {
    /// An empty cache for `batch` rows of a model.
    #[new]
    fn empty(py: Python<'_>, model: &Model, batch: usize) -> PyResult<Self> {
        let cache = KeyValueCache::of_kind(model.shared().config(), batch, CacheKind::GROWING);
        Ok(Self::new(cache.map_err(|error| raise(py, error))?))
    }

    /// Stops runs from appending to the cache.
    fn freeze(&self) -> PyResult<()> {
        self.lock()?.freeze();
        Ok(())
    }

    /// Lets runs append to the cache again.
    fn unfreeze(&self) -> PyResult<()> {
        self.lock()?.unfreeze();
        Ok(())
    }

    /// Whether the cache is frozen.
    #[getter]
    fn frozen(&self) -> PyResult<bool> {
        Ok(self.lock()?.is_frozen())
    }

    /// Number of layers.
    #[getter]
    fn n_layers(&self) -> PyResult<usize> {
        Ok(self.lock()?.n_layers())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lock()?.len())
    }

    /// The attention mask of the cached positions, `[batch, pos]`.
    #[getter]
    fn attention_mask(&self) -> PyResult<Vec<Vec<bool>>> {
        Ok(self.lock()?.attention_mask())
    }

    /// Appends a mask for positions whose keys and values are appended by hand. Returns the whole mask.
    fn append_attention_mask(&self, py: Python<'_>, mask: Vec<Vec<bool>>) -> PyResult<Vec<Vec<bool>>> {
        self.lock()?.append_attention_mask(&mask).map_err(|error| raise(py, error))
    }

    /// Keys and values of a layer, `[batch, pos, head, d_head]`; keys are rotated.
    fn entry(&self, py: Python<'_>, layer: usize) -> PyResult<(Array, Array)> {
        let cache = self.lock()?;
        if layer >= cache.n_layers() {
            let message = format!("layer {layer} does not exist; the cache has {} layers", cache.n_layers());
            return Err(PyIndexError::new_err(message));
        }
        let both = || {
            let (keys, values) = (cache[layer].keys()?, cache[layer].values()?);
            Ok((Array::shared(&keys.into())?, Array::shared(&values.into())?))
        };
        both().map_err(|error: hooklens::Error| raise(py, error))
    }

    /// Copies of the only row, as a cache of `count` rows that shares the memory of the cached positions.
    fn fork(&self, py: Python<'_>, count: usize) -> PyResult<Self> {
        let forked = self.lock()?.fork(count).map_err(|error| raise(py, error))?;
        Ok(Self::new(forked))
    }

    /// Drops all positions after the first `len`.
    fn truncate(&self, py: Python<'_>, len: usize) -> PyResult<()> {
        self.lock()?.truncate(len).map_err(|error| raise(py, error))
    }

    /// A cache with the same content, which later grows independently of this one.
    fn copy(&self) -> PyResult<Self> {
        Ok(Self::new(self.lock()?.clone()))
    }
}
