//! Options of loading a model.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use hooklens_hooks::DType;

use hooklens_model::device::{Placement, check_element_type, check_numbers, default_device, multiplies_narrow};
use hooklens_model::error::{InputError, ProcessingError, Result};
use hooklens_model::processing::Processing;

/// Devices, element type and processing of a model to load. `()` stands for the defaults:
/// [`default_device`], `f32` arithmetic, weights as published.
///
/// ```
/// use hooklens::{LoadOptions, Processing, DType};
/// let options = LoadOptions::new().dtype(DType::BF16).process(Processing::standard());
/// ```
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Empty for the default device.
    devices: Vec<Device>,
    /// None for `f32` arithmetic on weights as the files hold them.
    dtype: Option<DType>,
    pub(crate) processing: Processing,
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) mmap: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) progress: Option<Progress>,
    trainable: bool,
}

/// Who is told how far loading is.
#[derive(Clone)]
pub(crate) struct Progress(Arc<dyn Fn(usize, usize) + Send + Sync>);

impl Progress {
    /// So many bytes of so many were read.
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
        }
    }
}

impl LoadOptions {
    /// [`default_device`], `f32` arithmetic, weights as published.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the weights go and the model runs. On a device with autodiff gradients are kept for them, as by
    /// [`LoadOptions::trainable`].
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

    /// Spreads a decoder's blocks over these devices, as evenly as they divide, in order; the embedding is on the
    /// first device, the final norm and unembedding on the last. Entries of caches live beside their blocks, and
    /// hooks see a point's tensor where its block is; [`Record::device`](crate::Record::device) gathers what is
    /// recorded.
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

    /// Element type to keep and compute in, whatever the files store.
    ///
    /// Unless told so, a model computes in `f32`. A decoder whose matrices are stored in 16 bits keeps them so on the
    /// CPU, where they lie in the mapped files if their layout allows it, and widens each number when it multiplies:
    /// results are those of `f32` weights, from half the memory. [`LoadOptions::trainable`] weights, and those that
    /// processing or an adapter changes, are widened.
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

    /// Steps that make weights easier to read without changing predictions.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let options = LoadOptions::new().process(Processing::standard());
    /// let folded = HookedTransformer::from_pretrained_with("embedded:ioi", options)?;
    /// // The weights differ, the model's predictions do not.
    /// let log_probs = |logits: Tensor<3>| burn::tensor::activation::log_softmax(logits, 2);
    /// let gap = log_probs(folded.forward("When Mary")?) - log_probs(model.forward("When Mary")?);
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// assert_ne!(folded.config().norm, model.config().norm);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn process(mut self, processing: Processing) -> Self {
        self.processing = processing;
        self
    }

    /// The folder of a LoRA adapter, as PEFT writes it, to merge into the weights.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let options = LoadOptions::new().adapter("my-lora");
    /// let told = HookedTransformer::from_pretrained_with("embedded:ioi", options);
    /// assert!(told.unwrap_err().to_string().contains("my-lora")); // there is no such folder here
    /// ```
    #[must_use]
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapter = Some(folder.into());
        self
    }

    /// Whether weight files are mapped into memory (they are, unless told otherwise). Loading is a matter of
    /// milliseconds then: weights that stay on the CPU in the files' own element type are never copied, and processes
    /// that load one model share them.
    ///
    /// But a mapped file must stay as it is while the model, or a tensor of it, lives. If a program writes into it, the
    /// weights change with it, unnoticed; if a program cuts it, as one that saves over it does, the operating system
    /// ends this process (SIGBUS) at the next touch of a weight behind the cut. A file that is replaced, by renaming a
    /// new one to its name or by deleting it first, does no harm: the old one stays until it is let go.
    ///
    /// With `false` weights are read into memory, and nothing that happens to the files after loading matters. It takes
    /// the memory of all weights, and the time to copy them.
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

    /// Holds a decoder's weights under so many bytes of memory, the process without them included: as many blocks as fit
    /// stay, each of the others is read from its mapped file when it is run, and let go of after. Slower, and never
    /// more; activations and caches come on top. Only weights that stay in the mapped files can be held so: see
    /// [`LoadOptions::dtype`].
    ///
    /// A model that is larger than memory runs without it too: then the system chooses what it lets go of.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// model.save_pretrained(folder)?;
    /// let options = LoadOptions::new().memory(1 << 20);
    /// let told = HookedTransformer::from_pretrained_with(folder.display().to_string(), options).unwrap_err();
    /// assert!(told.to_string().starts_with("the weights can't be held under 1.0 MB of memory"), "{told}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Tells how far loading is: bytes of the files' tensors that were read, and of all.
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

    /// Whatever the devices, with autodiff (`Device::autodiff`): gradients are kept for every weight, also where it was
    /// scaled, processed or merged with an adapter. A tied unembedding is a parameter of its own then, which begins as
    /// the embedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    /// let gradients = model.loss("When Mary and John went to the store")?.backward();
    /// let by_embedding = model.weights.embed.tokens.grad(&gradients); // [d_vocab, d_model]
    /// assert_eq!(by_embedding.map(|gradient| gradient.dims()), Some([61, 64]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn trainable(mut self) -> Self {
        self.trainable = true;
        self
    }

    /// The element type of activations.
    pub(crate) fn computes_in(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }

    /// Whether matrices of 16 bits may stay so beside activations of 32.
    pub(crate) fn keeps_narrow(&self, placement: &Placement) -> bool {
        self.dtype.is_none() && placement.devices().iter().all(multiplies_narrow)
    }

    /// Where the parts of the model go.
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

    /// An error if weights are to be processed, or blocks spread: only decoders can be.
    pub(crate) fn check_plain(&self, kind: &'static str) -> Result<()> {
        if !self.processing.is_none() {
            return Err(ProcessingError::Kind { kind }.into());
        }
        match self.placement()?.only() {
            Some(_) => Ok(()),
            None => Err(InputError::Spread { what: kind }.into()),
        }
    }
}
