//! Queries on a recording's provenance.

use xxhash_rust::xxh3::Xxh3;

use super::{ActivationCache, Origin};
use crate::error::HookError;
use crate::model_identity::ModelIdentity;
use crate::point::PointInfo;
use crate::recorded_rows::RecordedRows;
use crate::tensor_hash::add_tensor;

/// Where a recording comes from: its model, rows and texts. Used by code that combines a recording with a run, a text
/// or a second recording.
pub trait Provenance {
    /// Returns an error if a different model made the recording.
    ///
    /// # Errors
    /// [`HookError::OtherModel`] in that case.
    fn check_model(&self, model: &ModelIdentity) -> Result<(), HookError>;

    /// The recording's rows, and the token that each of their columns holds. In an encoder-decoder model, these are the
    /// decoder's rows.
    ///
    /// # Errors
    /// [`HookError::NoOrigin`] for a cache that was not filled by a run.
    fn recorded_rows(&self) -> Result<&RecordedRows, HookError>;

    /// Number of recorded rows and positions, `[batch, pos]`.
    fn rows_recorded(&self) -> [usize; 2];

    /// Model, texts and edits of the recorded run.
    fn origin(&self) -> &Origin;
}

impl Provenance for ActivationCache {
    fn check_model(&self, model: &ModelIdentity) -> Result<(), HookError> {
        match &self.origin.model {
            Some(own) if !own.is(model) => {
                Err(HookError::OtherModel { recorded: own.label().to_string(), model: model.label().to_string() })
            }
            _ => Ok(()),
        }
    }

    fn recorded_rows(&self) -> Result<&RecordedRows, HookError> {
        self.origin.own.as_deref().ok_or(HookError::NoOrigin { what: "looking up positions" })
    }

    fn rows_recorded(&self) -> [usize; 2] {
        self.rows
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl ActivationCache {
    /// Names of the points whose tensors were changed during the run, by hooks or by parts spliced into the model.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut hooks = [at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0)];
    /// let mut run = Run::new(&catalog, &mut hooks, Record::new("resid_post1"), Rows::new(1, 3), &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// assert_eq!(run.finish()?.edited().collect::<Vec<_>>(), ["hook_embed"]);
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn edited(&self) -> impl Iterator<Item = &str> {
        self.origin.edited.iter().map(|id| &*self.catalog.info(*id).name)
    }

    /// Allows the recording to be used with any model whose points have the same names and shapes, for example to patch
    /// between a base model and a fine-tuned one.
    #[must_use]
    pub fn for_any_model(mut self) -> Self {
        self.origin.model = None;
        self
    }

    /// Adds a point's recorded values, and the token of each column, to a hash.
    pub(crate) fn add_to_hash(&self, point: &PointInfo, hash: &mut Xxh3) -> Result<(), HookError> {
        add_tensor(hash, self.activation(&*point.name)?)?;
        let rows = [self.origin.rows_of(point), self.origin.encoder_rows().filter(|_| point.keys_of_encoder)];
        rows.into_iter().flatten().for_each(|rows| rows.add_to_hash(hash));
        Ok(())
    }
}
