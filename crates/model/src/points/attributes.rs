//! Attributes of hook points that the table in `site.rs` uses.

use hooklens_hooks::{Filler, PointInfo};

/// Attributes that only models of this crate set.
pub(super) trait Attributes {
    /// Marks the point's key positions as starting with the positions in a key-value cache.
    fn with_past(self) -> Self;

    /// Marks the point as holding attention scores, with negative infinity at masked positions.
    fn scores(self) -> Self;
}

impl Attributes for PointInfo {
    fn with_past(mut self) -> Self {
        self.with_past = true;
        self
    }

    fn scores(mut self) -> Self {
        self.filler = Filler::MinusInfinity;
        self
    }
}
