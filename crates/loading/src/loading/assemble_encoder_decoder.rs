//! Builds an encoder-decoder's weights from files.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};

use super::assemble::Assembler;
use hooklens_model::config::{Settings, TransformerConfig};
use hooklens_model::cpu::Weight;
use hooklens_model::encoder_decoder::{
    DecoderBlock, EncoderBlock, EncoderDecoderConfig, EncoderDecoderWeights, StackPositions,
};
use hooklens_model::error::LoadError;
use hooklens_model::model::{Attention, Norm};

impl Assembler<'_> {
    /// Reads all weights of an encoder-decoder. `encodes` and `decodes` configure the blocks of the encoder and the
    /// decoder.
    pub(super) fn encoder_decoder(
        &mut self,
        c: &EncoderDecoderConfig,
        [encodes, decodes]: [&TransformerConfig; 2],
    ) -> Result<EncoderDecoderWeights, LoadError> {
        self.check_all_there()?;
        let (kind, width) = (c.norm, c.d_decoder_model);
        let tokens = self.matrix("embed.W_E", [c.d_vocab, c.d_model])?;
        let shape = [c.d_decoder_model, c.d_decoder_vocab];
        // An adapter may have changed only the decoder's embedding.
        let (decoder_embed, unembed) = match c.shared_embed && self.locate("decoder_embed.W_E").is_none() {
            true => (None, self.unembed(&Weight::Plain(tokens.clone()), shape)?),
            false => {
                let own = self.matrix("decoder_embed.W_E", [c.d_decoder_vocab, c.d_decoder_model])?;
                let unembed = self.unembed_of("decoder_embed.W_E", &Weight::Plain(own.clone()), shape)?;
                (Some(Param::from_tensor(own)), unembed)
            }
        };
        let [encoder_positions, decoder_positions] = self.position_tables(c)?;
        let [encoder_embed_ln, decoder_embed_ln] = self.embedding_norms(c)?;
        let mut encoder = Vec::with_capacity(c.n_encoder_layers);
        for layer in 0..c.n_encoder_layers {
            let name = |part: &str| format!("encoder.{layer}.{part}");
            encoder.push(EncoderBlock {
                ln1: self.norm(&name("ln1"), kind, c.d_model, c.eps)?,
                attn: self.attention(&name("attn"), encodes, layer)?,
                ln1_post: self.post_norm(&name("ln1_post"), encodes)?,
                ln2: self.norm(&name("ln2"), kind, c.d_model, c.eps)?,
                mlp: self.mlp(&name("mlp"), encodes, layer)?,
                ln2_post: self.post_norm(&name("ln2_post"), encodes)?,
            });
        }
        let mut decoder = Vec::with_capacity(c.n_decoder_layers);
        for layer in 0..c.n_decoder_layers {
            let name = |part: &str| format!("decoder.{layer}.{part}");
            decoder.push(DecoderBlock {
                ln1: self.norm(&name("ln1"), kind, width, c.eps)?,
                attn: self.attention(&name("attn"), decodes, layer)?,
                ln1_post: self.post_norm(&name("ln1_post"), decodes)?,
                ln2: self.norm(&name("ln2"), kind, width, c.eps)?,
                cross_attn: self.cross_attention(&name("cross_attn"), c.d_model, decodes)?,
                ln2_post: self.post_norm(&name("ln2_post"), decodes)?,
                ln3: self.norm(&name("ln3"), kind, width, c.eps)?,
                mlp: self.mlp(&name("mlp"), decodes, layer)?,
                ln3_post: self.post_norm(&name("ln3_post"), decodes)?,
            });
        }
        Ok(EncoderDecoderWeights {
            embed: Param::from_tensor(tokens),
            decoder_embed,
            encoder_positions,
            decoder_positions,
            encoder_embed_ln,
            decoder_embed_ln,
            encoder,
            encoder_bias: self.biases_of_distances("encoder", c.n_encoder_layers, c.n_heads, c)?,
            encoder_ln: self.norm("encoder_final_ln", c.final_norm(), c.d_model, c.eps)?,
            decoder,
            decoder_bias: self.biases_of_distances("decoder", c.n_decoder_layers, c.n_decoder_heads, c)?,
            decoder_ln: self.norm("decoder_final_ln", c.final_norm(), width, c.eps)?,
            unembed,
        })
    }

    /// Reads the norm applied to a sublayer's output, if the configuration has post-norms.
    fn post_norm(&mut self, name: &str, c: &TransformerConfig) -> Result<Option<Norm>, LoadError> {
        c.post_norms().then(|| self.norm(name, c.norm(), c.d_model(), c.eps())).transpose()
    }

    /// Reads the cross-attention under this name. `width` is the size of the encoder's residual stream.
    fn cross_attention(&mut self, name: &str, width: usize, c: &TransformerConfig) -> Result<Attention, LoadError> {
        let mut project =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        let (all, shared) = (c.n_heads() * c.d_head(), c.n_kv_heads() * c.d_head());
        Ok(Attention {
            q: project("Q", [c.d_model(), all])?,
            k: project("K", [width, shared])?,
            v: project("V", [width, shared])?,
            o: project("O", [all, c.d_model()])?,
            q_norm: None,
            k_norm: None,
            sinks: None,
            gate: None,
            router: None,
            latent: None,
        })
    }

    /// Reads or computes the position tables of the encoder and decoder, if the model has any.
    fn position_tables(&mut self, c: &EncoderDecoderConfig) -> Result<[Option<Param<Tensor<2>>>; 2], LoadError> {
        let StackPositions::Table { n_ctx, source } = c.positions else { return Ok([None, None]) };
        let mut table = |stack: &str, width: usize| {
            let shape = [n_ctx, width];
            let name = format!("{stack}.pos_embed.W_pos");
            match self.locate(&name).is_none().then(|| source.computed(n_ctx, width)).flatten() {
                Some(numbers) => {
                    let data = TensorData::new(numbers, shape);
                    let computed = Tensor::from_data(data, (self.device, self.compute.burn()));
                    // Hugging Face never trains this table.
                    Ok(Some(Param::from_tensor(computed).set_require_grad(false)))
                }
                None => Ok(Some(Param::from_tensor(self.matrix(&name, shape)?))),
            }
        };
        Ok([table("encoder", c.d_model)?, table("decoder", c.d_decoder_model)?])
    }

    /// Reads the embedding norms of both stacks.
    fn embedding_norms(&mut self, c: &EncoderDecoderConfig) -> Result<[Option<Norm>; 2], LoadError> {
        if !c.embed_norm {
            return Ok([None, None]);
        }
        let mut norm = |name: &str, width| self.norm(name, c.norm, width, c.eps).map(Some);
        Ok([norm("encoder_embed_ln", c.d_model)?, norm("decoder_embed_ln", c.d_decoder_model)?])
    }

    /// Reads a stack's relative position biases: one table for all layers, or one per layer.
    fn biases_of_distances(
        &mut self,
        stack: &str,
        layers: usize,
        heads: usize,
        c: &EncoderDecoderConfig,
    ) -> Result<Vec<Param<Tensor<2>>>, LoadError> {
        let StackPositions::Distances { buckets, each_layer, .. } = c.positions else { return Ok(Vec::new()) };
        let tables = if each_layer { layers } else { 1 };
        let table = |layer| self.matrix(&format!("{stack}.{layer}.attn.rel_pos_bias"), [buckets, heads]);
        (0..tables).map(table).map(|table| table.map(Param::from_tensor)).collect()
    }
}
