//! Text to token ids and back.

mod batch;
mod beginning;
#[cfg(feature = "chat")]
mod chat;
mod declared;
mod growth;
mod marian;
#[cfg(feature = "chat")]
mod python_values;
mod residues;
mod sentence_piece;
mod templates;
mod text_hash;
mod texts;
mod token_text;
mod tokenized;
mod tokenizer;
mod vocabulary;

pub use batch::{PaddingSide, Tokens};
#[cfg(feature = "chat")]
pub use chat::Message;
#[cfg(feature = "plot")]
pub(crate) use text_hash::text_hash;
pub use texts::Texts;
pub use tokenized::Tokenized;
pub use tokenizer::{TokenizeOptions, Tokenizer};

pub(crate) use batch::flat_mask;
#[cfg(feature = "hub")]
pub(crate) use marian::FILES as MARIAN_FILES;
pub(crate) use token_text::token_text;
pub(crate) use tokenizer::read_json;
