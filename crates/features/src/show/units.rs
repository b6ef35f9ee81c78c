//! [`Units`] of dashboards: latents of a dictionary, neurons, heads, or directions.

use burn::tensor::Tensor;
use hooklens_hooks::{Selection, SelectionText};

use super::gather::Gathered;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::labels::Labels;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, ModelParts};

/// Units of a dashboard, computed from the activation at one hook point: one value per unit and token.
///
/// Latents are active where they are nonzero, and neurons where they are positive. Heads and directions are nonzero
/// almost everywhere, so they count as active where they reach at least half of their maximum.
///
/// ```
/// use hooklens::features::{Dictionary, Units};
/// let latents = Units::latents(&Dictionary::open("embedded:ioi-sae")?)?;
/// let neurons = Units::neurons(2);
/// # let _ = (latents, neurons);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Units {
    pub(super) kind: Kind,
    pub(super) point: String,
    pub(super) labels: Labels,
}

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "few values exist at a time")]
pub(super) enum Kind {
    Latents(Dictionary),
    Neurons,
    Heads,
    /// Directions, `[unit, width]`.
    Directions(Tensor<2>),
}

impl Units {
    /// The latents of a dictionary, at the point it reads.
    ///
    /// # Errors
    /// [`FeatureError::NoPoint`] if the dictionary's files do not name its hook point.
    pub fn latents(dictionary: &Dictionary) -> Result<Self> {
        let [point, _] = dictionary.points()?;
        Ok(Self {
            point: point.to_string(),
            labels: dictionary.labels().clone(),
            kind: Kind::Latents(dictionary.clone()),
        })
    }

    /// The neurons of a layer's MLP, after the activation function.
    pub fn neurons(layer: usize) -> Self {
        Self { kind: Kind::Neurons, point: format!("blocks.{layer}.mlp.hook_post"), labels: Labels::default() }
    }

    /// The heads of a layer, measured by the norm of each head's output to the residual stream.
    pub fn heads(layer: usize) -> Self {
        Self { kind: Kind::Heads, point: format!("blocks.{layer}.attn.hook_result"), labels: Labels::default() }
    }

    /// Dot products of a point's activations with directions, `[unit, width]`, such as probes or steering vectors.
    ///
    /// ```
    /// use hooklens::experiments::SteeringVector;
    /// use hooklens::features::{DashboardOptions, Units, dashboards};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let apart = SteeringVector::between(&model, "When Mary and John", "When John and Mary", "resid_post1")?;
    /// let units = Units::directions(&apart.point, apart.vector.clone().unsqueeze());
    /// let prompts = [model.to_tokens("When Mary and John went to the store")?.row(0).to_vec()];
    /// let shown = dashboards(&model, units, &prompts, DashboardOptions::new(), |_| {})?;
    /// assert!(shown.unit(0).is_ok());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn directions(point: impl Into<Selection>, directions: Tensor<2>) -> Self {
        Self { kind: Kind::Directions(directions), point: point.into().full_name(), labels: Labels::default() }
    }

    /// Sets labels of the units. If a label belongs to a unit that does not exist, [`dashboards`](super::dashboards)
    /// fails.
    #[must_use]
    pub fn with_labels(mut self, labels: Labels) -> Self {
        self.labels = labels;
        self
    }

    /// Moves the units to the device of a model.
    pub(crate) fn on(self, model: &HookedTransformer) -> Self {
        let kind = match (self.kind, model.devices().first()) {
            (Kind::Latents(dictionary), Some(device)) => Kind::Latents(dictionary.to_device(device)),
            (kind, _) => kind,
        };
        Self { kind, ..self }
    }

    /// Number of tokens at which a unit counts as active.
    pub(super) fn active(&self, own: &Gathered) -> f64 {
        match self.kind {
            Kind::Latents(_) => own.nonzero as f64,
            Kind::Neurons => own.positive as f64,
            Kind::Heads | Kind::Directions(_) if own.highest > 0.0 => own.histogram.at_least(own.highest / 2.0),
            Kind::Heads | Kind::Directions(_) => 0.0,
        }
    }

    /// Describes when a unit counts as active.
    pub(super) fn active_where(&self) -> &'static str {
        match self.kind {
            Kind::Latents(_) => "not zero",
            Kind::Neurons => "above zero",
            Kind::Heads | Kind::Directions(_) => "at least half of the largest",
        }
    }

    /// The direction of a unit, `[width]`, if it has one.
    pub(super) fn direction(&self, unit: usize) -> Result<Option<Tensor<1>>> {
        Ok(match &self.kind {
            Kind::Latents(dictionary) => Some(dictionary.direction(unit)?),
            Kind::Directions(directions) => Some(directions.clone().narrow(0, unit, 1).reshape([directions.dims()[1]])),
            Kind::Neurons | Kind::Heads => None,
        })
    }

    /// The noun for a unit.
    pub(super) fn noun(&self) -> &'static str {
        match self.kind {
            Kind::Latents(_) => "latent",
            Kind::Neurons => "neuron",
            Kind::Heads => "head",
            Kind::Directions(_) => "direction",
        }
    }

    /// The units' values, `[row, unit]`, for an activation with this number of rows.
    pub(crate) fn read(&self, activation: &hooklens_hooks::Activation, rows: usize) -> Result<Tensor<2>> {
        let width = activation.shape().iter().product::<usize>() / rows.max(1);
        let flat = || activation.reshape(&[rows, width]).to_tensor::<2>();
        Ok(match &self.kind {
            Kind::Latents(dictionary) => dictionary.encode(flat()?)?,
            Kind::Neurons => flat()?,
            Kind::Heads => {
                let heads = activation.shape().get(2).copied().unwrap_or(1);
                let each = activation.reshape(&[rows, heads, width / heads.max(1)]).to_tensor::<3>()?;
                each.square().sum_dim(2).sqrt().reshape([rows, heads])
            }
            Kind::Directions(directions) => {
                let x = flat()?;
                let given = directions.dims()[1];
                if given != width {
                    let (dictionary, what) = ("the directions".to_string(), format!("`{}`", self.point));
                    return Err(FeatureError::Width { dictionary, what, wanted: given, given: width }.into());
                }
                let directions = directions.clone().to_device(&x.device()).cast(x.dtype());
                x.matmul(directions.transpose())
            }
        })
    }

    /// The vectors that units add to the residual stream, `[unit, d_model]`; `None` if a unit does not have a single
    /// output direction.
    pub(super) fn written(&self, model: &HookedTransformer, units: &[usize]) -> Result<Option<Tensor<2>>> {
        let d_model = model.config().d_model();
        let (point, rows) = match &self.kind {
            Kind::Heads => return Ok(None),
            Kind::Neurons => (self.point.clone(), None),
            Kind::Directions(directions) => {
                let all = units.iter().map(|unit| directions.clone().narrow(0, *unit, 1)).collect();
                (self.point.clone(), Some(Tensor::cat(all, 0)))
            }
            Kind::Latents(dictionary) => {
                let written = dictionary.metadata().writes.clone().unwrap_or_else(|| self.point.clone());
                let all =
                    units.iter().map(|unit| Ok(dictionary.direction(*unit)?.unsqueeze())).collect::<Result<_>>()?;
                (written, Some(Tensor::cat(all, 0)))
            }
        };
        let layer = model.catalog().find(&point).ok().and_then(|id| model.catalog().info(id).layer);
        let block = layer.and_then(|layer| model.parts().blocks.get(layer));
        let through = match block {
            Some(block) if point.ends_with("mlp.hook_post") => block.dense_mlp().map(|mlp| mlp.output.matrix()),
            Some(block) => {
                let read = |suffix: &str| point.strip_suffix(suffix).is_some_and(|block| block.ends_with('.'));
                block.mixer_outputs().find(|(suffix, _)| read(suffix)).map(|(_, projection)| projection.matrix())
            }
            None => None,
        };
        Ok(match (rows, through) {
            (None, Some(through)) => {
                Some(Tensor::cat(units.iter().map(|unit| through.clone().narrow(0, *unit, 1)).collect(), 0))
            }
            (Some(rows), Some(through)) => {
                let rows = rows.to_device(&through.device());
                Some(rows.matmul(through.cast(burn::tensor::DType::F32)))
            }
            (Some(rows), None) if rows.dims()[1] == d_model => Some(rows),
            _ => None,
        })
    }

    /// The point at which the units are active.
    pub(crate) fn point(&self) -> &str {
        &self.point
    }

    /// The dictionary, if the units are latents.
    pub(crate) fn dictionary(&self) -> Option<&Dictionary> {
        match &self.kind {
            Kind::Latents(dictionary) => Some(dictionary),
            _ => None,
        }
    }
}
