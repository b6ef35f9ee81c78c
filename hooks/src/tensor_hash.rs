//! Hashes of tensors.

use xxhash_rust::xxh3::Xxh3;

use crate::activation::Activation;
use crate::error::HookError;

/// Adds a tensor's shape and values to a hash.
pub(crate) fn add_tensor(hash: &mut Xxh3, tensor: &Activation) -> Result<(), HookError> {
    let data = tensor.to_data()?;
    tensor.shape().iter().for_each(|len| hash.update(&(*len as u64).to_le_bytes()));
    hash.update(data.as_bytes());
    Ok(())
}
