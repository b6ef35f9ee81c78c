//! The tuned lens (Belrose et al. 2023): one affine translator per layer.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::DType;

use hooklens_loading::weight_files::{RawTensors, WeightFiles};
use hooklens_model::error::{LoadError, ProcessingError, Result};
use hooklens_model::model::HookedTransformer;
use hooklens_model::processing::is_centered;

/// A tuned lens (Belrose et al. 2023): one affine map per layer, `h + h Wᵀ + b`, from the stream before the layer to
/// the basis that the final norm expects.
///
/// ```
/// use hooklens::lens::TunedLens;
/// use hooklens::write_safetensors;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("params.safetensors");
/// // Identity translators in the package's format: `h + h 0 + 0`.
/// let device = model.device();
/// let weight = Activation::from(Tensor::<2>::zeros([64, 64], &device));
/// let bias = Activation::from(Tensor::<1>::zeros([64], &device));
/// let named = (0..4).flat_map(|at| [(format!("{at}.weight"), &weight), (format!("{at}.bias"), &bias)]);
/// write_safetensors(&path, named.collect::<Vec<_>>(), Default::default())?;
/// let lens = TunedLens::load(&path, &device)?;
/// let cache = model.record("When Mary and John", "*hook_resid_{pre,post}")?;
/// let analysis = model.analyze(&cache)?;
/// let gap = analysis.tuned_lens(&lens)?.logits - analysis.logit_lens(Per::Layer)?.logits;
/// assert!(gap.abs().max().into_scalar::<f32>() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TunedLens {
    /// Each layer's weight `[d_model, d_model]`, in PyTorch's layout with outputs first, and bias `[1, d_model]`.
    translators: Vec<(Tensor<2>, Tensor<2>)>,
}

impl TunedLens {
    /// Loads a safetensors file with the `tuned-lens` package's tensors, `0.weight`, `0.bias`, `1.weight`, ... Convert
    /// the package's own `params.pt` with `safetensors.torch.save_file(torch.load("params.pt"), "params.safetensors")`.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// use hooklens::lens::TunedLens;
    /// let message = TunedLens::load("no-such-lens.safetensors", &Device::flex()).unwrap_err().to_string();
    /// assert_eq!(message, "can't read no-such-lens.safetensors"); // the error's source gives the reason
    /// ```
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a tensor is missing or has the wrong shape.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        let files = WeightFiles::open(&[path.as_ref().to_path_buf()])?;
        // The prefix that tensors have if the state dict of the whole module was saved.
        let prefix = if files.info("layer_translators.0.weight").is_some() { "layer_translators." } else { "" };
        let read = |name: String, expected: &[usize]| -> Result<Tensor<2>, LoadError> {
            let data = files.read(&name, DType::F32)?;
            if data.shape().as_slice() != expected {
                return Err(LoadError::Shape { name, expected: expected.to_vec(), given: data.shape().to_vec() });
            }
            Ok(match expected {
                [_] => Tensor::<1>::from_data(data, device).unsqueeze(),
                _ => Tensor::<2>::from_data(data, device),
            })
        };
        let layers = (0..).take_while(|layer| files.info(&format!("{prefix}{layer}.weight")).is_some()).count();
        let first = format!("{prefix}0.weight");
        let width = files.info(&first).and_then(|info| info.shape.first().copied()).unwrap_or(0);
        let translator = |layer: usize| {
            if width == 0 {
                let given = files.info(&first).map(|info| info.shape.clone());
                return match given {
                    Some(given) => Err(LoadError::Shape { name: first.clone(), expected: vec![1, 1], given }),
                    None => Err(LoadError::MissingTensor { name: first.clone(), nearest: files.nearest(&first) }),
                };
            }
            let weight = read(format!("{prefix}{layer}.weight"), &[width, width])?;
            Ok((weight, read(format!("{prefix}{layer}.bias"), &[width])?))
        };
        // Reads at least layer 0, so that a file without translators is an error.
        let translators = (0..layers.max(1)).map(translator).collect::<Result<_, LoadError>>()?;
        Ok(Self { translators })
    }

    /// Fails if the lens was evidently not trained on this model: the dimensions differ, or the model's stream is
    /// centered and so lacks the mean that the translators read.
    pub(super) fn check(&self, model: &HookedTransformer) -> Result<()> {
        let given = [self.translators.len(), self.translators[0].1.dims()[1]];
        let expected = [model.config().n_layers(), model.config().d_model()];
        if given != expected {
            let name = "the tuned lens [layer, d_model]".into();
            return Err(LoadError::Shape { name, expected: expected.to_vec(), given: given.to_vec() }.into());
        }
        match is_centered(model) {
            Some(true) => Err(ProcessingError::Centered { reader: "a tuned lens" }.into()),
            _ => Ok(()),
        }
    }

    /// Applies a layer's translator to the stream before that layer. The stream after the last layer is returned
    /// unchanged.
    pub(super) fn translate(&self, layer: usize, stream: Tensor<3>) -> Tensor<3> {
        let Some((weight, bias)) = self.translators.get(layer) else { return stream };
        let dtype = stream.dtype();
        let (weight, bias) = (weight.clone().cast(dtype), bias.clone().cast(dtype));
        stream.clone() + stream.matmul(weight.transpose().unsqueeze()) + bias.unsqueeze()
    }
}
