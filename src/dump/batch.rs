//! One computed batch.

use hooklens_hooks::HookError;

use super::placing::{FileTensor, Named, Placing, Widths};

/// One computed batch on its way to the disk.
pub(crate) struct Batch {
    pub(super) number: usize,
    /// Rows of the whole input before this batch.
    pub(super) first_row: usize,
    pub(super) placing: Placing,
    pub(super) tensors: Vec<Named>,
}

impl Batch {
    /// The tensors as an output of these widths holds them.
    pub(super) fn place(&self, widths: Widths) -> Result<Vec<FileTensor>, HookError> {
        self.tensors.iter().map(|named| self.placing.place(named, widths)).collect()
    }
}
