//! Mixture of experts with gated experts, in place of the MLP.

use burn::module::Module;
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use hooklens_hooks::{Halt, HookError, Run, upload};

use super::linear::Linear;
use super::norm::{narrowed, widened};
use super::pass::Pass;
use crate::config::{ClippedGate, Experts};
use crate::cpu;
use crate::error::{BoxError, Error};
use crate::points::Site;

/// Weights of one mixture.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::Experts;
/// let experts = Some(Experts { count: 4, per_token: 2, renormalize: true, clipped: None });
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let moe = model.weights.blocks[0].moe.as_ref();
/// assert_eq!(moe.map(|moe| (moe.experts.len(), moe.router.weight.val().dims())), Some((4, [16, 4])));
/// // How the router shares each token out.
/// let shares = model.record([1, 2, 3], hook::expert_weights(0))?.get(hook::expert_weights(0))?;
/// assert_eq!(shares.dims(), [3, 4]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Moe {
    /// Scores of the experts, `[d_model, expert]`.
    pub router: Linear,
    /// The experts.
    pub experts: Vec<Expert>,
}

/// One expert: `out(act(gate(x)) * in(x))`.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::Experts;
/// let experts = Some(Experts { count: 4, per_token: 2, renormalize: true, clipped: None });
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let expert = model.weights.blocks[0].moe.as_ref().map(|moe| &moe.experts[3]);
/// assert_eq!(expert.map(|expert| expert.gate.weight.val().dims()), Some([16, 64]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Expert {
    /// `[d_model, d_mlp]`.
    pub gate: Linear,
    /// `[d_model, d_mlp]`.
    pub input: Linear,
    /// `[d_mlp, d_model]`.
    pub output: Linear,
}

impl Moe {
    /// What the mixture adds to the stream: for each token the sum of its best experts'
    /// outputs, weighted by the router's softmax.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        mixture: Experts,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let [batch, pos, d_model] = x.dims();
        let rows = batch * pos;
        let dtype = x.dtype();
        let x = x.reshape([rows, d_model]);
        let site = |site| pass.points.at(layer, site);

        let weights = activation::softmax(self.scores(x.clone()), 1);
        let weights = run.fire(site(Site::ExpertWeights), weights)?;
        let (best, chosen) = best(&weights, mixture.per_token)?;
        let mut shares = weights.gather(1, chosen.clone());
        if mixture.renormalize {
            shares = shares.clone() / shares.sum_dim(1);
        }
        let shares = narrowed(shares, dtype);
        let edited = run.edits(site(Site::ExpertIndices));
        let chosen = run.fire_int(site(Site::ExpertIndices), chosen)?;
        let best = if edited { read(chosen)? } else { best };
        let count = self.experts.len();
        if let Some(wrong) = best.iter().find(|expert| !(0..count as i64).contains(expert)) {
            let source = format!("expert {wrong} is not one of the {count}").into();
            return Err(HookError::Failed { point: format!("blocks.{layer}.mlp.hook_expert_indices"), source }.into());
        }

        let device = x.device();
        let mut sum = x.zeros_like();
        for (number, expert) in self.experts.iter().enumerate() {
            let points = pass.points.expert(layer, number);
            // Tokens whose first choice it is come first, as in TransformerLens and Hugging Face.
            let places =
                (0..mixture.per_token).flat_map(|choice| (0..rows).map(move |row| row * mixture.per_token + choice));
            let routed: Vec<i32> = places.filter(|i| best[*i] == number as i64).map(|i| i as i32).collect();
            if routed.is_empty() {
                run.skip(points.gate)?;
                run.skip(points.pre)?;
                run.skip(points.post)?;
                continue;
            }
            let count = routed.len();
            let indices = |of: Vec<i32>| upload::<1, Int>(TensorData::new(of, [count]), &device);
            let tokens = indices(routed.iter().map(|i| i / mixture.per_token as i32).collect());
            let share = shares.clone().reshape([rows * mixture.per_token]).select(0, indices(routed));
            let input = x.clone().select(0, tokens.clone());
            let gate = run.fire(points.gate, expert.gate.forward(input.clone()))?;
            let linear = run.fire(points.pre, expert.input.forward(input))?;
            let post = match mixture.clipped {
                Some(ClippedGate { alpha, limit }) => {
                    let gate = gate.clamp_max(limit);
                    let linear = linear.clamp(-limit, limit) + 1.0;
                    activation::sigmoid(gate.clone() * alpha) * gate * linear
                }
                None => cpu::product(pass.config.activation.apply(gate), linear),
            };
            let post = run.fire(points.post, post)?;
            let output = expert.output.forward(post) * share.unsqueeze_dim::<2>(1);
            sum = sum.select_assign(0, tokens, output, IndexingUpdateOp::Add);
        }
        Ok(sum.reshape([batch, pos, d_model]))
    }

    /// The router's scores, `[row, expert]`, in `f32` at least: a rounded score sends a token to another
    /// expert.
    fn scores(&self, x: Tensor<2>) -> Tensor<2> {
        let dtype = x.dtype();
        let x = widened(x);
        if x.dtype() == dtype {
            return self.router.forward(x);
        }
        let scores = x.clone().matmul(self.router.weight_in(x.dtype()));
        match &self.router.bias {
            Some(bias) => scores + widened(bias.val()).unsqueeze(),
            None => scores,
        }
    }
}

/// The `count` best experts of each row, best first, on the host and as `[row, count]`.
fn best(weights: &Tensor<2>, count: usize) -> Result<(Vec<i64>, Tensor<2, Int>), Halt> {
    let [rows, experts] = weights.dims();
    let values = host::<f32>(hooklens_hooks::read(weights.clone()).map(|d| d.convert::<f32>()), &weights.device())?;
    let mut best = Vec::with_capacity(rows * count);
    for row in values.chunks(experts) {
        let mut order: Vec<usize> = (0..experts).collect();
        // Stable: of equal experts the first comes first.
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        best.extend(order[..count].iter().map(|e| *e as i64));
    }
    let chosen: Vec<i32> = best.iter().map(|e| *e as i32).collect();
    let chosen = upload(TensorData::new(chosen, [rows, count]), &weights.device());
    Ok((best, chosen))
}

fn read(chosen: Tensor<2, Int>) -> Result<Vec<i64>, Halt> {
    let device = chosen.device();
    host::<i64>(hooklens_hooks::read(chosen).map(|d| d.convert::<i64>()), &device)
}

fn host<E: burn::tensor::Element>(
    data: Result<TensorData, burn::tensor::ExecutionError>,
    device: &Device,
) -> Result<Vec<E>, Halt> {
    let failed = |source: BoxError| Error::DeviceFailed { device: format!("{device:?}"), source };
    let data = data.map_err(|e| failed(e.into()))?;
    Ok(data.try_into_vec::<E>().map_err(|e| failed(e.into()))?)
}
