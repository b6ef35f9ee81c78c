//! Hashes of each row's tokens, which are used to compare recordings.

use hooklens_hooks::TextHashes;
use xxhash_rust::xxh3::Xxh3;

use super::batch::Tokens;

/// Hash of a token sequence.
pub fn text_hash(tokens: impl Iterator<Item = u32>) -> u64 {
    let mut hash = Xxh3::new();
    tokens.for_each(|id| hash.update(&id.to_le_bytes()));
    hash.digest()
}

impl Tokens {
    /// For each row, a hash of the cached tokens and a hash of the cached tokens followed by the row's own tokens.
    /// Padding is not hashed.
    pub(crate) fn text_hashes(&self, before: Option<&[Vec<u32>]>) -> Vec<TextHashes> {
        let [batch, _] = self.shape();
        let of_row = |row: usize| {
            let held = before.and_then(|rows| rows.get(if rows.len() == 1 { 0 } else { row }));
            let held = || held.into_iter().flatten().copied();
            TextHashes { before: text_hash(held()), whole: text_hash(held().chain(self.real(row))), read: 0 }
        };
        (0..batch).map(of_row).collect()
    }
}
