//! Runs with gradients: what a number made of the logits owes to each activation.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, Catalog, Hook, PointId, Record, at};

use super::input::Input;
use super::options::{ForwardOptions, Logits, Output};
use super::transformer::HookedTransformer;
use crate::error::{InputError, Result};

/// Gradients by point.
type ByPoint = BTreeMap<PointId, Activation>;

impl HookedTransformer {
    /// Runs the model, makes a number of the logits, and records how it changes with each
    /// activation recorded: the output's cache holds both, `hook::z(3)` by
    /// [`get`](crate::ActivationCache::get) and its gradient by
    /// [`grad`](crate::ActivationCache::grad), or by name as `blocks.3.attn.hook_z_grad`.
    ///
    /// The weights need no gradients and get none. Hooks on gradients
    /// ([`edit_grad`](crate::hook::Point::edit_grad), [`read_grad`](crate::hook::Point::read_grad))
    /// run on the way back, last point first; what one makes of a gradient is what goes on and
    /// what is recorded. Each edited gradient costs another run up to its point, so hooks may be
    /// called several times.
    ///
    /// # Shapes
    /// - logits: `[batch, pos, d_vocab_out]`, or `[batch, 1, d_vocab_out]` for [`Logits::Last`]
    /// - the number: `[1]`; several are summed
    ///
    /// # Errors
    /// As [`HookedTransformer::run`]; a recording of parts of activations, or a key-value cache that
    /// grows; a number that does not depend on any recorded activation.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let (mary, john) = (model.to_single_token("Mary")? as usize, model.to_single_token("John")? as usize);
    /// let options = ForwardOptions::new().logits(Logits::Last).record("*hook_z");
    /// let output = model.run_with_gradients(prompt, options, |logits| {
    ///     (logits.clone().narrow(2, mary, 1) - logits.narrow(2, john, 1)).reshape([1])
    /// })?;
    /// let (z, grad) = (output.cache.get(hook::z(3))?, output.cache.grad(hook::z(3))?);
    /// assert_eq!(z.dims(), grad.dims());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn run_with_gradients<'h>(
        &self,
        input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
        number: impl FnOnce(Tensor<3>) -> Tensor<1>,
    ) -> Result<Output> {
        let mut options = options.into();
        let input = input.into();
        if !options.record.keeps_all() {
            return Err(
                InputError::Options("a run with gradients records whole activations; cut them afterwards").into()
            );
        }
        if options.kv_cache.as_ref().is_some_and(|cache| !cache.is_frozen()) {
            return Err(InputError::Options("a run with gradients can't add to a key-value cache; freeze it").into());
        }
        if options.logits == Logits::None || options.stop_at_layer.is_some() {
            return Err(
                InputError::Options("gradients are of a number made of the logits: let the run come to them").into()
            );
        }
        let catalog = self.catalog().clone();
        let recorded = options.record.selection().resolve(&catalog)?;
        let (mut on_gradients, hooks): (Vec<_>, Vec<_>) =
            std::mem::take(&mut options.hooks).into_iter().partition(Hook::is_backward);
        options.hooks = hooks;
        let targets = on_gradients.iter().map(|hook| hook.target().resolve(&catalog)).collect::<Result<Vec<_>, _>>()?;
        let wanted = |id: &PointId| !catalog.info(*id).integer;
        let mut points: Vec<PointId> =
            recorded.iter().chain(targets.iter().flatten()).copied().filter(wanted).collect();
        points.sort_unstable();
        points.dedup();
        let edits = |id: &PointId| {
            on_gradients.iter().zip(&targets).any(|(hook, targets)| hook.edits() && targets.contains(id))
        };
        let cuts: Vec<PointId> = points.iter().copied().filter(|id| edits(id)).collect();

        let mut pass = Pass { model: self, catalog: &catalog, input, options, points: &points };
        let (mut output, mut gradients) = pass.whole(&cuts, number)?;
        output.logits = output.logits.map(Tensor::without_autodiff);
        output.loss = output.loss.map(Tensor::without_autodiff);
        output.loss_per_token = output.loss_per_token.map(Tensor::without_autodiff);
        output.cache = output.cache.map(|held| held.detached());
        for (place, id) in points.iter().enumerate().rev() {
            let shape = || output.cache.activation(&*catalog.info(*id).name).map(Activation::zeros_like);
            let mut gradient = match gradients.remove(id) {
                Some(gradient) => gradient,
                // The number does not depend on it.
                None if output.cache.contains(&*catalog.info(*id).name) => shape()?,
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
                output.cache.set_gradient(*id, gradient);
            }
        }
        Ok(output)
    }
}

/// The same run, once or several times, with leaves put in to keep gradients for.
struct Pass<'p, 'h> {
    model: &'p HookedTransformer,
    catalog: &'p Catalog,
    input: Input,
    options: ForwardOptions<'h>,
    /// Points whose gradients are wanted, in firing order.
    points: &'p [PointId],
}

impl Pass<'_, '_> {
    /// A whole run and the gradients that come to the points, those before a cut only past it.
    fn whole(&mut self, cuts: &[PointId], number: impl FnOnce(Tensor<3>) -> Tensor<1>) -> Result<(Output, ByPoint)> {
        let leaves = RefCell::new(ByPoint::new());
        let (logits, record) = (self.options.logits, self.options.record.clone());
        let points = self.points;
        let output = self.run(points, cuts, &leaves, logits, record)?;
        let logits = output.logits.clone().ok_or(InputError::Options("no logits to make a number of"))?;
        let number = number(logits).sum();
        if points.is_empty() {
            return Ok((output, ByPoint::new()));
        }
        if !number.is_tracked() {
            return Err(InputError::Options("the number does not depend on any activation recorded").into());
        }
        let gradients = number.backward();
        Ok((output, gather(&leaves.into_inner(), &gradients)))
    }

    /// A run up to a point, and what a gradient there comes to at the points before it.
    fn up_to(&mut self, end: PointId, points: &[PointId], cuts: &[PointId], gradient: &Activation) -> Result<ByPoint> {
        if points.is_empty() {
            return Ok(ByPoint::new());
        }
        let leaves = RefCell::new(ByPoint::new());
        let name = self.catalog.info(end).name.clone();
        let output = self.run(points, cuts, &leaves, Logits::None, Record::new(&*name))?;
        let share = output.cache.activation(&*name)?.dot(gradient);
        if !share.is_tracked() {
            return Ok(ByPoint::new());
        }
        let gradients = share.backward();
        Ok(gather(&leaves.into_inner(), &gradients))
    }

    /// A run with the user's hooks and, behind them, a leaf at each point: zeros that are added, or,
    /// where the way back is cut, the activation itself.
    fn run(
        &mut self,
        points: &[PointId],
        cuts: &[PointId],
        leaves: &RefCell<ByPoint>,
        logits: Logits,
        record: Record,
    ) -> Result<Output> {
        let own = &mut self.options;
        let mut options = ForwardOptions::new().logits(logits).record(record);
        options.start_at_layer = own.start_at_layer;
        options.attention_mask = own.attention_mask.clone();
        options.tokens = own.tokens.clone();
        options.loss = own.loss && options.logits != Logits::None;
        options.loss_per_token = own.loss_per_token && options.logits != Logits::None;
        let mut hooks: Vec<Hook<'_>> = own.hooks.iter_mut().map(Hook::reborrow).collect();
        hooks.extend(points.iter().map(|id| {
            let cut = cuts.contains(id);
            at(&*self.catalog.info(*id).name).edit_any(move |tensor, _| {
                let leaf = if cut { tensor.leaf() } else { tensor.zeros_like().leaf() };
                let seen = if cut { leaf.clone() } else { tensor.plus(&leaf) };
                leaves.borrow_mut().insert(*id, leaf);
                Ok(Some(seen))
            })
        }));
        options = options.hooks(hooks);
        if let Some(cache) = own.kv_cache.as_deref_mut() {
            options = options.kv_cache(cache);
        }
        self.model.run(self.input.clone(), options)
    }
}

/// The gradients kept for leaves.
fn gather(leaves: &ByPoint, gradients: &burn::tensor::Gradients) -> ByPoint {
    leaves.iter().filter_map(|(id, leaf)| Some((*id, leaf.gradient(gradients)?))).collect()
}
