//! Sliding, chunked and two-sided attention windows.

use serde::{Deserialize, Serialize};

/// How far a query sees. Padding takes no room in a window.
///
/// ```
/// use hooklens::Window;
/// assert_eq!((0..6).map(|at| Window::Sliding(3).oldest(at)).collect::<Vec<_>>(), [0, 0, 0, 1, 2, 3]);
/// assert_eq!((0..6).map(|at| Window::Chunked(3).oldest(at)).collect::<Vec<_>>(), [0, 0, 0, 3, 3, 3]);
/// assert_eq!(Window::Sliding(3).width(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Window {
    /// This many positions, its own included (Mistral).
    Sliding(usize),
    /// From the last multiple of this many positions on (Llama 4).
    Chunked(usize),
    /// This many positions on either side, and its own (ModernBERT); of attention in both directions.
    Around(usize),
}

impl Window {
    /// The oldest position that a query at `position` sees.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Sliding(4).oldest(10), 7); // it sees 7, 8, 9 and itself
    /// ```
    pub fn oldest(self, position: usize) -> usize {
        match self {
            Window::Sliding(width) => (position + 1).saturating_sub(width),
            Window::Chunked(width) => position / width.max(1) * width,
            Window::Around(side) => position.saturating_sub(side),
        }
    }

    /// The newest position that a query at `position` sees, if attention is in both directions.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Around(4).newest(10), Some(14));
    /// assert_eq!(Window::Sliding(4).newest(10), None);
    /// ```
    pub fn newest(self, position: usize) -> Option<usize> {
        match self {
            Window::Around(side) => Some(position.saturating_add(side)),
            _ => None,
        }
    }

    /// Positions in it, up to the query's own.
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
