//! Activation patching: replaces activations in one run with activations from another run and measures the effect on
//! the logits.

mod backward;
mod base_run;
mod differentiated;
mod example;
mod growing_batch;
mod layout;
mod metric;
mod model;
mod named;
mod path;
mod prompts;
mod receiver;
mod result;
mod rows;
mod shuffled;
mod sites;
mod source;
mod sweep;

pub use crate::error::PatchError;
pub use backward::Backward;
pub use metric::Metric;
pub(crate) use metric::read_values;
pub use model::PatchModel;
pub use path::Freeze;
pub use prompts::PatchPrompts;
pub use receiver::Receiver;
pub use result::PatchingResult;
pub use sites::{Sites, points_of};
pub use source::Ablation;
pub use sweep::Patching;

pub(crate) use example::Example;
pub use layout::position_labels;
pub(crate) use layout::{Found, Layout};
pub use model::Patchable;
pub(crate) use source::Source;
