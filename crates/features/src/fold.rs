//! Dictionaries with factors folded into their weights.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::normalization::Normalization;
use crate::error::FeatureError;
use hooklens_model::error::Result;

impl Dictionary {
    /// Folds the norms of decoder rows into activations, so that decoder rows have norm 1 and activations of different
    /// latents are comparable.
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
    /// let norms = folded.weights()?.decoder.square().sum_dim(1).sqrt();
    /// assert!((norms - 1.0).abs().max().into_scalar::<f32>() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Kind`] if folding would change which latents are selected; also fails if the file cannot be
    /// read.
    pub fn fold_decoder_norms(&self) -> Result<Self> {
        if self.by_norms && self.finetuned.is_none() {
            return self.fold_ranking_norms();
        }
        let chooses = matches!(
            self.architecture,
            Architecture::TopK { .. }
                | Architecture::AbsTopK { .. }
                | Architecture::GroupMax { .. }
                | Architecture::MatchingPursuit { .. }
        );
        if chooses {
            let reason =
                format!("folding in the decoder norms would change which latents {} selects", self.architecture);
            return Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into());
        }
        let folded = self.fold_finetuned()?;
        folded.times_norms(&folded.divisors()?, true)
    }

    /// Removes the multiplication of pre-activations by decoder norms, by scaling decoder rows to norm 1. Activations,
    /// thresholds and finetuned factors do not change.
    pub(super) fn fold_ranking_norms(&self) -> Result<Self> {
        if !self.by_norms {
            return Ok(self.clone());
        }
        self.check_encoder("the decoder norms")?;
        // Thresholds already refer to products of pre-activations and norms, so they are not scaled.
        let folded = self.times_norms(&self.divisors()?, false)?;
        Ok(Self { by_norms: false, computed: Arc::default(), ..folded })
    }

    /// Folds finetuned factors into the decoder. Activations do not change.
    pub(super) fn fold_finetuned(&self) -> Result<Self> {
        let Some(factors) = &self.finetuned else { return Ok(self.clone()) };
        // The factors would change the norms, so norms are folded first.
        if self.by_norms {
            return self.fold_ranking_norms()?.fold_finetuned();
        }
        self.check_encoder("the finetuned factors")?;
        let decoder = Matrix::made(wide(self.decoder()?) * columns(factors));
        Ok(Self { decoder, finetuned: None, computed: Arc::default(), ..self.clone() })
    }

    /// Folds the subtraction of `b_dec` into the encoder bias of a transcoder, because no transcoder format supports
    /// it. Activations do not change.
    pub(super) fn fold_center(&self) -> Result<Self> {
        if !self.centered || !self.is_transcoder() {
            return Ok(self.clone());
        }
        self.check_encoder("`b_dec`")?;
        let moved = self.decoder_bias.clone().unsqueeze::<2>().matmul(wide(self.encoder()?)).reshape([self.latents()]);
        let mut folded = Self { centered: false, computed: Arc::default(), ..self.clone() };
        folded.encoder_bias = match &mut folded.architecture {
            Architecture::Gated { gate_bias, log_scale } => {
                gate_bias.iter_mut().zip(moved.to_data().iter::<f32>()).for_each(|(bias, moved)| *bias -= moved);
                let scale = TensorData::new(log_scale.clone(), [log_scale.len()]);
                let scale = Tensor::<1>::from_data(scale, (&moved.device(), DType::F32)).exp();
                self.encoder_bias.clone() - moved * scale
            }
            _ => self.encoder_bias.clone() - moved,
        };
        Ok(folded)
    }

    /// Folds a constant scale of inputs into the weights. Activations do not change.
    ///
    /// # Errors
    /// [`FeatureError::Kind`] for matching pursuit, whose activations would change; also fails if the file cannot be
    /// read.
    pub(crate) fn fold_scale(&self) -> Result<Self> {
        let Normalization::Scale(Some(factor)) = self.normalization else { return Ok(self.clone()) };
        self.check_encoder("the scale of its inputs")?;
        // Ranking by norms depends on the scale of the norms, so they are folded first.
        if self.by_norms {
            return self.fold_ranking_norms()?.fold_scale();
        }
        let (encoder, decoder) = (wide(self.encoder()?) * factor, wide(self.decoder()?));
        if self.is_transcoder() {
            // A transcoder's output is not scaled, so `b_dec` would not match a scaled input.
            if self.centered {
                return self.fold_center()?.fold_scale();
            }
            let folded = self.with_matrices(encoder, decoder);
            return Ok(Self { normalization: Normalization::None, ..folded });
        }
        let folded = self.with_matrices(encoder, decoder / factor);
        Ok(Self {
            normalization: Normalization::None,
            decoder_bias: self.decoder_bias.clone() / factor,
            skip: self.skip()?.map(|skip| Matrix::made(wide(skip) / factor)),
            ..folded
        })
    }

    /// Fails for matching pursuit, where the decoder is also the encoder, so that folding would change both.
    fn check_encoder(&self, folded: &str) -> Result<()> {
        match self.architecture {
            Architecture::MatchingPursuit { .. } => {
                let reason = format!("folding in {folded} would change the activations of {}", self.architecture);
                Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into())
            }
            _ => Ok(()),
        }
    }

    /// Multiplies pre-activations by `norms`, and divides decoder rows by them.
    fn times_norms(&self, norms: &Tensor<1>, thresholds: bool) -> Result<Self> {
        let mut folded =
            self.with_matrices(wide(self.encoder()?) * rows(norms), wide(self.decoder()?) / columns(norms));
        folded.encoder_bias = self.encoder_bias.clone() * norms.clone();
        let scale = |numbers: &mut [f32]| {
            numbers.iter_mut().zip(norms.to_data().iter::<f32>()).for_each(|(number, norm)| *number *= norm);
        };
        match &mut folded.architecture {
            Architecture::JumpRelu { thresholds: numbers, .. } if thresholds => scale(numbers),
            Architecture::Gated { gate_bias, .. } => scale(gate_bias),
            _ => {}
        }
        Ok(folded)
    }

    fn with_matrices(&self, encoder: Tensor<2>, decoder: Tensor<2>) -> Self {
        let (encoder, decoder) = (Matrix::made(encoder), Matrix::made(decoder));
        Self { encoder, decoder, computed: Arc::default(), ..self.clone() }
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

/// Folds the factor of [`Normalization::Scale`] into the weights.
///
/// # Errors
/// Same as [`Dictionary::save`].
pub fn fold_scale(dictionary: &Dictionary) -> Result<Dictionary> {
    dictionary.fold_scale()
}
