//! Options for loading a model.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use hooklens_hooks::DType;

use hooklens_model::device::{Placement, check_element_type, check_numbers, default_device, multiplies_narrow};
use hooklens_model::error::{InputError, ProcessingError, Result};
use hooklens_model::processing::{self, Processing};

/// Options for loading a model: devices, element type, processing and more. The defaults are [`default_device`], `f32`
/// arithmetic, and weights as published.
///
/// ```
/// use hooklens::{LoadOptions, Processing, DType};
/// let options = LoadOptions::new().dtype(DType::BF16).process(Processing::standard());
/// ```
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Devices; empty for the default device.
    devices: Vec<Device>,
    /// Element type; `None` means `f32` arithmetic on weights as stored.
    dtype: Option<DType>,
    pub(crate) processing: Processing,
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) mmap: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) progress: Option<Progress>,
    trainable: bool,
    quantizes_activations: bool,
    bf16_products: bool,
}

/// How the inputs of products are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputRounding {
    /// To 8 bits, for products with block-quantized weights.
    EightBits,
    /// To `bf16`, for products with `bf16` weights.
    Bf16,
}

impl InputRounding {
    /// Name of the option in error messages.
    pub(crate) fn option(self) -> &'static str {
        match self {
            InputRounding::EightBits => "quantize_activations",
            InputRounding::Bf16 => "bf16_products",
        }
    }

    /// The error for models without weights whose products could round their inputs.
    pub(crate) fn not_applicable(self) -> InputError {
        let model = match self {
            InputRounding::EightBits => "a model without block-quantized linear layers",
            InputRounding::Bf16 => "a model without bf16 linear layers",
        };
        InputError::NoSuchOption { option: self.option(), model }
    }

    /// The note for the load report.
    pub(crate) fn note(self) -> &'static str {
        match self {
            InputRounding::EightBits => {
                "the inputs of products with quantized weights are rounded to 8 bits, as in llama.cpp; gradients are \
                 those of the exact products"
            }
            InputRounding::Bf16 => {
                "the inputs of products with bf16 weights are rounded to bf16; gradients are those of the exact products"
            }
        }
    }
}

/// Callback for loading progress.
#[derive(Clone)]
pub(crate) struct Progress(Arc<dyn Fn(usize, usize) + Send + Sync>);

impl Progress {
    /// Reports that `done` of `total` bytes were read.
    pub(super) fn tell(&self, done: usize, total: usize) {
        (self.0)(done, total);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            dtype: None,
            processing: Processing::none(),
            adapter: None,
            mmap: true,
            memory: None,
            progress: None,
            trainable: false,
            quantizes_activations: false,
            bf16_products: false,
        }
    }
}

impl LoadOptions {
    /// Creates the default options: [`default_device`], `f32` arithmetic, weights as published.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the device for the weights and computation. A device with autodiff tracks gradients for every weight, as
    /// with [`LoadOptions::trainable`].
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = LoadOptions::new().device(&Device::flex()); // this machine's CPU
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", options)?;
    /// assert_eq!(model.device(), Device::flex());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.devices = vec![device.clone()];
        self
    }

    /// Spreads a decoder's blocks over several devices, in order and as evenly as possible. The embedding is on the
    /// first device; the final norm and unembedding are on the last. KV cache entries are stored on their block's
    /// device, and hooks receive tensors on the device of their block;
    /// [`Record::device`](hooklens_hooks::Record::device) collects recorded activations on one device.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// // Two devices; here both are this machine's CPU.
    /// let options = LoadOptions::new().devices(&[Device::flex(), Device::flex()]);
    /// let spread = HookedTransformer::from_pretrained_with("embedded:ioi", options)?;
    /// let gap = spread.forward("When Mary")? - model.forward("When Mary")?;
    /// assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Sets the element type for weights and computation, whatever the files store.
    ///
    /// By default, a model computes in `f32`. On the CPU, a decoder whose matrices are stored in 16 bits keeps them in
    /// 16 bits, in the mapped file if the layout allows, and widens each element during multiplication. Results are the
    /// same as with `f32` weights, at half the memory. [`LoadOptions::trainable`] weights, and weights changed by
    /// processing or an adapter, are widened.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = LoadOptions::new().dtype(DType::BF16);
    /// let half = HookedTransformer::from_pretrained_with("embedded:induction", options)?;
    /// let stream = half.record("king drum", hook::resid_post(0))?;
    /// assert_eq!(stream.activation("resid_post0")?.dtype(), DType::BF16.burn());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the processing applied to the weights, which makes them easier to interpret without changing predictions.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let options = LoadOptions::new().process(Processing::standard());
    /// let folded = HookedTransformer::from_pretrained_with("embedded:ioi", options)?;
    /// // The weights differ, but the model's predictions do not.
    /// let log_probs = |logits: Tensor<3>| burn::tensor::activation::log_softmax(logits, 2);
    /// let gap = log_probs(folded.forward("When Mary")?) - log_probs(model.forward("When Mary")?);
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// assert_ne!(folded.config().norm(), model.config().norm());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn process(mut self, processing: Processing) -> Self {
        self.processing = processing;
        self
    }

    /// Merges a LoRA adapter into the weights, from a folder in PEFT's format.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let options = LoadOptions::new().adapter("my-lora");
    /// let message = HookedTransformer::from_pretrained_with("embedded:ioi", options).unwrap_err().to_string();
    /// assert!(message.contains("my-lora")); // there is no such folder here
    /// ```
    #[must_use]
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapter = Some(folder.into());
        self
    }

    /// Sets whether weight files are memory-mapped (default `true`). Loading then takes milliseconds: weights that stay
    /// on the CPU in the file's element type are never copied, and processes that load the same model share them.
    ///
    /// A mapped file must not be modified while the model or any of its tensors is alive. If a program writes to the
    /// file, the weights silently change; if a program truncates it, as saving over it does, the operating system kills
    /// this process (SIGBUS) at the next access past the end. Replacing the file, by renaming a new one over it or by
    /// deleting it first, is safe: the old contents remain until they are no longer in use.
    ///
    /// With `false`, weights are read into memory and later changes to the files have no effect. This needs memory for
    /// all weights and time to copy them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// model.save_pretrained(folder)?;
    /// let options = LoadOptions::new().mmap(false);
    /// let copy = HookedTransformer::from_pretrained_with(folder.display().to_string(), options)?;
    /// std::fs::write(folder.join("model.safetensors"), "something else")?;
    /// assert_eq!(copy.fingerprint()?, model.fingerprint()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn mmap(mut self, mmap: bool) -> Self {
        self.mmap = mmap;
        self
    }

    /// Limits the memory used by a decoder's weights to `bytes`. As many blocks as fit stay in memory; each of the
    /// others is read from its mapped file when it runs and released afterwards. This is slower, but the limit is never
    /// exceeded. Activations, caches and the rest of the process are not counted. Only weights that stay in the mapped
    /// files can be limited; see [`LoadOptions::dtype`].
    ///
    /// A model larger than memory also runs without a limit: the operating system then chooses which pages to evict.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// model.save_pretrained(folder)?;
    /// let options = LoadOptions::new().memory(1 << 20);
    /// let error = HookedTransformer::from_pretrained_with(folder.display().to_string(), options).unwrap_err();
    /// assert!(error.to_string().starts_with("the memory limit of 1.0 MB is too low"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets a progress callback, called with the bytes of tensors read so far and the total.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let options = LoadOptions::new().progress(|done, total| eprint!("\r{}%", 100 * done / total));
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", options)?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn progress(mut self, tell: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        self.progress = Some(Progress(Arc::new(tell)));
        self
    }

    /// Tracks gradients for every weight, including weights that were scaled, processed or merged with an adapter. Any
    /// device is replaced by its autodiff version (`Device::autodiff`). A tied unembedding becomes a separate
    /// parameter, initialized from the embedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    /// let gradients = model.loss("When Mary and John went to the store")?.backward();
    /// let by_embedding = model.weights().get::<2>("embed.W_E")?.grad(&gradients); // [d_vocab, d_model]
    /// assert_eq!(by_embedding.map(|gradient| gradient.dims()), Some([61, 64]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn trainable(mut self) -> Self {
        self.trainable = true;
        self
    }

    /// Rounds the inputs of products with block-quantized weights to 8 bits, as llama.cpp does, so that a GGUF model
    /// has the same activations as in llama.cpp. By default, products are exact. Each block of 32 values, or of 256 for
    /// `K` formats, is rounded to a scale times integers from -127 to 127. Everything else is computed in `f32`.
    /// Gradients are computed with the exact products, and a weight that is replaced later is multiplied exactly.
    ///
    /// Products with one to eight input rows are also faster than exact products. `hooklens parity --dtype q8` measures
    /// the difference from a reference.
    ///
    /// # Errors
    /// Loading fails with [`InputError::Conflict`] or [`InputError::NoSuchOption`] unless the model is a decoder with
    /// block-quantized linear layers that stay quantized: on the CPU, without `dtype`, `process` or `trainable`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let options = LoadOptions::new().quantize_activations();
    /// let refused = HookedTransformer::from_pretrained_with("embedded:ioi", options).unwrap_err();
    /// assert!(refused.to_string().contains("a model without block-quantized linear layers"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn quantize_activations(mut self) -> Self {
        self.quantizes_activations = true;
        self
    }

    /// Rounds the inputs of products with `bf16` weights to `bf16`, so that the products can use the CPU's `bf16`
    /// instructions (AVX-512 BF16), which are faster. Sums, and everything else, are computed in `f32`, unlike with
    /// [`LoadOptions::dtype`]. By default, inputs are not rounded. Gradients are computed with the exact products, and a
    /// weight that is replaced by one in `f32` is multiplied exactly.
    ///
    /// `hooklens parity --dtype bf16-products` measures the difference from a reference.
    ///
    /// # Errors
    /// Loading fails with [`InputError::Conflict`] or [`InputError::NoSuchOption`] unless the model is a decoder with
    /// `bf16` linear layers that stay as stored: on the CPU, without `dtype`, `process`, `trainable` or
    /// [`LoadOptions::quantize_activations`].
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let options = LoadOptions::new().bf16_products();
    /// let refused = HookedTransformer::from_pretrained_with("embedded:ioi", options).unwrap_err();
    /// assert!(refused.to_string().contains("a model without bf16 linear layers"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn bf16_products(mut self) -> Self {
        self.bf16_products = true;
        self
    }

    /// How the inputs of products are rounded; `None` if they are not.
    fn rounding(&self) -> Option<InputRounding> {
        match (self.quantizes_activations, self.bf16_products) {
            (true, _) => Some(InputRounding::EightBits),
            (false, true) => Some(InputRounding::Bf16),
            (false, false) => None,
        }
    }

    /// How the inputs of products are rounded. Fails if they should be rounded but weights would not stay as stored.
    /// `narrow` says whether the devices and the element type allow weights to stay as stored.
    pub(crate) fn checked_rounding(&self, narrow: bool) -> Result<Option<InputRounding>> {
        let Some(rounding) = self.rounding() else { return Ok(None) };
        let conflict = |with, reason| Err(InputError::Conflict { option: rounding.option(), with, reason }.into());
        match self {
            Self { bf16_products: true, quantizes_activations: true, .. } => {
                conflict(InputRounding::Bf16.option(), "inputs are rounded in one way only")
            }
            Self { dtype: Some(_), .. } => conflict("dtype", "it requires f32 arithmetic; leave `dtype` out"),
            Self { trainable: true, .. } => conflict("trainable", "trainable weights are converted to f32"),
            _ if !processing::is_none(&self.processing) => {
                conflict("process", "processed weights are converted to f32")
            }
            _ if !narrow => conflict("device", "only the CPU multiplies weights as they are stored"),
            _ => Ok(Some(rounding)),
        }
    }

    /// Element type of activations.
    pub(crate) fn computes_in(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }

    /// Whether 16-bit matrices may stay in 16 bits while activations are `f32`.
    pub(crate) fn keeps_narrow(&self, placement: &Placement) -> bool {
        self.dtype.is_none() && placement.devices().iter().all(multiplies_narrow)
    }

    /// Devices for the parts of the model.
    pub(crate) fn placement(&self) -> Result<Placement> {
        let placement = match Placement::over(&self.devices) {
            Some(placement) => placement,
            None => Placement::on(default_device()?),
        };
        for device in placement.devices() {
            check_element_type(&device, self.computes_in().burn())?;
            check_numbers(&device)?;
        }
        Ok(if self.trainable { placement.autodiff() } else { placement })
    }

    /// Fails if the options process weights or spread blocks over devices, which only decoders support.
    pub(crate) fn check_plain(&self, kind: &'static str) -> Result<()> {
        if let Some(rounding) = self.rounding() {
            return Err(InputError::NoSuchOption { option: rounding.option(), model: kind }.into());
        }
        if !processing::is_none(&self.processing) {
            return Err(ProcessingError::Kind { kind }.into());
        }
        match self.placement()?.only() {
            Some(_) => Ok(()),
            None => Err(InputError::Spread { what: kind }.into()),
        }
    }
}
