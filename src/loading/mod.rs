//! From files to a model.

mod adapter;
mod assemble;
mod assemble_encoder;
mod assemble_encoder_decoder;
mod convert;
mod fingerprint;
#[cfg(feature = "hub")]
mod hub;
mod layout;
mod llama2c_file;
mod mapped_file;
mod options;
mod pretrained;
mod report;
mod save;
mod torch_file;
mod weight_files;

pub use options::LoadOptions;
pub use report::LoadReport;

pub(crate) use layout::{Layout, WeightTable};
pub use pretrained::{ModelConfig, ModelInfo, StoredWeights, inspect};
pub use weight_files::{TensorInfo, WeightFiles};
