//! From files to a model.

mod assemble;
mod fingerprint;
#[cfg(feature = "hub")]
mod hub;
mod layout;
mod options;
mod pretrained;
mod report;
mod save;
mod weight_files;

pub use options::LoadOptions;
pub use report::LoadReport;

pub(crate) use layout::{Layout, WeightTable};
pub use pretrained::{ModelInfo, StoredWeights, inspect};
pub use weight_files::{TensorInfo, WeightFiles};
