//! How faithful, complete, minimal and stable a circuit is.

mod adversary;
mod completeness;
mod faithfulness;
mod runs;
mod stability;

pub use adversary::{AdversarialAblation, Adversary};
pub use completeness::Completeness;
pub use faithfulness::{FaithfulnessCurve, MIB_SHARES, Selection, best_edges};
pub use runs::CircuitRuns;
pub use stability::Stability;
pub(super) use stability::resampled;
