//! `across_cells.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::ActivationQueue;
let model = HookedTransformer::from_pretrained("embedded:induction")?;
let tokens = model.to_tokens("king drum sun star king drum sun star")?;
let whole = model.forward(&tokens)?;
let mut prefix = model.prefill("king drum sun star")?;
prefix.freeze();
let rest = model.to_tokens("king drum sun star king drum sun star")?.real(0)[5..].to_vec();
let behind = model.forward_with(vec![rest], ForwardOptions::new().kv_cache(&mut prefix))?;
let largest: f32 = (whole.clone().narrow(1, 5, 4) - behind).abs().max().into_scalar();
assert!(largest < 1e-4, "{largest}");
let hooked = model.run_with_hooks(&tokens, [hook::z(0).edit(|z, _| z)])?;
let largest: f32 = (whole.clone() - hooked).abs().max().into_scalar();
assert!(largest < 1e-5, "{largest}");
let device = Device::flex().autodiff();
{
    let other = Tensor::<1>::from_floats([1.0], &device).require_grad();
    let three: f32 = other.grad(&(other.clone() * 3.0).sum().backward()).unwrap().into_scalar();
    assert_eq!(three, 3.0);
};
{
    let x = Tensor::<1>::from_floats([2.0, 3.0], &device).require_grad();
    let y = Tensor::<1>::from_floats([5.0, 7.0], &device).require_grad();
    let gradients = (x.clone() * y.clone() * x.clone()).sum().backward(); // x squared times y
    let numbers = |tensor: Tensor<1>| Activation::from(tensor).to_ndarray().unwrap().into_iter().collect::<Vec<f32>>();
    assert_eq!(numbers(x.grad(&gradients).unwrap()), [20.0, 42.0]); // 2 x y
    assert_eq!(numbers(y.grad(&gradients).unwrap()), [4.0, 9.0]); // x squared
};
let first = model.run_with_gradients(&tokens, ForwardOptions::new().record("*hook_z"), |logits| logits.max())?
    .cache.grad(hook::z(0))?;
let second = model.run_with_gradients(&tokens, ForwardOptions::new().record("*hook_z"), |logits| logits.max())?
    .cache.grad(hook::z(0))?;
let largest: f32 = (first.clone() - second).abs().max().into_scalar();
let size: f32 = first.clone().abs().max().into_scalar();
assert!(largest <= 1e-6 * size && size > 0.0);
use hooklens::patching::{Metric, Patching};

let metric = Metric::logit_diff(&model, "drum", "star")?;
{
    let patching = Patching::new(&model, "king drum sun king", "king star sun king", metric)?;
    let estimated = patching.attribution("*hook_z")?.attn_head_out_all_pos()?.effect();
    let again = Metric::logit_diff(&model, "drum", "star")?;
    let patching = Patching::new(&model, "king drum sun king", "king star sun king", again)?;
    let again = patching.attribution("*hook_z")?.attn_head_out_all_pos()?.effect();
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
    assert!(again.values().iter().zip(estimated.values()).all(near));
};
let queue = ActivationQueue::new();
queue.push("across", whole.clone())?;
let popped: Tensor<3> = queue.pop("across")?.to_tensor()?;
assert_eq!(popped.dims(), whole.dims());
println!("all holds");
Ok(())
}
