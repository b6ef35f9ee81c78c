//! Causal depthwise convolutions, and the recurrent state carried between runs.

use burn::tensor::{Int, Tensor, TensorData};
use hooklens_hooks::upload;

use super::norm::narrowed;
use super::pass::Pass;
use super::recurrence::Steps;
use super::sequence::Sequence;
use crate::error::CacheError;
use crate::kv_cache::{RecurrentState, StateShape};

/// State of a recurrent layer during a run: the input of its convolution and its memory before the run.
#[derive(Debug)]
pub(super) struct Carried {
    layer: usize,
    taps: ConvWindow,
    /// Convolution inputs at the last `width - 1` positions before the run and at the run's positions,
    /// `[batch, width - 1 + pos, channel]`.
    seen: Tensor<3>,
    memory: Tensor<4>,
}

impl Carried {
    /// Starts from the state in the run's cache, or from an empty state. `new` is the convolution input at the run's
    /// positions, `[batch, pos, channel]`.
    pub(super) fn on(layer: usize, shape: StateShape, new: Tensor<3>, pass: &Pass<'_>) -> Result<Self, CacheError> {
        let ([batch, ..], dtype) = (new.dims(), new.dtype());
        let held = match &pass.kv_cache {
            Some(cache) => cache.state(layer, batch)?,
            None => None,
        };
        let RecurrentState { before, memory } =
            held.unwrap_or_else(|| RecurrentState::empty(batch, shape, &new.device(), dtype));
        let seen = Tensor::cat(vec![narrowed(before, dtype), new], 1);
        Ok(Self { layer, taps: ConvWindow::new(pass.sequence, shape.width()), seen, memory })
    }

    /// Applies the filters, `[width, channel]`, giving `[batch, pos, channel]`.
    pub(super) fn convolved(&self, filters: Tensor<2>) -> Tensor<3> {
        self.taps.convolve(&self.seen, narrowed(filters, self.seen.dtype()))
    }

    /// Runs the recurrence and stores the final memory in the run's cache. Returns the value read at each position,
    /// `[batch, pos, head, d_value]`. Padding leaves the memory unchanged.
    pub(super) fn run(self, mut steps: Steps, pass: &mut Pass<'_>) -> Result<Tensor<4>, CacheError> {
        if let Some(real) = pass.sequence.real_as_float(&self.seen.device()) {
            let real = narrowed(real, steps.beta.dtype());
            steps.beta = steps.beta * real.clone();
            steps.log_decay = steps.log_decay * real;
        }
        let Self { layer, taps, seen, memory } = self;
        let (read, memory) = steps.run(memory);
        Self { layer, taps, seen, memory }.keep(pass)?;
        Ok(read)
    }

    /// Stores the last inputs of the convolution and the mixer's recurrent memory in the run's cache.
    pub(super) fn keep(self, pass: &mut Pass<'_>) -> Result<(), CacheError> {
        let [batch, all, _] = self.seen.dims();
        if let Some(cache) = &mut pass.kv_cache {
            let state = RecurrentState { before: self.taps.last(&self.seen), memory: self.memory };
            cache.advance(self.layer, state, [batch, all + 1 - self.taps.width])?;
        }
        Ok(())
    }
}

/// Input columns of a convolution that skips padding. Each row holds the columns before the run, followed by the
/// columns of the run.
#[derive(Debug)]
pub(super) struct ConvWindow {
    width: usize,
    /// The source columns of all positions for each filter tap, first to last, and the columns to keep for the next
    /// run. `None` without padding.
    sources: Option<(Vec<Vec<i32>>, Vec<i32>)>,
}

impl ConvWindow {
    /// Finds the input columns for filters of the given width over the sequence.
    pub(super) fn new(sequence: &Sequence, width: usize) -> Self {
        let (len, held) = (sequence.len, width - 1);
        let Some(mask) = sequence.query_mask() else { return Self { width, sources: None } };
        let (mut sources, mut last) = (vec![Vec::with_capacity(mask.len()); width], Vec::new());
        for (row, real) in mask.chunks(len).enumerate() {
            let columns: Vec<usize> = (0..held).chain((0..len).filter(|at| real[*at]).map(|at| held + at)).collect();
            let flat = |column: usize| (row * (held + len) + column) as i32;
            let mut before = 0;
            for (at, real) in real.iter().enumerate() {
                // The last tap of an unmasked position reads that position. The values computed at padding are never
                // read.
                let first = before.min(columns.len() - width.min(columns.len()));
                sources.iter_mut().enumerate().for_each(|(tap, sources)| {
                    sources.push(flat(columns.get(first + tap).copied().unwrap_or(held + at)));
                });
                before += usize::from(*real);
            }
            last.extend(columns[columns.len() - held..].iter().map(|column| flat(*column)));
        }
        Self { width, sources: Some((sources, last)) }
    }

    /// Weighted sum over the last `width` positions of each channel, including the current one.
    ///
    /// # Shapes
    /// - `x`: `[batch, width - 1 + pos, channel]`, starting with the positions before the run
    /// - `filters`: `[width, channel]`
    /// - output: `[batch, pos, channel]`
    pub(super) fn convolve(&self, x: &Tensor<3>, filters: Tensor<2>) -> Tensor<3> {
        let [batch, all, channels] = x.dims();
        let len = all + 1 - self.width;
        let seen = |tap: usize| match &self.sources {
            None => x.clone().narrow(1, tap, len),
            Some((sources, _)) => chosen(x, &sources[tap], [batch, len]),
        };
        let weighed = |tap: usize| seen(tap) * filters.clone().narrow(0, tap, 1).reshape([1, 1, channels]);
        (1..self.width).fold(weighed(0), |sum, tap| sum + weighed(tap))
    }

    /// Input columns to keep for the next run, `[batch, width - 1, channel]`.
    pub(super) fn last(&self, x: &Tensor<3>) -> Tensor<3> {
        let [batch, all, _] = x.dims();
        let held = self.width - 1;
        match &self.sources {
            None => x.clone().narrow(1, all - held, held),
            Some((_, last)) => chosen(x, last, [batch, held]),
        }
    }
}

fn chosen(x: &Tensor<3>, columns: &[i32], [batch, count]: [usize; 2]) -> Tensor<3> {
    let [rows, all, channels] = x.dims();
    let columns = upload::<1, Int>(TensorData::new(columns.to_vec(), [columns.len()]), &x.device());
    x.clone().reshape([rows * all, channels]).select(0, columns).reshape([batch, count, channels])
}
