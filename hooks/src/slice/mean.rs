//! Mean ablation: replacing values with the mean of a recording.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::DType;

use super::Slice;
use crate::activation::{Activation, BlockAccess};
use crate::cache::{ActivationCache, Provenance, apart};
use crate::error::HookError;
use crate::hook::Hook;
use crate::point::{Axis, PointInfo};

/// Mean over a recording's tokens.
pub(super) struct MeanOfRecording;

impl MeanOfRecording {
    pub(super) fn hook<const D: usize>(slice: Slice<D>, recording: &ActivationCache) -> Hook<'_> {
        // Cache of each point's mean, `[inner.., rest]`, without batch and position axes.
        let mut known: HashMap<Arc<str>, Activation> = HashMap::new();
        let mut hook = slice.with(move |piece, at, ranges| {
            let mean = match known.get(&at.point.name) {
                Some(mean) => mean.clone(),
                None => {
                    let mean = mean_of(recording, at.point)?;
                    known.insert(at.point.name.clone(), mean.clone());
                    mean
                }
            };
            let (device, dtype) = (piece.device(), piece.dtype());
            spread(&mean.to_device(&device), at.point, piece.shape(), ranges, dtype)
        });
        hook.recording = Some(recording);
        hook.check = Some(Rc::new(move |point, _| mean_is_defined(point, recording)));
        hook.described("replace by the mean of recorded values").using(|point, hash| recording.add_to_hash(point, hash))
    }
}

fn mean_is_defined(point: &PointInfo, recording: &ActivationCache) -> Result<(), HookError> {
    recording.activation(&*point.name)?;
    let reason = if point.axes.contains(&Axis::Query) {
        "scores and patterns mean something different at each position"
    } else if point.axes.contains(&Axis::Routed) {
        "its rows are the tokens routed to an expert, which differ between runs"
    } else if point.axes.contains(&Axis::Choice) {
        "it holds indices of experts, which have no mean"
    } else {
        return Ok(());
    };
    Err(HookError::Undefined { action: "mean", point: point.name.to_string(), reason })
}

/// Mean over a recording's rows and tokens, with the shape of the point's remaining axes.
fn mean_of(recording: &ActivationCache, point: &PointInfo) -> Result<Activation, HookError> {
    mean_is_defined(point, recording)?;
    let held = recording.activation(&*point.name)?;
    let rows = recording.origin.rows_of(point);
    let first = point.axes.first();
    let by_position = matches!(point.axes.get(1), Some(Axis::Pos | Axis::Key));
    let together = matches!(first, Some(Axis::BatchPos | Axis::BatchPosHead));
    let whole = match (together, recording.has_batch_dim()) {
        (true, _) => apart(held, recording.rows_recorded()),
        (_, false) if first == Some(&Axis::Batch) => held.reshape(&[&[1], held.shape()].concat()),
        _ => held.clone(),
    };
    let averaged = if together || by_position { 2 } else { 1 };
    let (over, rest) = whole.shape().split_at(averaged);
    let (over, rest) = (over.to_vec(), rest.to_vec());
    let flat = whole.reshape(&[over.iter().product(), rest.iter().product::<usize>().max(1)]);
    // Exclude padding columns.
    let columns = match (rows, averaged) {
        (Some(rows), 2) => {
            let columns = if over[1] > rows.len() || point.axes.contains(&Axis::Key) { &rows.keys } else { &rows.kept };
            if columns.len() != over[0] || columns.iter().any(|row| row.len() != over[1]) {
                let (expected, given) = (vec![rows.batch(), rows.len()], held.shape().to_vec());
                let (point, axes) = (point.name.to_string(), point.axes_label());
                return Err(HookError::Shape { point, expected, given, axes });
            }
            let all = columns.iter().flat_map(|row| row.iter());
            all.enumerate().filter(|(_, position)| position.is_some()).map(|(place, _)| place).collect()
        }
        _ => (0..over.iter().product()).collect::<Vec<usize>>(),
    };
    if columns.is_empty() {
        let reason = "the recording holds no tokens";
        return Err(HookError::Undefined { action: "mean", point: point.name.to_string(), reason });
    }
    let rest = if rest.is_empty() { vec![1] } else { rest };
    Ok(flat.mean_of_rows(&columns).reshape(&rest))
}

/// Broadcasts the mean to a piece of the tensor.
fn spread(
    mean: &Activation,
    point: &PointInfo,
    shape: &[usize],
    ranges: &[Range<usize>],
    dtype: DType,
) -> Result<Activation, HookError> {
    let first = match point.axes.first() {
        // The combined axis of rows, positions, and heads.
        Some(Axis::BatchPosHead) => Some(mean.shape()[0]),
        Some(Axis::BatchPos) => Some(1),
        _ => None,
    };
    let wide = |kept: &[usize], ranges: &[Range<usize>]| -> Result<Activation, HookError> {
        let fits = mean.shape().len() == ranges.len() && ranges.iter().zip(mean.shape()).all(|(r, len)| r.end <= *len);
        if !fits {
            let (point, axes) = (point.name.to_string(), point.axes_label());
            return Err(HookError::Shape { point, expected: kept.to_vec(), given: mean.shape().to_vec(), axes });
        }
        Ok(mean.block(ranges).in_type(dtype))
    };
    match first {
        Some(inner) => {
            let own: Vec<Range<usize>> = std::iter::once(0..inner).chain(ranges[1..].iter().cloned()).collect();
            let block = wide(shape, &own)?;
            let outer = shape[0] / inner.max(1);
            let repeated = [&[outer], block.shape()].concat();
            Ok(block.reshape(&[&[1], block.shape()].concat()).expanded(&repeated).reshape(shape))
        }
        None => {
            let averaged = shape.len() - mean.shape().len();
            let block = wide(shape, &ranges[averaged..])?;
            let ones = vec![1; averaged];
            Ok(block.reshape(&[&ones, block.shape()].concat()).expanded(shape))
        }
    }
}
