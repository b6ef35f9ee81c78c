//! [`EdgePass`]: the hooks that give each receiver its own input during a forward pass.

use std::cell::RefCell;

use burn::tensor::Tensor;
use hooklens_hooks::Hook;

use super::masks::Masks;
use super::order::{Reads, RunOrder};
use super::outputs::head_outputs;
use hooklens_model::config::{NormKind, Settings};
use hooklens_model::hook;
use hooklens_model::model::HookedTransformer;

/// What the senders wrote, one chunk per write: `[sender, row, pos * d_model]`.
pub(super) type Chunks = Vec<Tensor<3>>;

/// One forward pass in which ablated edges carry replacements instead of the sender's output.
pub(super) struct EdgePass<'p> {
    pub(super) model: &'p HookedTransformer,
    pub(super) order: &'p RunOrder,
    /// Which edges are ablated, and what they carry instead. `None` only collects outputs.
    pub(super) ablated: Option<(Masks<'p>, &'p Chunks)>,
}

/// What the pass has seen so far.
#[derive(Default)]
struct Seen {
    /// The senders' outputs or, if edges are ablated, the replacements minus the senders' outputs.
    chunks: Chunks,
    /// Cumulative sums of the chunks, `[1, row, pos * d_model]`. Entry `i` is the sum over all senders of chunks `0..=i`.
    sums: Vec<Tensor<3>>,
    z: Option<Tensor<4>>,
    scale: Option<Tensor<3>>,
    /// Corrections to the inputs of keys and values, computed together with the corrections to the inputs of queries.
    keys_and_values: Option<Tensor<4>>,
}

impl<'p> EdgePass<'p> {
    /// Runs the pass by calling `run` with the hooks. Returns the result of `run` and the collected outputs.
    pub(super) fn run<R>(
        &self,
        run: impl FnOnce(Vec<Hook<'_>>) -> hooklens_model::error::Result<R>,
    ) -> hooklens_model::error::Result<(R, Chunks)> {
        let seen = RefCell::new(Seen::default());
        let result = run(self.hooks(&seen))?;
        Ok((result, seen.into_inner().chunks))
    }

    fn hooks<'s>(&'s self, seen: &'s RefCell<Seen>) -> Vec<Hook<'s>> {
        let config = self.model.config();
        let post_norm = config.post_norms() && config.norm() != NormKind::None;
        let mut hooks = vec![hook::embed().read(move |written, _| self.wrote(seen, flat(written)))];
        for (layer, own) in self.order.layers.iter().enumerate() {
            if self.ablated.is_some() {
                let (queries, keys) = (own.heads, own.kv_heads);
                hooks.push(hook::q_input(layer).edit(move |input, _| {
                    let found = self.correction(seen, &own.attn, &input);
                    let mut seen = seen.borrow_mut();
                    seen.keys_and_values = found.clone().map(|found| found.narrow(2, queries, 2 * keys));
                    found.map(|found| input + found.narrow(2, 0, queries))
                }));
                for (point, first) in [(hook::k_input(layer), 0), (hook::v_input(layer), keys)] {
                    hooks.push(point.edit(move |input: Tensor<4>, _| {
                        let found = seen.borrow().keys_and_values.clone();
                        found.map(|found| input + found.narrow(2, first, keys))
                    }));
                }
                if let Some(reads) = &own.mlp {
                    hooks.push(hook::mlp_in(layer).edit(move |input: Tensor<3>, _| {
                        let found = self.correction(seen, reads, &input.clone().unsqueeze_dim(2));
                        found.map(|found| input + found.squeeze_dim::<3>(2))
                    }));
                }
            }
            hooks.push(hook::z(layer).read(move |z, _| seen.borrow_mut().z = Some(z)));
            if post_norm {
                hooks.push(hook::ln1_post_scale(layer).read(move |scale, _| seen.borrow_mut().scale = Some(scale)));
            }
            hooks.push(hook::attn_out(layer).read(move |_, _| {
                let (z, scale) = {
                    let mut seen = seen.borrow_mut();
                    (seen.z.take(), seen.scale.take())
                };
                if let Some(z) = z {
                    self.wrote(seen, head_outputs(self.model, layer, z, scale)?);
                }
                Ok::<(), hooklens_model::error::Error>(())
            }));
            if own.mlp.is_some() {
                hooks.push(hook::mlp_out(layer).read(move |written, _| self.wrote(seen, flat(written))));
            }
        }
        if self.ablated.is_some() {
            hooks.push(hook::resid_post(-1).edit(move |stream: Tensor<3>, _| {
                let found = self.correction(seen, &self.order.end, &stream.clone().unsqueeze_dim(2));
                found.map(|found| stream + found.squeeze_dim::<3>(2))
            }));
        }
        hooks
    }

    fn wrote(&self, seen: &RefCell<Seen>, written: Tensor<3>) {
        let mut seen = seen.borrow_mut();
        let chunk = match self.ablated {
            Some((_, ablated)) => {
                let other = ablated[seen.chunks.len()].clone();
                other.expand(written.dims()) - written
            }
            None => written,
        };
        if self.ablated.is_some() {
            let sum = chunk.clone().sum_dim(0);
            let sum = match seen.sums.last() {
                Some(before) => before.clone() + sum,
                None => sum,
            };
            seen.sums.push(sum);
        }
        seen.chunks.push(chunk);
    }

    /// Change in the inputs of these receivers caused by ablating edges, `[row, pos, receiver, d_model]`; `None` if no
    /// edge into them is ablated.
    fn correction(&self, seen: &RefCell<Seen>, reads: &Reads, input: &Tensor<4>) -> Option<Tensor<4>> {
        let (masks, _) = self.ablated?;
        let part = masks.part(self.order, reads)?;
        let seen = seen.borrow();
        let [rows, pos, _, d_model] = input.dims();
        let receivers = reads.receivers.len();
        let (kept, used) = (part.kept, part.chunks.clone());
        let sum = kept.then(|| seen.sums[reads.chunks - 1].clone().reshape([rows, pos, 1, d_model]));
        if used.is_empty() {
            return sum.map(|sum| sum.expand([rows, pos, receivers, d_model]));
        }
        let chunks: Vec<Tensor<3>> = used.iter().map(|chunk| seen.chunks[*chunk].clone()).collect();
        let weights = part.tensor(&input.device(), input.dtype());
        let [masks, _, senders] = weights.dims();
        let chunks = if chunks.len() == 1 { chunks[0].clone() } else { Tensor::cat(chunks, 0) };
        let product = if masks == 1 {
            let flat = chunks.reshape([1, senders, rows * pos * d_model]);
            weights.matmul(flat).reshape([receivers, rows, pos, d_model]).permute([1, 2, 0, 3])
        } else {
            let by_row = chunks.swap_dims(0, 1);
            weights.matmul(by_row).reshape([rows, receivers, pos, d_model]).swap_dims(1, 2)
        };
        Some(match sum {
            Some(sum) => sum - product,
            None => product,
        })
    }
}

/// Flattens `[row, pos, d_model]` to `[1, row, pos * d_model]`.
fn flat(written: Tensor<3>) -> Tensor<3> {
    let [rows, pos, d_model] = written.dims();
    written.reshape([1, rows, pos * d_model])
}
