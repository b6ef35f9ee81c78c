//! Device self-test.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Tensor, TensorData, activation};
use hooklens_hooks::Activation;
use ndarray::ArrayD;

use super::is_cubecl;
use crate::error::{BoxError, Error, Result};

/// Returns an error if a device whose kernels are compiled by a driver computes wrong numbers. Some drivers accept
/// kernels that they don't support and return arbitrary results. Each device is tested once.
pub fn check_numbers(device: &Device) -> Result<()> {
    static CHECKED: Mutex<Vec<Device>> = Mutex::new(Vec::new());
    let device = device.clone().without_autodiff();
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_cubecl(&device) || checked.contains(&device) {
        return Ok(());
    }
    let failed = |source: BoxError| Error::DeviceFailed { device: format!("{device:?}"), source };
    let on = |device: &Device| Activation::from(numbers(device)).to_ndarray().map_err(|error| failed(error.into()));
    let (given, expected) = (on(&device)?, on(&Device::flex())?);
    let largest_of = |values: &ArrayD<f32>| values.iter().fold(0f32, |most, x| most.max(x.abs()));
    let (apart, largest) = (largest_of(&(&given - &expected)), largest_of(&expected));
    // Rounding factors to TF32 causes an error of about a thousandth in each product.
    if apart <= 0.05 * largest && given.iter().all(|x| x.is_finite()) {
        checked.push(device);
        return Ok(());
    }
    let reason = format!(
        "the output of a small attention layer is off by {apart} (largest value: {largest}), because the driver \
         miscompiles the kernels; try a newer driver, or the device `wgpu`"
    );
    Err(Error::Device { name: format!("{device:?}"), reason })
}

/// Output of a small attention layer, `[6, 64]`: a norm, plain and batched matrix products, and a softmax.
fn numbers(device: &Device) -> Tensor<2> {
    let matrix = |rows: usize, columns: usize, step: usize| {
        let values: Vec<f32> = (0..rows * columns).map(|place| ((place * step) % 13) as f32 / 13.0 - 0.5).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, columns]), device)
    };
    let x = matrix(6, 64, 7);
    let scale = (x.clone().square().mean_dim(1) + 1e-5).sqrt();
    let projected = (x / scale).matmul(matrix(64, 64, 5)) + matrix(1, 64, 3);
    let heads = projected.reshape([1, 6, 4, 16]).swap_dims(1, 2);
    let scores = heads.clone().matmul(heads.clone().swap_dims(2, 3)) * 0.05;
    let mixed = activation::softmax(scores, 3).matmul(heads).swap_dims(1, 2).reshape([6, 64]);
    mixed.matmul(matrix(64, 64, 11)) / 10.0
}
