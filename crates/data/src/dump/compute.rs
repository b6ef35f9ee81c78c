//! Forward passes over the batches, with or without a shared prefix.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use hooklens_hooks::{Activation, ActivationCache, Axis, DType, Filler, Positions, Record};

use super::place_in_row::places_in_rows;
use super::placing::{Named, Placing};
use super::{Dump, DumpModel, Seen, Watcher};
use hooklens_analysis::experiments::{SharedPrefix, common_prefix, run_sharing};
use hooklens_model::device::in_main_memory;
use hooklens_model::driver::{ForwardOptions, Logits, RunOutput};
use hooklens_model::error::Result;
use hooklens_model::kv_cache::KeyValueCache;
use hooklens_model::tokens::{PaddingSide, Tokens};

/// Length of the common prefix of a batch's rows, if computing it separately is worth the extra forward pass: it must
/// save at least an eighth of the batch's positions. A batch of one row may share a prefix with the neighboring rows.
pub(super) fn worth_sharing(rows: &[Vec<u32>], batch: Range<usize>) -> Option<usize> {
    const LEAST_SAVED: usize = 64;
    let (alike, saved) = if batch.len() > 1 {
        let alike = common_prefix(&rows[batch.clone()]);
        (alike, alike * (batch.len() - 1))
    } else {
        let with = |range: Range<usize>| rows.get(range).map_or(0, common_prefix);
        let before = if batch.start > 0 { with(batch.start - 1..batch.end) } else { 0 };
        let alike = before.max(with(batch.start..batch.end + 1));
        (alike, alike)
    };
    (saved >= LEAST_SAVED && saved * 8 >= padded(&rows[batch])).then_some(alike)
}

/// Number of positions of a batch, including padding.
fn padded(batch: &[Vec<u32>]) -> usize {
    batch.len() * batch.iter().map(Vec::len).max().unwrap_or(0)
}

/// Maximum number of positions per batch on the CPU, unless a single row is longer: enough to keep the kernels busy,
/// and few enough that intermediate values stay in the CPU cache.
const POSITIONS: usize = 1024;

/// Divides rows into batches of at most `size` rows. On the CPU, larger batches are slower, so they are divided
/// further.
pub(super) fn batches(rows: &[Vec<u32>], size: usize, devices: &[Device]) -> Vec<Range<usize>> {
    let most = if devices.iter().all(in_main_memory) { POSITIONS } else { usize::MAX };
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut longest = 0;
    for (number, row) in rows.iter().enumerate() {
        longest = longest.max(row.len());
        match batches.last_mut() {
            Some(last) if last.len() < size && (last.len() + 1).saturating_mul(longest) <= most => last.end += 1,
            _ => {
                longest = row.len();
                batches.push(number..number + 1);
            }
        }
    }
    batches
}

/// Number of positions that are computed if rows are run in these batches.
pub(super) fn positions_computed(rows: &[Vec<u32>], batches: &[Range<usize>]) -> usize {
    let of_batch = |batch: &Range<usize>| {
        let saved = worth_sharing(rows, batch.clone()).map_or(0, |alike| alike * (batch.len() - 1));
        padded(&rows[batch.clone()]) - saved
    };
    batches.iter().map(of_batch).sum()
}

impl Dump {
    /// Creates the shared prefix of the batches, if sharing is enabled and possible.
    pub(super) fn shared_prefix<'m, M: DumpModel>(&self, model: &'m M) -> Result<Option<SharedPrefix<'m>>> {
        let points = self.selection.resolve(model.catalog())?;
        let routed = points.iter().any(|id| model.catalog().info(*id).axes.first() == Some(&Axis::Routed));
        let can = self.share_prefix && self.prefix.is_empty() && !routed;
        let record = Record::new(self.selection.clone()).dtype(self.dtype);
        Ok(if can { model.sharing(record, self.logits) } else { None })
    }

    /// Runs the prefix once for all batches.
    pub(super) fn prefilled<M: DumpModel>(&self, model: &M) -> Result<Option<KeyValueCache>> {
        if self.prefix.is_empty() {
            return Ok(None);
        }
        Ok(Some(model.behind(&self.prefix, &|input, options| model.run(input, options))?))
    }

    pub(super) fn compute<M: DumpModel>(
        &self,
        model: &M,
        batch: &[Vec<u32>],
        first_row: usize,
        placing: &Placing,
        prefix: Option<&mut KeyValueCache>,
        watcher: &mut Watcher<'_>,
    ) -> Result<Vec<Named>> {
        let pad = model.filler();
        let tokens = Tokens::padded(batch, pad, self.padding_side)?;
        let record = Record::new(self.selection.clone()).positions(placing.recorded()).dtype(self.dtype);
        let mut options = ForwardOptions::new().logits(self.logits).record(record);
        if let Some(cache) = prefix {
            options = options.kv_cache(cache);
        }
        let input = match self.read.get(first_row..first_row + batch.len()) {
            Some(read) => model.batch_written(Tokens::padded(read, pad, PaddingSide::Right)?, tokens.clone())?,
            None => M::batch(tokens.clone()),
        };
        let mut output = model.run(input, options)?;
        let (logits, cache) = (M::logits(&mut output), std::mem::take(output.cache()));
        watcher(Seen::Batch(&tokens, &cache));
        self.named(&tokens, logits, &cache, false, pad)
    }

    /// Computes a batch whose prompts share a prefix. The batch is padded on the right, and every position is recorded.
    pub(super) fn compute_shared<M: DumpModel>(
        &self,
        model: &M,
        batch: &[Vec<u32>],
        shared_prefix: &mut SharedPrefix<'_>,
        shared: usize,
        watcher: &mut Watcher<'_>,
    ) -> Result<Vec<Named>> {
        let pad = model.filler();
        let tokens = Tokens::padded(batch, pad, PaddingSide::Right)?;
        let output = run_sharing(shared_prefix, batch, shared)?;
        watcher(Seen::Batch(&tokens, &output.cache));
        self.named(&tokens, output.logits, &output.cache, true, pad)
    }

    /// Names the tensors of a batch. `every` says whether recordings contain every column.
    fn named(
        &self,
        tokens: &Tokens,
        logits: Option<Tensor<3>>,
        cache: &ActivationCache,
        every: bool,
        pad: u32,
    ) -> Result<Vec<Named>> {
        let shape = tokens.shape();
        let integers = |values: Vec<i32>| {
            Activation::from(Tensor::<2, Int>::from_data(TensorData::new(values, shape), &Device::flex()))
        };
        let whole =
            |name: &str, activation, axes, filler| Named { name: name.into(), activation, axes, whole: true, filler };
        let ids = integers(tokens.ids().iter().map(|id| *id as i32).collect());
        let mut tensors = vec![
            whole("tokens", ids, &[Axis::Batch, Axis::Pos], i64::from(pad).to_le_bytes().to_vec()),
            whole("attention_mask", integers(vec![1; shape[0] * shape[1]]), &[Axis::Batch, Axis::Pos], Vec::new()),
        ];
        if self.positions != Positions::All {
            // The kept positions can't be derived from the tensors if they are counted from a prompt's end.
            let real = (0..shape[0] * shape[1]).map(|place| tokens.mask().is_none_or(|mask| mask[place]));
            let positions = places_in_rows(real, shape[1]).map(|position| position as i32).collect();
            tensors.push(whole("positions", integers(positions), &[Axis::Batch, Axis::Pos], Vec::new()));
        }
        if let Some(logits) = logits {
            let axes: &[Axis] = match self.logits {
                Logits::All => &[Axis::Batch, Axis::Pos, Axis::Vocab],
                _ => &[Axis::Batch, Axis::One, Axis::Vocab],
            };
            tensors.push(whole("logits", Activation::from(logits).cast(self.dtype), axes, Vec::new()));
        }
        for (name, activation) in cache.iter() {
            let point = cache.catalog().info(cache.catalog().find(name)?);
            let filler = if point.filler == Filler::MinusInfinity { minus_infinity(self.dtype) } else { Vec::new() };
            let axes = point.axes;
            tensors.push(Named { name: name.into(), activation: activation.clone(), axes, whole: every, filler });
        }
        Ok(tensors)
    }
}

/// Little-endian bytes of negative infinity.
fn minus_infinity(dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => 0xfc00u16.to_le_bytes().to_vec(),
        DType::BF16 => 0xff80u16.to_le_bytes().to_vec(),
        DType::F64 => f64::NEG_INFINITY.to_le_bytes().to_vec(),
        _ => f32::NEG_INFINITY.to_le_bytes().to_vec(),
    }
}
