//! Compares a model's activations with those of a reference implementation, point by point.
//!
//! A reference is a safetensors file with `tokens` `[batch, pos]` and optionally `attention_mask`; for encoders, also
//! `token_types`; for encoder-decoders, also `decoder_tokens` and `decoder_attention_mask`. The tensors to compare are
//! `logits` and any of the model's hook points, under their names. `scripts/reference_dump.py` writes one from a
//! Hugging Face model, and files written by `hooklens dump` work, too.
//!
//! ```
//! use hooklens::dump::Dump;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("reference.safetensors");
//! Dump::new("resid_post1").logits(Logits::All).run(&model, &[vec![0, 51, 59]], &file)?;
//! let half = LoadOptions::new().dtype(DType::BF16); // how much precision is lost?
//! let report = hooklens_cli::parity_check::compare("embedded:induction", half, &file)?;
//! assert!(report.worst().is_some_and(|worst| worst.relative() > 1e-4 && worst.relative() < 0.1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod reference;

use hooklens_loading::loading::FromPretrained;
use std::fmt;
use std::path::Path;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, Axis, Catalog, Record, ResolveOne, Selection};
use ndarray::ArrayD;

use hooklens_loading::loading::{LoadOptions, ModelConfig, inspect};
use hooklens_model::driver::{ForwardOptions, HookedModel};
use hooklens_model::encoder::{EncoderInput, HookedEncoder};
use hooklens_model::encoder_decoder::HookedEncoderDecoder;
use hooklens_model::error::{InputError, LoadError, Result};
use hooklens_model::model::{HookedTransformer, LoadReport, ModelWeights};
use reference::Reference;

/// Difference between one of the model's tensors and the reference's.
///
/// ```
/// use hooklens_cli::parity_check::Comparison;
/// let off = Comparison { name: "logits".into(), shape: vec![1, 3, 63], largest: 20.0, difference: 0.5 };
/// assert_eq!(off.relative(), 0.025);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Name of the hook point, or `logits`.
    pub name: String,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Largest magnitude in the reference tensor.
    pub largest: f32,
    /// Largest absolute difference; infinite if one side is infinite or NaN where the other is not.
    pub difference: f32,
}

impl Comparison {
    /// Largest difference relative to the largest magnitude in the reference.
    ///
    /// ```
    /// use hooklens_cli::parity_check::Comparison;
    /// let off = |difference| Comparison { name: "logits".into(), shape: vec![3], largest: 4.0, difference };
    /// assert_eq!((off(1.0).relative(), off(0.0).relative()), (0.25, 0.0));
    /// ```
    pub fn relative(&self) -> f32 {
        if self.difference == 0.0 { 0.0 } else { self.difference / self.largest.max(f32::MIN_POSITIVE) }
    }
}

/// Result of comparing a model with a reference.
///
/// ```
/// use hooklens_cli::parity_check::{Comparison, ParityReport};
/// let one = |name: &str, difference| {
///     Comparison { name: name.into(), shape: vec![2], largest: 1.0, difference }
/// };
/// let compared = vec![one("hook_embed", 0.0), one("resid", 0.1), one("logits", 0.2)];
/// let report = ParityReport { compared, ..ParityReport::default() };
/// assert_eq!(report.first_beyond(0.05).map(|first| first.name.as_str()), Some("resid")); // where they diverge
/// assert_eq!(report.worst().map(|worst| worst.name.as_str()), Some("logits"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParityReport {
    /// All compared tensors in firing order, with the logits last.
    pub compared: Vec<Comparison>,
    /// How the model was loaded, such as with rounded inputs.
    pub load_report: LoadReport,
}

impl ParityReport {
    /// The tensor with the largest relative difference.
    ///
    /// ```
    /// use hooklens_cli::parity_check::ParityReport;
    /// assert!(ParityReport::default().worst().is_none());
    /// ```
    pub fn worst(&self) -> Option<&Comparison> {
        self.compared.iter().max_by(|a, b| a.relative().total_cmp(&b.relative()))
    }

    /// The first tensor, in firing order, that differs by more than `tolerance`. This is where the computations
    /// diverge.
    ///
    /// ```
    /// use hooklens_cli::parity_check::{Comparison, ParityReport};
    /// let off = Comparison { name: "logits".into(), shape: vec![3], largest: 4.0, difference: 1.0 };
    /// let report = ParityReport { compared: vec![off], ..ParityReport::default() };
    /// assert!(report.first_beyond(0.2).is_some() && report.first_beyond(0.3).is_none());
    /// ```
    pub fn first_beyond(&self, tolerance: f32) -> Option<&Comparison> {
        self.compared.iter().find(|one| one.relative() > tolerance || !one.relative().is_finite())
    }
}

impl fmt::Display for ParityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.compared.iter().map(|one| one.name.len()).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>10}  {:>10}  {:>10}  shape", "", "relative", "absolute", "largest")?;
        for one in &self.compared {
            let Comparison { name, shape, largest, difference } = one;
            let relative = one.relative();
            writeln!(f, "{name:width$}  {relative:>10.2e}  {difference:>10.2e}  {largest:>10.2e}  {shape:?}")?;
        }
        Ok(())
    }
}

/// Runs a model on a reference's tokens and compares every tensor that the reference contains. Values at padding are
/// ignored.
///
/// # Errors
/// Fails if the model or file can't be loaded; [`LoadError::Reference`] if the file has no tokens or nothing to
/// compare, or if a tensor's shape differs from the model's; [`HookError`](hooklens_hooks::HookError) if a tensor's
/// name is not a hook point of the model.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::dump::Dump;
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("reference.safetensors");
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// Dump::new("*hook_resid_post").run(&model, &[vec![1, 2, 3]], &file)?;
/// let report = hooklens_cli::parity_check::compare("embedded:induction", LoadOptions::new(), &file)?;
/// assert!(report.first_beyond(1e-6).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compare(model: impl AsRef<str>, options: LoadOptions, reference: impl AsRef<Path>) -> Result<ParityReport> {
    let (name, reference) = (model.as_ref(), Reference::read(reference.as_ref())?);
    let tokens = reference.tokens("tokens", "attention_mask")?;
    let points = reference.points();
    match inspect(name)?.config {
        ModelConfig::Decoder(_) => {
            let model = HookedTransformer::from_pretrained_with(name, options)?;
            let record = record(model.catalog(), &points)?;
            let output = model.run(&tokens, ForwardOptions::new().record(record))?;
            compared(&reference, &output.cache, output.logits, model.load_report())
        }
        ModelConfig::Encoder(..) => {
            let model = HookedEncoder::from_pretrained_with(name, options)?;
            let record = record(model.catalog(), &points)?;
            let input = EncoderInput::from(&tokens);
            let input = match reference.ids("token_types")? {
                Some(types) => input.token_types(types),
                None => input,
            };
            let output = model.run(input, ForwardOptions::new().record(record))?;
            compared(&reference, &output.cache, output.logits, model.load_report())
        }
        ModelConfig::EncoderDecoder(_) => {
            let model = HookedEncoderDecoder::from_pretrained_with(name, options)?;
            let record = record(model.catalog(), &points)?;
            let written = reference.tokens("decoder_tokens", "decoder_attention_mask")?;
            let output = model.run((&tokens, &written), ForwardOptions::new().record(record))?;
            compared(&reference, &output.cache, output.logits, model.load_report())
        }
    }
}

/// Records these points, or fails if one does not exist.
fn record(catalog: &Catalog, points: &[String]) -> Result<Record> {
    for point in points {
        Selection::from(point).resolve_one(catalog)?;
    }
    Ok(if points.is_empty() { Record::default() } else { Record::new(points.to_vec()) })
}

fn compared(
    reference: &Reference,
    cache: &ActivationCache,
    logits: Option<Tensor<3>>,
    load_report: &LoadReport,
) -> Result<ParityReport> {
    let mut compared = Vec::new();
    for (name, given) in cache.iter() {
        compared.push(reference.compare(name, &given.to_ndarray()?, cache.axes(name)?)?);
    }
    if reference.holds("logits") {
        let logits = logits.ok_or(InputError::NoHead { head: "token" })?;
        let axes: &[Axis] = &[Axis::Batch, Axis::Pos, Axis::Choice];
        compared.push(reference.compare("logits", &Activation::from(logits).to_ndarray()?, axes)?);
    }
    if compared.is_empty() {
        let reason = "it contains neither `logits` nor a hook point".to_string();
        return Err(LoadError::Reference { path: reference.path.clone(), reason }.into());
    }
    Ok(ParityReport { compared, load_report: load_report.clone() })
}

/// Largest difference and largest expected magnitude, over the elements selected by `counts`.
fn distance(given: &ArrayD<f32>, expected: &ArrayD<f32>, counts: impl Fn(&[usize]) -> bool) -> (f32, f32) {
    let (mut difference, mut largest) = (0f32, 0f32);
    for ((place, a), b) in given.indexed_iter().zip(expected) {
        if !counts(ndarray::Dimension::slice(&place)) {
            continue;
        }
        if a.is_finite() && b.is_finite() {
            difference = difference.max((a - b).abs());
            largest = largest.max(b.abs());
        } else if a != b {
            difference = f32::INFINITY;
        }
    }
    (difference, largest)
}
