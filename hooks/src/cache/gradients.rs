//! Gradients recorded alongside the activations.

use burn::tensor::Tensor;

use super::{ActivationCache, Lookup};
use crate::activation::Activation;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::selection::ResolveOne;

impl ActivationCache {
    /// The gradient at a point, recorded by a run with gradients. A look-up by name also finds it under the point's
    /// name with `_grad` appended.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let pass = |run: &mut Run<'_, '_>| run.fire(Some(ids[0]), Tensor::<3>::ones([1, 3, 4], &Device::flex()));
    /// let rows = Rows::new(1, 3);
    /// let (_, cache) = catalog.run_with_gradients(rows, [], "hook_embed", pass, |x| x.clone().sum())?;
    /// let grad: Tensor<3> = cache.grad("hook_embed")?;
    /// assert_eq!(grad.max().into_scalar::<f32>(), 1.0);
    /// assert_eq!(cache.activation("hook_embed_grad")?.shape(), [1, 3, 4]); // the same gradient, by name
    /// assert_eq!(cache.gradients().count(), 1);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ActivationCache::get`].
    pub fn grad<const D: usize>(&self, point: impl Lookup<D>) -> Result<Tensor<D>, HookError> {
        let id = point.selection().resolve_one(&self.catalog)?;
        self.gradient(id)?.clone().into_tensor(&self.catalog.info(id).name)
    }

    /// Stores the gradient at a point.
    pub(crate) fn set_gradient(&mut self, id: PointId, gradient: Activation) {
        self.gradients.insert(id, gradient);
    }

    /// Names and gradients of the points with a recorded gradient, in firing order.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &Activation)> {
        self.gradients.iter().map(|(id, gradient)| (&*self.catalog.info(*id).name, gradient))
    }

    pub(super) fn gradient(&self, id: PointId) -> Result<&Activation, HookError> {
        let name = || format!("{}_grad", self.catalog.info(id).name);
        self.gradients.get(&id).ok_or_else(|| HookError::NotRecorded {
            name: name(),
            held: self.gradients.len(),
            nearest: Vec::new(),
        })
    }
}
