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
    /// Coordinates of the residual stream.
    DModel,
    /// Neurons of the MLP.
    DMlp,
    /// Experts of a mixture.
    Expert,
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
            Axis::DModel => "d_model",
            Axis::DMlp => "d_mlp",
            Axis::Expert => "expert",
            Axis::Choice => "choice",
            Axis::BatchPos => "batch*pos",
            Axis::BatchPosHead => "batch*pos*head",
            Axis::HeadDHead => "head*d_head",
            Axis::Routed => "routed",
            Axis::Vocab => "d_vocab",
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
/// # let mut points = Catalog::builder(2);
/// # let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
/// # let ids = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"].map(|name| {
/// #     let layer = name.get(7..8).and_then(|layer| layer.parse().ok());
/// #     points.add(PointInfo { name: name.into(), layer, axes, integer: false, on_request: false })
/// # });
/// # let catalog = std::sync::Arc::new(points.build());
/// let point = catalog.info(catalog.find("blocks.1.hook_resid_post")?);
/// assert_eq!((point.layer, point.rank()), (Some(1), 3));
/// assert_eq!(point.axes_label(), "[batch, pos, d_model]");
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl PointInfo {
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
    layer: Option<isize>,
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
        Self { name: suffix.into(), layer: Some(layer.number()) }
    }

    /// The point's full name. A layer counted from the end stays negative
    /// (`blocks.-1.attn.hook_z`) until a model's [`Catalog`](crate::Catalog) resolves it.
    pub fn name(&self) -> String {
        match self.layer {
            Some(layer) => format!("blocks.{layer}.{}", self.name),
            None => self.name.to_string(),
        }
    }
}

impl<const D: usize> fmt::Display for Point<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
