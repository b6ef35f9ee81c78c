//! Layer norm and RMS norm, with their hook points.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, PointId, Run};

use crate::config::{NormDetails, NormKind};
use crate::cpu;
use crate::device::is_cubecl;

/// The two hook points of a norm layer.
#[derive(Debug, Clone, Copy)]
pub struct NormPoints {
    pub(crate) scale: Option<PointId>,
    pub(crate) normalized: Option<PointId>,
}

/// A normalization layer over the last axis.
///
/// `scale = sqrt(mean(x²) + eps)` of the input (centered for layer norm), and `normalized = x / scale`, followed by
/// weight and bias if the norm has them. As in TransformerLens, `hook_normalized` fires after the weights of a layer
/// norm are applied, but before the weight of an RMS norm is. 16-bit inputs are normalized in `f32`.
#[derive(Module, Debug)]
pub struct Norm {
    /// Weight, `[d]`, if the norm has one.
    pub w: Option<Param<Tensor<1>>>,
    /// Bias, `[d]`, layer norm only.
    pub b: Option<Param<Tensor<1>>>,
    /// Kind of norm.
    #[module(skip)]
    pub kind: NormKind,
    #[module(skip)]
    pub(crate) eps: f64,
}

impl Norm {
    /// Creates a norm of this kind; pass `None` for weights that the kind does not have. The weights become new
    /// parameters, detached from the given tensors.
    pub fn new(kind: NormKind, eps: f64, w: Option<Tensor<1>>, b: Option<Tensor<1>>) -> Self {
        let [w, b] = [w, b].map(|weight| weight.map(|weight| Param::from_tensor(weight.detach())));
        Self { w, b, kind, eps }
    }

    /// Whether this is not [`NormKind::None`].
    pub fn is_norm(&self) -> bool {
        self.kind != NormKind::None
    }

    /// Whether the norm subtracts the mean.
    pub fn centers(&self) -> bool {
        self.kind.centers()
    }

    /// Whether the weights differ from the identity.
    pub fn has_effect(&self) -> bool {
        let far = |of: &Param<Tensor<1>>, from: f64| (of.val() - from).abs().max().into_scalar::<f64>() > 0.0;
        self.w.as_ref().is_some_and(|w| far(w, 1.0)) || self.b.as_ref().is_some_and(|b| far(b, 0.0))
    }

    /// Normalizes the last axis, and fires the hook points of the scale and of the result.
    ///
    /// # Shapes
    /// - input and output: `[..., d]`; the scale is `[..., 1]`
    pub(crate) fn forward<const D: usize>(
        &self,
        input: Tensor<D>,
        points: NormPoints,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<D>, Halt> {
        if self.kind == NormKind::None {
            return Ok(input);
        }
        if !run.wants(points.scale) && !run.wants(points.normalized) {
            return Ok(self.without_hooks(input));
        }
        let dtype = input.dtype();
        // `hook_normalized` includes the weights of a layer norm, but not those of other norms.
        let layer_norm = self.kind == NormKind::LayerNorm;
        let [w, b] = if layer_norm { [&self.w, &self.b].map(|w| w.as_ref().map(Param::val)) } else { [None, None] };
        let ready = match run.edits(points.scale) {
            true => None,
            false => cpu::norm_and_scale(&input, self.kind.centers(), self.eps, w.as_ref(), b.as_ref()),
        };
        let plain = ready.is_some();
        let seen = match ready {
            Some([scale, y]) => {
                run.fire(points.scale, scale)?;
                y
            }
            None => {
                let (x, scale) = self.centered_and_scale(input.clone());
                let x = x / run.fire(points.scale, scale)?;
                if layer_norm { weighed(x, self.weights()) } else { x }
            }
        };
        let edited = run.edits(points.normalized);
        let seen = run.fire(points.normalized, seen)?;
        Ok(match layer_norm {
            true => narrowed(seen, dtype),
            // Running the kernel again is faster than multiplying tensors.
            false if plain && !edited => self.without_hooks(input),
            false => narrowed(weighed(seen, self.weights()), dtype),
        })
    }

    /// Like [`Norm::forward`], without hook points.
    pub fn without_hooks<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if self.kind == NormKind::None {
            return input;
        }
        let (w, b) = (self.w.as_ref().map(Param::val), self.b.as_ref().map(Param::val));
        if let Some(done) = cpu::norm(&input, self.kind.centers(), self.eps, w.as_ref(), b.as_ref()) {
            return done;
        }
        let (dtype, shape) = (input.dtype(), input.dims());
        // A fusing backend compiles the norm into one kernel if its input is materialized (the reshape forces that) and
        // no other operation, such as loading the weights, comes in between.
        let weights = self.weights::<2>();
        let (x, scale) = self.centered_and_scale(input.reshape([shape[..D - 1].iter().product(), shape[D - 1]]));
        narrowed(weighed(x / scale, weights), dtype).reshape(shape)
    }

    /// Like [`Norm::forward`], for each head with its own weights, stored as `[head * d_head]`. The hook points have
    /// one row per batch row, position, and head.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, head, d_head]`
    pub(crate) fn forward_by_head(
        &self,
        input: Tensor<4>,
        points: NormPoints,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<4>, Halt> {
        let (shape @ [batch, pos, heads, width], dtype) = (input.dims(), input.dtype());
        let rows = [batch * pos * heads, width];
        let own = [&self.w, &self.b].map(|weight| Some(widened(weight.as_ref()?.val()).reshape([1, 1, heads, width])));
        let bare = Self::new(self.kind.folded(), self.eps, None, None);
        if !run.wants(points.scale) && !run.wants(points.normalized) {
            return Ok(narrowed(weighed(bare.without_hooks(widened(input)), own), dtype));
        }
        let (x, scale) = bare.centered_and_scale(input.reshape(rows));
        let x = x / run.fire(points.scale, scale)?;
        // As in `forward`, `hook_normalized` includes the weights of a layer norm.
        let seen =
            if self.kind == NormKind::LayerNorm { weighed(x.reshape(shape), own.clone()).reshape(rows) } else { x };
        let seen = run.fire(points.normalized, seen)?.reshape(shape);
        Ok(narrowed(if self.kind == NormKind::LayerNorm { seen } else { weighed(seen, own) }, dtype))
    }

    /// Returns the input, centered if the norm subtracts the mean, and the input's scale, both in `f32` or wider.
    pub fn centered_and_scale<const D: usize>(&self, input: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let mut x = widened(input);
        if self.kind.centers() {
            // A fusing backend does not start a multi-step kernel with a sum, so divide first.
            let mean = match is_cubecl(&x.device()) {
                true => (x.clone() / x.dims()[D - 1] as f64).sum_dim(D - 1),
                false => x.clone().mean_dim(D - 1),
            };
            x = x - mean;
        }
        let scale = (x.clone().square().mean_dim(D - 1) + self.eps).sqrt();
        (x, scale)
    }

    /// Weight and bias in `f32` or wider, shaped to broadcast over the last of `D` axes.
    fn weights<const D: usize>(&self) -> [Option<Tensor<D>>; 2] {
        [&self.w, &self.b].map(|weight| weight.as_ref().map(|weight| widened(weight.val()).unsqueeze()))
    }
}

fn weighed<const D: usize>(x: Tensor<D>, [w, b]: [Option<Tensor<D>>; 2]) -> Tensor<D> {
    let x = match w {
        Some(w) => x * w,
        None => x,
    };
    match b {
        Some(b) => x + b,
        None => x,
    }
}

/// Casts 16-bit floats to `f32`; leaves others unchanged.
pub fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if matches!(x.dtype(), DType::F16 | DType::BF16) { x.cast(DType::F32) } else { x }
}

/// Casts back to `dtype`, the type before [`widened`].
pub fn narrowed<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(dtype) }
}
