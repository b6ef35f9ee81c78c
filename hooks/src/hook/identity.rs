//! Descriptions of hooks that can be compared across processes.

use std::rc::Rc;

use burn::tensor::Tensor;
use xxhash_rust::xxh3::Xxh3;

use super::Hook;
use crate::activation::Activation;
use crate::catalog::Catalog;
use crate::error::HookError;
use crate::point::PointInfo;
use crate::selection::SelectionText;
use crate::tensor_hash::add_tensor;

impl<'a> Hook<'a> {
    /// Names what the hook's closure does. A dump that is resumed or split into shards compares this name, so it must
    /// cover everything that the result depends on: settings, and the version of the code if that changes.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::at;
    /// let cap = 3.0;
    /// let hook = at("mlp_out3").edit(|x: Tensor<3>, _| x.clamp(-cap, cap)).named(format!("clamp to {cap}"));
    /// assert_eq!(format!("{hook:?}"), "Hook(edit [\"mlp_out3\"]: \"clamp to 3\")");
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.description.name = Some(name.into());
        self
    }

    /// Describes an action that uses a vector.
    #[doc(hidden)]
    #[must_use]
    pub fn that_uses(self, action: impl Into<String>, vector: &Tensor<1>) -> Self {
        let vector = Activation::from(vector.clone());
        self.described(action).using(move |_, hash| add_tensor(hash, &vector))
    }

    pub(crate) fn described(mut self, action: impl Into<String>) -> Self {
        self.description.action = Some(action.into());
        self
    }

    pub(crate) fn using(mut self, values: impl Fn(&PointInfo, &mut Xxh3) -> Result<(), HookError> + 'a) -> Self {
        self.description.values = Some(Rc::new(values));
        self
    }
}

impl Hook<'_> {
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
    pub fn identity(&self, catalog: &Catalog) -> Result<String, HookError> {
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
}
