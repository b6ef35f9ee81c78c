//! Hooks for a Burn model of your own: a small MLP with named points, hooks, recordings and gradients.
//!
//! ```sh
//! cargo run --release -p hooklens-hooks --example own_model
//! ```

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Axis, Catalog, Halt, HookError, Point, PointInfo, Record, Rows, Run, at};

/// A multilayer perceptron.
#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(widths: &[usize], device: &Device) -> Self {
        Self { layers: widths.windows(2).map(|w| LinearConfig::new(w[0], w[1]).init(device)).collect() }
    }

    /// The points that `forward` fires, in that order.
    fn points(&self) -> Arc<Catalog> {
        let mut points = Catalog::builder(self.layers.len());
        for layer in 0..self.layers.len() {
            for name in ["hook_pre", "hook_post"] {
                let axes = &[Axis::Batch, Axis::DMlp];
                points.add(PointInfo::new(format!("layers.{layer}.{name}"), Some(layer), axes));
            }
        }
        Arc::new(points.build())
    }

    fn forward(&self, mut x: Tensor<2>, run: &mut Run<'_, '_>) -> Result<Tensor<2>, Halt> {
        for (layer, linear) in self.layers.iter().enumerate() {
            let pre = run.fire_named(&format!("layers.{layer}.hook_pre"), linear.forward(x))?;
            x = run.fire_named(&format!("layers.{layer}.hook_post"), relu(pre))?;
        }
        Ok(x)
    }
}

fn main() -> Result<(), HookError> {
    let device = Device::flex();
    let model = Mlp::new(&[3, 8, 8, 2], &device);
    let points = model.points();
    let x = Tensor::<2>::from_floats([[0.5, -1.0, 2.0], [1.0, 0.3, -0.7]], &device);
    // Two rows of one position, since an MLP has no sequence.
    let rows = Rows::new(2, 1);

    // Recordings: a glob selects points, and negative layers count from the end.
    let (clean, recorded) = points.run(rows, [], "layers.*.hook_post", |run| model.forward(x.clone(), run))?;
    for (name, activation) in recorded.iter() {
        println!("{name}: shape {:?}", activation.shape());
    }
    let last: Tensor<2> = recorded.get("layers.-1.hook_post")?;
    assert_eq!(last.into_data(), clean.to_data());

    // Ablation of a neuron, with a second hook that reads what the next layer computes.
    let ablation = Point::<2>::new("layers.0.hook_post").unit(3).zero();
    let read = at("layers.1.hook_pre").read(|pre: Tensor<2>, at| println!("{}: {}", at.name(), pre.to_data()));
    let (ablated, _) = points.run(rows, [ablation, read], Record::default(), |run| model.forward(x.clone(), run))?;
    println!("output {}, without the neuron {}", clean.to_data(), ablated.to_data());

    // Activation patching: a run on a different input gets the first row of the recording.
    let patch = Point::<2>::new("layers.1.hook_post").rows(0..1).replace(&recorded);
    let (patched, _) = points.run(rows, [patch], Record::default(), |run| model.forward(x.clone() * 2.0, run))?;
    println!("with the first row's layer 1 from the clean run: {}", patched.to_data());

    // Gradients of the first output with respect to all values before the activation function.
    let first = |output: &Tensor<2>| output.clone().narrow(1, 0, 1).sum();
    let (_, recorded) = points.run_with_gradients(rows, [], "*hook_pre", |run| model.forward(x.clone(), run), first)?;
    let attribution = recorded.get::<2>("layers.0.hook_pre")? * recorded.grad::<2>("layers.0.hook_pre")?;
    println!("activation times gradient in layer 0: {}", attribution.to_data());

    // A name that no point has is an error before the model runs. It lists the closest names.
    if let Err(error) = points.run(rows, [], "layers.0.hook_pst", |run| model.forward(x, run)) {
        println!("{error}");
    }
    Ok(())
}
