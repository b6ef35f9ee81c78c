//! A dictionary as linear maps around its activation function: what each pre-activation reads, and what each activation
//! writes.

use burn::tensor::{DType, Tensor};

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::transcoders::Transcoders;
use crate::error::FeatureError;
use hooklens_model::cpu;
use hooklens_model::error::Result;

/// Pre-activations and activations of some rows, `[rows, latent]`, and what was done to each row's input.
pub(crate) struct Applied {
    pub(crate) pre: Tensor<2>,
    pub(crate) acts: Tensor<2>,
    /// What rows were multiplied by before they were read, `[rows]`.
    pub(crate) factors: Vec<f32>,
    /// Whether their mean was subtracted before.
    pub(crate) centers: bool,
    /// What reconstructions are multiplied by, `[rows]`.
    pub(crate) undone: Vec<f32>,
}

impl Dictionary {
    /// Pre-activations and activations of inputs `[rows, d_in]`.
    pub(crate) fn applied(&self, x: Tensor<2>) -> Result<Applied> {
        let raw = self.rows(x)?;
        let rows = raw.dims()[0];
        let scales = self.normalization().scales(&raw);
        let (input, _) = self.normalized(raw)?;
        let encoded = self.encoded(input)?;
        let Some(pre) = encoded.pre.clone() else {
            let reason = "matching pursuit has no pre-activations, so nothing flows into its latents linearly".into();
            return Err(FeatureError::Kind { dictionary: self.name().into(), reason }.into());
        };
        let acts = self.activate(encoded)?;
        let (factors, mut undone, centers) = scales.unwrap_or_else(|| (vec![1.0; rows], vec![1.0; rows], false));
        if self.is_transcoder() {
            undone = vec![1.0; rows];
        }
        Ok(Applied { pre, acts, factors, centers, undone })
    }

    /// What pre-activations are products of the normalized input with, `[latent, d_in]`, and what is added.
    pub(crate) fn reads(&self, latents: &[u32]) -> Result<(Vec<f32>, Vec<f64>)> {
        let mut rows = cpu::gather(&self.encoder()?.transpose(), latents);
        let width = self.d_in();
        if let Architecture::Gated { log_scale, .. } = self.architecture() {
            for (row, latent) in rows.chunks_exact_mut(width).zip(latents) {
                let factor = log_scale[*latent as usize].exp();
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        let bias: Vec<f32> = self.encoder_bias().cast(DType::F32).into_data().iter().collect();
        let center: Vec<f32> = match self.centers_input() {
            true => self.decoder_bias().cast(DType::F32).into_data().iter().collect(),
            false => Vec::new(),
        };
        let constant = |(row, latent): (&[f32], &u32)| {
            let centered: f64 = row.iter().zip(&center).map(|(w, c)| f64::from(*w) * f64::from(*c)).sum();
            f64::from(bias[*latent as usize]) - centered
        };
        let constants = rows.chunks_exact(width).zip(latents).map(constant).collect();
        Ok((rows, constants))
    }

    /// What activations are multiplied by before the decoder's rows are, `[latent]`; nothing where by 1.
    pub(crate) fn write_factors(&self) -> Result<Option<Vec<f32>>> {
        let norms = match self.by_norms {
            true => Some(self.decoder_norms()?.recip()),
            false => None,
        };
        let factors = match (norms, &self.finetuned) {
            (Some(norms), Some(finetuned)) => Some(norms * finetuned.clone()),
            (Some(factors), None) => Some(factors),
            (None, factors) => factors.clone(),
        };
        Ok(factors.map(|factors| factors.cast(DType::F32).into_data().iter().collect()))
    }
}

impl Transcoders {
    /// What the latents of a layer write to the output of a layer, `[latent, d_out]`, its own or one behind it; nothing
    /// where they don't.
    pub(crate) fn writes(&self, from: usize, to: usize) -> Result<Option<Tensor<2>>> {
        match from == to {
            true => Ok(Some(self.layers()[from].decoder()?)),
            false => self.decoder_across(from, to),
        }
    }
}
