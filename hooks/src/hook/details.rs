//! [`HookDetails`]: what a model that runs hooks needs to know about them.

use std::sync::Arc;

use burn::tensor::Tensor;
use xxhash_rust::xxh3::Xxh3;

use super::{At, Hook, check_edit, check_rank};
use crate::activation::Activation;
use crate::catalog::Catalog;
use crate::error::HookError;
use crate::model_identity::ModelIdentity;
use crate::point::PointInfo;
use crate::positions::Positions;
use crate::selection::SelectionText;
use crate::tensor_hash::add_tensor;

/// What a hook does and where. Used by code that runs hooks, compares them across processes, or creates them.
pub trait HookDetails: Sized {
    /// Identifier shared by this hook and its [`reborrow`](Hook::reborrow)s, and unique within the process otherwise.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::{HookDetails, at};
    /// let double = || at("mlp_out3").edit(|x: Tensor<3>, _| x * 2.0);
    /// let (mut one, other) = (double(), double());
    /// assert_ne!(one.id(), other.id());
    /// assert_eq!(one.id(), one.reborrow().id());
    /// ```
    fn id(&self) -> u64;

    /// A complete description of the hook: its points, its action, the part of the tensor it applies to, and a hash of
    /// the tensors it uses. Two hooks with the same identity have the same effect on a model, even in different
    /// processes.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let point = || Point::<3>::new("hook_embed");
    /// let zero = point().positions(-1).zero();
    /// assert_eq!(zero.identity(&catalog)?, "edit [\"hook_embed\"] positions -1: zero");
    /// assert_ne!(point().scale(2.0).identity(&catalog)?, point().scale(3.0).identity(&catalog)?);
    ///
    /// let closure = || point().edit(|x, _| x * 2.0);
    /// assert!(matches!(closure().identity(&catalog), Err(HookError::Unnamed { .. })));
    /// assert_eq!(closure().named("double").identity(&catalog)?, "edit [\"hook_embed\"]: \"double\"");
    /// # Ok::<(), HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Unnamed`] for a closure without a [name](Hook::named), or an error from resolving its points or
    /// reading its tensors.
    fn identity(&self, catalog: &Catalog) -> Result<String, HookError>;

    /// Describes the hook for [`HookDetails::identity`]: `action` says what the hook does, and `vector` is a vector
    /// that it uses.
    #[must_use]
    fn that_uses(self, action: impl Into<String>, vector: &Tensor<1>) -> Self;

    /// Binds the hook to a model; runs of other models reject it.
    #[must_use]
    fn for_model(self, model: &Arc<ModelIdentity>) -> Self;

    /// Marks a hook whose edits leave the values unchanged, such as one that inserts autodiff leaves. Recordings do not
    /// list its points as edited.
    #[must_use]
    fn neutral(self) -> Self;

    /// Whether the hook's edits leave the values unchanged: see [`HookDetails::neutral`].
    fn is_neutral(&self) -> bool;

    /// Whether the hook may change tensors.
    fn edits(&self) -> bool;

    /// Whether the hook runs on gradients in the backward pass instead of on tensors in the forward pass.
    fn is_backward(&self) -> bool;

    /// Whether the hook depends on batch row numbers.
    fn is_by_row(&self) -> bool;

    /// Whether the hook acts at positions counted from the end of the text.
    fn counts_from_the_end(&self) -> bool;

    /// Checks that a text of `len` tokens has all the positions that the hook acts at.
    ///
    /// # Errors
    /// [`HookError::Positions`] if it does not.
    fn check_reach(&self, len: usize) -> Result<(), HookError>;

    /// Runs the hook at a point outside a forward pass (for instance, in a backward pass) and returns the resulting
    /// tensor.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut double = at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0);
    /// let point = catalog.info(catalog.find("hook_embed")?);
    /// let ones = Tensor::<3>::ones([1, 1, 1], &Device::flex());
    /// assert_eq!(double.call(point, ones.into())?.to_ndarray()?[[0, 0, 0]], 2.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// An error from the hook, [`HookError::Rank`] if the hook expects a different rank, or an error if it returned
    /// a wrong shape or element type.
    fn call(&mut self, point: &PointInfo, tensor: Activation) -> Result<Activation, HookError>;
}

impl HookDetails for Hook<'_> {
    fn id(&self) -> u64 {
        self.id
    }

    fn identity(&self, catalog: &Catalog) -> Result<String, HookError> {
        if self.description.action.is_none() && self.description.name.is_none() {
            return Err(HookError::Unnamed { hook: format!("{self:?}") });
        }
        let target = self.target.spelled_out(catalog)?;
        let mut identity = format!("{}{}", self.verb(&target), self.description);
        if let Some(values) = &self.description.values {
            let mut hash = Xxh3::new();
            for id in target.resolve(catalog)? {
                values(catalog.info(id), &mut hash)?;
            }
            identity += &format!(" {:032x}", hash.digest128());
        }
        Ok(identity)
    }

    fn that_uses(self, action: impl Into<String>, vector: &Tensor<1>) -> Self {
        let vector = Activation::from(vector.clone());
        self.described(action).using(move |_, hash| add_tensor(hash, &vector))
    }

    fn for_model(mut self, model: &Arc<ModelIdentity>) -> Self {
        self.model = Some(model.clone());
        self
    }

    fn neutral(mut self) -> Self {
        self.neutral = true;
        self
    }

    fn is_neutral(&self) -> bool {
        self.neutral
    }

    fn edits(&self) -> bool {
        self.edits
    }

    fn is_backward(&self) -> bool {
        self.backward
    }

    fn is_by_row(&self) -> bool {
        self.by_row
    }

    fn counts_from_the_end(&self) -> bool {
        self.positions.as_ref().is_some_and(Positions::count_from_the_end)
    }

    fn check_reach(&self, len: usize) -> Result<(), HookError> {
        self.positions.as_ref().map_or(Ok(()), |positions| positions.check_reach(len))
    }

    fn call(&mut self, point: &PointInfo, tensor: Activation) -> Result<Activation, HookError> {
        check_rank(self.rank, point)?;
        let at = At { point, offset: 0, rows: None, encoder: None, cached: 0, heads: None };
        match self.act(tensor.clone(), &at)? {
            Some(edited) if self.edits => {
                check_edit(point, &tensor, &edited)?;
                Ok(edited)
            }
            _ => Ok(tensor),
        }
    }
}
