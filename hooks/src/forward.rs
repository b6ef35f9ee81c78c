//! Runs of a model's forward pass with hooks, recordings and gradients.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::activation::Detach;
use crate::cache::ActivationCache;
use crate::catalog::Catalog;
use crate::error::HookError;
use crate::gradients::with_gradients;
use crate::hook::Hook;
use crate::record::Record;
use crate::rows::Rows;
use crate::run::{Halt, Run};

impl Catalog {
    /// Runs a model's forward pass with hooks, and returns its output and the recordings. The closure calls the model,
    /// which fires the catalog's points: [`Run::fire`], [`Run::fire_named`].
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let model = |run: &mut Run<'_, '_>| {
    ///     let x = run.fire_named("hook_embed", Tensor::<3>::ones([1, 3, 4], &Device::flex()))?;
    ///     run.fire_named("blocks.0.hook_resid_post", x * 3.0)
    /// };
    /// let double = at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0);
    /// let (output, recorded) = catalog.run(Rows::new(1, 3), [double], "resid_post0", model)?;
    /// assert_eq!(output.max().into_scalar::<f32>(), 6.0);
    /// assert_eq!(recorded.get::<3>("resid_post0")?.dims(), [1, 3, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Run::new`], before the closure is called; errors of hooks; [`HookError::Model`] with the closure's
    /// error; and [`HookError::NotFired`] if a watched point was not fired.
    pub fn run<'h, T>(
        self: &Arc<Self>,
        rows: Rows<'_>,
        hooks: impl IntoIterator<Item = Hook<'h>>,
        record: impl Into<Record>,
        forward: impl FnOnce(&mut Run<'_, '_>) -> Result<T, Halt>,
    ) -> Result<(T, ActivationCache), HookError> {
        let mut hooks: Vec<Hook<'h>> = hooks.into_iter().collect();
        let mut run = Run::new(self, &mut hooks, record.into(), rows, &|_| None)?;
        let output = forward(&mut run)?;
        Ok((output, run.finish()?))
    }

    /// Like [`Catalog::run`], and also computes gradients of a scalar with respect to the recorded activations:
    /// [`ActivationCache::grad`] returns them. `scalar` computes the scalar from the forward pass's output; a tensor of
    /// several elements is summed. The recordings are detached from the autodiff graph; the output is not.
    ///
    /// Hooks on gradients ([`Point::edit_grad`](crate::Point::edit_grad)) run in the backward pass. For each edited
    /// gradient, the closure is called once more and runs up to that point.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let model = |run: &mut Run<'_, '_>| {
    ///     let x = run.fire_named("hook_embed", Tensor::<3>::ones([1, 3, 4], &Device::flex()))?;
    ///     Ok(x.clone() * x)
    /// };
    /// let sum = |output: &Tensor<3>| output.clone().sum();
    /// let (_, recorded) = catalog.run_with_gradients(Rows::new(1, 3), [], "hook_embed", model, sum)?;
    /// assert_eq!(recorded.grad::<3>("hook_embed")?.max().into_scalar::<f32>(), 2.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Catalog::run`], [`HookError::GradientsOfParts`] if the record slices, converts or moves activations,
    /// and [`HookError::NoGradient`] if the scalar does not depend on a recorded activation.
    pub fn run_with_gradients<'h, T>(
        self: &Arc<Self>,
        rows: Rows<'_>,
        hooks: impl IntoIterator<Item = Hook<'h>>,
        record: impl Into<Record>,
        mut forward: impl FnMut(&mut Run<'_, '_>) -> Result<T, Halt>,
        scalar: impl FnOnce(&T) -> Tensor<1>,
    ) -> Result<(T, ActivationCache), HookError> {
        let hooks: Vec<Hook<'h>> = hooks.into_iter().collect();
        let mut again = |mut hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
            let mut run = Run::new(self, &mut hooks, record, rows, &|_| None)?;
            if !whole {
                run.stop_when_done();
            }
            let output = match forward(&mut run) {
                Ok(output) => Some(output),
                Err(Halt::Done) if !whole => None,
                Err(halt) => return Err(halt.into()),
            };
            Ok((output, run.finish()?))
        };
        let scalar = |(output, recorded): (Option<T>, ActivationCache)| -> Result<_, HookError> {
            let number = output.as_ref().map(scalar).ok_or(Halt::Done)?;
            Ok((number, (output, recorded.detached())))
        };
        let (output, recorded) = with_gradients::<(Option<T>, ActivationCache), HookError>(
            self,
            hooks,
            record.into(),
            &mut again,
            |(_, recorded)| recorded,
            scalar,
        )?;
        Ok((output.ok_or(Halt::Done)?, recorded))
    }
}
