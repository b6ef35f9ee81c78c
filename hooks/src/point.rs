//! Hook points: their names and the meaning of their axes.

use std::fmt;
use std::sync::Arc;

use crate::ordinal::Ordinal;

/// Meaning of one axis of a hooked tensor.
///
/// ```
/// use hooklens_hooks::Axis;
/// assert_eq!([Axis::Pos, Axis::KvHead, Axis::DModel].map(Axis::name), ["pos", "kv_head", "d_model"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Axis {
    /// Rows of the batch.
    Batch,
    /// Token positions.
    Pos,
    /// Query positions of an attention score or pattern.
    Query,
    /// Key positions of an attention score or pattern.
    Key,
    /// Attention heads.
    Head,
    /// Key/value heads (fewer than heads under grouped-query attention).
    KvHead,
    /// Dimensions within a head.
    DHead,
    /// Query/key heads of a gated delta net, or head groups of Mamba 2.
    KeyHead,
    /// Value heads of a gated delta net, or heads of Mamba 2.
    ValueHead,
    /// Channels of Mamba 2's convolution.
    Channel,
    /// Key dimensions of a gated delta net, or state dimensions of Mamba 2.
    DKey,
    /// Value dimensions within a head, if they differ from the key dimensions.
    DValue,
    /// Query latent (`q_lora_rank`) of multi-head latent attention.
    QRank,
    /// Key/value latent (`kv_lora_rank`) of multi-head latent attention.
    KvRank,
    /// Rotary key dimensions shared by all heads in multi-head latent attention.
    DRope,
    /// Dimensions of the residual stream.
    DModel,
    /// Dimensions of the token embeddings, if they differ from the residual stream.
    DEmbed,
    /// Neurons of the MLP.
    DMlp,
    /// Neurons of the shared expert in a mixture of experts.
    DShared,
    /// Dimensions of per-layer token embeddings.
    DPerLayer,
    /// Experts of a mixture-of-experts MLP.
    Expert,
    /// Experts of mixture-of-experts attention.
    AttnExpert,
    /// Experts chosen for a token (top-k), best first.
    Choice,
    /// Batch and position flattened into one axis.
    BatchPos,
    /// Batch, position and head flattened into one axis.
    BatchPosHead,
    /// All heads and their dimensions flattened into one axis.
    HeadDHead,
    /// Tokens routed to one expert; their number varies.
    Routed,
    /// Tokens of the vocabulary.
    Vocab,
    /// Features of a dictionary, such as a sparse autoencoder or a transcoder.
    Feature,
    /// An axis of length one.
    One,
}

impl Axis {
    /// The name of the axis in TransformerLens, for instance `d_model`.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Batch => "batch",
            Axis::Pos => "pos",
            Axis::Query => "query",
            Axis::Key => "key",
            Axis::Head => "head",
            Axis::KvHead => "kv_head",
            Axis::DHead => "d_head",
            Axis::KeyHead => "key_head",
            Axis::ValueHead => "value_head",
            Axis::Channel => "channel",
            Axis::DKey => "d_key",
            Axis::DValue => "d_value",
            Axis::QRank => "q_rank",
            Axis::KvRank => "kv_rank",
            Axis::DRope => "d_rope",
            Axis::DModel => "d_model",
            Axis::DEmbed => "d_embed",
            Axis::DMlp => "d_mlp",
            Axis::DShared => "d_shared",
            Axis::DPerLayer => "d_per_layer",
            Axis::Expert => "expert",
            Axis::AttnExpert => "attn_expert",
            Axis::Choice => "choice",
            Axis::BatchPos => "batch*pos",
            Axis::BatchPosHead => "batch*pos*head",
            Axis::HeadDHead => "head*d_head",
            Axis::Routed => "routed",
            Axis::Vocab => "d_vocab",
            Axis::Feature => "d_sae",
            Axis::One => "1",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Description of one hook point.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let point = catalog.info(catalog.find("blocks.1.hook_resid_post")?);
/// assert_eq!((point.layer, point.axes.len()), (Some(1), 3));
/// assert_eq!(point.axes_label(), "[batch, pos, d_model]");
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointInfo {
    /// Full name, for instance `blocks.0.attn.hook_q`.
    pub name: Arc<str>,
    /// Layer the point belongs to; `None` for points outside the blocks.
    pub layer: Option<usize>,
    /// Meaning of each axis, outermost first.
    pub axes: &'static [Axis],
    /// Whether the tensor holds integers (token ids, expert indices).
    pub integer: bool,
    /// Whether the point fires only when it is requested by name, because its tensor is costly to compute
    /// (`hook_result`, `hook_q_input`, ...).
    pub on_request: bool,
    /// The segment of the model that fires the point.
    pub segment: Segment,
    /// Whether the position axis starts with the positions in the key-value cache, as for rotated keys.
    pub with_past: bool,
    /// The filler for masked positions when a tensor is lengthened.
    pub filler: Filler,
    /// Length of the point's [`Axis::Feature`]; 0 if it has none or the length is known only during the run.
    pub features: usize,
    /// Whether the point's keys are encoder positions, as in cross-attention.
    pub keys_of_encoder: bool,
}

/// The segment of a model that fires a point. The points of a segment that a run skips do not fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Segment {
    /// The embedding: from tokens to the first residual stream.
    Embedding,
    /// Positional embeddings.
    Positions,
    /// The blocks of a decoder or encoder; in an encoder-decoder model, the decoder's blocks.
    Blocks,
    /// The final norm and the unembedding.
    Head,
    /// The encoder of an encoder-decoder model.
    Encoder,
    /// Keys and values of cross-attention, computed from the encoder's output.
    CrossKeys,
}

/// The value at masked positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Filler {
    /// Zero.
    Zero,
    /// Negative infinity, for attention scores before the softmax.
    MinusInfinity,
}

impl Filler {
    /// The value as a number.
    pub fn value(self) -> f32 {
        match self {
            Filler::Zero => 0.0,
            Filler::MinusInfinity => f32::NEG_INFINITY,
        }
    }
}

impl PointInfo {
    /// Creates a point whose tensor holds floats, in [`Segment::Blocks`] if the point has a layer, and in
    /// [`Segment::Embedding`] otherwise.
    ///
    /// ```
    /// use hooklens_hooks::{Axis, PointInfo, Segment};
    /// let point = PointInfo::new("blocks.0.hook_resid_pre", Some(0), &[Axis::Batch, Axis::Pos, Axis::DModel]);
    /// assert_eq!((point.segment, point.on_request, point.integer), (Segment::Blocks, false, false));
    /// ```
    pub fn new(name: impl Into<Arc<str>>, layer: Option<usize>, axes: &'static [Axis]) -> Self {
        Self {
            name: name.into(),
            layer,
            axes,
            integer: false,
            on_request: false,
            segment: if layer.is_some() { Segment::Blocks } else { Segment::Embedding },
            with_past: false,
            filler: Filler::Zero,
            features: 0,
            keys_of_encoder: false,
        }
    }

    /// Sets the length of the point's [`Axis::Feature`].
    #[must_use]
    pub fn features(self, features: usize) -> Self {
        Self { features, ..self }
    }

    /// Marks the point as holding integers.
    #[must_use]
    pub fn integers(self) -> Self {
        Self { integer: true, ..self }
    }

    /// Makes the point fire only when it is requested by name.
    #[must_use]
    pub fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    /// The axes as text, for instance `[batch, pos, d_model]`.
    pub fn axes_label(&self) -> String {
        let names: Vec<_> = self.axes.iter().map(|a| a.name()).collect();
        format!("[{}]", names.join(", "))
    }
}

/// A hook point whose rank is known at compile time.
///
/// ```
/// use hooklens_hooks::Point;
/// let point = Point::<4>::new("blocks.0.attn.hook_z");
/// assert_eq!(point.name(), "blocks.0.attn.hook_z");
/// // Methods borrow the point, so that it can be used again.
/// let hooks = [point.head(0).zero(), point.scale(0.5)];
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Point<const D: usize> {
    name: Arc<str>,
    /// The stack of blocks and the layer in it.
    layer: Option<(&'static str, isize)>,
}

impl<const D: usize> Point<D> {
    /// The point called `name`, whose tensor has rank `D`.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), layer: None }
    }

    /// The point `blocks.{layer}.{suffix}`; negative layers count from the end.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// assert_eq!(Point::<4>::in_layer(-1, "attn.hook_z").name(), "blocks.-1.attn.hook_z");
    /// ```
    pub fn in_layer(layer: impl Ordinal, suffix: &str) -> Self {
        Self { name: suffix.into(), layer: Some(("blocks", layer.number())) }
    }

    /// The point's full name. A layer counted from the end stays negative
    /// (`blocks.-1.attn.hook_z`) until a model's [`Catalog`](crate::Catalog) resolves it.
    pub fn name(&self) -> String {
        match self.layer {
            Some((stack, layer)) => format!("{stack}.{layer}.{}", self.name),
            None => self.name.to_string(),
        }
    }

    /// The same point in the encoder of an encoder-decoder model: `encoder.{layer}.{suffix}`.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// assert_eq!(Point::<4>::in_layer(0, "attn.hook_z").of_encoder().name(), "encoder.0.attn.hook_z");
    /// ```
    #[must_use]
    pub fn of_encoder(&self) -> Self {
        Self { name: self.name.clone(), layer: self.layer.map(|(_, layer)| ("encoder", layer)) }
    }

    /// The same point in the decoder of an encoder-decoder model: `decoder.{layer}.{suffix}`.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// assert_eq!(Point::<4>::in_layer(-1, "attn.hook_z").of_decoder().name(), "decoder.-1.attn.hook_z");
    /// ```
    #[must_use]
    pub fn of_decoder(&self) -> Self {
        Self { name: self.name.clone(), layer: self.layer.map(|(_, layer)| ("decoder", layer)) }
    }

    /// The point `suffix` of the part spliced in at this point; see [`Part`](crate::Part).
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// let acts = Point::<3>::in_layer(7, "hook_resid_pre").inner::<3>("hook_sae_acts_post");
    /// assert_eq!(acts.name(), "blocks.7.hook_resid_pre.hook_sae_acts_post");
    /// ```
    pub fn inner<const R: usize>(&self, suffix: &str) -> Point<R> {
        Point { name: format!("{}.{suffix}", self.name).into(), layer: self.layer }
    }
}

impl<const D: usize> fmt::Display for Point<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
