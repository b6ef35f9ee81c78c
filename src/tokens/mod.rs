//! Text to token ids and back.

mod batch;
mod methods;
mod tokenizer;

pub use batch::{PaddingSide, Tokens};
pub use methods::Texts;
pub use tokenizer::{TokenizeOptions, Tokenizer};

pub(crate) use batch::flat_mask;
pub(crate) use tokenizer::read_json;
