//! Training of dictionaries: gradients by hand, sparse on the way back.

mod checkpoint;
mod coder;
mod objective;
mod parameter;
mod run;
mod settings;
mod source;
mod trainer;

pub use objective::{JumpReluSparsity, Objective};
#[cfg(feature = "cli")]
pub(crate) use run::Told;
pub use run::{Progress, Trained, TrainingRun};
pub use settings::Training;
pub use trainer::Step;
