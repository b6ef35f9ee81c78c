//! Scopes: hooks that stay active for several runs.

use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Catalog, Hook, HookDetails, HookError};

use super::{ForwardOptions, HookedModel, private};
use crate::error::{InputError, Result};
use crate::tokens::Tokenizer;

/// A model with hooks that stay active until this value is dropped. See [`HookedModel::hooks`].
///
/// It implements [`HookedModel`], so anything that runs a model can run it with the hooks.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut seen = 0;
/// {
///     let hooked = model.hooks([hook::resid_post(0).read(|_, _| seen += 1)]);
///     hooked.forward("red fox")?;
///     hooked.forward("blue king")?;
/// }
/// assert_eq!(seen, 2);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the hooks act on runs made through this value, not on the model"]
pub struct Hooked<'m, 'h, M> {
    model: &'m M,
    hooks: RefCell<Vec<Hook<'h>>>,
}

impl<'m, 'h, M: HookedModel> Hooked<'m, 'h, M> {
    pub(super) fn new(model: &'m M, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        Self { model, hooks: RefCell::new(hooks.into_iter().collect()) }
    }

    /// Borrows the hooks for a run.
    pub(crate) fn with_hooks<R>(&self, run: impl FnOnce(&mut Vec<Hook<'h>>) -> Result<R>) -> Result<R> {
        run(&mut *self.hooks.try_borrow_mut().map_err(|_| InputError::Reentered)?)
    }
}

/// The model that a scope's hooks are added to.
pub fn unhooked<'m, M>(hooked: &Hooked<'m, '_, M>) -> &'m M {
    hooked.model
}

/// Whether a hook changes the values of a run.
fn changes_values(hook: &Hook<'_>) -> bool {
    hook.edits() && !hook.is_neutral()
}

impl<M> private::Sealed for Hooked<'_, '_, M> {}

impl<M: HookedModel> private::RunModel for Hooked<'_, '_, M> {
    type Input = M::Input;
    type Output = M::Output;
    type Scored = M::Scored;

    const NEEDS_LOGITS: bool = M::NEEDS_LOGITS;

    fn hook_identities(&self) -> Result<Vec<Result<String, HookError>>> {
        let own = self.hooks.try_borrow().map_err(|_| InputError::Reentered)?;
        let own = own.iter().filter(|hook| changes_values(hook)).map(|hook| hook.identity(self.catalog()));
        Ok(self.model.hook_identities()?.into_iter().chain(own).collect())
    }

    fn tells_rows_apart(&self) -> bool {
        let own = self.hooks.try_borrow().is_ok_and(|own| own.iter().any(Hook::is_by_row));
        own || self.model.tells_rows_apart()
    }

    fn counts_from_the_end(&self) -> bool {
        let own = self.hooks.try_borrow().is_ok_and(|own| own.iter().any(Hook::counts_from_the_end));
        own || self.model.counts_from_the_end()
    }

    fn run_checked(&self, input: M::Input, options: ForwardOptions<'_>) -> Result<M::Output> {
        self.with_hooks(|own| {
            let hooks = own.iter_mut().map(Hook::reborrow).chain(options.hooks).collect();
            self.model.run_checked(input, ForwardOptions { hooks, ..options })
        })
    }

    fn scored(output: &M::Output) -> Result<M::Scored> {
        M::scored(output)
    }
}

impl<M: HookedModel> HookedModel for Hooked<'_, '_, M> {
    fn catalog(&self) -> &Arc<Catalog> {
        self.model.catalog()
    }

    fn device(&self) -> Device {
        self.model.device()
    }

    fn devices(&self) -> Vec<Device> {
        self.model.devices()
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        self.model.tokenizer()
    }

    fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        self.model.unembed(stream)
    }

    fn interventions(&self) -> Vec<String> {
        // The borrow fails if one of these hooks calls this method while running.
        let own = self
            .hooks
            .try_borrow()
            .map(|own| own.iter().filter(|hook| changes_values(hook)).map(|hook| format!("{hook:?}")).collect());
        self.model.interventions().into_iter().chain::<Vec<String>>(own.unwrap_or_default()).collect()
    }

    fn run_with_gradients<'o>(
        &self,
        input: impl Into<M::Input>,
        options: impl Into<ForwardOptions<'o>>,
        scalar: impl FnOnce(M::Scored) -> Tensor<1>,
    ) -> Result<M::Output> {
        // Gradient hooks are split off before a run, so all hooks must be passed on here.
        let options: ForwardOptions<'o> = options.into();
        self.with_hooks(|own| {
            let hooks = own.iter_mut().map(Hook::reborrow).chain(options.hooks).collect();
            self.model.run_with_gradients(input, ForwardOptions { hooks, ..options }, scalar)
        })
    }
}
