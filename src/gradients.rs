//! Gradients of a scalar of a run's output with respect to its activations, for every kind of model.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Gradients, Tensor};
use hooklens_hooks::{Activation, ActivationCache, Catalog, Hook, PointId, Record, at};

use crate::error::{InputError, Result};

/// Gradients by point.
type ByPoint = BTreeMap<PointId, Activation>;

/// The output of a run.
pub(crate) trait RunOutput: Sized {
    /// What was recorded, to add gradients to.
    fn cache(&mut self) -> &mut ActivationCache;

    /// Its tensors, detached from the autodiff graph.
    fn without_history(self) -> Self;
}

/// Makes a run: with these hooks, recording this; of the whole model, or only up to what is recorded.
type Runner<'r, O> = dyn for<'h> FnMut(Vec<Hook<'h>>, Record, bool) -> Result<O> + 'r;

/// Runs a model, computes a scalar of the output, and adds gradients at the recorded points to the output's cache.
/// Hooks on gradients run in the backward pass, last point first.
///
/// Each edited gradient costs another run, of a decoder up to its point: Burn's backward pass can't be hooked, so the
/// graph is cut there, and a second pass starts from the gradient that the hook returned.
pub(crate) fn with_gradients<O: RunOutput>(
    catalog: &Catalog,
    hooks: Vec<Hook<'_>>,
    record: Record,
    run: &mut Runner<'_, O>,
    number: impl FnOnce(&O) -> Result<Tensor<1>>,
) -> Result<O> {
    if !record.keeps_all() {
        return Err(InputError::Options("a run with gradients records whole activations; cut them afterwards").into());
    }
    let recorded = record.selection().resolve(catalog)?;
    let (mut on_gradients, hooks): (Vec<_>, Vec<_>) = hooks.into_iter().partition(Hook::is_backward);
    let targets = on_gradients.iter().map(|hook| hook.target().resolve(catalog)).collect::<Result<Vec<_>, _>>()?;
    let wanted = |id: &PointId| !catalog.info(*id).integer;
    let mut points: Vec<PointId> = recorded.iter().chain(targets.iter().flatten()).copied().filter(wanted).collect();
    points.sort_unstable();
    points.dedup();
    let edits =
        |id: &PointId| on_gradients.iter().zip(&targets).any(|(hook, targets)| hook.edits() && targets.contains(id));
    let cuts: Vec<PointId> = points.iter().copied().filter(|id| edits(id)).collect();

    let mut pass = Pass { catalog, hooks, run };
    let (output, mut gradients) = pass.whole(record, &points, &cuts, number)?;
    let mut output = output.without_history();
    for (place, id) in points.iter().enumerate().rev() {
        let name = &*catalog.info(*id).name;
        let mut gradient = match gradients.remove(id) {
            Some(gradient) => gradient,
            // The number does not depend on it.
            None if output.cache().contains(name) => output.cache().activation(name)?.zeros_like(),
            None => continue,
        };
        for (hook, _) in on_gradients.iter_mut().zip(&targets).filter(|(_, targets)| targets.contains(id)) {
            gradient = hook.call(catalog.info(*id), gradient)?;
        }
        if cuts.contains(id) {
            let before: Vec<PointId> = cuts.iter().copied().take_while(|cut| cut < id).collect();
            for (earlier, more) in pass.up_to(*id, &points[..place], &before, &gradient)? {
                let sum = gradients.remove(&earlier).map_or(more.clone(), |sum| sum.plus(&more));
                gradients.insert(earlier, sum);
            }
        }
        if recorded.contains(id) {
            output.cache().set_gradient(*id, gradient);
        }
    }
    Ok(output)
}

/// The logits that the scalar is computed from.
pub(crate) fn logits_of(logits: &Option<Tensor<3>>) -> Result<Tensor<3>> {
    Ok(logits.clone().ok_or(InputError::Options("no logits to make a number of"))?)
}

/// The same run, once or several times, with leaves put in to keep gradients for.
struct Pass<'p, 'h, 'r, O> {
    catalog: &'p Catalog,
    /// The user's, on the way forward.
    hooks: Vec<Hook<'h>>,
    run: &'p mut Runner<'r, O>,
}

impl<O: RunOutput> Pass<'_, '_, '_, O> {
    /// A whole run and the gradients at the points; those before a cut are without what flows through it.
    fn whole(
        &mut self,
        record: Record,
        points: &[PointId],
        cuts: &[PointId],
        number: impl FnOnce(&O) -> Result<Tensor<1>>,
    ) -> Result<(O, ByPoint)> {
        let leaves = RefCell::new(ByPoint::new());
        let output = self.run(points, cuts, &leaves, record, true)?;
        let number = number(&output)?.sum();
        if points.is_empty() {
            return Ok((output, ByPoint::new()));
        }
        if !number.is_tracked() {
            return Err(InputError::Options("the number does not depend on any activation recorded").into());
        }
        let gradients = number.backward();
        Ok((output, gather(&leaves.into_inner(), &gradients)))
    }

    /// A run up to a point, and the gradient there propagated to the points before it.
    fn up_to(&mut self, end: PointId, points: &[PointId], cuts: &[PointId], gradient: &Activation) -> Result<ByPoint> {
        if points.is_empty() {
            return Ok(ByPoint::new());
        }
        let leaves = RefCell::new(ByPoint::new());
        let name = self.catalog.info(end).name.clone();
        let mut output = self.run(points, cuts, &leaves, Record::new(&*name), false)?;
        let share = output.cache().activation(&*name)?.dot(gradient);
        if !share.is_tracked() {
            return Ok(ByPoint::new());
        }
        let gradients = share.backward();
        Ok(gather(&leaves.into_inner(), &gradients))
    }

    /// A run with the user's hooks and, after them, an autodiff leaf at each point: zeros that are added, or,
    /// where the graph is cut, the activation itself.
    fn run(
        &mut self,
        points: &[PointId],
        cuts: &[PointId],
        leaves: &RefCell<ByPoint>,
        record: Record,
        whole: bool,
    ) -> Result<O> {
        let mut hooks: Vec<Hook<'_>> = self.hooks.iter_mut().map(Hook::reborrow).collect();
        hooks.extend(points.iter().map(|id| {
            let cut = cuts.contains(id);
            at(&*self.catalog.info(*id).name).edit_any(move |tensor, _| {
                let leaf = if cut { tensor.leaf() } else { tensor.zeros_like().leaf() };
                let seen = if cut { leaf.clone() } else { tensor.plus(&leaf) };
                leaves.borrow_mut().insert(*id, leaf);
                Ok(Some(seen))
            })
        }));
        (self.run)(hooks, record, whole)
    }
}

/// The gradients kept for leaves.
fn gather(leaves: &ByPoint, gradients: &Gradients) -> ByPoint {
    leaves.iter().filter_map(|(id, leaf)| Some((*id, leaf.gradient(gradients)?))).collect()
}
