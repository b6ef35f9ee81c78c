//! Decomposition of the residual stream into the components that wrote to it, and direct logit attribution.

mod analysis;
mod components;
mod cut;
mod decompose;
mod direction;
mod edits;
mod heads;
mod logit_attrs;
mod made_of;
mod neurons;
mod post_norm;
mod stage;
mod term;
mod token_choice;

pub use crate::error::AnalysisError;
pub use analysis::{Analysis, Analyze};
pub use components::Components;
pub use direction::Direction;
pub(crate) use made_of::MadeOf;
pub use stage::{Neurons, Per, Stage};
pub use token_choice::TokenChoice;
