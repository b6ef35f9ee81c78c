//! [`Components`]: labeled summands of the residual stream.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::made_of::MadeOf;
use super::stage::{Reader, ResolvedStage};
use super::term::Term;
use crate::error::AnalysisError;

/// Labeled vectors `[component, batch, pos, d_model]`, stored as factors and multiplied out only on request.
///
/// Created by the methods of [`Analysis`](super::Analysis).
///
/// ```
/// use hooklens::activations::Stage;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", "*hook_z")?;
/// let heads = model.analyze(&cache)?.stack_head_results(Stage::Before(2))?; // four heads in each of two layers
/// assert_eq!((heads.labels().len(), heads.labels()[5].as_str()), (8, "L1H1"));
/// assert_eq!(heads.vector("L1H1")?.dims(), [1, 5, 64]);
/// let first_layer = heads.filter(|label| label.starts_with("L0"))?;
/// assert_eq!(first_layer.vectors().dims(), [4, 1, 5, 64]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Components {
    labels: Vec<String>,
    terms: Vec<Term>,
    pub(super) place: ResolvedStage,
    norm: Option<FrozenNorm>,
    pub(super) made_of: Arc<MadeOf>,
    /// Zeros with the shape of one component, returned as the sum of no components.
    zeros: Tensor<3>,
}

/// A norm layer whose scale is frozen at the recorded value, which makes the layer linear.
#[derive(Debug, Clone)]
pub(super) struct FrozenNorm {
    /// `[batch, pos, 1]`
    pub(super) scale: Option<Tensor<3>>,
    pub(super) centers: bool,
    /// `[d_model]`
    pub(super) weight: Option<Tensor<1>>,
}

impl Components {
    pub(super) fn new(place: ResolvedStage, made_of: &Arc<MadeOf>, zeros: Tensor<3>) -> Self {
        Self { labels: Vec::new(), terms: Vec::new(), place, norm: None, made_of: made_of.clone(), zeros }
    }

    /// An empty set of components for the same rows and positions.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.place, &self.made_of, self.zeros.clone())
    }

    pub(super) fn push(&mut self, label: impl Into<String>, vector: Tensor<3>) {
        self.labels.push(label.into());
        self.terms.push(Term::Vector(vector));
    }

    pub(super) fn extend(&mut self, labels: impl IntoIterator<Item = String>, term: Term) {
        self.labels.extend(labels);
        self.terms.push(term);
        debug_assert_eq!(self.labels.len(), self.terms.iter().map(Term::count).sum::<usize>());
    }

    pub(super) fn normed(mut self, norm: FrozenNorm) -> Result<Self, AnalysisError> {
        if self.norm.is_some() {
            return Err(AnalysisError::Normed);
        }
        self.norm = Some(norm);
        Ok(self)
    }

    /// Moves the components to the final stage, where the final norm reads them.
    pub(super) fn read_at_the_end(mut self, layers: usize) -> Self {
        self.place = ResolvedStage { layers, attn: false, reader: Reader::Unembed };
        self
    }

    /// Whether a norm was applied.
    pub(super) fn is_normed(&self) -> bool {
        self.norm.is_some()
    }

    /// Name of each component: `embed`, `0_attn_out`, `L0H3`, `L1N17`, `bias`, ...
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// All component vectors, `[component, batch, pos, d_model]`. For neurons this takes a lot of memory;
    /// [`Components::project`] computes projections without materializing the vectors.
    pub fn vectors(&self) -> Tensor<4> {
        if self.terms.is_empty() {
            let [batch, pos, d_model] = self.shape();
            return Tensor::empty([0, batch, pos, d_model], (&self.zeros.device(), self.zeros.dtype()));
        }
        let vectors = Tensor::cat(self.terms.iter().map(Term::vectors).collect(), 0);
        match &self.norm {
            Some(norm) => norm.apply(vectors),
            None => vectors,
        }
    }

    /// The vector of one component, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let cache = model.record("When Mary and John", "*hook_z")?;
    /// let heads = model.analyze(&cache)?.stack_head_results(hooklens::activations::Stage::Final)?;
    /// assert_eq!(heads.vector("L3H0")?.dims(), [1, 5, 64]);
    /// let message = heads.vector("L9H0").err().map(|error| error.to_string());
    /// assert!(message.is_some_and(|message| message.starts_with("no component is named `L9H0`")));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::UnknownComponent`] if no component has this label.
    pub fn vector(&self, label: &str) -> Result<Tensor<3>, AnalysisError> {
        let one = self.filter(|own| own == label);
        let one =
            one.map_err(|_| AnalysisError::UnknownComponent { label: label.into(), labels: self.labels.clone() })?;
        Ok(one.vectors().narrow(0, 0, 1).squeeze_dim(0))
    }

    /// The sum of all components, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let cache = model.record("When Mary and John", Record::all())?;
    /// let heads = model.analyze(&cache)?.stack_head_results(hooklens::activations::Stage::Before(1))?;
    /// // Layer 0's heads and its output bias sum to its attention output.
    /// let sum = heads.sum() + model.stacked::<2>("b_O")?.narrow(0, 0, 1).unsqueeze();
    /// assert!((sum - cache.get(hook::attn_out(0))?).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn sum(&self) -> Tensor<3> {
        let sum = self.terms.iter().map(Term::sum).reduce(|sum, next| sum + next);
        let sum = sum.unwrap_or_else(|| self.zeros.clone());
        match &self.norm {
            Some(norm) => norm.apply(sum.unsqueeze_dim(0)).squeeze_dim(0),
            None => sum,
        }
    }

    /// Projects each component onto a direction without materializing the vectors.
    ///
    /// # Shapes
    /// - direction: `[batch or 1, pos or 1, d_model]`
    /// - output: `[component, batch, pos]`
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let cache = model.record("When Mary and John", Record::all())?;
    /// let neurons = model.analyze(&cache)?.stack_neuron_results(hooklens::activations::Stage::Final)?;
    /// let mary = model.tokens_to_residual_directions("Mary")?;
    /// assert_eq!(neurons.project(&mary)?.dims(), [1024, 1, 5]); // one number per neuron, not a vector
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] if the direction's shape does not match the components.
    pub fn project(&self, direction: &Tensor<3>) -> Result<Tensor<3>, AnalysisError> {
        let [batch, pos, d_model] = self.shape();
        let given = direction.dims();
        let fits = |given: usize, wanted: usize| given == 1 || given == wanted;
        if !(fits(given[0], batch) && fits(given[1], pos) && given[2] == d_model) {
            return Err(AnalysisError::Shape {
                what: "the direction".into(),
                given: given.to_vec(),
                expected: format!("[{batch} or 1, {pos} or 1, {d_model}]"),
            });
        }
        // With a frozen scale, the norm layer is linear, so its transpose can be applied to the direction instead.
        let turned = match &self.norm {
            Some(norm) => norm.turn(direction.clone()),
            None => direction.clone(),
        };
        if self.terms.is_empty() {
            return Ok(Tensor::empty([0, batch, pos], (&self.zeros.device(), self.zeros.dtype())));
        }
        let shares = Tensor::cat(self.terms.iter().map(|term| term.project(&turned)).collect(), 0);
        Ok(match self.norm.as_ref().and_then(|norm| norm.scale.clone()) {
            Some(scale) => shares / scale.squeeze_dim::<2>(2).unsqueeze_dim::<3>(0),
            None => shares,
        })
    }

    /// The components whose labels satisfy `keep`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let cache = model.record("When Mary and John", Record::all())?;
    /// let parts = model.analyze(&cache)?.decompose_resid(hooklens::activations::Stage::Final)?;
    /// let mlps = parts.filter(|label| label.ends_with("_mlp_out"))?;
    /// assert_eq!(mlps.labels(), ["0_mlp_out", "1_mlp_out", "2_mlp_out", "3_mlp_out"]);
    /// assert!(parts.filter(|label| label == "nobody").is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Nothing`] if no label satisfies `keep`.
    pub fn filter(&self, mut keep: impl FnMut(&str) -> bool) -> Result<Components, AnalysisError> {
        let mut kept = Components { labels: Vec::new(), terms: Vec::new(), ..self.clone() };
        let mut first = 0;
        for term in &self.terms {
            let labels = &self.labels[first..first + term.count()];
            first += term.count();
            let places: Vec<usize> = (0..labels.len()).filter(|place| keep(&labels[*place])).collect();
            if places.len() == labels.len() {
                kept.extend(labels.to_vec(), term.clone());
            } else if !places.is_empty() {
                kept.extend(places.iter().map(|place| labels[*place].clone()), term.pick(&places));
            }
        }
        kept.not_empty()
    }

    /// Fails if there are no components, so that users always get at least one.
    pub(super) fn not_empty(self) -> Result<Self, AnalysisError> {
        if self.labels.is_empty() { Err(AnalysisError::Nothing) } else { Ok(self) }
    }

    /// `[batch, pos, d_model]`
    pub(super) fn shape(&self) -> [usize; 3] {
        self.zeros.dims()
    }
}

impl FrozenNorm {
    fn apply(&self, mut vectors: Tensor<4>) -> Tensor<4> {
        if self.centers {
            vectors = vectors.clone() - vectors.mean_dim(3);
        }
        if let Some(scale) = &self.scale {
            vectors = vectors / scale.clone().unsqueeze_dim::<4>(0);
        }
        match &self.weight {
            Some(weight) => vectors * weight.clone().unsqueeze(),
            None => vectors,
        }
    }

    /// Applies the transpose of the norm layer, without the scale, to a direction.
    fn turn(&self, mut direction: Tensor<3>) -> Tensor<3> {
        if let Some(weight) = &self.weight {
            direction = direction * weight.clone().unsqueeze();
        }
        if self.centers { direction.clone() - direction.mean_dim(2) } else { direction }
    }
}
