//! Sparse autoencoders and transcoders.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};
use hooklens::features::{Architecture, Dictionary as Latents, Opened, SpliceDictionary, Training, TrainingRun};
use hooklens::{Activation, Error, HookedModel};
use hooklens_features::summary;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::enter::{check_signals, end_run, enter};
use crate::model::Model;
use crate::show::{Bundle, bundle};

/// A sparse autoencoder or a transcoder.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Dictionary {
    dictionary: Latents,
}

/// Applies a function of tensors of any rank to an array.
macro_rules! at_rank {
    ($array:expr, |$tensor:ident| $body:expr) => {{
        let activation = $array.activation();
        let made: hooklens::Result<Activation> = match activation.shape().len() {
            1 => activation.to_tensor::<1>().map_err(Error::from).and_then(|$tensor| Ok($body?.into())),
            2 => activation.to_tensor::<2>().map_err(Error::from).and_then(|$tensor| Ok($body?.into())),
            3 => activation.to_tensor::<3>().map_err(Error::from).and_then(|$tensor| Ok($body?.into())),
            _ => activation.to_tensor::<4>().map_err(Error::from).and_then(|$tensor| Ok($body?.into())),
        };
        made
    }};
}

#[pymethods]
impl Dictionary {
    /// Opens a dictionary of any published format: a folder, a file, or an embedded one.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let dictionary = enter(py, || Latents::open(&path))?;
        Ok(Self { dictionary })
    }

    /// Name of the dictionary.
    #[getter]
    fn name(&self) -> String {
        self.dictionary.name().to_string()
    }

    /// Number of latents.
    #[getter]
    fn d_sae(&self) -> usize {
        self.dictionary.latents()
    }

    /// Width of the input.
    #[getter]
    fn d_in(&self) -> usize {
        self.dictionary.d_in()
    }

    /// Name of the hook point that the dictionary reads, if its files record it.
    #[getter]
    fn hook_name(&self) -> Option<String> {
        self.dictionary.metadata().reads.clone()
    }

    /// Activations of the latents, `[.., d_sae]`.
    fn encode(&self, py: Python<'_>, x: &Array) -> PyResult<Array> {
        enter(py, || Array::shared(&at_rank!(x, |tensor| self.dictionary.encode(tensor))?))
    }

    /// The reconstruction from activations, `[.., d_in]`.
    fn decode(&self, py: Python<'_>, acts: &Array) -> PyResult<Array> {
        enter(py, || Array::shared(&at_rank!(acts, |tensor| self.dictionary.decode(tensor))?))
    }

    /// The reconstruction of an input, `[.., d_in]`.
    fn forward(&self, py: Python<'_>, x: &Array) -> PyResult<Array> {
        enter(py, || Array::shared(&at_rank!(x, |tensor| self.dictionary.forward(tensor))?))
    }

    /// What a latent adds to the reconstruction per unit of activation, `[d_in]`.
    fn direction(&self, py: Python<'_>, latent: usize) -> PyResult<Array> {
        enter(py, || Array::shared(&self.dictionary.direction(latent)?.into()))
    }

    /// SAELens's name of the architecture.
    #[getter]
    fn architecture(&self) -> &'static str {
        summary(&self.dictionary).architecture
    }

    /// Thresholds of a JumpReLU dictionary, `[d_sae]`.
    #[getter]
    fn threshold(&self, py: Python<'_>) -> PyResult<Option<Array>> {
        let Architecture::JumpRelu { thresholds, .. } = self.dictionary.architecture() else { return Ok(None) };
        let values = TensorData::new(thresholds.clone(), [thresholds.len()]);
        enter(py, || Array::shared(&Tensor::<1>::from_data(values, &Device::flex()).into())).map(Some)
    }

    /// One of SAELens's weights: `W_enc`, `[d_in, d_sae]`; `b_enc`, `[d_sae]`; `W_dec`, `[d_sae, d_in]`; or `b_dec`,
    /// `[d_in]`.
    fn weight(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        enter(py, || {
            let weights = self.dictionary.weights()?;
            let activation: Activation = match name {
                "W_enc" => weights.encoder.into(),
                "b_enc" => weights.encoder_bias.into(),
                "W_dec" => weights.decoder.into(),
                "b_dec" => weights.decoder_bias.into(),
                _ => {
                    return Err(Error::Other(
                        format!("the weight must be W_enc, b_enc, W_dec or b_dec, not {name:?}").into(),
                    ));
                }
            };
            Array::shared(&activation)
        })
    }

    /// A copy of the dictionary. `error_term` says whether the reconstruction error is added where the copy is spliced
    /// into a model.
    fn with_error_term(&self, error_term: bool) -> Self {
        Self { dictionary: self.dictionary.clone().with_error_term(error_term) }
    }

    /// Writes SAELens's format.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        enter(py, || self.dictionary.save(&folder))
    }

    fn mimebundle(&self) -> PyResult<Bundle> {
        bundle(&self.dictionary)
    }
}

/// Explained variance, mean number of active latents, and fraction of dead latents, on tokens after the training data.
type HeldOut = Option<(f64, f64, f64)>;

#[pymethods]
impl Model {
    /// A model with a dictionary spliced in. The dictionary's latents become hook points.
    fn splice(&self, py: Python<'_>, dictionary: &Dictionary) -> PyResult<Self> {
        let model = self.shared();
        Ok(Self::new(enter(py, || model.splice_dictionary(&dictionary.dictionary))?))
    }

    /// Trains a sparse autoencoder on activations of the model on prompts of token ids.
    #[pyo3(signature = (prompts, hook_name, d_sae, *, k, tokens, batch_size, learning_rate=None, seed=0, progress=None))]
    #[allow(clippy::too_many_arguments)]
    fn train_dictionary(
        &self,
        py: Python<'_>,
        prompts: Vec<Vec<u32>>,
        hook_name: &str,
        d_sae: usize,
        k: f64,
        tokens: usize,
        batch_size: usize,
        learning_rate: Option<f32>,
        seed: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Dictionary, HeldOut)> {
        let model = self.shared();
        let mut training =
            Training::autoencoder(hook_name, d_sae).k(k).tokens(tokens).batch_size(batch_size).seed(seed);
        if let Some(rate) = learning_rate {
            training = training.learning_rate(rate);
        }
        let trained = enter(py, || {
            let bos = model.tokenizer().ok().and_then(|tokenizer| tokenizer.bos());
            let run = TrainingRun::new([training]).exclude_tokens(bos);
            run.on_model(&model, &prompts, |_, step| {
                let reported = Python::attach(|py| match &progress {
                    Some(progress) => progress.call1(py, (step.tokens, step.explained_variance, step.l0)).map(drop),
                    None => Ok(()),
                });
                if let Err(raised) = reported {
                    end_run(raised);
                }
                check_signals();
            })
        })?;
        let Some(first) = trained.into_iter().next() else {
            return Err(PyTypeError::new_err("training returned no dictionary"));
        };
        let held_out = first.held_out.first().map(|own| (own.explained_variance, own.l0, own.dead));
        match first.dictionary {
            Opened::Dictionary(dictionary) => Ok((Dictionary { dictionary }, held_out)),
            _ => Err(PyTypeError::new_err("training returned transcoders of several layers; expected one dictionary")),
        }
    }
}
