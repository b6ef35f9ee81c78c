//! Gradients of a scalar with respect to activations, for any model that fires points.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Gradients, Tensor};

use crate::activation::{Activation, AutodiffLeaf};
use crate::cache::ActivationCache;
use crate::catalog::{Catalog, PointId};
use crate::error::HookError;
use crate::hook::{Hook, HookDetails, at};
use crate::record::Record;

/// Gradients by point.
type ByPoint = BTreeMap<PointId, Activation>;

/// Runs the model with the given hooks and record. If the flag is false, the run stops at the last recorded point.
pub type Runner<'r, O, E> = dyn for<'h> FnMut(Vec<Hook<'h>>, Record, bool) -> Result<O, E> + 'r;

/// Runs a model, computes a scalar from its output, and adds the gradients at the recorded points to the output's
/// recording, which `cache` returns. `scalar` must return the output without its autodiff history, because points
/// before an edited gradient are computed again. Gradient hooks run in the backward pass, last point first.
///
/// Each edited gradient costs another run, up to its point: Burn's backward pass can't be hooked, so it is cut at the
/// point and resumed from the edited gradient.
///
/// # Errors
/// An error from a run, a hook or `scalar`, [`HookError::GradientsOfParts`] if the record slices, converts or moves
/// activations, or [`HookError::NoGradient`] if the scalar does not depend on a recorded activation.
#[doc(hidden)]
pub fn with_gradients<O, E: From<HookError>>(
    catalog: &Catalog,
    hooks: Vec<Hook<'_>>,
    record: Record,
    run: &mut Runner<'_, O, E>,
    cache: fn(&mut O) -> &mut ActivationCache,
    scalar: impl FnOnce(O) -> Result<(Tensor<1>, O), E>,
) -> Result<O, E> {
    if !record.keeps_all() {
        return Err(HookError::GradientsOfParts.into());
    }
    let recorded = record.selection.resolve(catalog)?;
    let (mut on_gradients, hooks): (Vec<_>, Vec<_>) = hooks.into_iter().partition(Hook::is_backward);
    let targets = on_gradients.iter().map(|hook| hook.target.resolve(catalog)).collect::<Result<Vec<_>, _>>()?;
    let wanted = |id: &PointId| !catalog.info(*id).integer;
    let mut points: Vec<PointId> = recorded.iter().chain(targets.iter().flatten()).copied().filter(wanted).collect();
    points.sort_unstable();
    points.dedup();
    let edits =
        |id: &PointId| on_gradients.iter().zip(&targets).any(|(hook, targets)| hook.edits() && targets.contains(id));
    let cuts: Vec<PointId> = points.iter().copied().filter(|id| edits(id)).collect();

    let mut pass = GradientPass { catalog, hooks, run };
    let (mut output, mut gradients) = pass.whole(record, &points, &cuts, scalar)?;
    for (place, id) in points.iter().enumerate().rev() {
        let name = &*catalog.info(*id).name;
        let recording = cache(&mut output);
        let mut gradient = match gradients.remove(id) {
            Some(gradient) => gradient,
            // The scalar does not depend on this point.
            None if recording.contains(name) => recording.activation(name)?.zeros_like(),
            None => continue,
        };
        for (hook, _) in on_gradients.iter_mut().zip(&targets).filter(|(_, targets)| targets.contains(id)) {
            gradient = hook.call(catalog.info(*id), gradient)?;
        }
        if cuts.contains(id) {
            let before: Vec<PointId> = cuts.iter().copied().take_while(|cut| cut < id).collect();
            for (earlier, more) in pass.up_to(*id, &points[..place], &before, &gradient, cache)? {
                let sum = gradients.remove(&earlier).map_or(more.clone(), |sum| &sum + &more);
                gradients.insert(earlier, sum);
            }
        }
        if recorded.contains(id) {
            cache(&mut output).set_gradient(*id, gradient);
        }
    }
    Ok(output)
}

/// Repeats a run with autodiff leaves inserted at the points that need gradients.
struct GradientPass<'p, 'h, 'r, O, E> {
    catalog: &'p Catalog,
    /// The user's forward hooks.
    hooks: Vec<Hook<'h>>,
    run: &'p mut Runner<'r, O, E>,
}

impl<O, E: From<HookError>> GradientPass<'_, '_, '_, O, E> {
    /// Runs the whole model and computes the gradients at `points`. A point before a cut gets only the gradient that
    /// does not pass through the cut.
    fn whole(
        &mut self,
        record: Record,
        points: &[PointId],
        cuts: &[PointId],
        scalar: impl FnOnce(O) -> Result<(Tensor<1>, O), E>,
    ) -> Result<(O, ByPoint), E> {
        let leaves = RefCell::new(ByPoint::new());
        let output = self.run(points, cuts, &leaves, record, true)?;
        let (number, output) = scalar(output)?;
        let number = number.sum();
        // Points without a tensor, such as experts without tokens, have no gradients.
        if leaves.borrow().is_empty() {
            return Ok((output, ByPoint::new()));
        }
        if !number.is_tracked() {
            return Err(HookError::NoGradient.into());
        }
        let gradients = number.backward();
        Ok((output, gather(&leaves.into_inner(), &gradients)))
    }

    /// Runs up to a point and backpropagates a gradient from there to the points before it.
    fn up_to(
        &mut self,
        end: PointId,
        points: &[PointId],
        cuts: &[PointId],
        gradient: &Activation,
        cache: fn(&mut O) -> &mut ActivationCache,
    ) -> Result<ByPoint, E> {
        if points.is_empty() {
            return Ok(ByPoint::new());
        }
        let leaves = RefCell::new(ByPoint::new());
        let name = self.catalog.info(end).name.clone();
        let mut output = self.run(points, cuts, &leaves, Record::new(&*name), false)?;
        let product = cache(&mut output).activation(&*name)?.dot(gradient);
        if !product.is_tracked() {
            return Ok(ByPoint::new());
        }
        let gradients = product.backward();
        Ok(gather(&leaves.into_inner(), &gradients))
    }

    /// Runs the model with the user's hooks and inserts an autodiff leaf after them at each point: a leaf of zeros that
    /// is added to the activation or, where the backward pass is cut, the activation itself as a leaf.
    fn run(
        &mut self,
        points: &[PointId],
        cuts: &[PointId],
        leaves: &RefCell<ByPoint>,
        record: Record,
        whole: bool,
    ) -> Result<O, E> {
        let mut hooks: Vec<Hook<'_>> = self.hooks.iter_mut().map(Hook::reborrow).collect();
        hooks.extend(points.iter().map(|id| {
            let cut = cuts.contains(id);
            at(&*self.catalog.info(*id).name)
                .edit_any(move |tensor, _| {
                    let leaf = if cut { tensor.leaf() } else { tensor.zeros_like().leaf() };
                    let seen = if cut { leaf.clone() } else { &tensor + &leaf };
                    leaves.borrow_mut().insert(*id, leaf);
                    Ok(Some(seen))
                })
                .neutral()
        }));
        (self.run)(hooks, record, whole)
    }
}

/// Collects the gradients of the leaves.
fn gather(leaves: &ByPoint, gradients: &Gradients) -> ByPoint {
    leaves.iter().filter_map(|(id, leaf)| Some((*id, leaf.gradient(gradients)?))).collect()
}
