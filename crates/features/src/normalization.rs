//! [`Normalization`] of a dictionary's inputs, and how to undo it in reconstructions.

use std::fmt;

use burn::tensor::Tensor;

use crate::host::host;

/// How each token's input is normalized.
///
/// ```
/// use hooklens::features::Normalization;
/// assert_eq!(Normalization::LayerNorm.to_string(), "layer_norm"); // SAELens's name
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Normalization {
    /// No normalization.
    #[default]
    None,
    /// Scales to the norm `sqrt(d_in)`.
    ConstantNorm,
    /// `(x − mean) / (std + 1e-5)`, with the unbiased standard deviation.
    LayerNorm,
    /// Scales all inputs by one factor, `sqrt(d_in)` divided by the mean norm; `None` if the files omit it.
    Scale(Option<f32>),
}

/// Formats SAELens's name.
impl fmt::Display for Normalization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Inverse of a normalization: multiplication by a factor, then addition of an offset, `[rows, 1]` each.
#[derive(Clone, Default)]
pub(super) struct Denormalize {
    factor: Option<Tensor<2>>,
    added: Option<Tensor<2>>,
}

impl Normalization {
    /// SAELens's name of the normalization.
    pub(super) fn name(self) -> &'static str {
        match self {
            Normalization::None => "none",
            Normalization::ConstantNorm => "constant_norm_rescale",
            Normalization::LayerNorm => "layer_norm",
            Normalization::Scale(_) => "expected_average_only_in",
        }
    }

    /// Normalizes rows, `[rows, d_in]`, and returns the inverse. An unknown scale counts as 1.
    pub(super) fn apply(self, x: Tensor<2>) -> (Tensor<2>, Denormalize) {
        match self {
            Normalization::None | Normalization::Scale(None) => (x, Denormalize::default()),
            Normalization::Scale(Some(factor)) => {
                let undo = x.ones_like().narrow(0, 0, 1.min(x.dims()[0])).narrow(1, 0, 1) / factor;
                (x * factor, Denormalize { factor: Some(undo), added: None })
            }
            Normalization::ConstantNorm => {
                let width = x.dims()[1] as f64;
                let factor = x.clone().square().sum_dim(1).sqrt().recip() * width.sqrt();
                (x * factor.clone(), Denormalize { factor: Some(factor.recip()), added: None })
            }
            Normalization::LayerNorm => {
                let width = x.dims()[1];
                let mean = x.clone().mean_dim(1);
                let x = x - mean.clone();
                let variance = x.clone().square().sum_dim(1) / width.saturating_sub(1).max(1) as f64;
                let std = variance.sqrt();
                (x / (std.clone() + 1e-5), Denormalize { factor: Some(std), added: Some(mean) })
            }
        }
    }
}

/// Factors that rows are multiplied by, factors that undo the multiplication, and whether means are subtracted.
pub(super) type Scales = (Vec<f32>, Vec<f32>, bool);

impl Normalization {
    /// The scales for these rows, `[rows, d_in]`; `None` if the normalization does nothing.
    pub(super) fn scales(self, x: &Tensor<2>) -> Option<Scales> {
        let rows = x.dims()[0];
        match self {
            Normalization::None | Normalization::Scale(None) => None,
            Normalization::Scale(Some(factor)) => Some((vec![factor; rows], vec![factor.recip(); rows], false)),
            Normalization::ConstantNorm => {
                let factor = x.clone().square().sum_dim(1).sqrt().recip() * (x.dims()[1] as f64).sqrt();
                Some((host(factor.clone()), host(factor.recip()), false))
            }
            Normalization::LayerNorm => {
                let centered = x.clone() - x.clone().mean_dim(1);
                let count = x.dims()[1].saturating_sub(1).max(1) as f64;
                let std = (centered.square().sum_dim(1) / count).sqrt();
                Some((host((std.clone() + 1e-5).recip()), host(std), true))
            }
        }
    }
}

impl Denormalize {
    /// Undoes the normalization in reconstructions, `[rows, d_in]`.
    pub(super) fn apply(self, x: Tensor<2>) -> Tensor<2> {
        let x = match self.factor {
            Some(factor) => x * factor,
            None => x,
        };
        match self.added {
            Some(added) => x + added,
            None => x,
        }
    }
}
