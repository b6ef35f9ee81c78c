//! Where features write to the residual stream.

use hooklens_kernels::gemm::gemm;
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::active::Active;
use super::gradient::{Gradient, Targets};
use super::held_norm::HeldNorm;
use super::stacked::Stacked;

/// Part of the model's computation that features stand for: what they write, what they miss and what is constant make
/// the activation that the model has there.
#[derive(Debug)]
pub(super) struct Place {
    /// The norm between it and the stream.
    pub(super) behind: Option<HeldNorm>,
    pub(super) decoders: Vec<Decoder>,
    /// What is missed, `[pos, d_model]`.
    pub(super) errors: Vec<f32>,
    /// What no feature is needed for, `[pos, d_model]`.
    pub(super) constant: Vec<f32>,
    /// Its number among those that have error nodes.
    pub(super) number: usize,
    pub(super) skip: Option<Skip>,
    /// Whether its dictionary is used at each position, `[pos]`: elsewhere all that the model writes is missed.
    pub(super) used: Vec<bool>,
}

/// What the features of a site write to a place.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The site, by number.
    pub(super) site: usize,
    /// `[latent, d_model]`; rows are read when they are used.
    pub(super) rows: Stacked,
    /// What activations are multiplied by, `[latent]`.
    pub(super) factors: Option<Vec<f32>>,
    /// What sums are multiplied by, `[pos]`.
    pub(super) undone: Vec<f32>,
}

/// A linear map beside the features.
#[derive(Debug)]
pub(super) struct Skip {
    /// `[d_model, d_model]`.
    pub(super) matrix: Vec<f32>,
    /// What is between the stream and it.
    pub(super) before: HeldNorm,
}

/// The rows of several targets, and where the columns of what is contracted are.
pub(super) struct Rows<'r> {
    pub(super) values: &'r mut [f32],
    pub(super) columns: usize,
    /// The first column of errors.
    pub(super) errors: usize,
}

impl Decoder {
    /// What features write per unit of their activations, `[feature, d_model]`.
    pub(super) fn vectors(&self, latents: &[u32]) -> Vec<f32> {
        self.rows.gather(latents)
    }

    /// What a feature's activation is multiplied by.
    pub(super) fn factor(&self, latent: u32, pos: usize) -> f32 {
        self.own_factor(latent) * self.undone_at(pos)
    }

    /// The same but for what undoes a normalization.
    pub(super) fn own_factor(&self, latent: u32) -> f32 {
        self.factors.as_ref().map_or(1.0, |factors| factors[latent as usize])
    }

    /// What undoes a normalization of the prompt's position.
    pub(super) fn undone_at(&self, pos: usize) -> f32 {
        self.undone.get(pos).copied().unwrap_or(1.0)
    }
}

impl Place {
    /// The decoders of what is written at a position.
    pub(super) fn decoders_at(&self, pos: usize) -> &[Decoder] {
        if self.used[pos] { &self.decoders } else { &[] }
    }

    /// Gradients as they are where features write.
    pub(super) fn seen(&self, gradient: &Gradient, targets: &Targets<'_>, constants: &mut [f64]) -> Option<Gradient> {
        let norm = self.behind.as_ref()?;
        Some(through(norm, gradient, targets, constants))
    }

    /// Adds the direct effects of all that is written here to the targets' rows.
    pub(super) fn contract(
        &self,
        gradient: &Gradient,
        targets: &Targets<'_>,
        active: &Active,
        rows: &mut Rows<'_>,
        constants: &mut [f64],
    ) {
        let (len, width) = (targets.len(), targets.width);
        // Of each position `[target, feature]`, then the error, then the constant.
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

    /// What comes back through the skip connection, in the stream before it.
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

/// Gradients before a norm, of gradients behind it; what its bias comes to is added to the targets' constants.
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
