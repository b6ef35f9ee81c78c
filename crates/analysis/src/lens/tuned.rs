//! The tuned lens (Belrose et al. 2023): an affine translator for each layer.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::DType;

use hooklens_loading::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, ProcessingError, Result};
use hooklens_model::model::HookedTransformer;

/// One affine map per layer, from the stream before it to the basis that the last norm reads:
/// `h + h Wᵀ + b` (Belrose et al. 2023).
///
/// ```
/// use hooklens::lens::TunedLens;
/// use hooklens::write_safetensors;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("params.safetensors");
/// // Translators that change nothing, in the package's format: `h + h 0 + 0`.
/// let device = model.device();
/// let weight = Activation::from(Tensor::<2>::zeros([64, 64], &device));
/// let bias = Activation::from(Tensor::<1>::zeros([64], &device));
/// let named = (0..4).flat_map(|at| [(format!("{at}.weight"), &weight), (format!("{at}.bias"), &bias)]);
/// write_safetensors(&path, named.collect::<Vec<_>>(), Default::default())?;
/// let lens = TunedLens::load(&path, &device)?;
/// assert_eq!(lens.n_layers(), 4);
/// let cache = model.record("When Mary and John", "*hook_resid_{pre,post}")?;
/// let analysis = model.analyze(&cache)?;
/// let gap = analysis.tuned_lens(&lens)?.logits().clone() - analysis.logit_lens(Per::Layer)?.logits().clone();
/// assert!(gap.abs().max().into_scalar::<f32>() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TunedLens {
    /// `[d_model, d_model]`, out first as PyTorch has it, and `[1, d_model]`.
    translators: Vec<(Tensor<2>, Tensor<2>)>,
}

impl TunedLens {
    /// Reads a safetensors file of the `tuned-lens` package's tensors, `0.weight`, `0.bias`,
    /// `1.weight`, ... (its own `params.pt` is converted by
    /// `safetensors.torch.save_file(torch.load("params.pt"), "params.safetensors")`).
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// use hooklens::lens::TunedLens;
    /// let told = TunedLens::load("no-such-lens.safetensors", &Device::flex()).unwrap_err().to_string();
    /// assert_eq!(told, "can't read no-such-lens.safetensors"); // why, its source says
    /// ```
    ///
    /// # Errors
    /// A file that can't be read, a tensor that is missing or of another shape.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        let files = WeightFiles::open(&[path.as_ref().to_path_buf()])?;
        // What the package's own state dict calls them, or a whole module's.
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
        // At least the first, or the error that it is missing.
        let translators = (0..layers.max(1)).map(translator).collect::<Result<_, LoadError>>()?;
        Ok(Self { translators })
    }

    /// Layers it has translators for.
    pub fn n_layers(&self) -> usize {
        self.translators.len()
    }

    /// An error for a model that it was not trained on, as far as that can be seen: of another shape, or with a centered
    /// stream. Nothing makes the translators fit that one: the mean that they read is gone.
    pub(super) fn check(&self, model: &HookedTransformer) -> Result<()> {
        let given = [self.translators.len(), self.translators[0].1.dims()[1]];
        let expected = [model.config().n_layers, model.config().d_model];
        if given != expected {
            let name = "the tuned lens [layer, d_model]".into();
            return Err(LoadError::Shape { name, expected: expected.to_vec(), given: given.to_vec() }.into());
        }
        match model.is_centered() {
            Some(true) => Err(ProcessingError::Centered { reader: "a tuned lens" }.into()),
            _ => Ok(()),
        }
    }

    /// The stream before a layer, translated; that after the last layer as it is.
    pub(super) fn translate(&self, layer: usize, stream: Tensor<3>) -> Tensor<3> {
        let Some((weight, bias)) = self.translators.get(layer) else { return stream };
        let dtype = stream.dtype();
        let (weight, bias) = (weight.clone().cast(dtype), bias.clone().cast(dtype));
        stream.clone() + stream.matmul(weight.transpose().unsqueeze()) + bias.unsqueeze()
    }
}
