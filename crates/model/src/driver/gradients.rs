//! Runs with gradients of a scalar with respect to activations.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Gradients, Tensor};
use hooklens_hooks::{Activation, Catalog, Hook, PointId, Record, at};

use super::{ForwardOptions, HookedModel, Logits, RunOutput};
use crate::error::{CacheError, InputError, Result};

/// Gradients by point.
type ByPoint = BTreeMap<PointId, Activation>;

/// Runs the model with the given hooks and record; if the flag is false, only up to the last recorded point.
type Runner<'r, O> = dyn for<'h> FnMut(Vec<Hook<'h>>, Record, bool) -> Result<O> + 'r;

/// Implements [`HookedModel::run_with_gradients`].
pub(super) fn run_with_gradients<M: HookedModel>(
    model: &M,
    input: M::Input,
    options: ForwardOptions<'_>,
    scalar: impl FnOnce(M::Scored) -> Tensor<1>,
) -> Result<M::Output> {
    if options.kv_cache.as_ref().is_some_and(|cache| !cache.is_frozen()) {
        return Err(CacheError::Gradients.into());
    }
    // An encoder without logits still has a residual stream to compute a scalar from.
    let no_logits = options.logits == Logits::None && M::NEEDS_LOGITS;
    if options.stop_at_layer.is_some() || no_logits {
        let option = if no_logits { "Logits::None" } else { "stop_at_layer" };
        let reason = "gradients are taken of a scalar computed from the logits, so the run must compute them";
        return Err(InputError::Conflict { option, with: "run_with_gradients", reason }.into());
    }
    let ForwardOptions { hooks, record, mut kv_cache, copies, .. } = options;
    let (logits, start, mask, tokens) =
        (options.logits, options.start_at_layer, options.attention_mask, options.tokens);
    let mut run = |hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
        let mut again = ForwardOptions::new().hooks(hooks).record(record);
        again.logits = if whole { logits } else { Logits::None };
        again.loss = options.loss && whole;
        again.loss_per_token = options.loss_per_token && whole;
        (again.start_at_layer, again.attention_mask, again.tokens) = (start, mask.clone(), tokens.clone());
        again.kv_cache = kv_cache.as_deref_mut();
        again.copies = copies;
        model.run(input.clone(), again)
    };
    with_gradients(model.catalog(), hooks, record, &mut run, |output| Ok(scalar(M::scored(output)?)))
}

/// Runs a model, computes a scalar from the output, and adds the gradients at the recorded points to the output's
/// cache. Gradient hooks run in the backward pass, last point first.
///
/// Each edited gradient costs another run (for a decoder, up to its point): Burn's backward pass can't be hooked, so it
/// is cut at the point and resumed from the edited gradient.
fn with_gradients<O: RunOutput>(
    catalog: &Catalog,
    hooks: Vec<Hook<'_>>,
    record: Record,
    run: &mut Runner<'_, O>,
    number: impl FnOnce(&O) -> Result<Tensor<1>>,
) -> Result<O> {
    if !record.keeps_all() {
        let reason = "a run with gradients records whole activations; slice, convert or move them afterwards";
        return Err(InputError::Conflict { option: "record", with: "run_with_gradients", reason }.into());
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

    let mut pass = GradientPass { catalog, hooks, run };
    let (output, mut gradients) = pass.whole(record, &points, &cuts, number)?;
    let mut output = output.without_history();
    for (place, id) in points.iter().enumerate().rev() {
        let name = &*catalog.info(*id).name;
        let mut gradient = match gradients.remove(id) {
            Some(gradient) => gradient,
            // The scalar does not depend on this point.
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

/// Repeats a run with autodiff leaves inserted at the points that need gradients.
struct GradientPass<'p, 'h, 'r, O> {
    catalog: &'p Catalog,
    /// The user's forward hooks.
    hooks: Vec<Hook<'h>>,
    run: &'p mut Runner<'r, O>,
}

impl<O: RunOutput> GradientPass<'_, '_, '_, O> {
    /// Runs the whole model and computes the gradients at `points`. A point before a cut gets only the gradient that
    /// does not pass through the cut.
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
        // Points without a tensor, such as experts without tokens, have no gradients.
        if leaves.borrow().is_empty() {
            return Ok((output, ByPoint::new()));
        }
        if !number.is_tracked() {
            return Err(InputError::NoGradient.into());
        }
        let gradients = number.backward();
        Ok((output, gather(&leaves.into_inner(), &gradients)))
    }

    /// Runs up to a point and backpropagates a gradient from there to the points before it.
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

    /// Runs the model with the user's hooks, followed by a leaf at each point: zeros that are added or, where the
    /// backward pass is cut, the activation itself.
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
            at(&*self.catalog.info(*id).name)
                .edit_any(move |tensor, _| {
                    let leaf = if cut { tensor.leaf() } else { tensor.zeros_like().leaf() };
                    let seen = if cut { leaf.clone() } else { tensor.plus(&leaf) };
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
