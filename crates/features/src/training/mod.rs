//! Training of dictionaries, with hand-written sparse backward passes.

mod calibration;
mod checkpoint;
mod coder;
mod held_out;
mod identity;
mod objective;
mod parameter;
mod run;
mod settings;
mod source;
mod trainer;

pub use held_out::HeldOut;
pub use identity::{Difference, TrainingIdentity};
pub use objective::{JumpReluSparsity, Objective};
pub use run::{Trained, TrainingJob, TrainingRecord, TrainingRun};
pub use settings::{Training, check_point};
pub use trainer::Step;
