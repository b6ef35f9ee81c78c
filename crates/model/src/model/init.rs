//! Random initialization, for training and tests.

use std::sync::{Mutex, PoisonError};

use burn::module::Param;
use burn::tensor::{Device, Distribution, Tensor};
use hooklens_hooks::DType;

use super::attention::Attention;
use super::block::Block;
use super::gated_delta_net::GatedDeltaNet;
use super::latent::LatentMaps;
use super::linear::Linear;
use super::mamba2::Mamba2;
use super::mlp::{Mlp, Slopes};
use super::moe::{Expert, Moe, MoeNorms, SharedMlp};
use super::norm::Norm;
use super::per_layer::{PerLayer, PerLayerEmbed};
use super::report::LoadReport;
use super::short_convolution::ShortConvolution;
use super::transformer::HookedTransformer;
use super::weights::{Embed, Weights};
use crate::config::{ActivationFn, GatedDelta, NormKind, StateSpace, TransformerConfig};
use crate::cpu::Weight;
use crate::error::Result;

impl HookedTransformer {
    /// Creates a model with GPT-2-style random weights: normal with standard deviation `0.8 / sqrt(d_model)`, zero
    /// biases, and norm weights of one.
    ///
    /// # Errors
    /// [`ConfigError`](crate::error::ConfigError) if the configuration is inconsistent.
    ///
    /// ```
    /// use hooklens::{HookedModel, HookedTransformer, TransformerConfig};
    /// use burn::tensor::Device;
    /// let config = TransformerConfig::new(2, 32, 4, 50, 16);
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// assert_eq!(model.forward([1, 2, 3])?.dims(), [1, 3, 50]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn random(config: TransformerConfig, seed: u64, device: &Device) -> Result<Self> {
        // A device has one generator for all threads, so draws of another thread would change this model's weights.
        static DRAWING: Mutex<()> = Mutex::new(());
        config.validate()?;
        let _alone = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        device.seed(seed);
        let c = &config;
        let draw = Draw { std: 0.8 / (c.d_model as f64).sqrt(), device };
        let embed = Embed::new(
            Weight::Plain(draw.matrix(c.d_vocab, c.d_model)),
            c.positional.has_table().then(|| draw.matrix(c.n_ctx, c.d_model)),
            c.post_embedding_norm.then(|| draw.norm(NormKind::LayerNorm, c.d_model, c.eps)),
            device,
        );
        let weights = Weights {
            embed,
            per_layer_embed: c.per_layer_inputs.map(|own| {
                let all = c.n_layers * own.width;
                PerLayerEmbed {
                    vectors: Embed::new(Weight::Plain(draw.matrix(c.d_vocab, all)), None, None, device),
                    projection: draw.linear(c.d_model, all),
                    norm: draw.norm(NormKind::Rms, own.width, c.eps),
                }
            }),
            blocks: (0..c.n_layers).map(|layer| draw.block(c, layer)).collect(),
            ln_final: draw.norm(c.final_norm(), c.d_model, c.final_eps.unwrap_or(c.eps)),
            unembed: match c.d_vocab_out {
                0 => Linear::new(Tensor::zeros([c.d_model, 0], device), None),
                rows => draw.linear(c.d_model, rows),
            },
        };
        Ok(Self::assemble(config, weights, None, LoadReport::default(), DType::F32))
    }
}

struct Draw<'d> {
    std: f64,
    device: &'d Device,
}

impl Draw<'_> {
    fn matrix(&self, rows: usize, columns: usize) -> Tensor<2> {
        Tensor::random([rows, columns], Distribution::Normal(0.0, self.std), self.device)
    }

    fn linear(&self, d_in: usize, d_out: usize) -> Linear {
        Linear::new(self.matrix(d_in, d_out), Some(Tensor::zeros([d_out], self.device)))
    }

    fn norm(&self, kind: NormKind, width: usize, eps: f64) -> Norm {
        let w = kind.has_weight().then(|| Tensor::ones([width], self.device));
        let b = (kind == NormKind::LayerNorm).then(|| Tensor::zeros([width], self.device));
        Norm::new(kind, eps, w, b)
    }

    /// Slopes of 0.8 on both sides.
    fn slopes(&self) -> Slopes {
        let [alpha_p, alpha_n] =
            [0.8f64, 0.3].map(|slope| Param::from_tensor(Tensor::full([1], slope.exp_m1().ln(), self.device)));
        Slopes { alpha_p, alpha_n }
    }

    fn gated_delta(&self, c: &TransformerConfig, net: GatedDelta) -> GatedDeltaNet {
        let (keys, values) = (net.n_key_heads * net.d_key, net.n_value_heads * net.d_value);
        let vector = || Param::from_tensor(Tensor::zeros([net.n_value_heads], self.device));
        GatedDeltaNet {
            q: self.linear(c.d_model, keys),
            k: self.linear(c.d_model, keys),
            v: self.linear(c.d_model, values),
            gate: self.linear(c.d_model, values),
            beta: self.linear(c.d_model, net.n_value_heads),
            decay: self.linear(c.d_model, net.n_value_heads),
            conv: Param::from_tensor(self.matrix(net.width, net.channels())),
            a_log: vector(),
            dt_bias: vector(),
            norm: self.norm(NormKind::Rms, net.d_value, c.eps),
            o: self.linear(values, c.d_model),
        }
    }

    fn short_convolution(&self, d_model: usize, width: usize) -> ShortConvolution {
        let map = || self.linear(d_model, d_model);
        ShortConvolution {
            b: map(),
            c: map(),
            x: map(),
            conv: Param::from_tensor(self.matrix(width, d_model)),
            conv_bias: Some(Param::from_tensor(Tensor::zeros([d_model], self.device))),
            o: map(),
        }
    }

    fn mamba2(&self, c: &TransformerConfig, space: StateSpace) -> Mamba2 {
        let (all, shared) = (space.n_heads * space.d_head, space.n_groups * space.d_state);
        let vector = |len| Param::from_tensor(Tensor::zeros([len], self.device));
        Mamba2 {
            x: self.linear(c.d_model, all),
            b: self.linear(c.d_model, shared),
            c: self.linear(c.d_model, shared),
            gate: self.linear(c.d_model, all),
            dt: self.linear(c.d_model, space.n_heads),
            conv: Param::from_tensor(self.matrix(space.width, space.channels())),
            conv_bias: Some(vector(space.channels())),
            a_log: vector(space.n_heads),
            dt_bias: vector(space.n_heads),
            d: Param::from_tensor(Tensor::ones([space.n_heads], self.device)),
            norm: self.norm(NormKind::Rms, all, c.eps),
            o: self.linear(all, c.d_model),
        }
    }

    fn block(&self, c: &TransformerConfig, layer: usize) -> Block {
        let (kv_heads, d_head, d_value) = (c.n_kv_heads_of(layer), c.d_head_of(layer), c.d_value_of(layer));
        let own_keys = c.reads_keys_of(layer).is_none();
        // Absent weights must not draw random numbers.
        let keys = |d_in, width| match own_keys {
            true => self.linear(d_in, width),
            false => Linear::new(Tensor::zeros([d_in, 0], self.device), None),
        };
        let width = c.n_heads * d_head;
        let kv_width = kv_heads * (d_head - c.latent.map_or(0, |own| own.d_rope));
        let q_in = c.latent.and_then(|own| own.q_rank).unwrap_or(c.d_model);
        let kv_in = c.latent.map_or(c.d_model, |own| own.kv_rank);
        let head_norm = |heads: usize| {
            c.qk_norm_of(layer).map(|norm| self.norm(norm.kind, norm.weights.width(heads, d_head), c.eps))
        };
        let (mixture, d_mlp) = (c.experts_of(layer), c.d_mlp_of(layer));
        let plain = c.has_mlp(layer) && mixture.is_none();
        Block {
            ln1: self.norm(c.ln1_kind(layer), c.d_model, c.eps),
            attn: c.attends(layer).then(|| Attention {
                q: self.linear(q_in, width),
                k: keys(kv_in, kv_width),
                v: keys(kv_in, kv_heads * d_value),
                o: self.linear(c.n_heads * d_value, c.d_model),
                q_norm: head_norm(c.n_heads),
                k_norm: head_norm(kv_heads).filter(|_| own_keys),
                sinks: c.attn_sinks.then(|| Param::from_tensor(Tensor::zeros([c.n_heads], self.device))),
                gate: c.attn_gates.then(|| self.linear(c.d_model, width)),
                router: c.attn_experts.map(|experts| self.linear(c.d_model, experts.count)),
                latent: c.latent.map(|own| LatentMaps {
                    q_down: own.q_rank.map(|rank| self.linear(c.d_model, rank)),
                    q_norm: own.q_rank.map(|rank| self.norm(NormKind::Rms, rank, own.eps)),
                    kv_down: self.linear(c.d_model, own.kv_rank),
                    kv_norm: self.norm(NormKind::Rms, own.kv_rank, own.eps),
                    k_rope: self.linear(c.d_model, own.d_rope),
                }),
            }),
            delta: c.gated_delta_of(layer).map(|net| self.gated_delta(c, net)),
            ssm: c.state_space_of(layer).map(|space| self.mamba2(c, space)),
            conv: c.short_conv_of(layer).map(|conv| self.short_convolution(c.d_model, conv.width)),
            ln1_post: c.post_norms.then(|| self.norm(c.post_norm(), c.d_model, c.eps)),
            ln2: c.has_mlp(layer).then(|| self.norm(c.pre_norm(), c.d_model, c.eps)),
            mlp: plain.then(|| Mlp {
                input: self.linear(c.d_model, d_mlp),
                gate: c.gated_mlp.then(|| self.linear(c.d_model, d_mlp)),
                norm: (c.activation == ActivationFn::SoluLn).then(|| self.norm(solu_norm(c.norm), d_mlp, c.eps)),
                slopes: (c.activation == ActivationFn::Xielu).then(|| self.slopes()),
                output: self.linear(d_mlp, c.d_model),
            }),
            moe: mixture.map(|e| Moe {
                router: self.linear(c.d_model, e.count),
                experts: (0..e.count)
                    .map(|_| Expert {
                        gate: c.gated_mlp.then(|| self.linear(c.d_model, d_mlp)),
                        input: self.linear(c.d_model, d_mlp),
                        output: self.linear(d_mlp, c.d_model),
                    })
                    .collect(),
                choice_bias: e.choice_bias.then(|| Param::from_tensor(Tensor::zeros([e.count], self.device))),
                shared: e.shared.map(|own| SharedMlp {
                    gate: c.gated_mlp.then(|| self.linear(c.d_model, own.d_mlp)),
                    input: self.linear(c.d_model, own.d_mlp),
                    output: self.linear(own.d_mlp, c.d_model),
                    share: own.gated.then(|| self.linear(c.d_model, 1)),
                }),
                scales: e.own_scales.then(|| Param::from_tensor(Tensor::ones([e.count], self.device))),
                norms: e.own_norms.then(|| {
                    let norm = || self.norm(NormKind::Rms, c.d_model, c.eps);
                    MoeNorms { router: norm(), experts: norm(), shared_post: norm(), experts_post: norm() }
                }),
            }),
            ln2_post: (c.has_mlp(layer) && c.post_norms).then(|| self.norm(c.post_norm(), c.d_model, c.eps)),
            per_layer: c.per_layer_inputs.map(|own| PerLayer {
                gate: self.linear(c.d_model, own.width),
                output: self.linear(own.width, c.d_model),
                post: self.norm(NormKind::Rms, c.d_model, c.eps),
            }),
            scalar: c.layer_scalars.then(|| Param::from_tensor(Tensor::ones([1], self.device))),
        }
    }
}

/// The norm inside a `solu_ln` MLP: always a layer norm, without weights if the other norms have none.
pub fn solu_norm(norm: NormKind) -> NormKind {
    if norm == NormKind::LayerNorm { NormKind::LayerNorm } else { NormKind::LayerNormPre }
}
