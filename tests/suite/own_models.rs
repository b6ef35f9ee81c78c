//! Hooks for a model that hooklens did not build, with points named `layers.N.hook_pre` and `layers.N.hook_post`.

use std::sync::Arc;

use burn::tensor::activation::tanh;
use burn::tensor::{DType, TensorData};
use hooklens::Halt;
use hooklens::prelude::*;
use hooklens_hooks::{Catalog, Hook, HookError, Point, PointInfo, Rows, Run};

/// A multilayer perceptron with smooth activations, in f64, so that finite differences are accurate.
struct Mlp {
    weights: Vec<Tensor<2>>,
    catalog: Arc<Catalog>,
}

fn values(seed: usize, shape: [usize; 2]) -> Tensor<2> {
    let values: Vec<f64> = (0..shape[0] * shape[1]).map(|i| ((i * 37 + seed * 11) as f64).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F64))
}

impl Mlp {
    fn new(widths: &[usize]) -> Self {
        let weights: Vec<_> = widths.windows(2).enumerate().map(|(layer, w)| values(layer, [w[0], w[1]])).collect();
        let mut points = Catalog::builder(weights.len());
        for layer in 0..weights.len() {
            for name in ["hook_pre", "hook_post"] {
                let axes = &[Axis::Batch, Axis::DMlp];
                points.add(PointInfo::new(format!("layers.{layer}.{name}"), Some(layer), axes));
            }
        }
        Self { weights, catalog: Arc::new(points.build()) }
    }

    fn forward(&self, mut x: Tensor<2>, run: &mut Run<'_, '_>) -> Result<Tensor<2>, Halt> {
        for (layer, weight) in self.weights.iter().enumerate() {
            let pre = run.fire_named(&format!("layers.{layer}.hook_pre"), x.matmul(weight.clone()))?;
            x = run.fire_named(&format!("layers.{layer}.hook_post"), tanh(pre))?;
        }
        Ok(x)
    }

    fn run(&self, hooks: Vec<Hook<'_>>, record: impl Into<Record>) -> Result<(Tensor<2>, ActivationCache), HookError> {
        self.catalog.run(Rows::new(2, 1), hooks, record, |run| self.forward(input(), run))
    }

    fn gradients(&self, hooks: Vec<Hook<'_>>, record: impl Into<Record>) -> Result<ActivationCache, HookError> {
        let forward = |run: &mut Run<'_, '_>| self.forward(input(), run);
        Ok(self.catalog.run_with_gradients(Rows::new(2, 1), hooks, record, forward, scalar)?.1)
    }
}

fn model() -> Mlp {
    Mlp::new(&[3, 5, 4, 2])
}

fn input() -> Tensor<2> {
    values(7, [2, 3])
}

fn scalar(output: &Tensor<2>) -> Tensor<1> {
    output.clone().square().sum()
}

#[test]
fn a_hook_that_changes_nothing_is_as_no_hook() {
    let model = model();
    let (plain, none) = model.run(vec![], Record::default()).unwrap();
    let (hooked, _) = model.run(vec![at("layers.*").edit(|x: Tensor<2>, _| x)], Record::default()).unwrap();
    assert!(none.is_empty());
    assert_eq!(hooked.into_data(), plain.clone().into_data());
    let zero = Point::<2>::new("layers.1.hook_post").unit(2).zero();
    let (ablated, recorded) = model.run(vec![zero], "layers.1.hook_post").unwrap();
    assert_ne!(ablated.into_data(), plain.into_data());
    assert_eq!(recorded.get::<2>("layers.1.hook_post").unwrap().narrow(1, 2, 1).abs().sum().into_scalar::<f64>(), 0.0);
    assert_eq!(recorded.edited().collect::<Vec<_>>(), ["layers.1.hook_post"]);
}

#[test]
fn recordings_are_what_the_layers_computed() {
    let model = model();
    let (output, recorded) = model.run(vec![], "*").unwrap();
    let mut x = input();
    for (layer, weight) in model.weights.iter().enumerate() {
        let pre = x.matmul(weight.clone());
        x = tanh(pre.clone());
        for (name, expected) in [("hook_pre", pre), ("hook_post", x.clone())] {
            let held: Tensor<2> = recorded.get(format!("layers.{layer}.{name}")).unwrap();
            assert_eq!(held.into_data(), expected.into_data(), "layers.{layer}.{name}");
        }
    }
    assert_eq!(x.into_data(), output.into_data());
    let (_, some) = model.run(vec![], ["layers.-1.hook_pre", "layers.[01].hook_post"]).unwrap();
    assert_eq!(some.names().collect::<Vec<_>>(), ["layers.0.hook_post", "layers.1.hook_post", "layers.2.hook_pre"]);
}

#[test]
fn a_recording_can_be_patched_into_another_run() {
    let model = model();
    let (clean, recorded) = model.run(vec![], "layers.1.hook_post").unwrap();
    let patched = |hook: Hook<'_>| {
        let forward = |run: &mut Run<'_, '_>| model.forward(input() * 2.0, run);
        model.catalog.run(Rows::new(2, 1), [hook], Record::default(), forward).unwrap().0.into_data()
    };
    let point = || Point::<2>::new("layers.1.hook_post");
    assert_eq!(patched(point().replace(&recorded)), clean.clone().into_data());
    assert_ne!(patched(point().rows(0..1).replace(&recorded)), clean.into_data());
}

#[test]
fn gradients_are_finite_differences() {
    let model = model();
    let recorded = model.gradients(vec![], "*").unwrap();
    assert_eq!(recorded.gradients().count(), 6);
    for (name, gradient) in recorded.gradients() {
        let gradient = gradient.to_tensor::<2>().unwrap();
        let [rows, units] = gradient.dims();
        for (row, unit) in (0..rows).flat_map(|row| (0..units).map(move |unit| (row, unit))) {
            let shifted = |by: f64| {
                let one = |x: Tensor<2>, _: &hooklens::hook::At<'_>| {
                    let moved = x.clone().slice([row..row + 1, unit..unit + 1]) + by;
                    x.slice_assign([row..row + 1, unit..unit + 1], moved)
                };
                scalar(&model.run(vec![at(name).edit(one)], Record::default()).unwrap().0).into_scalar::<f64>()
            };
            let expected = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            let given = gradient.clone().slice([row..row + 1, unit..unit + 1]).into_scalar::<f64>();
            assert!((given - expected).abs() < 1e-8, "{name} [{row}, {unit}]: {given} is not {expected}");
        }
    }
}

/// An edited gradient is passed on to the points before it.
#[test]
fn gradients_can_be_edited() {
    let model = model();
    let plain = model.gradients(vec![], "*").unwrap();
    let double = at("layers.1.hook_pre").edit_grad(|gradient: Tensor<2>, _| gradient * 2.0);
    let edited = model.gradients(vec![double], "*").unwrap();
    for (name, gradient) in plain.gradients() {
        let before = ["layers.0.hook_pre", "layers.0.hook_post", "layers.1.hook_pre"].contains(&name);
        let expected = if before { 2.0 } else { 1.0 };
        let given: Tensor<2> = edited.grad(name).unwrap();
        let difference = (given - gradient.to_tensor::<2>().unwrap() * expected).abs().max().into_scalar::<f64>();
        assert!(difference < 1e-12, "{name}: {difference}");
    }
}

#[test]
fn a_mistake_is_named() {
    let model = model();
    let message = |record: &str| model.run(vec![], record).unwrap_err().to_string();
    let unknown = "no hook point is called `layers.1.hook_pst` in this model of 3 layers";
    assert!(message("layers.1.hook_pst").starts_with(unknown));
    assert!(message("layers.1.hook_pst").contains("did you mean `layers.1.hook_post`"));
    assert!(message("layers.3.hook_pre").contains("its layers are 0 to 2"));
    let wrong = at("layers.0.hook_pre").edit(|x: Tensor<2>, _| x.narrow(0, 0, 1));
    assert!(matches!(model.run(vec![wrong], Record::default()), Err(HookError::Shape { .. })));
    // The model fires a point that it did not list, or with another rank.
    let run = |name: &'static str| {
        let forward = |run: &mut Run<'_, '_>| run.fire_named(name, input().reshape([6]));
        model.catalog.run(Rows::new(2, 1), [], Record::default(), forward).unwrap_err()
    };
    assert!(matches!(run("layers.0.hook_mid"), HookError::UnknownPoint { .. }));
    assert!(matches!(run("layers.0.hook_pre"), HookError::Rank { rank: 2, asked: 1, .. }));
    let failed = model.catalog.run(Rows::new(2, 1), [], Record::default(), |_| Err::<(), Halt>("too wide".into()));
    let failed = failed.unwrap_err();
    assert_eq!(std::error::Error::source(&failed).unwrap().to_string(), "too wide");
    let detached = |output: &Tensor<2>| output.clone().without_autodiff().sum();
    let forward = |run: &mut Run<'_, '_>| model.forward(input(), run);
    let none = model.catalog.run_with_gradients(Rows::new(2, 1), [], "*", forward, detached).unwrap_err();
    assert!(matches!(none, HookError::NoGradient), "{none}");
    let part = model.gradients(vec![], Record::new("*").dtype(hooklens::DType::F32)).unwrap_err();
    assert!(matches!(part, HookError::GradientsOfParts), "{part}");
}
