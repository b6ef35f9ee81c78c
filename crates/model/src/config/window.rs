//! Sliding, chunked and two-sided attention windows.

use serde::{Deserialize, Serialize};

/// Attention window. Padding does not count toward its width.
///
/// ```
/// use hooklens::Window;
/// assert_eq!([Window::Sliding(3).width(), Window::Around(3).width()], [3, 4]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Window {
    /// The last `n` positions, including the query's own (Mistral).
    Sliding(usize),
    /// The query's chunk of `n` positions, up to the query itself (Llama 4).
    Chunked(usize),
    /// The query's own position and `n` positions on either side of it (ModernBERT). For bidirectional attention.
    Around(usize),
}

impl Window {
    /// The first position that a query at `position` attends to.
    pub(crate) fn oldest(self, position: usize) -> usize {
        match self {
            Window::Sliding(width) => (position + 1).saturating_sub(width),
            Window::Chunked(width) => position / width.max(1) * width,
            Window::Around(side) => position.saturating_sub(side),
        }
    }

    /// The last position that a query at `position` attends to, for bidirectional windows.
    pub(crate) fn newest(self, position: usize) -> Option<usize> {
        match self {
            Window::Around(side) => Some(position.saturating_add(side)),
            _ => None,
        }
    }

    /// Maximum number of positions in the window up to and including the query's own.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Chunked(8192).width(), 8192);
    /// ```
    pub fn width(self) -> usize {
        match self {
            Window::Sliding(width) | Window::Chunked(width) => width,
            Window::Around(side) => side.saturating_add(1),
        }
    }
}
