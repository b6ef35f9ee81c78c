//! Indices that may count from the end.

/// Index of a layer, head, or position: an `i32`, `isize`, or `usize`. Negative values count from the end: -1 is the
/// last.
///
/// ```
/// use hooklens_hooks::{Ordinal, Point};
/// let names: Vec<String> = (0..2).map(|layer: usize| Point::<4>::in_layer(layer, "attn.hook_z").name()).collect();
/// assert_eq!(names[1], "blocks.1.attn.hook_z");
/// assert_eq!((Ordinal::number(-1), usize::MAX.number()), (-1, isize::MAX)); // nothing wraps around
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer or position number",
    label = "expected an `i32`, an `isize` or a `usize`",
    note = "write `hook::z(0)`, `hook::z(-1)` for the last layer, `(\"z\", 3)`, `.positions(-1)` or `.positions([1, 3])`; \
            other integers convert: `layer as usize`"
)]
pub trait Ordinal: Copy {
    /// The index; negative if counted from the end.
    fn number(self) -> isize;
}

impl Ordinal for isize {
    fn number(self) -> isize {
        self
    }
}

impl Ordinal for i32 {
    fn number(self) -> isize {
        self as isize
    }
}

impl Ordinal for usize {
    fn number(self) -> isize {
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}
