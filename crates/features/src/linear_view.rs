//! Linear view of a dictionary around its activation function: the encoder vectors that produce pre-activations, and
//! the decoder vectors that activations multiply.

use burn::tensor::Tensor;

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::transcoders::Transcoders;
use crate::error::FeatureError;
use crate::host::host;
use hooklens_model::cpu;
use hooklens_model::error::Result;

/// Pre-activations and activations, `[rows, latent]`, and the normalization of each row's input.
pub(crate) struct Applied {
    pub(crate) pre: Tensor<2>,
    pub(crate) acts: Tensor<2>,
    /// Factor that multiplied each row of the input, `[rows]`.
    pub(crate) factors: Vec<f32>,
    /// Whether the mean was subtracted first.
    pub(crate) centers: bool,
    /// Factor that multiplies each reconstruction, `[rows]`.
    pub(crate) undone: Vec<f32>,
}

impl Dictionary {
    /// Computes pre-activations and activations of inputs `[rows, d_in]`.
    pub(crate) fn applied(&self, x: Tensor<2>) -> Result<Applied> {
        let raw = self.rows(x)?;
        let rows = raw.dims()[0];
        let scales = self.normalization().scales(&raw);
        let (input, _) = self.normalized(raw)?;
        let encoded = self.encoded(input)?;
        let Some(pre) = encoded.pre.clone() else {
            let reason =
                "matching pursuit has no pre-activations, so its latents are not linear in their inputs".into();
            return Err(FeatureError::Kind { dictionary: self.name().into(), reason }.into());
        };
        let acts = self.activate(encoded)?;
        let (factors, mut undone, centers) = scales.unwrap_or_else(|| (vec![1.0; rows], vec![1.0; rows], false));
        if self.is_transcoder() {
            undone = vec![1.0; rows];
        }
        Ok(Applied { pre, acts, factors, centers, undone })
    }

    /// Effective encoder weight `[latent, d_in]` and bias, relative to the normalized input.
    pub(crate) fn reads(&self, latents: &[u32]) -> Result<(Vec<f32>, Vec<f64>)> {
        let mut rows = cpu::gather(&self.encoder()?.transpose(), latents);
        let width = self.d_in();
        if let Architecture::Gated { log_scale, .. } = self.architecture() {
            for (row, latent) in rows.chunks_exact_mut(width).zip(latents) {
                let factor = log_scale[*latent as usize].exp();
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        let bias = host(self.encoder_bias());
        let center = match self.centered {
            true => host(self.decoder_bias()),
            false => Vec::new(),
        };
        let constant = |(row, latent): (&[f32], &u32)| {
            let centered: f64 = row.iter().zip(&center).map(|(w, c)| f64::from(*w) * f64::from(*c)).sum();
            f64::from(bias[*latent as usize]) - centered
        };
        let constants = rows.chunks_exact(width).zip(latents).map(constant).collect();
        Ok((rows, constants))
    }

    /// Factors that multiply activations before the decoder rows, `[latent]`; `None` if they are all 1.
    pub(crate) fn write_factors(&self) -> Result<Option<Vec<f32>>> {
        let norms = match self.by_norms {
            true => Some(self.divisors()?.recip()),
            false => None,
        };
        let factors = match (norms, &self.finetuned) {
            (Some(norms), Some(finetuned)) => Some(norms * finetuned.clone()),
            (Some(factors), None) => Some(factors),
            (None, factors) => factors.clone(),
        };
        Ok(factors.map(host))
    }
}

impl Transcoders {
    /// The decoder from the latents of one layer to the output of the same or a later layer, `[latent, d_out]`; `None`
    /// if there is none.
    pub(crate) fn writes(&self, from: usize, to: usize) -> Result<Option<Tensor<2>>> {
        match from == to {
            true => Ok(Some(self.layers()[from].decoder()?)),
            false => self.decoder_across(from, to),
        }
    }
}
