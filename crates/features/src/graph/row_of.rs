//! The target of a row of effects.

/// The target of a row. Features sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RowOf {
    Feature(usize),
    Target(usize),
}
