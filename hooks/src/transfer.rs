//! Counted transfers of tensors between host and devices.

use std::cell::Cell;

use burn::tensor::kind::Basic;
use burn::tensor::{ExecutionError, Tensor, TensorCreationOptions, TensorData};

thread_local! {
    static SO_FAR: Cell<Transfers> = const { Cell::new(Transfers { reads: 0, read_bytes: 0, uploads: 0, uploaded_bytes: 0 }) };
}

/// Number and size of the transfers between host and devices made by this thread. A read waits for the device.
///
/// ```
/// use hooklens_hooks::Transfers;
/// # use burn::tensor::{Device, Tensor};
/// let before = Transfers::so_far();
/// hooklens_hooks::read(Tensor::<1>::ones([3], &Device::flex())).unwrap();
/// let made = Transfers::so_far().since(before);
/// assert!(made.reads >= 1 && made.read_bytes >= 12);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfers {
    /// Number of reads, each of one tensor or of several at once.
    pub reads: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of tensors uploaded from the host.
    pub uploads: u64,
    /// Number of bytes uploaded.
    pub uploaded_bytes: u64,
}

impl Transfers {
    /// All transfers of this thread so far.
    pub fn so_far() -> Self {
        SO_FAR.get()
    }

    /// The transfers since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            uploads: self.uploads - earlier.uploads,
            uploaded_bytes: self.uploaded_bytes - earlier.uploaded_bytes,
        }
    }
}

fn note(change: impl FnOnce(&mut Transfers)) {
    let mut so_far = SO_FAR.get();
    change(&mut so_far);
    SO_FAR.set(so_far);
}

/// Counts all this data as one read.
pub(crate) fn note_read<'d>(data: impl IntoIterator<Item = &'d TensorData>) {
    let bytes: usize = data.into_iter().map(|data| data.as_bytes().len()).sum();
    note(|so_far| {
        so_far.reads += 1;
        so_far.read_bytes += bytes as u64;
    });
}

/// Reads a tensor's data, waiting until its device has computed it.
///
/// # Errors
/// Any error from the device, including errors in work queued earlier.
pub fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData, ExecutionError> {
    let data = tensor.try_into_data()?;
    note_read([&data]);
    Ok(data)
}

/// Creates a tensor from host data.
pub fn upload<const D: usize, K: Basic>(data: TensorData, options: impl Into<TensorCreationOptions>) -> Tensor<D, K> {
    note(|so_far| {
        so_far.uploads += 1;
        so_far.uploaded_bytes += data.as_bytes().len() as u64;
    });
    Tensor::from_data(data, options)
}
