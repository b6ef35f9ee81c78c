//! One job's part of a dump that is split over several jobs.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ShardError;

/// Maximum number of shards. No cluster runs that many jobs, and [`shards_in`](super::shards_in) lists every missing
/// shard.
const MOST: usize = 1_000_000;

/// A part of a dump's prompts, computed by one of several jobs: shard `index` of `of`, counted from one. Written as
/// `3/8`.
///
/// Shards differ in size by at most one prompt, and the prompts of a shard depend only on the number of prompts.
///
/// ```
/// use hooklens::dump::Shard;
/// assert_eq!("3/8".parse::<Shard>()?, Shard::new(3, 8)?);
/// assert!("9/8".parse::<Shard>().is_err());
/// # Ok::<(), hooklens::dump::ShardError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Shard {
    index: usize,
    of: usize,
}

/// Unvalidated shard as stored in a file.
#[derive(Deserialize)]
struct Stored {
    index: usize,
    of: usize,
}

impl TryFrom<Stored> for Shard {
    type Error = ShardError;

    fn try_from(stored: Stored) -> Result<Self, ShardError> {
        Self::new(stored.index, stored.of)
    }
}

impl Shard {
    /// Creates shard `index` of `of`.
    ///
    /// # Errors
    /// [`ShardError::Zero`] if `of` is 0, [`ShardError::TooMany`] if it is too large, [`ShardError::Index`] if `index`
    /// is not between 1 and `of`.
    pub fn new(index: usize, of: usize) -> Result<Self, ShardError> {
        if of == 0 {
            return Err(ShardError::Zero);
        }
        if of > MOST {
            return Err(ShardError::TooMany { of, most: MOST });
        }
        if index == 0 || index > of {
            return Err(ShardError::Index { index, of });
        }
        Ok(Self { index, of })
    }
}

/// A shard's numbers and its range of items, for code that splits work.
pub trait SplitByShard {
    /// Index of the shard, counted from one.
    fn index(self) -> usize;

    /// Total number of shards.
    fn of(self) -> usize;

    /// Range of the `count` items that belong to this shard. Shards differ in size by at most one item.
    fn share_of(self, count: usize) -> Range<usize>;
}

impl SplitByShard for Shard {
    fn index(self) -> usize {
        self.index
    }

    fn of(self) -> usize {
        self.of
    }

    fn share_of(self, count: usize) -> Range<usize> {
        let end = |shards: usize| (shards as u128 * count as u128 / self.of as u128) as usize;
        end(self.index - 1)..end(self.index)
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let numbers = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        let (index, of) = numbers.ok_or_else(|| ShardError::Text { text: text.to_string() })?;
        Self::new(index, of)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_are_none_are_refused() {
        for (index, of) in [(0, 3), (4, 3), (0, 0), (1, 1_000_000_001), (0, 1_000_000_001), (usize::MAX, usize::MAX)] {
            assert!(
                Shard::new(index, of).is_err() && format!("{index}/{of}").parse::<Shard>().is_err(),
                "{index}/{of}"
            );
            let json = serde_json::json!({"index": index, "of": of});
            assert!(serde_json::from_value::<Shard>(json).is_err(), "{index}/{of}");
        }
        let shard = Shard::new(3, 1_000_000).unwrap();
        assert_eq!(serde_json::from_value::<Shard>(serde_json::to_value(shard).unwrap()).unwrap(), shard);
    }

    #[test]
    fn shards_share_everything_once() {
        for of in 1..9 {
            for count in 0..30 {
                let shards = (1..=of).flat_map(|index| Shard::new(index, of).unwrap().share_of(count));
                assert_eq!(shards.collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            }
        }
    }
}
