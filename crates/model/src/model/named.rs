//! Access to weights by name.

use std::any::Any;
use std::collections::BTreeSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use hooklens_hooks::{Catalog, HookError, PointInfo, Selection};

use super::parts::Parts;
use super::weights::DecoderWeights;
use crate::error::{Result, WeightError};

/// All weights of a model, by TransformerLens name. This is a Burn module: on a device with autodiff
/// (`LoadOptions::trainable`), Burn's optimizers can train it.
///
/// Matrices are `[in, out]`, with all heads side by side: `blocks.0.attn.W_Q` is `[d_model, head * d_head]`, and
/// `blocks.0.attn.W_O` is `[head * d_head, d_model]`.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let values = model.weights().get::<2>("blocks.2.attn.W_V")?;
/// assert_eq!(values.dims(), [64, 64]);
/// assert_eq!(model.weights().names()[..2], ["embed.W_E", "pos_embed.W_pos"]);
/// println!("{} weights", model.weights().count());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Weights<P: Module = DecoderWeights> {
    pub(crate) parts: P,
}

impl<P: Parts> Weights<P> {
    /// Names of all weights.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let names = model.weights().names();
    /// assert!(names.iter().any(|name| name == "blocks.1.ln1.w"));
    /// assert!(!names.iter().any(|name| name.contains("mlp"))); // attention-only model
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn names(&self) -> Vec<String> {
        self.entries().into_iter().map(|entry| entry.name).collect()
    }

    /// Returns the weight called `name` as it is stored, or a dequantized copy in `f32` if it is stored in quantized
    /// blocks. On a device with autodiff, this is the tensor that a backward pass computes a gradient for. Layers may
    /// be negative: `blocks.-1.ln1.w`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    /// let gradients = model.loss("When Mary and John")?.backward();
    /// let by_norm = model.weights().get::<1>("ln_final.w")?.grad(&gradients);
    /// assert_eq!(by_norm.map(|gradient| gradient.dims()), Some([64]));
    /// let message = model.weights().get::<1>("ln_final.weight").unwrap_err().to_string();
    /// assert!(message.starts_with("no weight is called `ln_final.weight`"), "{message}");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WeightError::Unknown`] with the nearest names, [`HookError::Layer`] if the model has no such layer, or
    /// [`WeightError::Rank`] if the weight is not of rank `D`.
    pub fn get<const D: usize>(&self, name: &str) -> Result<Tensor<D>> {
        let entry = self.find(name)?;
        let found = match self.parts.dequantized(entry.id) {
            Some(matrix) => of_rank(matrix),
            None => {
                let mut look = Look { left: Some(entry.at), found: None };
                self.parts.visit(&mut look);
                look.found
            }
        };
        let rank = entry.shape.len();
        Ok(found.ok_or(WeightError::Rank { name: entry.name, rank, asked: D })?)
    }

    /// Replaces the weight called `name`. The value is moved to the old weight's device, and is trainable if the old
    /// weight was. A value computed from tracked tensors stays connected to them, so that gradients flow back to them
    /// through this weight.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let mut model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let before = model.forward("When Mary")?;
    /// let bias = model.weights().get::<1>("unembed.b_U")?;
    /// model.weights_mut().set("unembed.b_U", bias + 1.0)?;
    /// let gap = model.forward("When Mary")? - before - 1.0;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WeightError::Unknown`] with the nearest names, [`HookError::Layer`] if the model has no such layer, or
    /// [`WeightError::Shape`] if the value has a different shape than the weight.
    pub fn set<const D: usize>(&mut self, name: &str, value: Tensor<D>) -> Result<()> {
        let Entry { name, at, shape: expected, .. } = self.find(name)?;
        let given = value.dims().to_vec();
        if given != expected {
            return Err(WeightError::Shape { name, given, expected }.into());
        }
        self.parts = self.parts.clone().map(&mut Set { left: Some(at), value: Some(value) });
        Ok(())
    }

    /// Excludes weights from training. `names` is a name, a glob, or a list of names and globs.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let mut model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    /// model.weights_mut().no_grad(["*embed.*", "blocks.0.*"])?;
    /// let gradients = model.loss("When Mary and John")?.backward();
    /// let gradient = |name| Ok::<_, hooklens::Error>(model.weights().get::<2>(name)?.grad(&gradients));
    /// assert!(gradient("embed.W_E")?.is_none() && gradient("blocks.1.attn.W_Q")?.is_some());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WeightError::Unknown`] or [`WeightError::NoMatch`] with the nearest names, [`HookError::Layer`] if the model
    /// has no such layer, or [`HookError::BadPattern`] for an invalid glob.
    pub fn no_grad(&mut self, names: impl Into<Selection>) -> Result<()> {
        let entries = self.entries();
        let chosen = names.into().resolve(&catalog(&entries)).map_err(|error| renamed(error, entries.len()))?;
        let chosen = chosen.into_iter().map(|id| entries[id.index()].at).collect();
        self.parts = self.parts.clone().map(&mut Freeze { at: 0, chosen });
        Ok(())
    }

    /// Total number of elements in all weights.
    pub fn count(&self) -> usize {
        self.entries().iter().map(|entry| entry.shape.iter().product::<usize>()).sum()
    }

    fn find(&self, name: &str) -> Result<Entry> {
        let mut entries = self.entries();
        let id = catalog(&entries).find(name).map_err(|error| renamed(error, entries.len()))?;
        Ok(entries.swap_remove(id.index()))
    }

    /// All weights except empty ones, which stand for weights that a layer does not use.
    fn entries(&self) -> Vec<Entry> {
        let mut list = List { fields: Vec::new(), at: 0, found: Vec::new(), name_of: P::name_of };
        self.parts.visit(&mut list);
        list.found
    }
}

/// A weight of the model.
struct Entry {
    name: String,
    id: ParamId,
    /// Number of weights that Burn visits before this one.
    at: usize,
    shape: Vec<usize>,
}

/// Catalog of the weight names, for resolving selections.
fn catalog(entries: &[Entry]) -> Catalog {
    let layer = |entry: &Entry| entry.name.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok();
    let n_layers = entries.iter().filter_map(layer).max().map_or(0, |last| last + 1);
    let mut names = Catalog::builder(n_layers);
    for entry in entries {
        names.add(PointInfo::new(entry.name.as_str(), None, &[]));
    }
    names.build()
}

/// Converts a hook point lookup error to a weight lookup error.
fn renamed(error: HookError, count: usize) -> crate::error::Error {
    match error {
        HookError::UnknownPoint { name, nearest, .. } => WeightError::Unknown { name, count, nearest }.into(),
        HookError::NoMatch { pattern, nearest } => WeightError::NoMatch { pattern, nearest }.into(),
        other => other.into(),
    }
}

/// Changes the rank in the tensor's type from `E` to `D`; `None` if they differ.
pub(super) fn of_rank<const E: usize, const D: usize>(tensor: Tensor<E>) -> Option<Tensor<D>> {
    let tensor: Box<dyn Any> = Box::new(tensor);
    tensor.downcast().ok().map(|tensor| *tensor)
}

/// Counts down to the requested weight: returns whether no weights are `left` before it, and decrements `left`.
fn is_next(left: &mut Option<usize>) -> bool {
    let found = *left == Some(0);
    *left = left.and_then(|left| left.checked_sub(1));
    found
}

/// Lists all weights without reading any.
struct List {
    fields: Vec<String>,
    at: usize,
    found: Vec<Entry>,
    name_of: fn(&[&str]) -> String,
}

impl ModuleVisitor for List {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.lazy_shape().to_vec();
        if !shape.contains(&0) {
            let fields: Vec<&str> = self.fields.iter().map(String::as_str).collect();
            self.found.push(Entry { name: (self.name_of)(&fields), id: param.id, at: self.at, shape });
        }
        self.at += 1;
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.fields.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.fields.pop();
    }
}

/// Finds the value of a weight.
struct Look<const D: usize> {
    left: Option<usize>,
    found: Option<Tensor<D>>,
}

impl<const D: usize> ModuleVisitor for Look<D> {
    fn visit_float<const E: usize>(&mut self, param: &Param<Tensor<E>>) {
        if is_next(&mut self.left) {
            self.found = of_rank(param.val());
        }
    }
}

/// Replaces the value of a weight.
struct Set<const D: usize> {
    left: Option<usize>,
    value: Option<Tensor<D>>,
}

impl<const D: usize> ModuleMapper for Set<D> {
    fn map_float<const E: usize>(&mut self, param: Param<Tensor<E>>) -> Param<Tensor<E>> {
        if !is_next(&mut self.left) {
            return param;
        }
        match self.value.take().and_then(of_rank::<D, E>) {
            Some(value) if value.is_tracked() => Param::initialized(param.id, value),
            Some(value) => {
                let id = param.id;
                param.transform_for_load(value, id)
            }
            None => param,
        }
    }
}

/// Excludes weights from training.
struct Freeze {
    at: usize,
    chosen: BTreeSet<usize>,
}

impl ModuleMapper for Freeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let chosen = self.chosen.contains(&self.at);
        self.at += 1;
        if chosen { param.set_require_grad(false) } else { param }
    }
}
