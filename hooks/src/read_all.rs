//! Reading several activations at once.

use burn::tensor::{TensorData, Transaction};

use crate::activation::Activation;
use crate::device_label::unread;
use crate::error::HookError;
use crate::transfer::note_read;

/// Reads the data of several activations, in order, with one read per device.
///
/// # Errors
/// Same as [`Activation::to_data`].
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
