//! [`NodeCircuit`]: heads, MLPs, neurons or latents that are claimed to do a task.

mod json;
mod kind;
mod missed;
mod run;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use hooklens_hooks::{Axis, nearest};
use ndarray::{ArrayD, IxDyn};

use super::proof::{Selection, Stability, resampled};
use crate::error::CircuitError;
use crate::labeled::LabeledAxis;
use crate::patching::{Patchable, Patching, PatchingResult, Sites};
use crate::statistics::Statistics;
use hooklens_model::driver::private::Spliceable;
use hooklens_model::error::Result;
use hooklens_model::model::Identified;

pub use kind::KindOfNodes;
pub use missed::MissedEffect;

/// A circuit of nodes: the heads, MLPs, neurons or latents at the points of a sweep that are kept while all others are
/// ablated. Each node covers all positions, or a single one.
///
/// A sweep of the same sites scores the nodes: exactly ([`Patching::sweep`]) or by gradients
/// ([`Patching::attribution`]).
///
/// ```
/// use hooklens::circuits::Selection;
/// use hooklens::hook::Axis;
/// use hooklens::patching::Sites;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let patching = model.ablating(clean, Ablation::Resample(corrupted.into())).logit_diff("Mary", "John")?;
///
/// let neurons = Sites::new("*mlp.hook_post").per([Axis::DMlp]);
/// let scores = patching.attribution("*mlp.hook_post")?.sweep(&neurons)?;
/// let all = patching.nodes(&neurons)?;
/// let circuit = all.best(&scores, Selection::MostHelpful, 50)?;
/// let faithfulness = patching.run_nodes(&[circuit, all])?.faithfulness()?;
/// assert!((faithfulness[1] - 1.0).abs() < 1e-4); // nothing is ablated
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCircuit {
    /// Names of the points, in firing order. Circuits made from the same set of nodes share this list and `axes`.
    points: Arc<[String]>,
    /// The axes along which the points are divided into nodes.
    per: Vec<Axis>,
    /// The axes of `kept`: points or layers, then one per swept axis.
    axes: Arc<[LabeledAxis]>,
    kept: ArrayD<bool>,
    /// Hash of the model's weights, if known.
    model: Option<String>,
}

impl<M: Patchable + Identified + Spliceable> Patching<'_, M> {
    /// All nodes at these sites. Runs one forward pass to count them.
    ///
    /// # Errors
    /// Same as [`Patching::sweep`].
    pub fn nodes(&self, sites: &Sites) -> Result<NodeCircuit> {
        let universe = run::Universe::of(self, sites)?;
        let catalog = self.model().catalog();
        let points = universe.points.iter().map(|(id, _)| catalog.info(*id).name.to_string()).collect::<Vec<_>>();
        let shape: Vec<usize> = universe.axes.iter().map(|axis| axis.labels.len()).collect();
        let kept = ArrayD::from_elem(IxDyn(&shape), true);
        let (points, axes, per) = (points.into(), universe.axes.into(), sites.axes().to_vec());
        Ok(NodeCircuit { points, per, axes, kept, model: universe.model })
    }
}

impl NodeCircuit {
    /// The circuit of the `count` best-scored of these nodes: with [`Selection::Top`], those with the largest mean effects
    /// by magnitude; with [`Selection::MostHelpful`], those whose ablation lowers the metric most. Nodes have no edges
    /// along which a circuit could grow, so the greedy selections are refused.
    ///
    /// # Errors
    /// Fails if the scores belong to different sites or are not finite, and for the greedy selections.
    pub fn best(&self, scores: &PatchingResult, selection: Selection, count: usize) -> Result<Self, CircuitError> {
        let ranked = self.ranked(scores, selection)?;
        Ok(self.keeping(ranked.into_iter().take(count).map(|(node, _)| node)))
    }

    /// The circuit of the nodes whose mean effect has at least this magnitude.
    ///
    /// # Errors
    /// Same as [`NodeCircuit::best`].
    pub fn above(&self, scores: &PatchingResult, threshold: f64) -> Result<Self, CircuitError> {
        let ranked = self.ranked(scores, Selection::Top)?;
        Ok(self.keeping(ranked.into_iter().filter(|(_, effect)| effect.abs() >= threshold).map(|(node, _)| node)))
    }

    /// The circuit of some of these nodes, each given by one index per axis: the index of the point, then the indices
    /// along the swept axes.
    ///
    /// ```
    /// use hooklens::hook::Axis;
    /// use hooklens::patching::Sites;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let patching = model.ablating("Mary and John", Ablation::Zero).logit_diff("Mary", "John")?;
    /// let heads = patching.nodes(&Sites::new("*attn.hook_z").per([Axis::Head]))?;
    /// let late = heads.only([[3, 0], [3, 2]])?; // [layer, head]
    /// assert_eq!((late.len(), late.names().join(", ")), (2, "layer 3 head 0, layer 3 head 2".to_string()));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for a node that is not in this circuit.
    pub fn only<N: AsRef<[usize]>>(&self, nodes: impl IntoIterator<Item = N>) -> Result<Self, CircuitError> {
        let mut kept = ArrayD::from_elem(self.kept.raw_dim(), false);
        for node in nodes {
            let node = node.as_ref();
            if !self.contains(node) {
                return Err(self.unknown(&format!("{node:?}")));
            }
            kept[IxDyn(node)] = true;
        }
        Ok(Self { kept, ..self.clone() })
    }

    /// The nodes of the circuit, each as one index per axis.
    pub fn nodes(&self) -> impl Iterator<Item = Vec<usize>> {
        let kept = self.kept.indexed_iter().filter(|(_, kept)| **kept);
        kept.map(|(node, _)| ndarray::Dimension::slice(&node).to_vec())
    }

    /// The names of the nodes, such as `layer 3 head 0`, in the order of [`NodeCircuit::nodes`].
    pub fn names(&self) -> Vec<String> {
        self.nodes().map(|node| self.name(&node)).collect()
    }

    /// The axes of the nodes: points or layers, then the swept axes.
    pub fn axes(&self) -> &[LabeledAxis] {
        &self.axes
    }

    /// Names of the hook points that contain the nodes, in firing order.
    pub fn points(&self) -> &[String] {
        &self.points
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.kept.iter().filter(|kept| **kept).count()
    }

    /// Whether the circuit has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of nodes at the circuit's sites, including nodes that are not in the circuit.
    pub fn total(&self) -> usize {
        self.kept.len()
    }

    /// Whether the circuit has this node.
    pub fn contains(&self, node: &[usize]) -> bool {
        self.kept.get(IxDyn(node)).copied().unwrap_or(false)
    }

    /// The circuit of all nodes that are not in this circuit.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self { kept: self.kept.mapv(|kept| !kept), ..self.clone() }
    }

    /// Jaccard similarity with another circuit: the number of common nodes divided by the number of nodes in either. It is
    /// 1 if both are empty.
    ///
    /// # Errors
    /// Fails if the circuits belong to different sites or models.
    pub fn jaccard(&self, other: &Self) -> Result<f64, CircuitError> {
        self.check_same(other)?;
        let both = self.kept.iter().zip(&other.kept).filter(|(own, other)| **own && **other).count();
        let either = self.len() + other.len() - both;
        Ok(if either == 0 { 1.0 } else { both as f64 / either as f64 })
    }

    /// Selects the `count` nodes of this circuit with the largest mean effects by magnitude, and measures how much this
    /// selection changes when the examples are resampled with replacement. `settings` sets the number of resamples and
    /// the seed.
    ///
    /// # Errors
    /// Fails for fewer than 2 examples; otherwise, same as [`NodeCircuit::best`].
    pub fn stability(
        &self,
        scores: &PatchingResult,
        settings: &Statistics,
        count: usize,
    ) -> Result<Stability<Vec<usize>>> {
        let nodes: Vec<Vec<usize>> = self.ranked(scores, Selection::Top)?.into_iter().map(|(node, _)| node).collect();
        let effects = scores.effects();
        let of = |node: &Vec<usize>| {
            let examples = 0..scores.baseline.len();
            let at = |example| effects.values()[IxDyn(&[node.as_slice(), &[example]].concat())];
            examples.map(at).collect::<Vec<f64>>()
        };
        let effects: Vec<Vec<f64>> = nodes.iter().map(of).collect();
        let found = resampled(&effects, |place| self.name(&nodes[place]), settings, count)?;
        Ok(found.named(|place| nodes[place].clone()))
    }

    /// The nodes of this circuit with their mean effects, best first.
    fn ranked(&self, scores: &PatchingResult, selection: Selection) -> Result<Vec<(Vec<usize>, f64)>, CircuitError> {
        let order: fn(f64, f64) -> Ordering = match selection {
            Selection::Top => |a, b| b.abs().total_cmp(&a.abs()),
            Selection::MostHelpful => |a, b| a.total_cmp(&b),
            Selection::Greedy | Selection::GreedyHelpful => {
                let given = format!("{selection:?}");
                let expected = "Top or MostHelpful for circuits of nodes, which have no edges";
                return Err(CircuitError::Setting { name: "the selection", given, expected });
            }
        };
        self.check_axes(scores.swept_axes(), "the scores")?;
        let effect = scores.effect();
        let of = |node: Vec<usize>| match effect.values()[IxDyn(&node)] {
            value if value.is_finite() => Ok((node, value)),
            value => Err(CircuitError::NotFinite { place: self.name(&node), value }),
        };
        let mut ranked = self.nodes().map(of).collect::<Result<Vec<_>, _>>()?;
        ranked.sort_by(|a, b| order(a.1, b.1));
        Ok(ranked)
    }

    /// The circuit of these nodes. Panics if a node does not exist.
    fn keeping(&self, nodes: impl IntoIterator<Item = Vec<usize>>) -> Self {
        let mut kept = ArrayD::from_elem(self.kept.raw_dim(), false);
        nodes.into_iter().for_each(|node| kept[IxDyn(&node)] = true);
        Self { kept, ..self.clone() }
    }

    fn sites(&self) -> Sites {
        Sites::new(self.points.to_vec()).per(self.per.clone())
    }

    /// The name of a node, such as `layer 3 head 0`. Indices that do not exist are left out.
    pub fn name(&self, node: &[usize]) -> String {
        let parts = self.axes.iter().zip(node).filter_map(|(axis, place)| {
            let label = axis.labels.get(*place)?;
            Some(match axis.name.as_str() {
                "point" => label.clone(),
                // Labels of positions contain the token.
                "pos" | "dest_pos" | "src_pos" => match label.split_once(' ') {
                    Some((place, token)) => format!("{} {place} {token:?}", axis.name),
                    None => format!("{} {label}", axis.name),
                },
                name => format!("{name} {label}"),
            })
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    fn unknown(&self, given: &str) -> CircuitError {
        let names = self.names();
        let near = nearest(given, names.iter().map(String::as_str));
        CircuitError::Unknown { kind: "node", given: given.to_string(), nearest: near }
    }

    /// Checks that another circuit has the same sites and belongs to the same model.
    fn check_same(&self, other: &Self) -> Result<(), CircuitError> {
        if self.points != other.points {
            let what = format!("they are at {}, but the circuit is at {}", list(&other.points), list(&self.points));
            return Err(CircuitError::OtherNodes { whose: "the other circuit", what });
        }
        self.check_axes(&other.axes, "the other circuit")?;
        self.check_model(other.model.as_deref())
    }

    fn check_model(&self, other: Option<&str>) -> Result<(), CircuitError> {
        match (&self.model, other) {
            (Some(own), Some(given)) if own != given => {
                Err(CircuitError::OtherModel { given: own.clone(), expected: given.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Checks that axes name the same sites. Positions are compared by number, because prompts have different tokens.
    fn check_axes(&self, others: &[LabeledAxis], whose: &'static str) -> Result<(), CircuitError> {
        let shape = |axes: &[LabeledAxis]| {
            let axes = axes.iter().map(|axis| format!("{} {}", axis.labels.len(), axis.name));
            axes.collect::<Vec<_>>().join(" x ")
        };
        let (own, given) = (shape(&self.axes), shape(others));
        if own != given {
            let what = format!("they are {given}, but the circuit's are {own}");
            return Err(CircuitError::OtherNodes { whose, what });
        }
        for (axis, other) in self.axes.iter().zip(others) {
            if let Some(place) = axis.differs_at(other) {
                let (own, given) = (&axis.labels[place], &other.labels[place]);
                let what = format!("axis `{}` has {given} at index {place}, but the circuit has {own}", axis.name);
                return Err(CircuitError::OtherNodes { whose, what });
            }
        }
        Ok(())
    }
}

fn list(points: &[String]) -> String {
    match points {
        [] => "no points".into(),
        [one] => format!("`{one}`"),
        [first, .., last] => format!("{} points from `{first}` to `{last}`", points.len()),
    }
}

impl fmt::Display for NodeCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "circuit of {} of {} nodes", self.len(), self.total())
    }
}
