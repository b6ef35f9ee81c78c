//! Masks and positions of a batch.

use std::collections::HashMap;

use burn::tensor::{Bool, Device, Float, Int, Tensor, TensorData};
use hooklens_hooks::{Rows, upload};

use crate::config::Window;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// The layout of a batch: its attention mask and the token positions derived from it.
///
/// A token's position is the number of unmasked tokens before it in its row, so padding on the left, on the right, or
/// in between never shifts positions. Queries are the tokens of the run; keys are the cached tokens, if any, followed
/// by the tokens of the run.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) batch: usize,
    /// Number of tokens per row in the run.
    pub(crate) len: usize,
    /// Number of cached tokens per row.
    pub(crate) past: usize,
    /// Mask over keys, row by row, `true` for unmasked tokens; `None` if all are unmasked.
    mask: Option<Vec<bool>>,
    /// Position of each key, row by row; `None` if they are `0..keys`.
    positions: Option<Vec<u32>>,
}

impl Sequence {
    /// Layout of `batch` rows of `len` tokens after `past` cached tokens. `mask` covers cached and new tokens, and is
    /// `true` for unmasked tokens.
    pub(crate) fn new(batch: usize, past: usize, len: usize, mask: Option<Vec<bool>>) -> Self {
        let mask = mask.filter(|mask| mask.contains(&false));
        let positions = mask.as_ref().map(|mask| positions(mask, past + len));
        Self { batch, len, past, mask, positions }
    }

    /// Layout of a batch of tokens.
    pub(crate) fn of(tokens: &Tokens) -> Self {
        let [batch, len] = tokens.shape();
        Self::new(batch, 0, len, tokens.mask().map(<[bool]>::to_vec))
    }

    /// The rows of a run, as seen by hooks.
    pub(crate) fn rows(&self) -> Rows<'_> {
        let (visible, positions) = (self.mask.as_deref(), self.positions.as_deref());
        Rows { offset: self.past, visible, positions, ..Rows::new(self.batch, self.len) }
    }

    /// Layout of `batch` rows of `len` tokens that follow the tokens in a cache. `mask` covers the new tokens and is
    /// `true` for unmasked ones.
    pub(crate) fn behind(cache: &KeyValueCache, [batch, len]: [usize; 2], mask: Option<&[bool]>) -> Self {
        let past = cache.len();
        let whole = |before: Option<Vec<Vec<bool>>>| -> Vec<bool> {
            let row = |row: usize| {
                let before = before.as_ref().map_or(vec![true; past], |rows| rows[row].clone());
                let new = mask.map_or(vec![true; len], |new| new[row * len..(row + 1) * len].to_vec());
                [before, new].concat()
            };
            (0..batch).flat_map(row).collect()
        };
        let sequence = match (cache.past_mask(batch), mask) {
            (None, None) => return Self::new(batch, past, len, None),
            (before, _) => Self::new(batch, past, len, Some(whole(before))),
        };
        // Cached tokens that are hidden from attention still count as positions.
        match cache.past_counted(batch) {
            None => sequence,
            counted => Self { positions: Some(positions(&whole(counted), past + len)), ..sequence },
        }
    }

    /// Number of keys per row, including cached ones.
    pub(crate) fn keys(&self) -> usize {
        self.past + self.len
    }

    /// Whether every token is unmasked.
    pub(crate) fn is_plain(&self) -> bool {
        self.mask.is_none()
    }

    /// Mask over keys, row by row; `None` if all are unmasked.
    pub(crate) fn key_mask(&self) -> Option<&[bool]> {
        self.mask.as_deref()
    }

    /// Mask over the run's tokens, row by row; `None` if no token is masked.
    pub(crate) fn query_mask(&self) -> Option<Vec<bool>> {
        let rows = self.mask.as_ref()?.chunks(self.keys());
        Some(rows.flat_map(|row| row[self.past..].iter().copied()).collect())
    }

    /// Position of each key: one row shared by all if no token is masked, otherwise one row per batch row.
    pub(crate) fn key_positions(&self) -> Vec<u32> {
        self.positions.clone().unwrap_or_else(|| (0..self.keys() as u32).collect())
    }

    /// Position of each token of the run, with the same rows as [`Sequence::key_positions`].
    pub(crate) fn query_positions(&self) -> Vec<u32> {
        self.key_positions().chunks(self.keys()).flat_map(|row| row[self.past..].to_vec()).collect()
    }

    /// Number of rows in [`Sequence::key_positions`].
    pub(crate) fn position_rows(&self) -> usize {
        if self.is_plain() { 1 } else { self.batch }
    }

    /// Minimum length of a position table that covers the run's tokens.
    pub(crate) fn positions_needed(&self) -> usize {
        self.query_positions().iter().max().map_or(0, |last| *last as usize + 1)
    }

    /// Column of each row's first unmasked token (the first column if all are masked).
    pub(crate) fn first_columns(&self) -> Vec<usize> {
        self.columns(|row| row.iter().position(|real| *real), 0)
    }

    /// Column of each row's last unmasked token (the last column if all are masked).
    pub(crate) fn last_columns(&self) -> Vec<usize> {
        self.columns(|row| row.iter().rposition(|real| *real), self.len - 1)
    }

    /// A column of each row: the result of `find` on the row's mask, or `plain` if there is no mask or `find` returns
    /// `None`.
    fn columns(&self, find: impl Fn(&[bool]) -> Option<usize>, plain: usize) -> Vec<usize> {
        match self.query_mask() {
            Some(mask) => mask.chunks(self.len).map(|row| find(row).unwrap_or(plain)).collect(),
            None => vec![plain; self.batch],
        }
    }

    /// 1 for unmasked tokens and 0 for others, `[batch, pos, 1]`; `None` if no token is masked.
    pub(crate) fn real_as_float(&self, device: &Device) -> Option<Tensor<3>> {
        let ones: Vec<f32> = self.query_mask()?.iter().map(|real| f32::from(u8::from(*real))).collect();
        Some(upload(TensorData::new(ones, [self.batch, self.len, 1]), device))
    }
}

/// Position of each column, row by row: the number of unmasked tokens before it.
fn positions(real: &[bool], columns: usize) -> Vec<u32> {
    real.chunks(columns).flat_map(positions_of_row).collect()
}

fn positions_of_row(row: &[bool]) -> Vec<u32> {
    let mut next = 0;
    let place = |real: &bool| {
        next += u32::from(*real);
        u32::saturating_sub(next, 1)
    };
    row.iter().map(place).collect()
}

/// Attention masks of a forward pass, each computed at most once per window.
#[derive(Debug)]
pub(crate) struct Masks<'s> {
    sequence: &'s Sequence,
    bidirectional: bool,
    device: Device,
    hidden: HashMap<Option<Window>, Option<Tensor<4, Bool>>>,
    distance: Option<Tensor<4>>,
}

impl<'s> Masks<'s> {
    pub(crate) fn new(sequence: &'s Sequence, bidirectional: bool, device: &Device) -> Self {
        Self { sequence, bidirectional, device: device.clone(), hidden: HashMap::new(), distance: None }
    }

    /// Whether attention is plain causal attention: no cache, no padding, and no window that hides a key.
    pub(crate) fn plainly_causal(&self, window: Option<Window>) -> bool {
        self.sequence.is_plain()
            && !self.bidirectional
            && self.sequence.past == 0
            && window.is_none_or(|w| w.width() >= self.sequence.len)
    }

    /// Whether a query may have no visible keys.
    pub(crate) fn may_hide_everything(&self) -> bool {
        !self.sequence.is_plain()
    }

    /// `true` where a query must not attend to a key, `[batch or 1, 1, query, key]`; `None` if every query attends to
    /// every key.
    pub(crate) fn hidden(&mut self, window: Option<Window>) -> Option<Tensor<4, Bool>> {
        if let Some(made) = self.hidden.get(&window) {
            return made.clone();
        }
        let made = self.make_hidden(window);
        self.hidden.insert(window, made.clone());
        made
    }

    fn make_hidden(&self, window: Option<Window>) -> Option<Tensor<4, Bool>> {
        // A single query comes after all keys.
        let all_seen = self.bidirectional || self.sequence.len == 1;
        if all_seen && self.sequence.is_plain() && window.is_none_or(|window| window.width() >= self.sequence.keys()) {
            return None;
        }
        let (rows, past) = (self.sequence.position_rows(), self.sequence.past);
        let (queries, keys) = (self.sequence.len, self.sequence.keys());
        let positions = self.sequence.key_positions();
        let mut hidden = Vec::with_capacity(rows * queries * keys);
        for row in 0..rows {
            let positions = &positions[row * keys..(row + 1) * keys];
            let real = self.sequence.key_mask().map(|mask| &mask[row * keys..(row + 1) * keys]);
            for query in past..keys {
                let oldest = window.map(|window| window.oldest(positions[query] as usize));
                let newest = window.and_then(|window| window.newest(positions[query] as usize));
                hidden.extend((0..keys).map(|key| {
                    let later = key > query && !self.bidirectional;
                    let padding = real.is_some_and(|real| !real[key]);
                    // Compare positions, not columns: padding does not count in a window.
                    let at = positions[key] as usize;
                    let far = oldest.is_some_and(|oldest| at < oldest) || newest.is_some_and(|newest| at > newest);
                    later || padding || far
                }));
            }
        }
        Some(upload(TensorData::new(hidden, [rows, 1, queries, keys]), &self.device))
    }

    /// Key position minus query position, `[batch or 1, 1, query, key]`.
    pub(crate) fn distance(&mut self) -> Tensor<4> {
        if let Some(made) = &self.distance {
            return made.clone();
        }
        let (rows, queries, keys) = (self.sequence.position_rows(), self.sequence.len, self.sequence.keys());
        let row = |positions: Vec<u32>, shape: [usize; 4]| {
            let positions: Vec<f32> = positions.iter().map(|p| *p as f32).collect();
            upload::<4, Float>(TensorData::new(positions, shape), &self.device)
        };
        let made = row(self.sequence.key_positions(), [rows, 1, 1, keys])
            - row(self.sequence.query_positions(), [rows, 1, queries, 1]);
        self.distance = Some(made.clone());
        made
    }
}

/// Selects one column of each row, `[batch, d]`.
pub(crate) fn at_columns(x: Tensor<3>, columns: &[usize]) -> Tensor<2> {
    let [batch, len, width] = x.dims();
    let rows: Vec<i32> = columns.iter().enumerate().map(|(row, column)| (row * len + column) as i32).collect();
    let rows = upload::<1, Int>(TensorData::new(rows, [batch]), &x.device());
    x.reshape([batch * len, width]).select(0, rows)
}

/// Position ids as a tensor, `[rows * pos]`.
pub(crate) fn position_ids(sequence: &Sequence, device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = sequence.query_positions().iter().map(|p| *p as i32).collect();
    let count = ids.len();
    upload(TensorData::new(ids, [count]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_anywhere_takes_no_position() {
        let t = true;
        let f = false;
        let mask = vec![f, f, t, t, t, t, f, t, t, t, t, t, t, f, f];
        let sequence = Sequence::new(3, 0, 5, Some(mask));
        assert_eq!(sequence.key_positions(), [0, 0, 0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 2, 2]);
        assert_eq!(sequence.last_columns(), [4, 4, 2]);
        assert_eq!(sequence.first_columns(), [2, 0, 0]);
        assert_eq!(sequence.positions_needed(), 4);
    }

    #[test]
    fn positions_go_on_behind_a_cache() {
        let sequence = Sequence::new(1, 2, 3, None);
        assert_eq!((sequence.query_positions(), sequence.keys()), (vec![2, 3, 4], 5));
        let padded = Sequence::new(1, 2, 3, Some(vec![false, true, true, false, true]));
        assert_eq!(padded.query_positions(), [1, 1, 2]);
        assert_eq!(padded.query_mask().unwrap(), [true, false, true]);
    }

    #[test]
    fn a_mask_of_ones_is_no_mask() {
        assert!(Sequence::new(2, 0, 2, Some(vec![true; 4])).is_plain());
    }
}
