//! The weights of an encoder with a decoder from files.

use burn::module::Param;

use super::assemble::Assembler;
use crate::config::NormKind;
use crate::cpu::Weight;
use crate::encoder_decoder::{DecoderBlock, EncoderDecoderConfig, EncoderDecoderWeights};
use crate::error::LoadError;

impl Assembler<'_> {
    /// All weights of an encoder with a decoder.
    pub(super) fn encoder_decoder(&mut self, c: &EncoderDecoderConfig) -> Result<EncoderDecoderWeights, LoadError> {
        self.check_all_there()?;
        let (encodes, decodes, kind) = (c.stack(false), c.stack(true), NormKind::Rms);
        let tokens = self.matrix("embed.W_E", [c.d_vocab, c.d_model])?;
        let unembed = self.unembed(&Weight::Plain(tokens.clone()), [c.d_model, c.d_vocab])?;
        let mut encoder = Vec::with_capacity(c.n_encoder_layers);
        for layer in 0..c.n_encoder_layers {
            encoder.push(self.block(&format!("encoder.{layer}"), &encodes, layer)?);
        }
        let mut decoder = Vec::with_capacity(c.n_decoder_layers);
        for layer in 0..c.n_decoder_layers {
            let name = |part: &str| format!("decoder.{layer}.{part}");
            decoder.push(DecoderBlock {
                ln1: self.norm(&name("ln1"), kind, c.d_model, c.eps)?,
                attn: self.attention(&name("attn"), &decodes)?,
                ln2: self.norm(&name("ln2"), kind, c.d_model, c.eps)?,
                cross_attn: self.attention(&name("cross_attn"), &decodes)?,
                ln3: self.norm(&name("ln3"), kind, c.d_model, c.eps)?,
                mlp: self.mlp(&name("mlp"), &decodes, decodes.d_mlp)?,
            });
        }
        let mut bias = |stack: &str| {
            let shape = [c.relative_buckets, c.n_heads];
            Ok::<_, LoadError>(Param::from_tensor(self.matrix(&format!("{stack}.0.attn.rel_pos_bias"), shape)?))
        };
        let (encoder_bias, decoder_bias) = (bias("encoder")?, bias("decoder")?);
        Ok(EncoderDecoderWeights {
            embed: Param::from_tensor(tokens),
            encoder,
            encoder_bias,
            encoder_ln: self.norm("encoder_final_ln", kind, c.d_model, c.eps)?,
            decoder,
            decoder_bias,
            decoder_ln: self.norm("decoder_final_ln", kind, c.d_model, c.eps)?,
            unembed,
        })
    }
}
