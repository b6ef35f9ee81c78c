//! Random initialization, for training and tests.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use burn::module::Param;
use burn::tensor::{Device, Distribution, Tensor};
use hooklens_hooks::DType;

use super::attention::Attention;
use super::block::Block;
use super::dense_mlp::{DenseMlp, Slopes};
use super::latent::LatentMaps;
use super::linear::Linear;
use super::loaded::LoadedDecoder;
use super::mixer::Mixer;
use super::mlp::Mlp;
use super::moe::{Expert, Moe, MoeNorms, SharedMlp};
use super::norm::Norm;
use super::per_layer::{PerLayer, PerLayerEmbed};
use super::report::LoadReport;
use super::source::WeightSource;
use super::transformer::HookedTransformer;
use super::weights::{DecoderWeights, Embed};
use crate::config::{ActivationFn, Experts, Layers, NormDetails, NormKind, TransformerConfig};
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
        // A device has one generator for all threads, so draws by another thread would change this model's weights.
        static DRAWING: Mutex<()> = Mutex::new(());
        config.validate()?;
        let _alone = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        device.seed(seed);
        let c = &config;
        let mut draw = Draw { std: 0.8 / (c.d_model as f64).sqrt(), device };
        let embed = Embed::new(
            Weight::Plain(draw.matrix(c.d_vocab, c.d_model)),
            c.positional.has_table().then(|| draw.matrix(c.n_ctx, c.d_model)),
            c.post_embedding_norm.then(|| draw.norm_of(NormKind::LayerNorm, c.d_model, c.eps)),
            device,
        );
        let weights = DecoderWeights {
            embed,
            per_layer_embed: c.per_layer_inputs.map(|own| {
                let all = c.n_layers() * own.width;
                PerLayerEmbed {
                    vectors: Embed::new(Weight::Plain(draw.matrix(c.d_vocab, all)), None, None, device),
                    projection: draw.map(c.d_model, all),
                    norm: draw.norm_of(NormKind::Rms, own.width, c.eps),
                }
            }),
            blocks: (0..c.n_layers()).map(|layer| draw.block(c, layer)).collect(),
            ln_final: draw.norm_of(c.final_norm(), c.d_model, c.final_eps.unwrap_or(c.eps)),
            unembed: match c.d_vocab_out {
                0 => Linear::new(Tensor::zeros([c.d_model, 0], device), None),
                rows => draw.map(c.d_model, rows),
            },
        };
        Ok(Self::from(LoadedDecoder {
            config,
            weights,
            tokenizer: None,
            eos_tokens: Vec::new(),
            bos_token: None,
            report: LoadReport::default(),
            dtype: DType::F32,
            paging: None,
        }))
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

    fn map(&self, d_in: usize, d_out: usize) -> Linear {
        Linear::new(self.matrix(d_in, d_out), Some(Tensor::zeros([d_out], self.device)))
    }

    fn norm_of(&self, kind: NormKind, width: usize, eps: f64) -> Norm {
        let w = kind.has_weight().then(|| Tensor::ones([width], self.device));
        let b = (kind == NormKind::LayerNorm).then(|| Tensor::zeros([width], self.device));
        Norm::new(kind, eps, w, b)
    }

    fn constant(&self, len: usize, value: f64) -> Param<Tensor<1>> {
        Param::from_tensor(Tensor::full([len], value, self.device))
    }

    /// Parameters that give xIELU a slope of 0.8 both above and below zero.
    fn slopes(&self) -> Slopes {
        let [alpha_p, alpha_n] =
            [0.8f64, 0.3].map(|slope| Param::from_tensor(Tensor::full([1], slope.exp_m1().ln(), self.device)));
        Slopes { alpha_p, alpha_n }
    }

    fn attention_of(&self, c: &TransformerConfig, layer: usize) -> Attention {
        let (kv_heads, d_head, d_value) = (c.n_kv_heads_of(layer), c.d_head_of(layer), c.d_value_of(layer));
        let own_keys = c.reads_keys_of(layer).is_none();
        // Absent weights must not draw random numbers.
        let keys = |d_in, width| match own_keys {
            true => self.map(d_in, width),
            false => Linear::new(Tensor::zeros([d_in, 0], self.device), None),
        };
        let width = c.n_heads * d_head;
        let kv_width = kv_heads * (d_head - c.latent.map_or(0, |own| own.d_rope));
        let q_in = c.latent.and_then(|own| own.q_rank).unwrap_or(c.d_model);
        let kv_in = c.latent.map_or(c.d_model, |own| own.kv_rank);
        let head_norm = |heads: usize| {
            c.qk_norm_of(layer).map(|norm| self.norm_of(norm.kind, norm.weights.width(heads, d_head), c.eps))
        };
        Attention {
            q: self.map(q_in, width),
            k: keys(kv_in, kv_width),
            v: keys(kv_in, kv_heads * d_value),
            o: self.map(c.n_heads * d_value, c.d_model),
            q_norm: head_norm(c.n_heads),
            k_norm: head_norm(kv_heads).filter(|_| own_keys),
            sinks: c.attn_sinks.then(|| self.constant(c.n_heads, 0.0)),
            gate: c.attn_gates.then(|| self.map(c.d_model, width)),
            router: c.attn_experts.map(|experts| self.map(c.d_model, experts.count)),
            latent: c.latent.map(|own| LatentMaps {
                q_down: own.q_rank.map(|rank| self.map(c.d_model, rank)),
                q_norm: own.q_rank.map(|rank| self.norm_of(NormKind::Rms, rank, own.eps)),
                kv_down: self.map(c.d_model, own.kv_rank),
                kv_norm: self.norm_of(NormKind::Rms, own.kv_rank, own.eps),
                k_rope: self.map(c.d_model, own.d_rope),
            }),
        }
    }

    fn mlp(&self, c: &TransformerConfig, layer: usize) -> Option<Mlp> {
        let (d_mlp, gated) = (c.d_mlp_of(layer), c.is_gated(layer));
        if let Some(mixture) = c.experts_of(layer) {
            return Some(Mlp::Experts(self.moe(c, mixture, d_mlp, gated)));
        }
        c.has_mlp(layer).then(|| {
            Mlp::Dense(DenseMlp {
                input: self.map(c.d_model, d_mlp),
                gate: gated.then(|| self.map(c.d_model, d_mlp)),
                norm: (c.activation == ActivationFn::SoluLn).then(|| self.norm_of(solu_norm(c.norm), d_mlp, c.eps)),
                slopes: (c.activation == ActivationFn::Xielu).then(|| self.slopes()),
                output: self.map(d_mlp, c.d_model),
            })
        })
    }

    fn moe(&self, c: &TransformerConfig, e: Experts, d_mlp: usize, gated: bool) -> Moe {
        Moe {
            router: self.map(c.d_model, e.count),
            experts: (0..e.count)
                .map(|_| Expert {
                    gate: gated.then(|| self.map(c.d_model, d_mlp)),
                    input: self.map(c.d_model, d_mlp),
                    output: self.map(d_mlp, c.d_model),
                })
                .collect(),
            choice_bias: e.choice_bias.then(|| self.constant(e.count, 0.0)),
            shared: e.shared.map(|own| SharedMlp {
                gate: gated.then(|| self.map(c.d_model, own.d_mlp)),
                input: self.map(c.d_model, own.d_mlp),
                output: self.map(own.d_mlp, c.d_model),
                share: own.gated.then(|| self.map(c.d_model, 1)),
            }),
            scales: e.own_scales.then(|| self.constant(e.count, 1.0)),
            norms: e.own_norms.then(|| {
                let norm = || self.norm_of(NormKind::Rms, c.d_model, c.eps);
                MoeNorms { router: norm(), experts: norm(), shared_post: norm(), experts_post: norm() }
            }),
        }
    }

    fn block(&mut self, c: &TransformerConfig, layer: usize) -> Block {
        let Ok(mixer) = Mixer::build(self, &format!("blocks.{layer}"), c, layer);
        Block {
            ln1: self.norm_of(c.ln1_kind(layer), c.d_model, c.eps),
            mixer,
            ln1_post: c.post_norms.then(|| self.norm_of(c.post_norm(), c.d_model, c.eps)),
            ln2: c.has_mlp(layer).then(|| self.norm_of(c.pre_norm(), c.d_model, c.eps)),
            mlp: self.mlp(c, layer),
            ln2_post: (c.has_mlp(layer) && c.post_norms).then(|| self.norm_of(c.post_norm(), c.d_model, c.eps)),
            per_layer: c.per_layer_inputs.map(|own| PerLayer {
                gate: self.map(c.d_model, own.width),
                output: self.map(own.width, c.d_model),
                post: self.norm_of(NormKind::Rms, c.d_model, c.eps),
            }),
            scalar: c.layer_scalars.then(|| self.constant(1, 1.0)),
        }
    }
}

impl WeightSource for Draw<'_> {
    type Error = Infallible;

    fn attention(&mut self, _: &str, c: &TransformerConfig, layer: usize) -> Result<Attention, Infallible> {
        Ok(self.attention_of(c, layer))
    }

    fn linear(&mut self, _: &str, _: &str, [d_in, d_out]: [usize; 2]) -> Result<Linear, Infallible> {
        Ok(self.map(d_in, d_out))
    }

    fn filters(&mut self, _: String, [width, channels]: [usize; 2]) -> Result<Param<Tensor<2>>, Infallible> {
        Ok(Param::from_tensor(self.matrix(width, channels)))
    }

    fn vector(&mut self, _: String, len: usize, initial: f64) -> Result<Param<Tensor<1>>, Infallible> {
        Ok(self.constant(len, initial))
    }

    fn optional_vector(&mut self, _: String, len: usize) -> Result<Option<Param<Tensor<1>>>, Infallible> {
        Ok(Some(self.constant(len, 0.0)))
    }

    fn norm(&mut self, _: String, kind: NormKind, width: usize, eps: f64) -> Result<Norm, Infallible> {
        Ok(self.norm_of(kind, width, eps))
    }
}

/// The norm inside a `solu_ln` MLP: always a layer norm, without weights if the other norms have none.
pub fn solu_norm(norm: NormKind) -> NormKind {
    if norm == NormKind::LayerNorm { NormKind::LayerNorm } else { NormKind::LayerNormPre }
}
