//! Runs in which all nodes outside a circuit are ablated.

use std::collections::BTreeMap;

use burn::tensor::{Bool, Tensor, TensorData};
use hooklens_hooks::{Activation, HookError, PointId, at};
use ndarray::{ArrayD, IxDyn};

use super::NodeCircuit;
use crate::circuits::proof::CircuitRuns;
use crate::error::CircuitError;
use crate::labeled::{LabeledAxis, matching};
use crate::patching::{Example, Layout, Patchable, Patching, Sites, read_values};
use hooklens_model::driver::private::Spliceable;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::Identified;

/// Hook points, each with the indices of its swept axes.
pub(super) type Points = Vec<(PointId, Vec<usize>)>;

/// All nodes of a model at some sites.
pub(super) struct Universe {
    pub(super) points: Points,
    pub(super) axes: Vec<LabeledAxis>,
    /// Hash of the weights and of spliced parts, if known.
    pub(super) model: Option<String>,
}

impl Universe {
    pub(super) fn of<M: Patchable + Identified + Spliceable>(
        patching: &Patching<'_, M>,
        sites: &Sites,
    ) -> Result<Self> {
        let model = patching.model();
        let points = sites.resolve(model.catalog())?;
        let prompts: Vec<&M::Prompt> = patching.base.iter().collect();
        let no_prompts = || InputError::Empty { what: "the list of prompts".into() };
        let first = M::copies(prompts.first().ok_or_else(no_prompts)?, 1)?;
        let recorded = model.record(first, sites.selection().clone())?;
        let shape_of = |id: PointId| Ok(recorded.activation(&*model.catalog().info(id).name)?.shape().to_vec());
        let axes = Layout::new(model, &points, &prompts, &shape_of)?.axes;
        let content = model.identity().content().map(str::to_string);
        let parts = model.points().fingerprinted_parts()?;
        let with_parts = |content: String| [vec![content], parts].concat().join(", ");
        Ok(Self { points, axes, model: content.map(with_parts) })
    }
}

impl<M: Patchable + Identified + Spliceable> Patching<'_, M> {
    /// Runs circuits of nodes: on each prompt, every node outside the circuit takes its value from the source of
    /// patches instead. All circuits must have the same sites.
    ///
    /// With [`Patching::ablating`], the source is zeros, means, or a run on a different prompt. With [`Patching::new`],
    /// the source is the run on the clean prompt and the circuits run on the corrupted prompts; call
    /// [`Patching::reversed`] to ablate runs on the clean prompts.
    ///
    /// Takes one forward pass per circuit and example; several circuits run as one batch.
    ///
    /// # Errors
    /// Fails for circuits of different sites or of a different model ([`CircuitError`]), and for an empty list;
    /// otherwise, same as [`Patching::sweep`].
    pub fn run_nodes(&self, circuits: &[NodeCircuit]) -> Result<CircuitRuns> {
        let none = || InputError::Empty { what: "the list of circuits".into() };
        let first = circuits.first().ok_or_else(none)?;
        let universe = Universe::of(self, &first.sites())?;
        first.check_axes(&universe.axes, "the prompts")?;
        first.check_model(universe.model.as_deref())?;
        circuits.iter().try_for_each(|circuit| first.check_same(circuit))?;
        let empty = ArrayD::from_elem(first.kept.raw_dim(), false);
        let kept: Vec<&ArrayD<bool>> = circuits.iter().map(|circuit| &circuit.kept).chain([&empty]).collect();
        let ids: Vec<PointId> = universe.points.iter().map(|(id, _)| *id).collect();
        let mut runs: Vec<(f64, Vec<f64>)> = Vec::new();
        self.each_example(&ids, |example| {
            let own = self.run_example(&example, first, &universe.points, &kept)?;
            runs.push(own);
            self.tell(runs.len(), self.examples());
            Ok(())
        })?;
        let examples = runs.len();
        let mut metric = ArrayD::zeros(IxDyn(&[circuits.len(), examples]));
        for (example, (_, values)) in runs.iter().enumerate() {
            for circuit in 0..circuits.len() {
                metric[[circuit, example]] = values[circuit];
            }
        }
        let axes = [LabeledAxis::numbered("circuit", circuits.len()), LabeledAxis::numbered("example", examples)];
        let (clean, ablated) = runs.iter().map(|(clean, values)| (*clean, values[circuits.len()])).unzip();
        Ok(CircuitRuns { metric: matching(axes, metric), clean, ablated })
    }

    /// The metric of one example without ablations, and the metric for each set of kept nodes with all other nodes
    /// ablated.
    fn run_example(
        &self,
        example: &Example<'_, M>,
        circuit: &NodeCircuit,
        points: &Points,
        kept: &[&ArrayD<bool>],
    ) -> Result<(f64, Vec<f64>)> {
        let ids: Vec<PointId> = points.iter().map(|(id, _)| *id).collect();
        let (recorded, clean) = example.unpatched(circuit.sites().selection().clone())?;
        for (id, swept) in points {
            let shape = recorded.activation(&*self.model().catalog().info(*id).name)?.shape().to_vec();
            let given: Vec<usize> = swept.iter().map(|place| shape[*place]).collect();
            let expected = circuit.kept.shape()[1..].to_vec();
            if given != expected {
                let what =
                    format!("example {} has {given:?} nodes per point; the circuit has {expected:?}", example.number);
                return Err(CircuitError::OtherNodes { whose: "the prompts", what }.into());
            }
        }
        let values = example.source(&recorded, &ids)?.values;
        let tokens: usize = M::lengths(example.prompt).into_iter().sum();
        let mut found = Vec::new();
        for kept in kept.chunks(self.copies_at_once(tokens, tokens)) {
            found.extend(self.run_batch(example, points, &values, kept)?);
        }
        Ok((clean, found))
    }

    /// Runs copies of an example, one for each set of nodes that are kept.
    fn run_batch(
        &self,
        example: &Example<'_, M>,
        points: &Points,
        values: &BTreeMap<PointId, Activation>,
        kept: &[&ArrayD<bool>],
    ) -> Result<Vec<f64>> {
        let catalog = self.model().catalog();
        let whole =
            |place: usize| kept.iter().all(|kept| kept.index_axis(ndarray::Axis(0), place).iter().all(|kept| *kept));
        let ablated: Vec<usize> = (0..points.len()).filter(|place| !whole(*place)).collect();
        let hook = |place: usize| {
            let (id, swept) = &points[place];
            at(&*catalog.info(*id).name).edit_any(move |tensor, _| {
                let own = kept.iter().map(|kept| kept.index_axis(ndarray::Axis(0), place));
                let mask = own.flat_map(|own| own.iter().map(|kept| !kept).collect::<Vec<_>>()).collect();
                replaced(&tensor, &values[id], mask, swept).map(Some).map_err(Into::into)
            })
        };
        let at: Vec<PointId> = ablated.iter().map(|place| points[*place].0).collect();
        let hooks = ablated.iter().map(|place| hook(*place));
        let judged = self.judge_copies(example.prompt, example.number, kept.len(), &at, hooks)?;
        read_values(judged, example.number, |row| format!("with circuit {row} of a batch"))
    }
}

/// Replaces the ablated indices along the swept axes in each row. `ablated` is `[row, ...swept]`.
fn replaced(
    tensor: &Activation,
    values: &Activation,
    ablated: Vec<bool>,
    swept: &[usize],
) -> Result<Activation, HookError> {
    match tensor.shape().len() {
        2 => replaced_at::<2>(tensor, values, ablated, swept),
        3 => replaced_at::<3>(tensor, values, ablated, swept),
        4 => replaced_at::<4>(tensor, values, ablated, swept),
        5 => replaced_at::<5>(tensor, values, ablated, swept),
        _ => replaced_at::<6>(tensor, values, ablated, swept),
    }
}

fn replaced_at<const D: usize>(
    tensor: &Activation,
    values: &Activation,
    ablated: Vec<bool>,
    swept: &[usize],
) -> Result<Activation, HookError> {
    let tensor: Tensor<D> = tensor.to_tensor()?;
    let (dims, device) = (tensor.dims(), tensor.device());
    let values: Tensor<D> = values.to_device(&device).to_tensor()?;
    let mut shape = [1; D];
    shape[0] = dims[0];
    swept.iter().for_each(|axis| shape[*axis] = dims[*axis]);
    let mask = Tensor::<D, Bool>::from_data(TensorData::new(ablated, shape), &device).expand(dims);
    Ok(tensor.clone().mask_where(mask, values.cast(tensor.dtype()).expand(dims)).into())
}
