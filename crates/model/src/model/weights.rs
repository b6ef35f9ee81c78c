//! All weights of a transformer.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use super::block::Block;
use super::blocks::Blocks;
use super::embedding::rows_of;
use super::linear::Linear;
use super::names;
use super::norm::{Norm, narrowed};
use super::parts::Parts;
use super::per_layer::PerLayerEmbed;
use crate::cpu::Weight;
use crate::cpu::packed_matrix::PackedMatrix;

/// All weights of a decoder.
#[derive(Module, Debug)]
pub struct DecoderWeights {
    /// Token and position embeddings.
    pub embed: Embed,
    /// Per-layer token embeddings.
    pub per_layer_embed: Option<PerLayerEmbed>,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Norm before the unembedding.
    pub ln_final: Norm,
    /// Unembedding, `[d_model, d_vocab_out]`.
    pub unembed: Linear,
}

/// Token and position embeddings.
#[derive(Module, Debug)]
pub struct Embed {
    /// Token embeddings, `[d_vocab, d_model]`. May be stored in quantized blocks, like [`Linear::weight`].
    pub tokens: Param<Tensor<2>>,
    /// Position embeddings, `[n_ctx, d_model]`, if learned.
    pub positions: Option<Param<Tensor<2>>>,
    /// Norm applied to the embeddings.
    pub norm: Option<Norm>,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl Embed {
    /// Creates token embeddings, and position embeddings if learned.
    pub fn new(tokens: Weight, positions: Option<Tensor<2>>, norm: Option<Norm>, device: &Device) -> Self {
        let (tokens, blocks) = Blocks::param(tokens, device, true);
        Self { tokens, positions: positions.map(Param::from_tensor), norm, blocks }
    }

    /// Token embeddings, `[d_vocab, d_model]`; if quantized, a dequantized copy in `f32`.
    pub fn matrix(&self) -> Tensor<2> {
        match self.in_blocks() {
            Some(packed) => packed.widened(&self.device(), DType::F32),
            None => self.tokens.val(),
        }
    }

    /// Embeddings of the tokens `ids`, `[id, d_model]`.
    pub(crate) fn rows(&self, ids: &[u32], dtype: DType) -> Tensor<2> {
        match self.in_blocks() {
            Some(packed) => packed.rows(ids, &self.device(), dtype),
            None => narrowed(rows_of(self.tokens.val(), ids), dtype),
        }
    }

    /// The quantized blocks of the token embeddings, if stored in blocks.
    pub(crate) fn in_blocks(&self) -> Option<&PackedMatrix> {
        self.blocks.of(&self.tokens)
    }

    /// Dequantizes the token embeddings permanently.
    fn widen(&mut self) {
        if self.in_blocks().is_some() {
            self.tokens = Param::from_tensor(self.matrix());
        }
        self.blocks = Blocks::default();
    }

    /// Element type of the token embeddings; `f32` if quantized.
    pub(crate) fn dtype(&self) -> DType {
        match self.in_blocks() {
            Some(_) => DType::F32,
            None => self.tokens.val().dtype(),
        }
    }

    /// Device of the token embeddings.
    pub(crate) fn device(&self) -> Device {
        self.tokens.lazy_device()
    }
}

impl Parts for DecoderWeights {
    fn name_of(fields: &[&str]) -> String {
        names::in_decoder(fields)
    }

    fn dequantized(&self, id: ParamId) -> Option<Tensor<2>> {
        let table = self.tables().find(|table| table.tokens.id == id && table.in_blocks().is_some());
        let map = || self.maps().find(|map| map.weight.id == id && map.in_blocks().is_some());
        table.map(Embed::matrix).or_else(|| map().map(Linear::matrix))
    }
}

impl DecoderWeights {
    /// Device of the weights.
    pub(crate) fn device(&self) -> Device {
        self.embed.device()
    }

    /// All token embedding tables.
    fn tables(&self) -> impl Iterator<Item = &Embed> {
        [&self.embed].into_iter().chain(self.per_layer_embed.as_ref().map(|own| &own.vectors))
    }

    /// All linear maps.
    fn maps(&self) -> impl Iterator<Item = &Linear> {
        let projection = self.per_layer_embed.as_ref().map(|own| &own.projection);
        self.blocks.iter().flat_map(Block::maps).chain([&self.unembed]).chain(projection)
    }

    /// Whether any weight is stored in quantized blocks.
    pub(crate) fn any_blocks(&self) -> bool {
        self.maps().any(|map| map.in_blocks().is_some()) || self.tables().any(|table| table.in_blocks().is_some())
    }

    /// Whether products with any weight round their inputs.
    pub fn rounds_inputs(&self) -> bool {
        self.maps().any(Linear::rounds_inputs)
    }

    /// Dequantizes all weights.
    pub(crate) fn widened(mut self) -> Self {
        self.embed.widen();
        let mut maps: Vec<&mut Linear> = self.blocks.iter_mut().flat_map(Block::maps_mut).collect();
        maps.push(&mut self.unembed);
        if let Some(own) = &mut self.per_layer_embed {
            own.vectors.widen();
            maps.push(&mut own.projection);
        }
        maps.into_iter().for_each(Linear::widen);
        self
    }
}
