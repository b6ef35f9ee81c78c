//! Sliding and chunked attention windows.

use serde::{Deserialize, Serialize};

/// How far back a query sees. Padding takes no room in a window.
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
        }
    }

    /// Positions in it.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Chunked(8192).width(), 8192);
    /// ```
    pub fn width(self) -> usize {
        match self {
            Window::Sliding(width) | Window::Chunked(width) => width,
        }
    }
}
