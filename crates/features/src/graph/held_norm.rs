//! A norm layer with its scale frozen: a linear map.

use hooklens_model::model::Norm;

/// A norm layer `y = w (x - mean) / scale + b` with the scales recorded in the run, one per position.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldNorm {
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    centers: bool,
    /// One scale per position; empty if nothing is scaled.
    scale: Vec<f32>,
}

impl HeldNorm {
    /// Freezes a norm layer at the scales of a run, `[pos]`, with its weights if `weights` is true.
    pub(super) fn new(norm: &Norm, scale: Vec<f32>, weights: bool) -> Self {
        let held = |param: Option<Vec<f32>>| param.filter(|_| weights);
        let of = |param: &Option<burn::module::Param<burn::tensor::Tensor<1>>>| {
            param.as_ref().map(|param| super::host(param.val()))
        };
        Self { weight: held(of(&norm.w)), bias: held(of(&norm.b)), centers: norm.centers(), scale }
    }

    /// The input normalization of a dictionary: division by scales only, without weights.
    pub(super) fn scaling(factors: Vec<f32>, centers: bool) -> Self {
        let scale = factors.iter().map(|factor| factor.recip()).collect();
        Self { scale, centers, ..Self::default() }
    }

    /// Propagates the gradient at a position's output backward to its input, in place.
    pub(super) fn back(&self, row: &mut [f32], pos: usize) {
        if let Some(weight) = &self.weight {
            row.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if self.centers {
            let mean = (row.iter().map(|x| f64::from(*x)).sum::<f64>() / row.len() as f64) as f32;
            row.iter_mut().for_each(|x| *x -= mean);
        }
        if let Some(scale) = self.scale.get(pos) {
            let factor = scale.recip();
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Applies the norm layer to the input at a position, in place.
    pub(super) fn forward(&self, row: &mut [f32], pos: usize) {
        if self.centers {
            let mean = (row.iter().map(|x| f64::from(*x)).sum::<f64>() / row.len() as f64) as f32;
            row.iter_mut().for_each(|x| *x -= mean);
        }
        if let Some(scale) = self.scale.get(pos) {
            row.iter_mut().for_each(|x| *x /= scale);
        }
        if let Some(weight) = &self.weight {
            row.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }

    /// The bias added to every output.
    pub(super) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The weight of each coordinate.
    pub(super) fn weight(&self) -> Option<&[f32]> {
        self.weight.as_deref()
    }

    pub(super) fn centers(&self) -> bool {
        self.centers
    }

    /// The scale of a position.
    pub(super) fn scale(&self, pos: usize) -> f32 {
        self.scale.get(pos).copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_the_transpose_of_the_way_there() {
        let norm = HeldNorm { weight: Some(vec![1.0, 2.0, -0.5]), bias: None, centers: true, scale: vec![1.0, 4.0] };
        let (x, g) = ([0.3f32, -1.0, 2.0], [1.5f32, 0.2, -0.7]);
        let (mut there, mut back) = (x, g);
        norm.forward(&mut there, 1);
        norm.back(&mut back, 1);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!((dot(&there, &g) - dot(&x, &back)).abs() < 1e-6);
    }
}
