//! Checks whether new columns fit an entry.

use burn::tensor::{DType, Device};

use super::Entry;
use crate::device;
use crate::error::CacheError;
use crate::kv_cache::state::StateShape;

impl Entry {
    /// Element type of the contents, and the device they came from.
    fn form(&self) -> Option<(DType, &Device)> {
        if let Some(state) = &self.state {
            return Some((state.before.dtype(), self.came_from.as_ref()?));
        }
        let (dtype, _) = self.shards[0].form().filter(|_| self.held() > 0)?;
        Some((dtype, self.came_from.as_ref()?))
    }

    /// Checks that `batch` rows can be appended. An empty entry accepts at most the number of rows that it was created
    /// for, a frozen entry with one row accepts any number, and any other entry accepts only its current number.
    pub(in crate::kv_cache) fn check_rows(&self, batch: usize) -> Result<(), CacheError> {
        let fits = batch == self.batch || (self.frozen && self.batch == 1) || (self.len == 0 && batch <= self.rows);
        if fits { Ok(()) } else { Err(CacheError::Batch { cache: self.batch, run: batch }) }
    }

    pub(super) fn check_form(&self, dtype: DType, device: &Device) -> Result<(), CacheError> {
        let form = self.form();
        if let Some((held, _)) = form.filter(|(held, _)| self.dtype.is_none() && *held != dtype) {
            return Err(CacheError::DType { cache: format!("{held:?}"), run: format!("{dtype:?}") });
        }
        let place = self.device.as_ref().or(form.map(|(_, place)| place));
        if let Some(place) = place.filter(|place| *place != device) {
            return Err(CacheError::Device { cache: format!("{place:?}"), run: format!("{device:?}") });
        }
        Ok(())
    }

    /// Checks that this entry could hold the contents of another.
    pub(in crate::kv_cache) fn check_like(&self, other: &Entry) -> Result<(), CacheError> {
        match other.form() {
            Some((dtype, device)) => self.check_form(dtype, device),
            None => Ok(()),
        }
    }

    /// Checks that `count` more columns fit.
    pub(super) fn check_room(&self, count: usize) -> Result<(), CacheError> {
        match self.max_len() {
            Some(max_len) if self.len + count > max_len => Err(CacheError::Full { max_len, needed: self.len + count }),
            _ => Ok(()),
        }
    }

    /// Checks that a run of this model can append `count` columns to the entry.
    pub(in crate::kv_cache) fn check(
        &self,
        layer: usize,
        (model, state): ([[usize; 2]; 2], Option<StateShape>),
        len: usize,
        count: usize,
        (dtype, device): (DType, &Device),
    ) -> Result<(), CacheError> {
        if let Some((cache, model)) = self.heads.into_iter().zip(model).find(|(cache, model)| cache != model) {
            return Err(CacheError::Model { layer, cache, model });
        }
        if self.recurrent != state {
            let [cache, model] = [self.recurrent, state].map(StateShape::described);
            return Err(CacheError::OtherState { layer, cache, model });
        }
        if self.len != len {
            return Err(CacheError::Length { layer, entry: self.len, mask: len });
        }
        if !self.frozen {
            self.check_room(count)?;
        }
        if let Some(stored) = self.dtype.filter(|stored| *stored != dtype)
            && !device::has(device, stored)
        {
            let (device, dtype) = (format!("{device:?}"), format!("{stored:?}").to_lowercase());
            return Err(CacheError::ElementType { device, dtype });
        }
        self.check_form(dtype, device)
    }
}
