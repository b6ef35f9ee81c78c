//! Reads of tensors from devices and uploads to them, counted.

use std::cell::Cell;

use burn::tensor::kind::Basic;
use burn::tensor::{ExecutionError, Tensor, TensorCreationOptions, TensorData, Transaction};

use crate::activation::Activation;
use crate::device_label::unread;
use crate::error::HookError;

thread_local! {
    static SO_FAR: Cell<Transfers> = const { Cell::new(Transfers { reads: 0, read_bytes: 0, uploads: 0, uploaded_bytes: 0 }) };
}

/// What runs on this thread have moved between host and devices so far. A read waits for the device.
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
    /// Reads, of one tensor or of several at once.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Tensors made of the host's data.
    pub uploads: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
}

impl Transfers {
    /// All until now.
    pub fn so_far() -> Self {
        SO_FAR.get()
    }

    /// Those after `earlier`.
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

/// Notes one read of all this data.
fn note_read<'d>(data: impl IntoIterator<Item = &'d TensorData>) {
    let bytes: usize = data.into_iter().map(|data| data.as_bytes().len()).sum();
    note(|so_far| {
        so_far.reads += 1;
        so_far.read_bytes += bytes as u64;
    });
}

/// A tensor's data, once its device has computed it.
///
/// # Errors
/// What the device met on the way, however long ago the work was queued.
pub fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData, ExecutionError> {
    let data = tensor.try_into_data()?;
    note_read([&data]);
    Ok(data)
}

/// The data of several activations, in their order; those of one device are read at once.
///
/// # Errors
/// As [`Activation::to_data`].
pub fn read_all<'a>(activations: impl IntoIterator<Item = &'a Activation>) -> Result<Vec<TensorData>, HookError> {
    let all: Vec<&Activation> = activations.into_iter().collect();
    let mut data: Vec<Option<TensorData>> = vec![None; all.len()];
    let mut left: Vec<usize> = (0..all.len()).collect();
    while let Some(first) = left.first() {
        let device = all[*first].device();
        let (here, others): (Vec<usize>, _) = left.iter().partition(|number| all[**number].device() == device);
        let transaction = here.iter().fold(Transaction::default(), |reads, number| all[*number].register(reads));
        let what = || format!("{} activations", here.len());
        let read = transaction.try_execute().map_err(|e| unread(&what(), &device, e.into()))?;
        note_read(&read);
        here.iter().zip(read).for_each(|(number, read)| data[*number] = Some(read));
        left = others;
    }
    Ok(data.into_iter().flatten().collect())
}

/// A tensor of the host's data.
pub fn upload<const D: usize, K: Basic>(data: TensorData, options: impl Into<TensorCreationOptions>) -> Tensor<D, K> {
    note(|so_far| {
        so_far.uploads += 1;
        so_far.uploaded_bytes += data.as_bytes().len() as u64;
    });
    Tensor::from_data(data, options)
}
