//! Hook points: what one is called, and what its tensor's axes mean.

use std::fmt;
use std::sync::Arc;

use crate::ordinal::Ordinal;

/// What one axis of a hooked tensor runs over.
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
    /// Coordinates within a head.
    DHead,
    /// Heads of a gated delta net's queries and keys; of Mamba 2 groups of heads.
    KeyHead,
    /// Heads of a gated delta net's values; of Mamba 2 heads.
    ValueHead,
    /// Channels of Mamba 2's convolution.
    Channel,
    /// Coordinates of a gated delta net's key; of Mamba 2's state.
    DKey,
    /// Coordinates of a head's values, where they are not as many as a key's.
    DValue,
    /// Coordinates of latent attention's queries' latent.
    QRank,
    /// Coordinates of latent attention's latent of keys and values.
    KvRank,
    /// Rotated coordinates that latent attention's heads share.
    DRope,
    /// Coordinates of the residual stream.
    DModel,
    /// Coordinates of the vectors of tokens, where they are not the residual stream's.
    DEmbed,
    /// Neurons of the MLP.
    DMlp,
    /// Neurons of a mixture's shared expert.
    DShared,
    /// Coordinates of a layer's own input vector of a token.
    DPerLayer,
    /// Experts of a mixture.
    Expert,
    /// Experts of attention.
    AttnExpert,
    /// Experts chosen for a token, best first.
    Choice,
    /// Batch and position flattened into one axis.
    BatchPos,
    /// Batch, position and head flattened into one axis.
    BatchPosHead,
    /// Coordinates of all heads in one axis.
    HeadDHead,
    /// The tokens routed to one expert: their number varies.
    Routed,
    /// Tokens of the vocabulary.
    Vocab,
    /// Features of a dictionary: of a sparse autoencoder, of a transcoder.
    Feature,
    /// An axis of length one.
    One,
}

impl Axis {
    /// The axis in TransformerLens's vocabulary, for instance `d_model`.
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

/// One point of a model.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let point = catalog.info(catalog.find("blocks.1.hook_resid_post")?);
/// assert_eq!((point.layer, point.rank()), (Some(1), 3));
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
    /// Whether the point fires only when it is asked for by its own name, because making its
    /// tensor costs something (`hook_result`, `hook_q_input`, ...).
    pub on_request: bool,
    /// The segment of the model that fires it.
    pub segment: Segment,
    /// Whether its positions begin with those of a key-value cache, as rotated keys do.
    pub with_past: bool,
    /// The filler where a tensor is lengthened by positions that are not seen.
    pub filler: Filler,
    /// Length of its [`Axis::Feature`]; 0 if it has none, or only the run tells.
    pub features: usize,
    /// Whether its keys are an encoder's positions, which a decoder attends to.
    pub keys_of_encoder: bool,
}

/// The segment of a model that fires a point. A run that leaves a segment out does not fire its points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Segment {
    /// The embedding: from tokens to the first residual stream.
    Embedding,
    /// Position vectors.
    Positions,
    /// The blocks: of a decoder, of an encoder, or of the decoder behind an encoder.
    Blocks,
    /// The final norm and the unembedding.
    Head,
    /// The encoder in front of a decoder.
    Encoder,
    /// Keys and values that a decoder's cross attention computes from the encoder's output.
    CrossKeys,
}

/// The value of positions that are not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Filler {
    /// 0.
    Zero,
    /// Minus infinity: attention scores before the softmax.
    MinusInfinity,
}

impl Filler {
    /// The value itself.
    pub fn value(self) -> f32 {
        match self {
            Filler::Zero => 0.0,
            Filler::MinusInfinity => f32::NEG_INFINITY,
        }
    }
}

impl PointInfo {
    /// A point of floats: in the blocks if it has a layer, in the embedding otherwise.
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

    /// The same point with keys of an encoder, which a decoder attends to.
    #[must_use]
    pub fn with_keys_of_encoder(self) -> Self {
        Self { keys_of_encoder: true, ..self }
    }

    /// The same point with an [`Axis::Feature`] of this length.
    #[must_use]
    pub fn features(self, features: usize) -> Self {
        Self { features, ..self }
    }

    /// The same point, holding integers.
    #[must_use]
    pub fn integers(self) -> Self {
        Self { integer: true, ..self }
    }

    /// The same point, firing only when it is asked for by its own name.
    #[must_use]
    pub fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    /// The same point, whose positions begin with those of a key-value cache.
    #[must_use]
    pub fn with_past(self) -> Self {
        Self { with_past: true, ..self }
    }

    /// The same point, holding scores: minus infinity at positions that are not seen.
    #[must_use]
    pub fn scores(self) -> Self {
        Self { filler: Filler::MinusInfinity, ..self }
    }

    /// The same point in another segment.
    #[must_use]
    pub fn in_segment(self, segment: Segment) -> Self {
        Self { segment, ..self }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.axes.len()
    }

    /// The axes as `[batch, pos, d_model]`.
    pub fn axes_label(&self) -> String {
        let names: Vec<_> = self.axes.iter().map(|a| a.name()).collect();
        format!("[{}]", names.join(", "))
    }
}

/// A point whose rank is known to the compiler.
///
/// ```
/// use hooklens_hooks::Point;
/// let point = Point::<4>::new("blocks.0.attn.hook_z");
/// assert_eq!(point.name(), "blocks.0.attn.hook_z");
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

    /// The point `blocks.{layer}.{suffix}`; a negative layer counts from the last.
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

    /// The same point of the encoder in front of a decoder: `encoder.{layer}.{suffix}`.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// assert_eq!(Point::<4>::in_layer(0, "attn.hook_z").of_encoder().name(), "encoder.0.attn.hook_z");
    /// ```
    #[must_use]
    pub fn of_encoder(self) -> Self {
        Self { layer: self.layer.map(|(_, layer)| ("encoder", layer)), ..self }
    }

    /// The same point of the decoder behind an encoder: `decoder.{layer}.{suffix}`.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// assert_eq!(Point::<4>::in_layer(-1, "attn.hook_z").of_decoder().name(), "decoder.-1.attn.hook_z");
    /// ```
    #[must_use]
    pub fn of_decoder(self) -> Self {
        Self { layer: self.layer.map(|(_, layer)| ("decoder", layer)), ..self }
    }

    /// The point `suffix` of the part that is spliced in here; see [`Part`](crate::Part).
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
