//! Scripts need only one `use`, which works together with Burn's prelude.

use burn::prelude::*;
use hooklens::prelude::*;

#[derive(Module, Debug)]
struct Probe {
    weight: burn::module::Param<Tensor<2>>,
}

#[derive(Config, Debug)]
struct Settings {
    #[config(default = 3)]
    layers: usize,
}

/// A name from each prelude, and the names in both, without any other `use`.
#[test]
fn both_preludes_stand_side_by_side() {
    let device: Device = crate::support::device();
    assert_eq!(Settings::new().layers, 3);
    let probe = Probe { weight: burn::module::Param::from_tensor(Tensor::<2>::zeros([4, 2], &device)) };
    let shape: Shape = probe.weight.val().shape();
    assert_eq!((shape.num_elements(), probe.num_params()), (8, 8));
    let data = TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]);
    let tensor: Tensor<2, Float> = Tensor::from_data(data, &device);
    let corner = tensor.slice(s![1.., ..1]);
    assert_eq!((corner.item().unwrap(), 2.5f32.elem::<i32>(), 2.9f32.to_i64()), (3.0, 2, 2));
    let linear: nn::Linear = nn::LinearConfig::new(2, 2).init(&device);
    let both: Tensor<1, Bool> = linear.forward(Tensor::<2>::ones([1, 2], &device)).equal_elem(0.0).all();
    assert_eq!(both.dims(), [1]);

    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let cache: ActivationCache = model.record("When Mary and John", Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    assert_eq!(analysis.stream(Stage::Final).unwrap().dims(), [1, 5, 64]);
    assert_eq!(cache.axes(hook::z(0)).unwrap()[2], Axis::Head);
    let found: LabeledArray = LabeledArray::recorded(&cache, hook::pattern(0)).unwrap().at("batch", 0).unwrap();
    assert!(Heatmap::of(&found).unwrap().shown().is_ok());
    let metric = Metric::logit_diff(&model, "Mary", "John").unwrap();
    let (clean, corrupted) = ("When Mary and John went", "When John and Mary went");
    let patching = Patching::new(&model, clean, corrupted, metric.clone()).unwrap();
    assert!(patching.path_from_heads(&[Receiver::Logits], Freeze::AttentionAndMlps).is_ok());
    assert!(Patching::ablating(&model, clean, Ablation::Zero, metric).is_ok());
    let push = SteeringVector::new("resid_post0", Tensor::ones([64], &device));
    assert!(model.run_with_hooks(clean, [push.hook(1.0)]).is_ok());
    assert!(TopExamples::new(hook::z(0)).head(1).norm().run(&model, [clean]).is_ok());
    // Recordings of a scope can be analyzed like those of the model.
    let scope = model.hooks([hook::z(1).edit(|z, _| z.zeros_like())]);
    let cache = scope.record(clean, Record::all()).unwrap();
    let by_scope = scope.analyze(&cache).unwrap().stack_head_results(Stage::Final).unwrap().vectors();
    let by_model = model.analyze(&cache).unwrap().stack_head_results(Stage::Final).unwrap().vectors();
    assert_eq!(by_scope.to_vec().unwrap(), by_model.to_vec().unwrap());
    let other = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    assert!(other.hooks([]).analyze(&cache).is_err());
}
