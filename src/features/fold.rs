//! Dictionaries with factors folded into their weights.

use std::sync::OnceLock;

use burn::tensor::{DType, Tensor};

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::normalization::Normalization;
use crate::error::{FeatureError, Result};

/// The least norm a row is divided by.
const LEAST: f64 = 1e-8;

impl Dictionary {
    /// The same dictionary whose decoder rows have norm 1, so that activations of different latents compare: each is
    /// multiplied by its row's norm.
    ///
    /// ```
    /// # use hooklens::features::{Dictionary, DictionaryWeights};
    /// # use hooklens::prelude::*;
    /// # let device = Device::flex();
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::ones([2, 3], &device), encoder_bias: Tensor::zeros([3], &device),
    /// #     decoder: Tensor::ones([3, 2], &device), decoder_bias: Tensor::zeros([2], &device), skip: None,
    /// # };
    /// let sae = Dictionary::new("by hand", weights)?;
    /// let folded = sae.fold_decoder_norms()?;
    /// let x = Tensor::<2>::ones([1, 2], &device);
    /// let gap = folded.forward(x.clone())? - sae.forward(x)?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-6);
    /// assert!((folded.decoder_norms()? - 1.0).abs().max().into_scalar::<f32>() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Kind`] for dictionaries in which other latents would be chosen; a file that can't be read.
    pub fn fold_decoder_norms(&self) -> Result<Self> {
        let chosen = match self.architecture {
            Architecture::TopK { .. } | Architecture::AbsTopK { .. } | Architecture::GroupMax { .. } => !self.by_norms,
            Architecture::MatchingPursuit { .. } => true,
            _ => false,
        };
        if chosen {
            let reason = format!("with norms folded in, {} would choose other latents", self.architecture);
            return Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into());
        }
        let norms = match &self.finetuned {
            Some(factors) => self.decoder_norms()? * factors.clone().abs(),
            None => self.decoder_norms()?,
        };
        let norms = norms.clamp_min(LEAST);
        let decoder = match &self.finetuned {
            Some(factors) => wide(self.decoder()?) * columns(factors),
            None => wide(self.decoder()?),
        };
        let mut folded = self.with_matrices(wide(self.encoder()?) * rows(&norms), decoder / columns(&norms));
        folded.finetuned = None;
        folded.encoder_bias = self.encoder_bias.clone() * norms.clone();
        let scaled = |numbers: &[f32]| -> Vec<f32> {
            numbers.iter().zip(norms.to_data().iter::<f32>()).map(|(number, norm)| number * norm).collect()
        };
        match &mut folded.architecture {
            Architecture::JumpRelu { thresholds, .. } if !self.by_norms => *thresholds = scaled(thresholds),
            // Compared with products of pre-activations and norms, they lack the factors alone.
            Architecture::JumpRelu { thresholds, .. } => {
                let factors =
                    self.finetuned.iter().flat_map(|factors| factors.to_data().iter::<f32>().collect::<Vec<_>>());
                thresholds.iter_mut().zip(factors).for_each(|(threshold, factor)| *threshold *= factor.abs());
            }
            Architecture::Gated { gate_bias, .. } => *gate_bias = scaled(gate_bias),
            _ => {}
        }
        // Norms are 1 now.
        folded.by_norms = false;
        Ok(folded)
    }

    /// The same dictionary that takes its input as it is where it would be scaled by one factor.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn fold_scale(&self) -> Result<Self> {
        let Normalization::Scale(Some(factor)) = self.normalization else { return Ok(self.clone()) };
        // What is chosen by norms keeps its units where they are folded first.
        if self.by_norms {
            return self.fold_decoder_norms()?.fold_scale();
        }
        let (encoder, decoder) = (wide(self.encoder()?) * factor, wide(self.decoder()?));
        let mut folded = match self.is_transcoder() {
            // A transcoder's output was not scaled.
            true => self.with_matrices(encoder, decoder),
            false => self.with_matrices(encoder, decoder / factor),
        };
        folded.normalization = Normalization::None;
        if !self.is_transcoder() {
            folded.decoder_bias = self.decoder_bias.clone() / factor;
        }
        Ok(folded)
    }

    fn with_matrices(&self, encoder: Tensor<2>, decoder: Tensor<2>) -> Self {
        let (encoder, decoder) = (Matrix::made(encoder), Matrix::made(decoder));
        Self { encoder, decoder, norms: OnceLock::new(), ..self.clone() }
    }
}

fn wide(matrix: Tensor<2>) -> Tensor<2> {
    matrix.cast(DType::F32)
}

fn rows(vector: &Tensor<1>) -> Tensor<2> {
    vector.clone().unsqueeze()
}

fn columns(vector: &Tensor<1>) -> Tensor<2> {
    let [len] = vector.dims();
    vector.clone().reshape([len, 1])
}
