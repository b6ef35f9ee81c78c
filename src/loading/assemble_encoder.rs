//! An encoder's weights from files.

use burn::module::Param;

use super::assemble::Assembler;
use crate::config::NormKind;
use crate::cpu::Weight;
use crate::encoder::{EncoderBlock, EncoderConfig, EncoderEmbed, EncoderWeights, MlmHead};
use crate::error::LoadError;

impl Assembler<'_> {
    /// All weights of an encoder, with the heads that the files hold.
    pub(super) fn encoder(&mut self, c: &EncoderConfig) -> Result<EncoderWeights, LoadError> {
        self.check_all_there()?;
        let stack = c.stack();
        let kind = NormKind::LayerNorm;
        let tokens = self.matrix("embed.W_E", [c.d_vocab, c.d_model])?;
        let types = match c.token_types {
            0 => None,
            count => Some(Param::from_tensor(self.matrix("embed.W_token_type", [count, c.d_model])?)),
        };
        let mut blocks = Vec::with_capacity(c.n_layers);
        for layer in 0..c.n_layers {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            blocks.push(EncoderBlock {
                attn: self.attention(&name("attn"), &stack)?,
                ln1: self.norm(&name("ln1"), kind, c.d_model, c.eps)?,
                mlp: self.mlp(&name("mlp"), &stack, stack.d_mlp)?,
                ln2: self.norm(&name("ln2"), kind, c.d_model, c.eps)?,
            });
        }
        let there = |assembler: &Self, weight: &str| assembler.locate(weight).is_some();
        let mlm_head = match there(self, "mlm_head.W") {
            true => Some(MlmHead {
                dense: self.linear("mlm_head.W", "mlm_head.b", [c.d_model, c.d_model])?,
                ln: self.norm("mlm_head.ln", kind, c.d_model, c.eps)?,
                unembed: self.unembed(&Weight::Plain(tokens.clone()), [c.d_model, c.d_vocab])?,
            }),
            false => None,
        };
        let pooler = match there(self, "pooler.W") {
            true => Some(self.linear("pooler.W", "pooler.b", [c.d_model, c.d_model])?),
            false => None,
        };
        let nsp_head = match there(self, "nsp_head.W") && pooler.is_some() {
            true => Some(self.linear("nsp_head.W", "nsp_head.b", [c.d_model, 2])?),
            false => None,
        };
        let embed = EncoderEmbed {
            tokens: Param::from_tensor(tokens),
            positions: Param::from_tensor(self.matrix("embed.W_pos", [c.n_ctx, c.d_model])?),
            token_types: types,
            norm: self.norm("embed.ln", kind, c.d_model, c.eps)?,
        };
        Ok(EncoderWeights { embed, blocks, mlm_head, pooler, nsp_head })
    }
}
