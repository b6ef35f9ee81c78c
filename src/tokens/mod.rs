//! Text to token ids and back.

mod batch;
mod chat;
mod texts;
mod tokenized;
mod tokenizer;
mod vocabulary;

pub use batch::{PaddingSide, Tokens};
pub use chat::Message;
pub use texts::Texts;
pub use tokenized::Tokenized;
pub use tokenizer::{TokenizeOptions, Tokenizer};

pub(crate) use batch::flat_mask;
pub(crate) use tokenizer::read_json;
