//! Descriptions of hooks: name, action and the tensors in use.

use std::rc::Rc;

use xxhash_rust::xxh3::Xxh3;

use super::Hook;
use crate::error::HookError;
use crate::point::PointInfo;

impl<'a> Hook<'a> {
    /// Names what the hook's closure does. A dump that is resumed or split into shards compares this name, so it must
    /// cover everything that the result depends on: settings, and a version of the code if the code may change.
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

    pub(crate) fn described(mut self, action: impl Into<String>) -> Self {
        self.description.action = Some(action.into());
        self
    }

    pub(crate) fn using(mut self, values: impl Fn(&PointInfo, &mut Xxh3) -> Result<(), HookError> + 'a) -> Self {
        self.description.values = Some(Rc::new(values));
        self
    }
}
