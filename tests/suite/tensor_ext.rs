//! Reading values of tensors.

use burn::tensor::DType as BurnDType;
use hooklens::AnalysisError;
use hooklens::prelude::*;

use crate::support::{device, has, values};

#[test]
fn numbers_are_those_of_activations() {
    let counting: Vec<f32> = (0..24).map(|n| n as f32 / 7.0 - 1.0).collect();
    let tensor = Tensor::<1>::from_floats(counting.as_slice(), &device()).reshape([2, 3, 4]);
    assert_eq!(tensor.to_ndarray().unwrap(), values(&tensor));
    assert_eq!(tensor.to_vec().unwrap(), counting);
    // Row-major, whatever the memory layout.
    let turned = tensor.clone().swap_dims(0, 2);
    let array = turned.to_ndarray().unwrap();
    assert_eq!(array.shape(), [4, 3, 2]);
    assert_eq!(turned.to_vec().unwrap(), array.iter().copied().collect::<Vec<_>>());
    assert_eq!(turned.to_vec().unwrap()[1], counting[12]);
    // Other float types are converted.
    for dtype in [DType::F64, DType::F16, DType::BF16].into_iter().filter(|dtype| has(*dtype)) {
        let other = tensor.clone().cast(dtype.burn());
        let apart = (other.to_ndarray().unwrap() - values(&tensor)).mapv(f32::abs);
        assert!(apart.iter().all(|gap| *gap < 0.02), "{dtype}");
        assert_eq!(other.clone().narrow(0, 1, 1).argmax_tokens().unwrap(), [3, 3, 3]);
        assert_eq!(other.slice([0..1, 0..1, 0..1]).item().unwrap(), -1.0);
    }
    // Integers stay integers, including those that `f32` can't represent.
    let ids = Tensor::<1, Int>::from_ints([16_777_217, -3], &device());
    assert_eq!(ids.to_vec().unwrap(), [16_777_217i64, -3]);
    assert_eq!(ids.clone().narrow(0, 0, 1).item().unwrap(), 16_777_217);
    // Not every device has narrow integers, but the CPU does.
    let narrow = Tensor::<1, Int>::from_ints([5, -3], &Device::flex()).cast(BurnDType::I32);
    assert_eq!(narrow.to_vec().unwrap(), [5, -3]);
}

#[test]
fn what_is_not_one_number_says_its_shape() {
    for (tensor, shape) in
        [(Tensor::<2>::ones([2, 3], &device()), "[2, 3]"), (Tensor::zeros([0, 3], &device()), "[0, 3]")]
    {
        let message = tensor.item().unwrap_err();
        assert!(message.downcast_ref::<AnalysisError>().is_some());
        assert_eq!(message.to_string(), format!("the tensor is {shape}; expected one element"));
    }
    assert_eq!(Tensor::<3>::full([1, 1, 1], 2.5, &device()).item().unwrap(), 2.5);
    // A standard error, so that `?` works with any error type.
    let by_question_mark =
        || -> Result<f32, Box<dyn std::error::Error>> { Ok(Tensor::<1>::ones([1], &device()).item()?) };
    assert_eq!(by_question_mark().unwrap(), 1.0);
}

#[test]
fn the_likeliest_tokens_row_by_row() {
    let scores = [[[0.0, 5.0, 1.0], [9.0, 5.0, 1.0]], [[0.0, 1.0, 2.0], [3.0, 3.0, 1.0]]];
    let logits = Tensor::<3>::from_floats(scores, &device());
    assert_eq!(logits.argmax_tokens().unwrap(), [1, 0, 2, 0]); // the first among equal values
    assert_eq!(logits.clone().narrow(0, 1, 1).argmax_tokens().unwrap(), [2, 0]);
    assert_eq!(Tensor::<1>::from_floats([1.0, 2.0], &device()).argmax_tokens().unwrap(), [1]);
    assert_eq!(Tensor::<2>::zeros([0, 4], &device()).argmax_tokens().unwrap(), [0u32; 0]);
    let message = Tensor::<2>::zeros([4, 0], &device()).argmax_tokens().unwrap_err().to_string();
    assert_eq!(message, "the tensor is [4, 0]; expected a non-empty last axis");
    // Large rows take another path in the backend, with the same result.
    let wide: Vec<f32> = (0..50_000).map(|n| if n == 40_321 { 2.0 } else { (n % 7) as f32 / 7.0 }).collect();
    assert_eq!(Tensor::<1>::from_floats(wide.as_slice(), &device()).argmax_tokens().unwrap(), [40_321]);
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let logits = model.forward(["king drum sun king", "red fox tea red"]).unwrap();
    let by_burn = logits.clone().argmax(2).to_vec().unwrap();
    assert!(logits.argmax_tokens().unwrap().into_iter().map(i64::from).eq(by_burn));
    let trained = Tensor::<1>::from_floats([1.0, 4.0], &device().autodiff()).require_grad();
    assert_eq!((trained.to_vec().unwrap(), trained.argmax_tokens().unwrap()), (vec![1.0, 4.0], vec![1]));
}
