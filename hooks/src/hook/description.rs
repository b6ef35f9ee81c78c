//! What a hook does, in words that another process can compare.

use std::fmt;
use std::rc::Rc;

use burn::tensor::Tensor;
use xxhash_rust::xxh3::Xxh3;

use super::Hook;
use crate::activation::Activation;
use crate::catalog::Catalog;
use crate::error::HookError;
use crate::point::PointInfo;

/// Adds the tensors that a hook uses at a point to a hash.
type Values<'a> = Rc<dyn Fn(&PointInfo, &mut Xxh3) -> Result<(), HookError> + 'a>;

/// What a hook does to the tensor of a point.
#[derive(Clone, Default)]
pub(crate) struct Description<'a> {
    /// The part of the tensor: `head 1, positions -1`; empty for all of it.
    pub(crate) slice: String,
    /// What is done to it: `scale 2.0`; unknown of a closure.
    action: Option<String>,
    /// The name that the caller gave.
    name: Option<String>,
    /// The tensors used. Reading them may wait for a device, so they are hashed on demand only.
    values: Option<Values<'a>>,
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.slice.is_empty() {
            write!(f, " {}", self.slice)?;
        }
        match (&self.action, &self.name) {
            (Some(action), Some(name)) => write!(f, ": {action}, {name:?}"),
            (Some(action), None) => write!(f, ": {action}"),
            (None, Some(name)) => write!(f, ": {name:?}"),
            (None, None) => Ok(()),
        }
    }
}

impl<'a> Hook<'a> {
    /// Names what the hook's closure does. A dump that is resumed or made in shards compares the name, so it has to say
    /// all that the result depends on: settings, and the version of the code if that changes.
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
    /// A complete description of the hook: its points, and what it does to which part of their tensors, with a hash of the
    /// tensors it uses. Two hooks of the same description have the same effect on a model, also in different processes.
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
    /// [`HookError::Unnamed`] for a closure without a [name](Hook::named), and what resolving its points or reading its
    /// tensors reports.
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

/// Adds shape and values.
pub(crate) fn add_tensor(hash: &mut Xxh3, tensor: &Activation) -> Result<(), HookError> {
    let data = tensor.to_data()?;
    tensor.shape().iter().for_each(|len| hash.update(&(*len as u64).to_le_bytes()));
    hash.update(data.as_bytes());
    Ok(())
}
