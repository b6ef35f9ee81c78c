//! Checks that a decoder's architecture supports an analysis.

use super::mixer::Mixer;
use super::transformer::HookedTransformer;
use crate::config::Layers;
use crate::driver::HookedModel;
use crate::error::InputError;

/// Checks for what an analysis requires from a decoder. The errors name the analysis (`what`) and the reason.
pub trait DecoderChecks {
    /// Returns an error if the weights are on several devices.
    fn check_one_place(&self, what: &'static str) -> Result<(), InputError>;

    /// Returns an error if the residual stream is not the sum of what was written to it.
    fn check_sums(&self, what: &'static str) -> Result<(), InputError>;

    /// Returns an error if the residual stream has contributions other than attention and MLP outputs.
    fn check_plain_writes(&self, what: &'static str) -> Result<(), InputError>;

    /// Like [`Self::check_plain_writes`], but also returns an error if a layer has no attention, if a layer has
    /// another mixer alongside attention, if a layer reuses an earlier layer's keys, if values are normalized, or if
    /// head outputs are gated or weighted by a router.
    fn check_plain_layers(&self, what: &'static str) -> Result<(), InputError>;

    /// Returns an error if a layer has no attention.
    fn check_attends(&self, what: &'static str) -> Result<(), InputError>;

    /// Returns an error if there is no unembedding.
    fn check_head(&self) -> Result<(), InputError>;

    /// Returns an error if queries, keys, and values are clipped.
    fn check_unclipped(&self, what: &'static str) -> Result<(), InputError>;
}

impl DecoderChecks for HookedTransformer {
    fn check_one_place(&self, what: &'static str) -> Result<(), InputError> {
        if self.devices().len() == 1 { Ok(()) } else { Err(InputError::Spread { what }) }
    }

    fn check_sums(&self, what: &'static str) -> Result<(), InputError> {
        if self.config.stream_is_normalized() { Err(InputError::NormalizedStream { what }) } else { Ok(()) }
    }

    fn check_plain_writes(&self, what: &'static str) -> Result<(), InputError> {
        let c = &self.config;
        let parts = [
            (c.per_layer_inputs.is_some(), "per-layer inputs (`per_layer_inputs`)"),
            (c.layer_scalars, "layers that scale the residual stream (`layer_scalars`)"),
            (c.experts().is_some_and(|experts| experts.own_norms), "experts with their own norms (`experts`)"),
        ];
        match parts.into_iter().find(|(there, _)| *there) {
            Some((_, with)) => Err(InputError::NotDefined { what, with }),
            None => Ok(()),
        }
    }

    fn check_plain_layers(&self, what: &'static str) -> Result<(), InputError> {
        self.check_plain_writes(what)?;
        self.check_attends(what)?;
        if self.weights.parts.blocks.iter().any(|block| matches!(block.mixer, Some(Mixer::AttentionAndMamba2(_)))) {
            return Err(InputError::NotDefined { what, with: "a Mamba 2 state space alongside attention" });
        }
        if self.config.attn_gates {
            return Err(InputError::NotDefined { what, with: "gated head outputs (`attn_gates`)" });
        }
        if self.config.attn_experts.is_some() {
            return Err(InputError::NotDefined { what, with: "attention experts (`attn_experts`)" });
        }
        let shared = self.config.shares_keys();
        match (shared, self.config.qk_norm.is_some_and(|norm| norm.values)) {
            (true, _) => Err(InputError::NotDefined {
                what,
                with: "layers that reuse the keys of earlier layers (`shared_keys`)",
            }),
            (_, true) => Err(InputError::NotDefined { what, with: "normalized values (`qk_norm`)" }),
            _ => Ok(()),
        }
    }

    fn check_attends(&self, what: &'static str) -> Result<(), InputError> {
        match (0..self.config.n_layers()).find(|layer| !self.config.attends(*layer)) {
            Some(layer) => Err(InputError::NoAttention { what, layer }),
            None => Ok(()),
        }
    }

    fn check_head(&self) -> Result<(), InputError> {
        if self.config.d_vocab_out == 0 { Err(InputError::NoHead { head: "unembedding" }) } else { Ok(()) }
    }

    fn check_unclipped(&self, what: &'static str) -> Result<(), InputError> {
        if self.config.qkv_clip.is_some() { Err(InputError::Clipped { what }) } else { Ok(()) }
    }
}
