//! All weights of a transformer.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor};

use super::block::Block;
use super::blocks::Blocks;
use super::embedding::rows_of;
use super::linear::Linear;
use super::norm::{Norm, narrowed};
use super::per_layer::PerLayerEmbed;
use crate::cpu::Weight;
use crate::cpu::packed_matrix::PackedMatrix;

/// All weights of a transformer, as a Burn module. On a device with autodiff
/// (`LoadOptions::trainable`), Burn's optimizers can train it.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let weights = &model.weights;
/// assert_eq!((weights.blocks.len(), weights.unembed.weight.val().dims()), (4, [64, 61]));
/// println!("{} weights on {:?}", weights.count(), weights.device());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Weights {
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
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let embed = &model.weights.embed;
/// let mary = model.to_single_token("Mary")? as usize;
/// assert_eq!(embed.tokens.val().narrow(0, mary, 1).dims(), [1, 64]); // the token's vector
/// assert!(embed.positions.is_some() && embed.norm.is_none());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Embed {
    /// Token embeddings, `[d_vocab, d_model]`. May be stored in quantized blocks, like [`Linear::weight`].
    pub tokens: Param<Tensor<2>>,
    /// Position embeddings, `[n_ctx, d_model]`, if learned.
    pub positions: Option<Param<Tensor<2>>>,
    /// Norm of the embeddings.
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

    /// Embeddings of these tokens, `[id, d_model]`.
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

impl Weights {
    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.embed.device()
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        let mut count = Count(0);
        self.visit(&mut count);
        count.0
    }

    /// Whether any weight is stored in quantized blocks.
    pub(crate) fn any_blocks(&self) -> bool {
        let tables = [&self.embed].into_iter().chain(self.per_layer_embed.as_ref().map(|own| &own.vectors));
        let projection = self.per_layer_embed.as_ref().map(|own| &own.projection);
        let mut maps = self.blocks.iter().flat_map(Block::maps).chain([&self.unembed]).chain(projection);
        maps.any(|map| map.in_blocks().is_some()) || tables.into_iter().any(|table| table.in_blocks().is_some())
    }

    /// Dequantizes all weights.
    pub fn widened(mut self) -> Self {
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

/// Counts elements without initializing any parameter.
struct Count(usize);

impl ModuleVisitor for Count {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += param.lazy_shape().num_elements();
    }
}
