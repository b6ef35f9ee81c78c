//! Builds an encoder's weights from files.

use burn::module::Param;

use super::assemble::Assembler;
use hooklens_model::config::{NormKind, Positional, TransformerConfig};
use hooklens_model::cpu::Weight;
use hooklens_model::encoder::{
    EncoderBlock, EncoderConfig, EncoderEmbed, EncoderWeights, MlmHead, RelativePositions, RelativeWeights,
};
use hooklens_model::error::LoadError;

impl Assembler<'_> {
    /// Reads all weights of an encoder, including the heads present in the files. `stack` configures the blocks.
    pub(super) fn encoder(
        &mut self,
        c: &EncoderConfig,
        stack: &TransformerConfig,
    ) -> Result<EncoderWeights, LoadError> {
        self.check_all_there()?;
        let (kind, width) = (c.norm, c.embed_width());
        let tokens = self.matrix("embed.W_E", [c.d_vocab, width])?;
        let types = match c.token_types {
            0 => None,
            count => Some(Param::from_tensor(self.matrix("embed.W_token_type", [count, width])?)),
        };
        let positions = match c.positional {
            Positional::Learned => Some(Param::from_tensor(self.matrix("embed.W_pos", [c.n_ctx, width])?)),
            _ => None,
        };
        let projection = match c.d_embed {
            Some(width) => Some(self.linear("embed.W_proj", "embed.b_proj", [width, c.d_model])?),
            None => None,
        };
        let mut blocks = Vec::with_capacity(c.n_blocks());
        for layer in 0..c.n_blocks() {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            let mut relative = |part: &str, weight: &str, bias: &str| match c.relative {
                Some(RelativePositions::Disentangled {
                    content_to_position,
                    position_to_content,
                    shared: false,
                    ..
                }) if (part == "k" && content_to_position) || (part == "q" && position_to_content) => {
                    self.linear(&name(weight), &name(bias), [c.d_model, c.n_heads * c.d_head]).map(Some)
                }
                _ => Ok(None),
            };
            blocks.push(EncoderBlock {
                relative_k: relative("k", "attn.W_rel_K", "attn.b_rel_K")?,
                relative_q: relative("q", "attn.W_rel_Q", "attn.b_rel_Q")?,
                relative_bias: match c.relative {
                    Some(RelativePositions::Buckets { count, each_layer: true, .. }) => {
                        Some(Param::from_tensor(self.matrix(&name("attn.rel_pos_bias"), [count, c.n_heads])?))
                    }
                    _ => None,
                },
                attn: self.attention(&name("attn"), stack, layer)?,
                ln1: self.norm(&name("ln1"), c.attn_norm(layer), c.d_model, c.eps)?,
                mlp: self.mlp(&name("mlp"), stack, layer)?,
                ln2: self.norm(&name("ln2"), kind, c.d_model, c.eps)?,
            });
        }
        let there = |assembler: &Self, weight: &str| assembler.locate(weight).is_some();
        let mlm_head = match there(self, "mlm_head.W") {
            true => Some(MlmHead {
                dense: self.linear("mlm_head.W", "mlm_head.b", [c.d_model, width])?,
                ln: self.norm("mlm_head.ln", kind, width, c.eps)?,
                unembed: self.unembed(&Weight::Plain(tokens.clone()), [width, c.d_vocab])?,
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
            positions,
            token_types: types,
            norm: self.norm("embed.ln", if c.embed_norm { kind } else { NormKind::None }, width, c.eps)?,
            projection,
        };
        let relative = match c.relative.and_then(|relative| relative.shared_table(c)) {
            Some((shape, norm)) => Some((self.matrix("relative.W", shape)?, norm)),
            None => None,
        };
        let relative = match relative {
            Some((table, norm)) => Some(RelativeWeights {
                table: Param::from_tensor(table),
                norm: if norm { Some(self.norm("relative.ln", kind, c.d_model, c.eps)?) } else { None },
            }),
            None => None,
        };
        let ln_final = if c.pre_norms { Some(self.norm("ln_final", kind, c.d_model, c.eps)?) } else { None };
        Ok(EncoderWeights { embed, relative, blocks, ln_final, mlm_head, pooler, nsp_head })
    }
}
