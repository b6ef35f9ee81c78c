//! Places where features write to the residual stream.

use hooklens_kernels::gemm::gemm;
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::active::Active;
use super::gradient::{Gradient, Targets};
use super::held_norm::HeldNorm;
use super::stacked::Stacked;

/// A part of the model that features replace. The features' output, the error and a constant sum to the model's
/// activation.
#[derive(Debug)]
pub(super) struct Place {
    /// The norm between the place and the residual stream.
    pub(super) behind: Option<HeldNorm>,
    pub(super) decoders: Vec<Decoder>,
    /// Reconstruction error, `[pos, d_model]`.
    pub(super) errors: Vec<f32>,
    /// Constant output that does not depend on features, `[pos, d_model]`.
    pub(super) constant: Vec<f32>,
    /// Index among the places that have error nodes.
    pub(super) number: usize,
    pub(super) skip: Option<Skip>,
    /// Whether the dictionary is used at each position, `[pos]`. Elsewhere the model's whole output is error.
    pub(super) used: Vec<bool>,
}

/// The decoder vectors with which a site's features write to a place.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Index of the site.
    pub(super) site: usize,
    /// Decoder rows, `[latent, d_model]`, read when used.
    pub(super) rows: Stacked,
    /// Multiplier of each latent's activation, `[latent]`.
    pub(super) factors: Option<Vec<f32>>,
    /// Factor that undoes the normalization of each position, `[pos]`.
    pub(super) undone: Vec<f32>,
}

/// A linear skip connection parallel to the features.
#[derive(Debug)]
pub(super) struct Skip {
    /// Skip matrix, `[d_model, d_model]`.
    pub(super) matrix: Vec<f32>,
    /// The norm between the stream and the skip connection.
    pub(super) before: HeldNorm,
}

/// The rows of several targets, with the column layout needed to add effects to them.
pub(super) struct Rows<'r> {
    pub(super) values: &'r mut [f32],
    pub(super) columns: usize,
    /// Index of the first error column.
    pub(super) errors: usize,
}

impl Decoder {
    /// Output of each feature per unit of activation, `[feature, d_model]`.
    pub(super) fn vectors(&self, latents: &[u32]) -> Vec<f32> {
        self.rows.gather(latents)
    }

    /// The multiplier of a feature's activation.
    pub(super) fn factor(&self, latent: u32, pos: usize) -> f32 {
        self.own_factor(latent) * self.undone_at(pos)
    }

    /// The multiplier of a feature's activation, without the factor that undoes a normalization.
    pub(super) fn own_factor(&self, latent: u32) -> f32 {
        self.factors.as_ref().map_or(1.0, |factors| factors[latent as usize])
    }

    /// The factor that undoes the normalization of a position.
    pub(super) fn undone_at(&self, pos: usize) -> f32 {
        self.undone.get(pos).copied().unwrap_or(1.0)
    }
}

impl Place {
    /// The decoders that write at a position.
    pub(super) fn decoders_at(&self, pos: usize) -> &[Decoder] {
        if self.used[pos] { &self.decoders } else { &[] }
    }

    /// Propagates a gradient backward through the norm after the features; `None` if there is no norm.
    pub(super) fn seen(&self, gradient: &Gradient, targets: &Targets<'_>, constants: &mut [f64]) -> Option<Gradient> {
        let norm = self.behind.as_ref()?;
        Some(through(norm, gradient, targets, constants))
    }

    /// Adds the direct effects of everything written here to the targets' rows.
    pub(super) fn contract(
        &self,
        gradient: &Gradient,
        targets: &Targets<'_>,
        active: &Active,
        rows: &mut Rows<'_>,
        constants: &mut [f64],
    ) {
        let (len, width) = (targets.len(), targets.width);
        // For each position, `[target, column]`: one column per feature, then the error and the constant.
        let mut made: Vec<Vec<f32>> = vec![Vec::new(); len];
        each_item(made.iter_mut().enumerate(), |(pos, made)| {
            let (first, step, own) = gradient.rows_at(pos, targets);
            if own.is_empty() {
                return;
            }
            let mut vectors = Vec::new();
            for decoder in self.decoders_at(pos) {
                vectors.extend(decoder.vectors(active.latents(decoder.site, pos)));
            }
            vectors.extend(&self.errors[pos * width..][..width]);
            vectors.extend(&self.constant[pos * width..][..width]);
            let count = vectors.len() / width;
            let values = gradient.values();
            let rows = View2::new(values, first * width, (own.len(), width), (step * width, 1));
            *made = vec![0.0; own.len() * count];
            gemm(rows, View2::row_major(&vectors, count, width).t(), None, made, count);
        });
        for (pos, made) in made.iter().enumerate() {
            let (_, _, own) = gradient.rows_at(pos, targets);
            if own.is_empty() {
                continue;
            }
            let count = made.len() / own.len();
            for (target, made) in own.zip(made.chunks_exact(count)) {
                let row = &mut rows.values[target * rows.columns..][..rows.columns];
                let mut at = 0;
                for decoder in self.decoders_at(pos) {
                    let features = active.range(decoder.site, pos);
                    for feature in features {
                        let (latent, act) = (active.latent(feature), active.acts[feature]);
                        row[feature] += made[at] * act * decoder.factor(latent, pos);
                        at += 1;
                    }
                }
                row[rows.errors + self.number * active.len + pos] += made[at];
                constants[target] += f64::from(made[at + 1]);
            }
        }
    }

    /// Propagates a gradient backward through the skip connection to the stream before it.
    pub(super) fn skipped(&self, seen: &Gradient, targets: &Targets<'_>, constants: &mut [f64]) -> Option<Vec<f32>> {
        let skip = self.skip.as_ref()?;
        let width = targets.width;
        let rows = seen.values().len() / width;
        let mut back = vec![0.0; rows * width];
        let by = View2::row_major(&skip.matrix, width, width).t();
        gemm(View2::row_major(seen.values(), rows, width), by, None, &mut back, width);
        for (row, back) in back.chunks_exact_mut(width).enumerate() {
            if !self.used[seen.position(row, targets)] {
                back.fill(0.0);
            }
        }
        let back = match seen {
            Gradient::Own(_) => Gradient::Own(back),
            Gradient::Spread(_) => Gradient::Spread(back),
        };
        Some(match through(&skip.before, &back, targets, constants) {
            Gradient::Own(back) | Gradient::Spread(back) => back,
        })
    }
}

/// Propagates a gradient backward through a norm, and adds the contribution of the norm's bias to the targets'
/// constants.
pub(super) fn through(norm: &HeldNorm, gradient: &Gradient, targets: &Targets<'_>, constants: &mut [f64]) -> Gradient {
    let width = targets.width;
    let mut values = gradient.values().to_vec();
    let each = match gradient {
        Gradient::Own(_) => 1,
        Gradient::Spread(_) => targets.len(),
    };
    let size = (each * width).max(1);
    each_item(values.chunks_exact_mut(size).zip(constants).enumerate(), |(target, (rows, constant))| {
        for (row, x) in rows.chunks_exact_mut(width).enumerate() {
            if let Some(bias) = norm.bias() {
                *constant += x.iter().zip(bias).map(|(x, b)| f64::from(*x) * f64::from(*b)).sum::<f64>();
            }
            norm.back(x, gradient.position(target * each + row, targets));
        }
    });
    match gradient {
        Gradient::Own(_) => Gradient::Own(values),
        Gradient::Spread(_) => Gradient::Spread(values),
    }
}
