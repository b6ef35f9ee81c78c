//! Methods of [`Inside`], through which a part reads and fires points during a run.

use burn::tensor::Tensor;

use super::{Halt, Inside};
use crate::activation::Activation;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::point::{Point, PointInfo};
use crate::suggest::nearest;

impl Inside<'_, '_, '_> {
    /// The point where the part is spliced in.
    pub fn host(&self) -> &PointInfo {
        self.run.info(self.host)
    }

    /// The point's tensor, which the part replaces.
    pub fn replaced(&self) -> &Activation {
        &self.replaced
    }

    /// The tensors of the points named by [`Part::also_reads`](super::Part::also_reads), in that order, with their
    /// hooks applied.
    pub fn also(&self) -> &[Activation] {
        self.also
    }

    /// Passes a tensor to the hooks of one of the part's points, records it, and returns the result.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point that the part did not list, [`HookError::Rank`] if the point has a
    /// different rank, and the errors of [`Run::fire`](super::Run::fire).
    pub fn fire<const D: usize>(&mut self, suffix: &str, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        let id = self.id(suffix)?;
        self.run.fire_checked(id, tensor)
    }

    /// Whether a hook or a recording watches this point of the part. If not, the part need not compute a tensor that
    /// only this point needs.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point that the part did not list.
    pub fn wants(&self, suffix: &str) -> Result<bool, HookError> {
        Ok(self.run.wants(Some(self.id(suffix)?)))
    }

    /// Whether a hook may change the tensor of one of the part's points.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point that the part did not list.
    pub fn edits(&self, suffix: &str) -> Result<bool, HookError> {
        Ok(self.run.edits(Some(self.id(suffix)?)))
    }

    fn id(&self, suffix: &str) -> Result<PointId, HookError> {
        let of = |id: &PointId| &*self.run.info(*id).name;
        let is = |id: &&PointId| of(id).strip_suffix(suffix).is_some_and(|host| host.ends_with('.'));
        self.points.iter().find(is).copied().ok_or_else(|| {
            let name = Point::<1>::new(self.host().name.clone()).inner::<1>(suffix).name();
            let nearest = nearest(&name, self.points.iter().map(of));
            HookError::UnknownPoint { name, n_layers: self.run.n_layers(), nearest }
        })
    }
}
