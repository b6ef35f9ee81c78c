//! Trainable weights: gradients of every weight of every model, and use of a model after training.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Gradients, TensorData};
use hooklens::encoder::{EncoderOutput, HookedEncoder};
use hooklens::encoder_decoder::HookedEncoderDecoder;
use hooklens::prelude::*;
use hooklens::{ActivationFn, NormKind};
use hooklens_model::model::{DecoderWeights, Linear, ModelParts, Norm};
use proptest::prelude::*;

use crate::seeded::fixture;
use crate::support::{
    any_config, assert_close, cases, device, distance, fixtures, fixtures_with, has, has_states, jumps, precise,
    random_model, rounding, smooth, values,
};
use hooklens_model::config::Layers;

/// Rows of token ids below 20.
const ROWS: [[u32; 6]; 2] = [[3, 9, 1, 7, 9, 2], [2, 2, 8, 0, 5, 4]];

fn rows() -> Vec<Vec<u32>> {
    ROWS.iter().map(|row| row.to_vec()).collect()
}

/// Options for loading a model on the tests' device, with autodiff.
fn tracked() -> LoadOptions {
    LoadOptions::new().device(&device().autodiff())
}

fn load(case: &str, options: LoadOptions) -> HookedTransformer {
    HookedTransformer::from_pretrained_with(path(case), options).unwrap()
}

fn path(case: &str) -> String {
    fixture(case).to_str().unwrap().to_string()
}

/// A weight and its gradient.
struct Slope {
    /// Path of the weight: `blocks.0.mixer.Attention.q.weight`.
    name: String,
    values: Vec<f64>,
    /// `None` if the loss does not depend on the weight at all.
    gradient: Option<Vec<f64>>,
    /// Whether a gradient is stored for it.
    kept: bool,
}

/// Every weight, in the order that Burn visits them.
fn slopes<M: Module>(weights: &M, gradients: &Gradients) -> Vec<Slope> {
    struct Look<'g> {
        place: Vec<String>,
        gradients: &'g Gradients,
        seen: Vec<Slope>,
    }
    impl ModuleVisitor for Look<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let host = |x: Tensor<D>| x.into_data().iter::<f64>().collect::<Vec<f64>>();
            let (value, name) = (param.val(), self.place.join("."));
            let (kept, gradient) = (value.is_require_grad(), value.grad(self.gradients).map(host));
            self.seen.push(Slope { name, values: host(value), gradient, kept });
        }
        fn enter_module(&mut self, name: &str, _: &str) {
            self.place.push(name.to_string());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.pop();
        }
    }
    let mut look = Look { place: vec![], gradients, seen: vec![] };
    weights.visit(&mut look);
    look.seen
}

/// The weights, with one entry of one of them changed.
fn nudged<M: Module>(weights: &M, number: usize, entry: usize, by: f64) -> M {
    struct Nudge {
        left: Option<usize>,
        entry: usize,
        by: f64,
    }
    impl ModuleMapper for Nudge {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let this = self.left == Some(0);
            self.left = self.left.and_then(|left| left.checked_sub(1));
            if !this {
                return param;
            }
            param.map(|tensor| {
                let mut values: Vec<f64> = tensor.to_data().iter::<f64>().collect();
                values[self.entry] += self.by;
                Tensor::from_data(TensorData::new(values, tensor.dims()), (&tensor.device(), tensor.dtype()))
            })
        }
    }
    weights.clone().map(&mut Nudge { left: Some(number), entry, by })
}

/// Compares the gradient of every weight with finite differences in some of its entries: the one that matters most, one
/// in the middle and a random one. `plain` are the same weights untracked, in f64.
fn check_slopes<M: Module>(slopes: &[Slope], plain: &M, seed: usize, number: impl Fn(&M) -> f64) -> Result<(), String> {
    for (at, slope) in slopes.iter().enumerate() {
        let len = slope.values.len();
        let zeros = vec![0.0; len];
        let gradient = slope.gradient.as_ref().unwrap_or(&zeros);
        // Weights that a layer does not use are empty.
        let steepest = (0..len).max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()));
        let Some(steepest) = steepest else { continue };
        for entry in [steepest, len / 2, (seed + at) * 7919 % len] {
            let step = 2e-5;
            let of = |by: f64| number(&nudged(plain, at, entry, by));
            let quotient = |step: f64| (of(step) - of(-step)) / (2.0 * step);
            let (near, quotient) = (|| quotient(step / 2.0), quotient(step));
            let gap = (quotient - gradient[entry]).abs();
            let scale = quotient.abs().max(gradient[steepest].abs() * 0.1).max(1e-2);
            if gap > 1e-5 * scale && !jumps(quotient, near(), 1e-5 * scale) {
                return Err(format!("{}[{entry}]: {} for {quotient}", slope.name, gradient[entry]));
            }
        }
    }
    Ok(())
}

fn scalar(tensor: Tensor<1>) -> f64 {
    tensor.into_scalar::<f64>()
}

/// Name prefixes of experts that no token was routed to, and of weights used only for routing: these alone have no
/// gradient.
fn unchosen(model: &HookedTransformer, rows: &Vec<Vec<u32>>) -> Vec<String> {
    if model.config().experts().is_none() {
        return vec![];
    }
    let cache = model.record(rows, "*hook_expert_indices").unwrap();
    let chosen_in = |layer: usize| -> Vec<usize> {
        let point = format!("blocks.{layer}.mlp.hook_expert_indices");
        let chosen = cache.activation(point).unwrap().to_int_tensor::<2>().unwrap();
        chosen.into_data().iter::<i64>().map(|expert| expert as usize).collect()
    };
    let of_layer = |layer: usize| -> Vec<String> {
        let Some(experts) = model.config().experts_of(layer) else { return vec![] };
        let chosen = chosen_in(layer);
        let unchosen = (0..experts.count).filter(|expert| !chosen.contains(expert));
        let unchosen = unchosen.map(|expert| format!("blocks.{layer}.mlp.Experts.experts.{expert}."));
        unchosen.chain(experts.choice_bias.then(|| format!("blocks.{layer}.mlp.Experts.choice_bias"))).collect()
    };
    (0..model.config().n_layers()).flat_map(of_layer).collect()
}

/// Differences of a tracked model from the same model loaded without autodiff.
fn problems(given: &HookedTransformer, plain: &HookedTransformer) -> Vec<String> {
    let c = plain.config();
    let rows: Vec<Vec<u32>> =
        rows().iter().map(|row| row.iter().map(|id| id % c.d_vocab().min(c.d_vocab_out()) as u32).collect()).collect();
    let mut problems = vec![];
    let output = given.run(&rows, ForwardOptions::new().loss()).unwrap();
    // The weights are identical, but Burn's operations round differently than the kernels.
    let expected = values(&plain.forward(&rows).unwrap());
    let back = given.clone().to_devices(&[device()]);
    let gap = distance(&values(&back.forward(&rows).unwrap()), &expected);
    // xIELU uses Burn's operations, whose last bit depends on a tensor's memory layout.
    let last_bit = if c.activation() == ActivationFn::Xielu { f32::EPSILON } else { 0.0 };
    if gap > rounding().max(last_bit) {
        problems.push(format!("plain again, other logits by {gap:e}"));
    }
    let gap = distance(&values(&output.logits.unwrap()), &expected);
    // A recurrent state carries rounding errors from one position to the next.
    let bound = if has_states(c) { 1e-5 } else { 4e-6 };
    if gap > bound {
        problems.push(format!("logits differ by {gap:e}"));
    }
    let gradients = output.loss.unwrap().backward();
    let unchosen = unchosen(plain, &rows);
    let last_scalar = format!("blocks.{}.scalar", c.n_layers() - 1);
    for slope in slopes(given.parts(), &gradients) {
        let chosen = !unchosen.iter().any(|expert| slope.name.starts_with(expert));
        let problem = match &slope.gradient {
            _ if !slope.kept => "is not tracked",
            // A weight that a layer does not use.
            _ if slope.values.is_empty() => continue,
            None if chosen => "has no gradient",
            Some(_) if !chosen => "has a gradient, though no token chose it",
            Some(gradient) if !gradient.iter().all(|x| x.is_finite()) => "has a gradient that is not finite",
            // This weight scales the stream before the final norm, which cancels the scale.
            Some(_) if slope.name == last_scalar => continue,
            // Nor does a loss depend on an expert that only last tokens choose, or on a routing weight that is always
            // one.
            Some(_) if slope.name.contains(".mlp.Experts.") || slope.name.contains(".router.") => continue,
            Some(gradient) if gradient.iter().all(|x| *x == 0.0) => "has a gradient of zeros",
            _ => continue,
        };
        problems.push(format!("{} {problem}", slope.name));
    }
    problems
}

/// Every decoder, as published and processed, loads with autodiff, and a loss has a finite gradient for every weight.
fn every_decoder_trains(processing: Processing) {
    let (mut cases, mut failed) = (0, vec![]);
    for case in fixtures_with("golden.safetensors") {
        let load = |options: LoadOptions| load(&case, options.process(processing));
        let plain = load(LoadOptions::new());
        let given = std::panic::catch_unwind(|| load(tracked()));
        let problems = given.map_or(vec!["does not load".into()], |given| problems(&given, &plain));
        cases += 1;
        failed.extend(problems.into_iter().map(|problem| format!("{case}: {problem}")));
    }
    assert!(cases > 120, "{cases}");
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_published_decoder_trains() {
    every_decoder_trains(Processing::none());
}

#[test]
fn every_processed_decoder_trains() {
    every_decoder_trains(Processing::standard());
}

/// Compares the weights' gradients of a model in f64 with finite differences.
fn check(plain: &HookedTransformer, seed: usize) -> Result<(), String> {
    let given = plain.clone().to_devices(&[device().autodiff()]);
    let slopes = slopes(given.parts(), &given.loss(rows()).unwrap().backward());
    let mut model = plain.clone();
    let number = |weights: &DecoderWeights| {
        *model.parts_mut() = weights.clone();
        scalar(model.loss(rows()).unwrap())
    };
    let number = std::cell::RefCell::new(number);
    check_slopes(&slopes, plain.parts(), seed, |weights| (number.borrow_mut())(weights))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(12) })]

    #[test]
    fn gradients_of_weights_are_slopes(config in any_config(), seed in 0..1000usize, process: bool) {
        if !has(DType::F64) {
            return Ok(());
        }
        let mut plain = precise(smooth(config), seed as u64);
        if process {
            plain = plain.processed(&Processing::standard()).unwrap();
        }
        let checked = check(&plain, seed);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}

/// Gradients match finite differences for fixtures whose weights are scaled, tied, packed, split over many heads, or in
/// experts.
#[test]
fn gradients_of_fixtures_are_slopes() {
    if !has(DType::F64) {
        return;
    }
    let processed = |case| (case, Processing::standard());
    let published = |case| (case, Processing::none());
    let cases = [
        published("gpt2"),
        published("gemma3"),
        published("granite"),
        published("mixtral"),
        published("gptj"),
        published("v5-gemma4"),
        published("v5-gemma4-experts"),
    ];
    for (case, processing) in cases.into_iter().chain([processed("gpt2"), processed("qwen2"), processed("tl-solu-ln")])
    {
        let plain = load(case, LoadOptions::new().dtype(DType::F64).process(processing));
        check(&plain, 5).unwrap_or_else(|problem| panic!("{case}: {problem}"));
    }
}

/// A scalar of all outputs of an encoder.
fn number_of_all(output: EncoderOutput) -> Tensor<1> {
    fn number<const D: usize>(x: Tensor<D>) -> Tensor<1> {
        (x.clone().square() * 0.1 + x.cumsum(D - 1).sin()).sum()
    }
    let mut sum = number(output.hidden.unwrap());
    sum = output.logits.map_or(sum.clone(), |logits| sum + number(logits));
    sum = output.pooled.map_or(sum.clone(), |pooled| sum + number(pooled));
    output.next_sentence.map_or(sum.clone(), |logits| sum + number(logits))
}

#[test]
fn encoders_train() {
    if !has(DType::F64) {
        return;
    }
    let newer = ["albert", "deberta", "deberta-v3", "mpnet", "esm1b", "modernbert", "nomic-bert", "umt5-encoder"];
    for case in ["bert-pretraining", "distilbert", "roberta", "xlm-roberta", "bert-bare"].into_iter().chain(newer) {
        let load =
            |options: LoadOptions| HookedEncoder::from_pretrained_with(path(case), options.dtype(DType::F64)).unwrap();
        let (plain, given) = (load(LoadOptions::new()), load(tracked()));
        let output = given.run(rows(), ForwardOptions::new()).unwrap();
        assert_close(&output.hidden.clone().unwrap(), &plain.encode(rows()).unwrap(), 1e-6, case);
        let slopes = slopes(given.parts(), &number_of_all(output).backward());
        assert!(slopes.iter().all(|slope| slope.kept && slope.gradient.is_some()), "{case}");
        let number = |weights: &_| {
            let mut model = plain.clone();
            *model.parts_mut() = Clone::clone(weights);
            scalar(number_of_all(model.run(rows(), ForwardOptions::new()).unwrap()))
        };
        check_slopes(&slopes, plain.parts(), 3, number).unwrap_or_else(|problem| panic!("{case}: {problem}"));
    }
}

#[test]
fn encoders_with_decoders_train() {
    if !has(DType::F64) {
        return;
    }
    let written = || vec![vec![0, 4, 8], vec![0, 9, 9]];
    for case in ["t5", "t5-gated", "mt5", "bart", "blenderbot-small", "t5gemma-apart"] {
        let load = |options: LoadOptions| {
            HookedEncoderDecoder::from_pretrained_with(path(case), options.dtype(DType::F64)).unwrap()
        };
        let (plain, given) = (load(LoadOptions::new()), load(tracked()));
        let number = |model: &HookedEncoderDecoder| {
            let logits = model.forward((rows(), written())).unwrap();
            (logits.clone().square() * 0.1 + logits.cumsum(2).sin()).sum()
        };
        let slopes = slopes(given.parts(), &number(&given).backward());
        assert!(slopes.iter().all(|slope| slope.kept && slope.gradient.is_some()), "{case}");
        let of = |weights: &_| {
            let mut model = plain.clone();
            *model.parts_mut() = Clone::clone(weights);
            scalar(number(&model))
        };
        check_slopes(&slopes, plain.parts(), 3, of).unwrap_or_else(|problem| panic!("{case}: {problem}"));
    }
}

/// A model moved to a device with autodiff and back is tracked and then plain again, with unchanged values.
#[test]
fn weights_are_tracked_where_the_device_differentiates() {
    let plain = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let given = plain.clone().to_devices(&[device().autodiff()]);
    assert!(given.device().is_autodiff());
    let gradients = given.loss([1, 2, 3]).unwrap().backward();
    assert!(slopes(given.parts(), &gradients).iter().all(|slope| slope.kept && slope.gradient.is_some()));
    let back = given.to_devices(&[device()]);
    assert!(!back.device().is_autodiff() && !back.loss([1, 2, 3]).unwrap().is_tracked());
    assert!(slopes(back.parts(), &gradients).iter().all(|slope| !slope.kept));
    assert_eq!(values(&back.forward([1, 2, 3]).unwrap()), values(&plain.forward([1, 2, 3]).unwrap()));
    // Frozen weights stay frozen.
    let mut frozen = back;
    frozen.weights_mut().no_grad(["embed.*", "pos_embed.*"]).unwrap();
    let frozen = frozen.to_devices(&[device().autodiff()]);
    let gradients = frozen.loss([1, 2, 3]).unwrap().backward();
    for slope in slopes(frozen.parts(), &gradients) {
        assert_eq!(
            (slope.kept, slope.gradient.is_some()),
            [(true, true), (false, false)][usize::from(slope.name.starts_with("embed."))]
        );
    }
}

/// With the later half of the layers on a device with autodiff, the earlier ones stay untracked.
#[test]
fn layers_on_a_plain_device_are_not_tracked() {
    let devices = [device(), device().autodiff()];
    let spread = LoadOptions::new().devices(&devices).process(Processing::none().fold_ln());
    let spread = HookedTransformer::from_pretrained_with("embedded:ioi", spread).unwrap();
    let gradients = spread.loss([1, 2, 3]).unwrap().backward();
    for slope in slopes(spread.parts(), &gradients) {
        let later = !["embed.", "blocks.0.", "blocks.1."].iter().any(|part| slope.name.starts_with(part));
        assert_eq!((slope.kept, slope.gradient.is_some()), (later, later), "{}", slope.name);
    }
}

/// `trainable` enables autodiff on whatever device the options name.
#[test]
fn trainable_is_autodiff_on_the_device() {
    let by = |options: LoadOptions| {
        let model = load("gpt2", options);
        let gradients = model.loss(rows()).unwrap().backward();
        slopes(model.parts(), &gradients).into_iter().map(|slope| slope.gradient).collect::<Vec<_>>()
    };
    let expected = by(tracked());
    let assert_same = |given: Vec<Option<Vec<f64>>>| {
        assert_eq!(given.len(), expected.len());
        for (given, expected) in given.iter().zip(&expected) {
            assert_eq!(given.is_some(), expected.is_some());
            let (given, expected) = (given.as_deref().unwrap_or(&[]), expected.as_deref().unwrap_or(&[]));
            let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
            let apart = given.iter().zip(expected).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
            assert!(apart <= f64::from(rounding()) * largest, "{apart} of {largest}");
        }
    };
    assert_same(by(LoadOptions::new().trainable()));
    assert_same(by(LoadOptions::new().trainable().device(&device())));
    // The device's checkpointing strategy is kept, because tensors with different strategies can't be combined.
    let sparing = device().autodiff().gradient_checkpointing();
    assert_same(by(LoadOptions::new().trainable().device(&sparing)));
    let moved = load("gpt2", LoadOptions::new()).to_devices(std::slice::from_ref(&sparing));
    assert_eq!(moved.device().gradient_checkpointing_strategy(), sparing.gradient_checkpointing_strategy());
    // Also with hooks that cut the graph or read gradients.
    let slopes = |options: LoadOptions| {
        let model = load("gpt2", options);
        let sum = |logits: Tensor<3>| logits.square().mean();
        let record = ForwardOptions::new().record(["resid_mid0", "z1"]);
        let cache = model.run_with_gradients(rows(), record, sum).unwrap().cache;
        [flat(cache.grad(hook::resid_mid(0)).unwrap()), flat(cache.grad(hook::z(1)).unwrap())]
    };
    let (given, expected) = (slopes(LoadOptions::new().trainable().device(&sparing)), slopes(LoadOptions::new()));
    for (given, expected) in given.into_iter().zip(expected) {
        assert_close(&given, &expected, 1e-5, "gradients on a device that recomputes activations");
    }
}

fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.shape().num_elements();
    x.without_autodiff().reshape([count])
}

/// Heads that are wider than the model have fewer factors than columns.
#[test]
fn wide_heads_can_be_refactored() {
    for d_head in [8, 9, 10, 16] {
        let model = random_model(TransformerConfig::new(2, 8, 2, 20, 16).with_d_head(d_head), 3);
        let given = model.clone().processed(&Processing::none().refactor_factored_attn_matrices()).unwrap();
        let rows = || vec![vec![1, 2, 3, 4, 5]];
        assert_close(
            &given.forward(rows()).unwrap(),
            &model.forward(rows()).unwrap(),
            1e-4,
            &format!("width {d_head}"),
        );
    }
}

/// Processing a trainable model equals processing it before making it trainable.
#[test]
fn a_tracked_model_can_be_processed() {
    let every = Processing::standard().refactor_factored_attn_matrices();
    for case in ["gpt2", "gpt2-untied", "nanogpt"] {
        let given = load(case, tracked()).processed(&every).unwrap();
        let plain = load(case, LoadOptions::new().process(every));
        assert!(problems(&given, &plain).is_empty(), "{case}: {:?}", problems(&given, &plain));
        for (a, b) in slopes(given.parts(), &given.loss(rows()).unwrap().backward())
            .iter()
            .zip(slopes(plain.parts(), &given.loss(rows()).unwrap().backward()))
        {
            assert_eq!((&a.name, &a.values), (&b.name, &b.values), "{case}");
        }
    }
}

#[test]
fn a_merged_adapter_trains() {
    let adapted = |options: LoadOptions| load("llama", options.adapter(fixtures().join("lora-llama")));
    assert_eq!(problems(&adapted(tracked()), &adapted(LoadOptions::new())), [""; 0]);
}

/// A tied unembedding has its own gradient until it is tied again, after which its gradient reaches the embedding.
#[test]
fn a_tied_unembedding_is_apart_until_it_is_tied_again() {
    let mut model = load("gpt2", tracked());
    let weight = |model: &HookedTransformer, name| model.weights().get::<2>(name).unwrap();
    let apart = model.loss(rows()).unwrap().backward();
    let of_embed = weight(&model, "embed.W_E").grad(&apart).unwrap();
    let sum = of_embed + weight(&model, "unembed.W_U").grad(&apart).unwrap().transpose();
    let tied = weight(&model, "embed.W_E").transpose();
    model.weights_mut().set("unembed.W_U", tied).unwrap();
    let together = model.loss(rows()).unwrap().backward();
    assert_close(&weight(&model, "embed.W_E").grad(&together).unwrap(), &sum, 1e-5, "embedding");
    assert!(weight(&model, "unembed.W_U").grad(&together).is_none());
}

/// Weights created from tracked tensors are leaves.
#[test]
fn weights_made_of_tracked_tensors_are_parameters() {
    let device = device().autodiff();
    let (matrix, vector) =
        (Tensor::<2>::ones([3, 2], &device).require_grad(), Tensor::<1>::ones([3], &device).require_grad());
    let linear = Linear::new(matrix.clone().transpose() * 2.0, Some(vector.clone() * 2.0));
    let norm = Norm::new(NormKind::LayerNorm, 1e-5, Some(vector.clone() * 3.0), Some(vector.clone() * 0.5));
    let gradients =
        (linear.forward(Tensor::<2>::ones([1, 2], &device)).sum() + norm.w.as_ref().unwrap().val().sum()).backward();
    assert!(linear.weight.grad(&gradients).is_some() && norm.w.as_ref().unwrap().grad(&gradients).is_some());
    assert!(matrix.grad(&gradients).is_none() && vector.grad(&gradients).is_none());
}

/// A few AdamW steps reduce the loss, and the trained model can be saved and loaded.
#[test]
fn a_trained_model_is_saved_and_loaded() {
    for (case, process) in
        [("gpt2", false), ("gpt2", true), ("llama2c", false), ("gemma3", false), ("mixtral", false), ("gpt-oss", false)]
    {
        let processing = if process { Processing::standard() } else { Processing::none() };
        let mut model = load(case, tracked().process(processing));
        let before = values(&model.forward(rows()).unwrap());
        let mut optimizer = AdamWConfig::new().init();
        let mut losses = vec![];
        for _ in 0..5 {
            let loss = model.loss(rows()).unwrap();
            let gradients = GradientsParams::from_grads(loss.backward(), model.weights());
            model = model.map_weights(|weights| optimizer.step(1e-2, weights, gradients));
            losses.push(scalar(loss));
        }
        assert!(losses[4] < losses[0] - 0.3, "{case}: {losses:?}");
        let folder = tempfile::tempdir().unwrap();
        model.save_pretrained(folder.path()).unwrap();
        let again = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
        let (given, trained) = (again.forward(rows()).unwrap(), model.forward(rows()).unwrap());
        assert!(distance(&values(&trained), &before) > 1e-2, "{case}");
        assert_close(&given, &trained, 1e-5, case);
        let plain = model.to_devices(&[device()]);
        assert_close(&plain.forward(rows()).unwrap(), &trained, 1e-5, case);
    }
}

/// A vector that a hook adds is learned on a model loaded without autodiff. Its gradient is that of the activation.
#[test]
fn a_vector_in_a_hook_is_learned() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let rows = model.to_tokens("When Mary and John went to the store , John gave a drink to").unwrap();
    let anna = model.to_single_token("Anna").unwrap() as usize;
    let surprise =
        |logits: Tensor<3>| -burn::tensor::activation::log_softmax(logits, 2).narrow(2, anna, 1).reshape([1]);
    let last = || ForwardOptions::new().logits(Logits::Last);
    let mut vector = Param::from_tensor(Tensor::<1>::zeros([64], &model.device().autodiff()));
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = vec![];
    for step in 0..20 {
        let added = vector.val();
        let add = hook::resid_post(1).edit(move |x, _| x + added.clone().unsqueeze());
        let loss = surprise(model.forward_with(&rows, last().hooks([add])).unwrap());
        losses.push(scalar(loss.clone()));
        let gradients = loss.backward();
        if step == 0 {
            let output = model.run_with_gradients(&rows, last().record("resid_post1"), surprise).unwrap();
            let by_stream = output.cache.grad(hook::resid_post(1)).unwrap().sum_dim(1).reshape([64]);
            assert_close(&vector.grad(&gradients).unwrap(), &by_stream, 1e-5, "the stream's gradient, summed");
        }
        let gradients = GradientsParams::from_grads(gradients, &vector);
        vector = optimizer.step(0.3, vector, gradients);
    }
    assert!(losses[19] < 0.1 && losses[0] > 3.0, "{losses:?}");
}

/// Everything else works on a tracked model, too: gradients at hook points, generation, recordings.
#[test]
fn a_tracked_model_does_the_rest() {
    let plain = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 3);
    let given = plain.clone().to_devices(&[device().autodiff()]);
    let of = |model: &HookedTransformer| {
        let options = ForwardOptions::new().record(["z0", "resid_post1"]);
        model.run_with_gradients(rows(), options, |logits| logits.square().sum()).unwrap().cache
    };
    let (a, b) = (of(&given), of(&plain));
    assert_close(&a.grad(hook::z(0)).unwrap(), &b.grad(hook::z(0)).unwrap(), 1e-5, "gradient of z");
    assert_close(&a.get(hook::resid_post(1)).unwrap(), &b.get(hook::resid_post(1)).unwrap(), 1e-6, "stream");
    let text = |model: &HookedTransformer| {
        let made = model.generate_with(rows(), GenerateOptions::new().max_new_tokens(4)).unwrap();
        made.rows.into_iter().map(|row| row.new).collect::<Vec<_>>()
    };
    assert_eq!(text(&given), text(&plain));
}
