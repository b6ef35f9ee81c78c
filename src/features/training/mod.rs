//! Training of dictionaries: gradients by hand, sparse on the way back.

mod checkpoint;
mod coder;
mod identity;
mod objective;
mod parameter;
mod run;
mod settings;
mod source;
mod trainer;

#[cfg(feature = "cli")]
pub(crate) use identity::{Difference, TrainingIdentity};
pub use objective::{JumpReluSparsity, Objective};
pub use run::{Progress, Trained, TrainingRun};
pub use settings::Training;
pub use trainer::Step;
