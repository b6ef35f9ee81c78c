//! Activation patching: replacing values with a recording's values.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::Slice;
use super::pieces::{AxisIndices, described, pieces, positions};
use crate::activation::{Activation, BlockAccess};
use crate::cache::{ActivationCache, Provenance, apart};
use crate::error::{BoxError, HookError};
use crate::hook::{At, Hook, at};
use crate::point::{Axis, PointInfo, Segment};
use crate::positions::{Counting, Positions};
use crate::recorded_rows::RecordedRows;
use crate::rows::Rows;

/// A recording whose values replace the values of a run.
#[derive(Clone)]
pub(super) struct Replacement<'a> {
    recording: &'a ActivationCache,
    cuts: Rc<[AxisIndices]>,
    /// The selected positions; all positions if the user selected none.
    positions: Positions,
}

/// Blocks of a tensor, each given by one range per axis, and their new values.
type Blocks = Vec<(Vec<Range<usize>>, Activation)>;

impl<'a> Replacement<'a> {
    pub(super) fn hook<const D: usize>(slice: Slice<D>, recording: &'a ActivationCache) -> Hook<'a> {
        let Slice { point, cuts } = slice;
        let chosen = positions(&cuts);
        // Positions of the run's own tokens are matched by their position in the text.
        let by_run = cuts.iter().any(|cut| matches!(cut, AxisIndices::Positions(_, Counting::Run)));
        let positions = chosen.clone().unwrap_or(if by_run { Positions::Range(Some(0), None) } else { Positions::All });
        let slice = described(&cuts);
        let own = Self { recording, cuts: cuts.into(), positions };
        let check = own.clone();
        let mut hook = at(point).edit_any(move |tensor, at| own.edited(tensor, at).map_err(BoxError::from));
        hook.rank = Some(D);
        hook.by_position = true;
        hook.positions = chosen;
        hook.by_row = true;
        hook.recording = Some(recording);
        hook.check = Some(Rc::new(move |point, rows| check.check(point, rows)));
        hook.description.slice = slice;
        hook.described("replace by recorded values").using(|point, hash| recording.add_to_hash(point, hash))
    }

    /// Checks that the recording has what a run over these rows needs.
    fn check(&self, point: &PointInfo, rows: &Rows<'_>) -> Result<(), HookError> {
        self.recording.activation(&*point.name)?;
        let name = || point.name.to_string();
        if point.axes.contains(&Axis::Routed) {
            let reason = "its rows are the tokens routed to an expert, which differ between runs";
            return Err(HookError::Undefined { action: "replace", point: name(), reason });
        }
        let Some(held) = self.recording.origin.rows_of(point) else {
            return Err(HookError::NoOrigin { what: "replacing values" });
        };
        if held.batch() != rows.users_rows() {
            return Err(HookError::OtherRows { point: name(), recorded: held.batch(), run: rows.users_rows() });
        }
        // Values over encoder positions are checked when they are computed: these rows are the decoder's.
        if point.segment == Segment::CrossKeys { Ok(()) } else { self.check_lengths(point, rows, held) }
    }

    /// Checks that each position of the run corresponds to a position of the recording.
    fn check_lengths(&self, point: &PointInfo, rows: &Rows<'_>, held: &RecordedRows) -> Result<(), HookError> {
        let scores = point.axes.contains(&Axis::Key);
        for row in 0..rows.batch {
            let (run, recorded) = (rows.text_len(row), held.text_lens[rows.users_row(row)]);
            let from_start = self.positions.count_from_the_start() && !scores;
            let fits = match self.positions {
                _ if run == recorded => true,
                // The run computes part of the text, or a text that has grown beyond the recording.
                _ if rows.open || rows.offset > 0 => run > recorded || !self.positions.count_from_the_end(),
                _ => from_start,
            };
            if !fits || (rows.offset == 0 && self.positions.count_from_the_end() && run != recorded) {
                return Err(HookError::OtherLength { point: point.name.to_string(), row, run, recorded });
            }
        }
        Ok(())
    }

    fn edited(&self, tensor: Activation, at: &At<'_>) -> Result<Option<Activation>, HookError> {
        let Some(rows) = at.rows else { return self.edited_outside(tensor, at).map(Some) };
        self.check(at.point, &rows)?;
        let held = self.held(at.point)?;
        let Some(recorded) = self.recording.origin.rows_of(at.point) else { return Ok(None) };
        let together = matches!(at.axes().first(), Some(Axis::BatchPos | Axis::BatchPosHead));
        let axis_of = |is: &dyn Fn(&Axis) -> bool| at.axes().iter().position(is);
        // The cross-attention keys and values of a decoder are over the encoder's rows.
        let (rows, axis) = match at.point.segment {
            Segment::CrossKeys => {
                let encoder = at.encoder.ok_or_else(|| undefined(at, "the encoder's rows are not known"))?;
                self.check_lengths(at.point, &encoder, recorded)?;
                (encoder, axis_of(&|axis| *axis == Axis::Key))
            }
            _ => (rows, axis_of(&|axis| matches!(axis, Axis::Pos | Axis::Query))),
        };
        let over = Over { held: &held, recorded, rows: &rows, at };
        let mut blocks = Vec::new();
        for piece in pieces(&self.cuts, at, tensor.shape())? {
            if together {
                let [_, rest @ ..] = &piece[..] else { continue };
                let inner = tensor.shape()[0] / (rows.batch * rows.len).max(1);
                self.columns(&[&[0..rows.batch, 0..rows.len, 0..inner], rest].concat(), 1, over, &mut blocks)?;
            } else if let Some(axis) = axis {
                self.columns(&piece, axis, over, &mut blocks)?;
            } else {
                self.rows(&piece, over, &mut blocks)?;
            }
        }
        if blocks.is_empty() {
            return Ok(None);
        }
        let (device, dtype, shape) = (tensor.device(), tensor.dtype(), tensor.shape().to_vec());
        let blocks = blocks.into_iter().map(|(place, values)| (place, values.to_device(&device).in_type(dtype)));
        if !together {
            return Ok(Some(tensor.with_blocks(blocks)));
        }
        Ok(Some(apart(&tensor, [rows.batch, rows.len]).with_blocks(blocks).reshape(&shape)))
    }

    /// The recorded tensor, with its batch axis restored and separated from positions.
    fn held(&self, point: &PointInfo) -> Result<Activation, HookError> {
        let held = self.recording.activation(&*point.name)?;
        if matches!(point.axes.first(), Some(Axis::BatchPos | Axis::BatchPosHead)) {
            return Ok(apart(held, self.recording.rows_recorded()));
        }
        let dropped = !self.recording.has_batch_dim() && point.axes.first() == Some(&Axis::Batch);
        Ok(if dropped { held.reshape(&[&[1], held.shape()].concat()) } else { held.clone() })
    }

    /// For a tensor whose axis `axis` holds a run's columns: adds the blocks that the recording provides for a piece.
    fn columns(
        &self,
        piece: &[Range<usize>],
        axis: usize,
        over: Over<'_>,
        blocks: &mut Blocks,
    ) -> Result<(), HookError> {
        let Over { held, recorded, rows, at } = over;
        let name = || at.name().to_string();
        // A tensor with cached columns has all of them, so its columns are counted from the first cached one.
        let own = if at.point.with_past { 0 } else { rows.offset };
        let keys_too = held.shape()[axis] > recorded.len();
        let columns_of = |row: usize| if keys_too { &recorded.keys[row] } else { &recorded.kept[row] };
        let fits = held.shape()[0] == recorded.batch() && held.shape()[axis] == columns_of(0).len();
        if held.shape().len() != piece.len() || !fits {
            let (expected, given) = (vec![recorded.batch(), recorded.len()], held.shape().to_vec());
            return Err(HookError::Shape { point: name(), expected, given, axes: at.point.axes_label() });
        }
        let lenient = rows.open || rows.offset > 0;
        let key = at.axes().iter().position(|of| *of == Axis::Key).filter(|key| *key != axis);
        let alike = rows.is_plain() && rows.copies.is_none() && !(key.is_some() && at.point.keys_of_encoder);
        let mut row = piece[0].start;
        while row < piece[0].end {
            let users_row = rows.users_row(row);
            // Rows whose columns are matched in the same way become one block.
            let same = |other: &usize| {
                alike
                    && Arc::ptr_eq(&recorded.keys[*other], &recorded.keys[row])
                    && columns_of(*other) == columns_of(row)
            };
            let end = (row + 1..piece[0].end).take_while(same).last().map_or(row + 1, |last| last + 1);
            let mut places: Vec<(usize, usize)> = Vec::new();
            let mut by_position = vec![None; recorded.text_lens[users_row]];
            for (place, position) in columns_of(users_row).iter().enumerate() {
                if let Some(slot) = position.and_then(|position| by_position.get_mut(position)) {
                    *slot = Some(place);
                }
            }
            for column in piece[axis].clone() {
                let Some(position) = rows.position(row, own + column) else { continue };
                match by_position.get(position).copied().flatten() {
                    Some(place) => places.push((column, place)),
                    None if lenient => {}
                    None => return Err(HookError::Unmatched { point: name(), row, position }),
                }
            }
            for run in places.chunk_by(|a, b| (a.0 + 1, a.1 + 1) == *b) {
                let (first, last) = (run[0], run[run.len() - 1]);
                let mut place = piece.to_vec();
                (place[0], place[axis]) = (row..end, first.0..last.0 + 1);
                let mut source = place.clone();
                source[axis] = first.1..last.1 + 1;
                source[0] = if rows.copies.is_some() { users_row..users_row + 1 } else { row..end };
                if let Some(key) = key {
                    source[key] = 0..held.shape()[key];
                }
                self.check_width(&source, held, at)?;
                let mut values = held.block(&source);
                if let Some(key) = key {
                    values = self.by_key(values, key, (row, users_row), over)?;
                }
                blocks.push((place, values));
            }
            row = end;
        }
        Ok(())
    }

    /// Realigns scores or patterns from the recording's keys to the run's keys. Keys that the recording does not have
    /// are masked.
    fn by_key(
        &self,
        values: Activation,
        axis: usize,
        (row, users_row): (usize, usize),
        Over { recorded, rows, at, .. }: Over<'_>,
    ) -> Result<Activation, HookError> {
        let (recorded, rows) = match at.point.keys_of_encoder {
            false => (recorded, *rows),
            true => {
                let recorded = self.recording.origin.encoder_rows();
                let Some((recorded, encoder)) = recorded.zip(at.encoder) else {
                    return Err(undefined(at, "the encoder's rows are not known"));
                };
                let (run, held) = (encoder.text_len(row), recorded.text_lens.get(users_row).copied().unwrap_or(0));
                if run != held {
                    let point = at.name().to_string();
                    return Err(HookError::OtherLength { point, row, run, recorded: held });
                }
                (recorded, encoder)
            }
        };
        let held = &recorded.keys[users_row];
        if values.shape()[axis] != held.len() {
            return Err(undefined(at, "its number of keys does not match the recorded positions"));
        }
        let keys: Vec<Option<usize>> = (0..rows.columns()).map(|column| rows.position(row, column)).collect();
        if keys[..] == held[..] {
            return Ok(values);
        }
        // Add one column for keys that the recording does not have.
        let padded = values.lengthened(axis, 1, at.point.filler.value());
        let place = |key: &Option<usize>| {
            let found = key.and_then(|key| held.iter().position(|held| *held == Some(key)));
            found.unwrap_or(held.len())
        };
        let places: Vec<usize> = keys.iter().map(place).collect();
        Ok(padded.select_by_row(axis, 0, &vec![places; padded.shape()[0]]))
    }

    /// For a tensor without a position axis: adds one block per row of the piece, with that row's recorded values.
    fn rows(&self, piece: &[Range<usize>], over: Over<'_>, blocks: &mut Blocks) -> Result<(), HookError> {
        let Over { held, recorded, rows, at } = over;
        if held.shape().len() != piece.len() || held.shape()[0] != recorded.batch() {
            let (expected, given) = (vec![recorded.batch()], held.shape().to_vec());
            let (point, axes) = (at.name().to_string(), at.point.axes_label());
            return Err(HookError::Shape { point, expected, given, axes });
        }
        for row in piece[0].clone() {
            let users_row = rows.users_row(row);
            let (mut place, mut source) = (piece.to_vec(), piece.to_vec());
            (place[0], source[0]) = (row..row + 1, users_row..users_row + 1);
            self.check_width(&source, held, at)?;
            blocks.push((place, held.block(&source)));
        }
        Ok(())
    }

    /// Checks that the recording is large enough on the other axes.
    fn check_width(&self, source: &[Range<usize>], held: &Activation, at: &At<'_>) -> Result<(), HookError> {
        if source.iter().zip(held.shape()).all(|(range, len)| range.end <= *len) {
            return Ok(());
        }
        let (point, axes) = (at.name().to_string(), at.point.axes_label());
        let expected = source.iter().map(|range| range.end).collect();
        Err(HookError::Shape { point, expected, given: held.shape().to_vec(), axes })
    }

    /// Edits a tensor outside a run, where nothing is known about rows: indices are matched directly.
    fn edited_outside(&self, tensor: Activation, at: &At<'_>) -> Result<Activation, HookError> {
        let held = self.recording.activation(at.name())?;
        if held.shape() != tensor.shape() {
            let (expected, given) = (tensor.shape().to_vec(), held.shape().to_vec());
            let (point, axes) = (at.name().to_string(), at.point.axes_label());
            return Err(HookError::Shape { point, expected, given, axes });
        }
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let of = |piece: Vec<Range<usize>>| {
            let values = held.block(&piece).to_device(&device).in_type(dtype);
            (piece, values)
        };
        let blocks: Vec<_> = pieces(&self.cuts, at, tensor.shape())?.into_iter().map(of).collect();
        Ok(tensor.with_blocks(blocks))
    }
}

/// A point's recording, and the run that it is patched into.
#[derive(Clone, Copy)]
struct Over<'o> {
    held: &'o Activation,
    recorded: &'o RecordedRows,
    rows: &'o Rows<'o>,
    at: &'o At<'o>,
}

fn undefined(at: &At<'_>, reason: &'static str) -> HookError {
    HookError::Undefined { action: "replace", point: at.name().to_string(), reason }
}
