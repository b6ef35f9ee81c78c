//! Next-token predictions of every layer: the logit lens (nostalgebraist 2020) and the tuned lens (Belrose et al.
//! 2023).

mod kinds;
mod reading;
mod tuned;

pub use kinds::LogitLens;
pub use reading::{LensReading, TopTokens, may_be_of};
pub use tuned::TunedLens;
