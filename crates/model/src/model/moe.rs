//! Mixture of experts, in place of the MLP.

use burn::module::{Module, Param};
use burn::tensor::{Device, Float, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use hooklens_hooks::{Halt, HookError, Run, upload};

use super::linear::Linear;
use super::norm::{Norm, NormPoints, narrowed, widened};
use super::pass::Pass;
use crate::config::{ClippedGate, ExpertGroups, Experts, RouterFn, TransformerConfig};
use crate::cpu;
use crate::error::{BoxError, Error};
use crate::points::Site;

/// Weights of a mixture of experts.
#[derive(Module, Debug)]
pub struct Moe {
    /// Router, `[d_model, expert]`.
    pub router: Linear,
    /// The experts.
    pub experts: Vec<Expert>,
    /// Bias added to each expert's weight when experts are chosen, `[expert]`.
    pub choice_bias: Option<Param<Tensor<1>>>,
    /// Shared expert, applied to every token.
    pub shared: Option<SharedMlp>,
    /// Learned scale on each expert's routing weight, `[expert]`.
    pub scales: Option<Param<Tensor<1>>>,
    /// Norms applied to the router's input and to the experts' inputs and outputs.
    pub norms: Option<MoeNorms>,
}

/// RMS norms, `[d_model]` each, of a mixture whose router and routed experts have different input norms than the shared
/// expert. Their weights are never folded.
#[derive(Module, Debug)]
pub struct MoeNorms {
    /// Norm applied to the router's input.
    pub router: Norm,
    /// Norm applied to the routed experts' input.
    pub experts: Norm,
    /// Norm applied to the shared expert's output.
    pub shared_post: Norm,
    /// Norm applied to the sum of the routed experts' outputs.
    pub experts_post: Norm,
}

/// One expert: `out(act(gate(x)) * in(x))`, or `out(act(in(x)))` without a gate.
#[derive(Module, Debug)]
pub struct Expert {
    /// Gate projection, `[d_model, d_mlp]`, if the MLP is gated.
    pub gate: Option<Linear>,
    /// Input projection, `[d_model, d_mlp]`.
    pub input: Linear,
    /// Output projection, `[d_mlp, d_model]`.
    pub output: Linear,
}

impl Expert {
    /// All linear maps.
    pub fn maps(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.input, &self.output])
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.gate.iter_mut().chain([&mut self.input, &mut self.output])
    }
}

/// The shared expert, applied to every token: `out(act(gate(x)) * in(x))`, or `out(act(in(x)))` without a gate.
/// With an output gate, the output is multiplied by `sigmoid(share(x))`.
#[derive(Module, Debug)]
pub struct SharedMlp {
    /// Gate projection, `[d_model, d_mlp]`, if the MLP is gated.
    pub gate: Option<Linear>,
    /// Input projection, `[d_model, d_mlp]`.
    pub input: Linear,
    /// Output projection, `[d_mlp, d_model]`.
    pub output: Linear,
    /// Output gate, `[d_model, 1]`.
    pub share: Option<Linear>,
}

impl SharedMlp {
    /// All linear maps.
    pub fn maps(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.input, &self.output]).chain(&self.share)
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.gate.iter_mut().chain([&mut self.input, &mut self.output]).chain(&mut self.share)
    }

    /// Computes the shared expert's output.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    fn forward(&self, layer: usize, x: Tensor<3>, pass: &Pass<'_>, run: &mut Run<'_, '_>) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let (gate, linear) = factors(self.gate.as_ref(), &self.input, x.clone());
        let gate = gate.map(|gate| run.fire(at(Site::SharedGate), gate)).transpose()?;
        let linear = run.fire(at(Site::SharedPre), linear)?;
        let post = run.fire(at(Site::SharedPost), neurons(gate, linear, pass.config))?;
        let out = self.output.forward(post);
        Ok(match &self.share {
            Some(share) => out * run.fire(at(Site::SharedShare), activation::sigmoid(share.forward(x)))?,
            None => out,
        })
    }
}

impl Moe {
    /// All linear maps.
    pub fn maps(&self) -> impl Iterator<Item = &Linear> {
        let experts = self.experts.iter().flat_map(|expert| expert.maps());
        experts.chain([&self.router]).chain(self.shared.iter().flat_map(|shared| shared.maps()))
    }

    /// All linear maps, mutably.
    pub(super) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let Self { router, experts, shared, .. } = self;
        let experts = experts.iter_mut().flat_map(|expert| expert.maps_mut());
        experts.chain([router]).chain(shared.iter_mut().flat_map(|shared| shared.maps_mut()))
    }

    /// Computes the mixture's output: for each token, the sum of the chosen experts' outputs weighted by the router,
    /// plus the shared expert's output.
    ///
    /// # Shapes
    /// - input, stream and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        stream: Option<Tensor<3>>,
        mixture: Experts,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let [batch, pos, d_model] = x.dims();
        let rows = batch * pos;
        let dtype = x.dtype();
        let whole = self.shared.as_ref().map(|_| x.clone());
        let site = |site| pass.points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: site(scale), normalized: site(normalized) };
        let (routed, x) = match (&self.norms, stream) {
            (Some(norms), Some(stream)) => {
                let points = norm(Site::RouterLnScale, Site::RouterLnNormalized);
                let routed = norms.router.forward(stream.clone(), points, run)?;
                let points = norm(Site::ExpertsLnScale, Site::ExpertsLnNormalized);
                (routed, norms.experts.forward(stream, points, run)?)
            }
            _ => (x.clone(), x),
        };
        let (routed, x) = (routed.reshape([rows, d_model]), x.reshape([rows, d_model]));

        let scores = router_scores(&self.router, routed);
        let weights = match mixture.router {
            RouterFn::Softmax => activation::softmax(scores, 1),
            RouterFn::Sigmoid => activation::sigmoid(scores),
            RouterFn::SparseMixer { .. } => scores,
        };
        let weights = run.fire(site(Site::ExpertWeights), weights)?;
        let (best, chosen, shares) = self.routes(weights, mixture)?;
        let shares = narrowed(shares, dtype);
        let edited = run.edits(site(Site::ExpertIndices));
        let chosen = run.fire_int(site(Site::ExpertIndices), chosen)?;
        let best = if edited { read(chosen)? } else { best };
        let count = self.experts.len();
        if let Some(wrong) = best.iter().find(|expert| !(0..count as i64).contains(expert)) {
            let source = format!("expert {wrong} is out of range: there are {count} experts").into();
            return Err(HookError::Failed { point: format!("blocks.{layer}.mlp.hook_expert_indices"), source }.into());
        }

        let per_token = mixture.per_token;
        // Each expert's list starts with the tokens whose first choice is that expert, as in TransformerLens and
        // Hugging Face.
        let mut routed: Vec<Vec<i32>> = vec![Vec::new(); count];
        for at in (0..per_token).flat_map(|choice| (0..rows).map(move |row| row * per_token + choice)) {
            routed[best[at] as usize].push(at as i32);
        }
        // Inputs of all experts are gathered in one tensor, expert by expert, and so are the outputs.
        let indices = |of: Vec<i32>| upload::<1, Int>(TensorData::new(of, [rows * per_token]), &x.device());
        let tokens = indices(routed.iter().flatten().map(|at| at / per_token as i32).collect());
        let shares = shares.reshape([rows * per_token]).select(0, indices(routed.concat())).unsqueeze_dim::<2>(1);
        let mut inputs = x.clone().select(0, tokens.clone());
        if mixture.scales_inputs {
            inputs = inputs * shares.clone();
        }
        let (mut outputs, mut begin) = (Vec::new(), 0);
        for (number, (expert, routed)) in self.experts.iter().zip(&routed).enumerate() {
            let points = pass.points.expert(layer, number);
            if routed.is_empty() {
                run.skip(points.gate)?;
                run.skip(points.pre)?;
                run.skip(points.post)?;
                continue;
            }
            let input = inputs.clone().narrow(0, begin, routed.len());
            begin += routed.len();
            let gate = expert.gate.as_ref().map(|gate| run.fire(points.gate, gate.forward(input.clone())));
            let gate = gate.transpose()?;
            let linear = run.fire(points.pre, expert.input.forward(input))?;
            let post = run.fire(points.post, mixture.activations(gate, linear, pass.config))?;
            outputs.push(expert.output.forward(post));
        }
        let mut outputs = Tensor::cat(outputs, 0);
        if !mixture.scales_inputs {
            outputs = outputs * shares;
        }
        let sum = x.zeros_like().select_assign(0, tokens, outputs, IndexingUpdateOp::Add);
        let sum = sum.reshape([batch, pos, d_model]);
        let (Some(shared), Some(x)) = (&self.shared, whole) else { return Ok(sum) };
        let own = shared.forward(layer, x, pass, run)?;
        let Some(norms) = &self.norms else { return Ok(sum + own) };
        let points = norm(Site::SharedLnPostScale, Site::SharedLnPostNormalized);
        let own = norms.shared_post.forward(own, points, run)?;
        let own = run.fire(site(Site::SharedOut), own)?;
        let points = norm(Site::ExpertsLnPostScale, Site::ExpertsLnPostNormalized);
        let sum = norms.experts_post.forward(sum, points, run)?;
        let sum = run.fire(site(Site::ExpertsOut), sum)?;
        Ok(own + sum)
    }

    /// Recomputes each expert's neurons for the mixture's input `[row, d_model]` and router weights `[row, expert]`.
    /// The shared expert comes last.
    pub fn taken_apart(
        &self,
        x: &Tensor<2>,
        weights: Tensor<2>,
        mixture: Experts,
        config: &TransformerConfig,
    ) -> Result<Vec<ExpertRun>, Halt> {
        let (best, _, shares) = self.routes(weights, mixture)?;
        let shares = host::<f32>(hooklens_hooks::read(shares).map(|data| data.convert::<f32>()), &x.device())?;
        let mut all = Vec::new();
        for (number, expert) in self.experts.iter().enumerate() {
            let routed = best.iter().zip(&shares).enumerate().filter(|(_, (chosen, _))| **chosen == number as i64);
            let mut routes: Vec<(usize, f32)> =
                routed.map(|(at, (_, share))| (at / mixture.per_token, *share)).collect();
            if routes.is_empty() {
                all.push(ExpertRun { routes, neurons: None });
                continue;
            }
            let rows: Vec<i32> = routes.iter().map(|(row, _)| *row as i32).collect();
            let rows = upload::<1, Int>(TensorData::new(rows, [routes.len()]), &x.device());
            let input = x.clone().select(0, rows);
            let of = |x: Tensor<2>| factors(expert.gate.as_ref(), &expert.input, x);
            let (gate, linear) = of(input.clone());
            let post = match mixture.scales_inputs {
                false => mixture.activations(gate.clone(), linear.clone(), config),
                // `gate` and `linear` are computed from the unscaled input, and the neurons from the scaled input, so
                // the experts' outputs are not scaled again.
                true => {
                    let shares: Vec<f32> = routes.iter_mut().map(|(_, share)| std::mem::replace(share, 1.0)).collect();
                    let shares = upload::<2, Float>(TensorData::new(shares, [routes.len(), 1]), &x.device());
                    let read = input * narrowed(shares, x.dtype());
                    let (gate, linear) = of(read);
                    mixture.activations(gate, linear, config)
                }
            };
            let gate = gate.unwrap_or_else(|| linear.clone());
            all.push(ExpertRun { routes, neurons: Some([gate, linear, post]) });
        }
        if let Some(shared) = &self.shared {
            let count = x.dims()[0];
            let shares = match &shared.share {
                Some(share) => {
                    let shares = activation::sigmoid(share.forward(x.clone()));
                    host::<f32>(hooklens_hooks::read(shares).map(|data| data.convert::<f32>()), &x.device())?
                }
                None => vec![1.0; count],
            };
            let (gate, linear) = factors(shared.gate.as_ref(), &shared.input, x.clone());
            let post = neurons(gate.clone(), linear.clone(), config);
            let gate = gate.unwrap_or_else(|| linear.clone());
            let routes = shares.into_iter().enumerate().collect();
            all.push(ExpertRun { routes, neurons: Some([gate, linear, post]) });
        }
        Ok(all)
    }

    /// The experts chosen for each token, best first, as a list on the host and as a tensor `[row, choice]`; and their
    /// weights, `[row, choice]`.
    #[allow(clippy::type_complexity, reason = "three forms of one choice")]
    pub fn routes(&self, weights: Tensor<2>, mixture: Experts) -> Result<(Vec<i64>, Tensor<2, Int>, Tensor<2>), Halt> {
        let (best, chosen) = match &self.choice_bias {
            Some(bias) => best(&(weights.clone() + widened(bias.val()).cast(weights.dtype()).unsqueeze()), mixture)?,
            None => best(&weights, mixture)?,
        };
        let mut shares = match mixture.router {
            RouterFn::SparseMixer { jitter } => sparsely_mixed(weights, chosen.clone(), jitter),
            _ => weights.gather(1, chosen.clone()),
        };
        if mixture.renormalize {
            let sum = shares.clone().sum_dim(1);
            // All sigmoids may underflow to zero.
            shares = shares / if mixture.router == RouterFn::Sigmoid { sum + 1e-20 } else { sum };
        }
        if mixture.scale != 1.0 {
            shares = shares * mixture.scale;
        }
        if let Some(scales) = &self.scales {
            let [rows, _] = chosen.dims();
            let scales = widened(scales.val()).cast(shares.dtype()).unsqueeze::<2>();
            let [_, count] = scales.dims();
            shares = shares * scales.expand([rows, count]).gather(1, chosen.clone());
        }
        Ok((best, chosen, shares))
    }
}

/// Router scores, `[.., expert]`, in `f32` or wider: rounding could send a token to a different expert.
pub(super) fn router_scores<const D: usize>(router: &Linear, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    let x = widened(x);
    if x.dtype() == dtype {
        return router.forward(x);
    }
    let scores = x.clone().matmul(router.weight_in(x.dtype()).unsqueeze());
    match &router.bias {
        Some(bias) => scores + widened(bias.val()).unsqueeze(),
        None => scores,
    }
}

/// What one expert computes in a run.
#[derive(Debug)]
pub struct ExpertRun {
    /// Input rows routed to the expert, each with the weight that multiplies its output.
    pub routes: Vec<(usize, f32)>,
    /// The input of the activation function, the linear factor (the same tensor without a gate), and the neurons, each
    /// `[route, neuron]`. `None` if no row was routed to the expert.
    pub neurons: Option<[Tensor<2>; 3]>,
}

impl Experts {
    /// Neuron activations of an expert.
    fn activations(&self, gate: Option<Tensor<2>>, linear: Tensor<2>, config: &TransformerConfig) -> Tensor<2> {
        match (gate, self.clipped) {
            (Some(gate), Some(ClippedGate { alpha, limit })) => {
                let gate = gate.clamp_max(limit);
                let linear = linear.clamp(-limit, limit) + 1.0;
                activation::sigmoid(gate.clone() * alpha) * gate * linear
            }
            (gate, _) => neurons(gate, linear, config),
        }
    }
}

/// Outputs of an expert's gate projection, if it has one, and of its input projection.
fn factors<const D: usize>(gate: Option<&Linear>, input: &Linear, x: Tensor<D>) -> (Option<Tensor<D>>, Tensor<D>) {
    match gate {
        Some(gate) => {
            let [gate, linear] = Linear::forward_each([gate, input], x);
            (Some(gate), linear)
        }
        None => (None, input.forward(x)),
    }
}

/// `act(gate) * linear`, or `act(linear)` without a gate.
fn neurons<const D: usize>(gate: Option<Tensor<D>>, linear: Tensor<D>, config: &TransformerConfig) -> Tensor<D> {
    match gate {
        Some(gate) => cpu::product(config.activation.apply(gate), linear),
        None => config.activation.apply(linear),
    }
}

/// The best experts for each row, best first, as a list on the host and as a tensor `[row, choice]`.
fn best(weights: &Tensor<2>, mixture: Experts) -> Result<(Vec<i64>, Tensor<2, Int>), Halt> {
    let ([rows, experts], count) = (weights.dims(), mixture.per_token);
    let mut values = host::<f32>(hooklens_hooks::read(weights.clone()).map(|d| d.convert::<f32>()), &weights.device())?;
    let mut best = Vec::with_capacity(rows * count);
    for row in values.chunks_mut(experts) {
        if let Some(groups) = mixture.groups {
            leave_out_groups(row, groups);
        }
        let mut order: Vec<usize> = (0..experts).collect();
        // The sort is stable: on ties, the first expert wins.
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        best.extend(order[..count].iter().map(|e| *e as i64));
    }
    let chosen: Vec<i32> = best.iter().map(|e| *e as i32).collect();
    let chosen = upload(TensorData::new(chosen, [rows, count]), &weights.device());
    Ok((best, chosen))
}

/// SparseMixer's weights for the two chosen experts, `[row, 2]`: each expert's softmax among the scores close to its
/// own. The second expert's softmax excludes the first expert.
fn sparsely_mixed(scores: Tensor<2>, chosen: Tensor<2, Int>, jitter: f64) -> Tensor<2> {
    let numbers = Tensor::<1, Int>::arange(0..scores.dims()[1] as i64, &scores.device()).unsqueeze::<2>();
    let mut left = scores.clone();
    let shares = (0..2).map(|choice| {
        let own = chosen.clone().narrow(1, choice, 1);
        let best = scores.clone().gather(1, own.clone());
        let larger = scores.clone().abs().max_pair(best.clone().expand(scores.dims()));
        let far = ((best - scores.clone()) / larger).greater_elem(2.0 * jitter);
        let share = activation::softmax(left.clone().mask_fill(far, f32::NEG_INFINITY), 1).gather(1, own.clone());
        let taken = numbers.clone().expand(left.dims()).equal(own.expand(left.dims()));
        left = left.clone().mask_fill(taken, f32::NEG_INFINITY);
        share
    });
    Tensor::cat(shares.collect(), 1)
}

/// Ranks experts outside a row's best groups last.
fn leave_out_groups(row: &mut [f32], ExpertGroups { count, kept, best }: ExpertGroups) {
    let each = row.len() / count;
    let of_group = |group: &[f32]| {
        let mut largest = group.to_vec();
        largest.sort_by(|a, b| b.total_cmp(a));
        largest[..best].iter().sum::<f32>()
    };
    let own: Vec<f32> = row.chunks(each).map(of_group).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| own[*b].total_cmp(&own[*a]));
    for group in &order[kept..] {
        row[group * each..(group + 1) * each].fill(f32::NEG_INFINITY);
    }
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
