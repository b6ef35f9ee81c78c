//! Every hook point and the logits, compared with TransformerLens 2.16.1 and Hugging Face, on the tiny models from
//! `tests/fixtures/generate.py`. See `tests/fixtures/README.md` for what each covers.

use std::collections::BTreeMap;
use std::fs;

use burn::tensor::{Int, Tensor, TensorData};
use hooklens::RopeScaling;
use hooklens::prelude::*;
use hooklens_model::config::{AttnExperts, Layers, Settings};
use ndarray::{Array1, ArrayD, Axis, IxDyn};
use safetensors::{Dtype, SafeTensors};

use crate::seeded::fixture;
use crate::support::{device, distance, fixtures, fixtures_with, has, rounding, values};

const TOLERANCE: f32 = 1e-4;

/// A golden file: floats, and integers as floats. The model's own MLP biases are stored under `weight NAME`.
pub(crate) struct Golden(BTreeMap<String, ArrayD<f32>>);

impl Golden {
    pub(crate) fn read(case: &str) -> Self {
        let mut golden = Self::of_file(case, "golden.safetensors");
        if fixtures().join(case).join("model.safetensors").is_file() {
            let weights = Self::of_file(case, "model.safetensors").0.into_iter();
            golden.0.extend(weights.filter(|(n, _)| n.ends_with("mlp.b_in")).map(|(n, w)| (format!("weight {n}"), w)));
        }
        golden
    }

    pub(crate) fn of_file(case: &str, file: &str) -> Self {
        let bytes = fs::read(fixtures().join(case).join(file)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let array = |view: safetensors::tensor::TensorView<'_>| {
            let values: Vec<f32> = match view.dtype() {
                Dtype::F32 => view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
                Dtype::I64 => view.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
                Dtype::F16 | Dtype::BF16 => vec![0.0; view.shape().iter().product()],
                other => panic!("{other:?} in a golden file"),
            };
            ArrayD::from_shape_vec(IxDyn(view.shape()), values).unwrap()
        };
        Self(tensors.iter().map(|(name, view)| (name.to_string(), array(view))).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&ArrayD<f32>> {
        self.0.get(name)
    }

    /// The tokens under this prefix, with their mask if there is one.
    pub(crate) fn tokens(&self, prefix: &str) -> Tokens {
        let rows = |name: &str| -> Option<Vec<Vec<f32>>> {
            self.get(&format!("{prefix}{name}")).map(|a| a.rows().into_iter().map(|r| r.to_vec()).collect())
        };
        let ids = rows("tokens").unwrap().iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect();
        let tokens = Tokens::new(ids).unwrap();
        match rows("attention_mask") {
            Some(mask) => {
                tokens.with_mask(mask.iter().map(|row| row.iter().map(|m| *m > 0.0).collect()).collect()).unwrap()
            }
            None => tokens,
        }
    }

    /// Names of hook points under `prefix`, without the prefix.
    pub(crate) fn points(&self, prefix: &str) -> Vec<String> {
        let named = self.0.keys().filter_map(|name| name.strip_prefix(prefix));
        named.filter(|name| name.contains("hook_")).map(str::to_string).collect()
    }
}

/// Number of comparisons, and descriptions of those that failed.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) compared: usize,
    pub(crate) problems: Vec<String>,
}

impl Tally {
    pub(crate) fn compare(&mut self, what: &str, given: &ArrayD<f32>, expected: &ArrayD<f32>) {
        self.compared += 1;
        if given.shape() != expected.shape() {
            self.problems.push(format!("{what}: shape {:?} for {:?}", given.shape(), expected.shape()));
            return;
        }
        let worst = distance(given, expected);
        // On a device that rounds differently, the differences of many steps accumulate.
        if worst > TOLERANCE.max(100.0 * rounding()) || worst.is_nan() {
            self.problems.push(format!("{what}: differs by {worst:e}"));
        }
    }
}

pub(crate) fn load(case: &str, options: LoadOptions) -> HookedTransformer {
    HookedTransformer::from_pretrained_with(fixture(case).to_str().unwrap(), options).unwrap()
}

/// The model as processed by TransformerLens.
pub(crate) fn load_processed(case: &str) -> HookedTransformer {
    // Shortformer: TransformerLens skips centering, although it would preserve the outputs.
    let steps = match load(case, LoadOptions::new()).config().positional() {
        hooklens::Positional::Shortformer => Processing::none().fold_value_biases(),
        _ => Processing::standard(),
    };
    load(case, LoadOptions::new().process(steps))
}

/// Compares a run with all golden activations under `prefix`.
fn compare_points(model: &HookedTransformer, golden: &Golden, prefix: &str, tally: &mut Tally) {
    let points = golden.points(prefix);
    if points.is_empty() {
        return;
    }
    let output = model.run(golden.tokens(""), ForwardOptions::new().record(points.clone())).unwrap();
    for name in &points {
        let mut expected = golden.get(&format!("{prefix}{name}")).unwrap().clone();
        // TransformerLens adds a gated MLP's `b_in` after the product. Here it is folded into the output's bias at
        // load, so `hook_post` comes before it.
        let bias = name.strip_suffix("hook_post").and_then(|mlp| golden.get(&format!("weight {mlp}b_in")));
        if let (true, Some(bias)) = (model.config().is_gated(0), bias) {
            expected -= bias;
        }
        let given = output.cache.activation(name).unwrap().to_ndarray().unwrap();
        tally.compare(&format!("{prefix}{name}"), &given, &expected);
    }
    if let Some(logits) = golden.get(&format!("{prefix}logits")) {
        tally.compare(&format!("{prefix}logits"), &values(&output.logits.unwrap()), logits);
    }
}

fn check(case: &str) -> Tally {
    let golden = Golden::read(case);
    let mut tally = Tally::default();
    let model = load(case, LoadOptions::new());
    // Tensors of a sparse-attention index are reported as unused, and not needed for sequences this short.
    let unused = model.load_report().unused.iter().filter(|name| !name.contains(".indexer."));
    assert_eq!(unused.count(), 0, "{case}: {}", model.load_report());

    compare_points(&model, &golden, "tl.", &mut tally);
    if golden.get("proc.logits").is_some() {
        let processed = load_processed(case);
        compare_points(&processed, &golden, "proc.", &mut tally);
    }
    hugging_face(&model, &golden, &mut tally);
    let checkpoint = fixtures().join(case).join("ckpt.pt");
    if checkpoint.is_file() {
        let model = HookedTransformer::from_pretrained(checkpoint.to_str().unwrap()).unwrap();
        hugging_face(&model, &golden, &mut tally);
    }
    for side in ["left.", "right.", "inner."] {
        if let Some(expected) = golden.get(&format!("{side}logits")) {
            let tokens = golden.tokens(side);
            let given = values(&model.forward(&tokens).unwrap());
            // Outputs at padding are irrelevant.
            let mask = tokens.mask().expect("a padded batch").to_vec();
            let keep = |x: &ArrayD<f32>| {
                let width = x.shape()[2];
                let rows = x.as_slice().unwrap().chunks(width).zip(&mask).filter(|(_, real)| **real);
                let kept: Vec<f32> = rows.flat_map(|(row, _)| row.iter().copied()).collect();
                ArrayD::from_shape_vec(IxDyn(&[kept.len()]), kept).unwrap()
            };
            tally.compare(&format!("{side}logits"), &keep(&given), &keep(&expected.as_standard_layout().into_owned()));
        }
    }
    losses(&model, &golden, &mut tally);
    tally
}

/// Logits, residual stream and patterns of Hugging Face's own implementation.
fn hugging_face(model: &HookedTransformer, golden: &Golden, tally: &mut Tally) {
    let Some(logits) = golden.get("logits") else { return };
    let n_layers = model.config().n_layers();
    let (given, cache) = model.run_with_cache(golden.tokens(""), Record::all()).unwrap();
    tally.compare("logits", &values(&given), logits);
    for layer in 0..n_layers {
        if let Some(hidden) = golden.get(&format!("hf.hidden.{layer}")) {
            let stream = values(&cache.get(hook::resid_pre(layer as isize)).unwrap());
            tally.compare(&format!("hf.hidden.{layer}"), &stream, hidden);
        }
        if let Some(pattern) = golden.get(&format!("hf.attn.{layer}")) {
            let given = values(&cache.get(hook::pattern(layer as isize)).unwrap());
            let given = match model.config().attn_experts() {
                Some(experts) => {
                    let shares = values(&cache.get(hook::attn_expert_weights(layer as isize)).unwrap());
                    of_chosen_heads(&given, &shares, experts)
                }
                None => given,
            };
            tally.compare(&format!("hf.attn.{layer}"), &given, pattern);
        }
    }
    // Beyond the original context, LongRoPE rotates differently, which a cache rejects.
    let outgrows = |rotary: &hooklens::Rotary| match rotary.scaling {
        RopeScaling::Long { original_context, .. } | RopeScaling::Dynamic { original_context, .. } => {
            original_context < logits.shape()[1]
        }
        _ => false,
    };
    if !model.config().bidirectional() && !model.config().rotary(0).is_some_and(outgrows) {
        tally.compare("logits, token by token behind a cache", &step_by_step(model, &golden.tokens("")), logits);
    }
}

/// Selects the heads that Hugging Face's pattern has from `[batch, head, query, key]`: for each query, the heads of its
/// experts, best first.
fn of_chosen_heads(pattern: &ArrayD<f32>, shares: &ArrayD<f32>, experts: AttnExperts) -> ArrayD<f32> {
    let [batch, heads, queries, keys] = pattern.shape()[..] else { panic!("a pattern") };
    let kv_heads = heads / experts.count;
    let mut chosen = ArrayD::zeros(IxDyn(&[batch, experts.per_token * kv_heads, queries, keys]));
    for (row, query) in (0..batch).flat_map(|row| (0..queries).map(move |query| (row, query))) {
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|a, b| shares[[row, query, *b]].total_cmp(&shares[[row, query, *a]]));
        for (choice, expert) in order.into_iter().take(experts.per_token).enumerate() {
            for (head, key) in (0..kv_heads).flat_map(|head| (0..keys).map(move |key| (head, key))) {
                chosen[[row, choice * kv_heads + head, query, key]] =
                    pattern[[row, head * experts.count + expert, query, key]];
            }
        }
    }
    chosen
}

/// Three tokens at once, then one by one, with a cache of those before.
fn step_by_step(model: &HookedTransformer, tokens: &Tokens) -> ArrayD<f32> {
    let columns = |from: usize, to: usize| {
        let rows = (0..tokens.shape()[0]).map(|row| tokens.row(row)[from..to].to_vec());
        Tokens::new(rows.collect()).unwrap()
    };
    let mut cache = KeyValueCache::new(model.config(), tokens.shape()[0]);
    let pieces = [(0, 3)].into_iter().chain((3..tokens.shape()[1]).map(|at| (at, at + 1)));
    let steps = pieces
        .map(|(from, to)| model.forward_with(columns(from, to), ForwardOptions::new().kv_cache(&mut cache)).unwrap());
    values(&Tensor::cat(steps.collect::<Vec<_>>(), 1))
}

/// Root mean square of the difference.
fn spread(a: &ArrayD<f32>, b: &ArrayD<f32>) -> f32 {
    ((a - b).mapv(|x| x * x).mean().unwrap_or(0.0)).sqrt()
}

/// The experts of each token, layer by layer; empty for a model without experts.
fn chosen_experts(model: &HookedTransformer, golden: &Golden) -> Vec<ArrayD<f32>> {
    if model.config().experts().is_none() {
        return vec![];
    }
    let cache = model.run(golden.tokens(""), ForwardOptions::new().record("blocks.*.hook_expert_*")).unwrap().cache;
    let layers = 0..model.config().n_layers();
    let mixtures = layers.clone().filter(|layer| model.config().experts_of(*layer).is_some());
    let names = mixtures.map(|layer| format!("blocks.{layer}.mlp.hook_expert_indices"));
    let of_mlps = names.map(|name| cache.activation(&name).unwrap().to_ndarray().unwrap());
    let of_attention = layers.filter(|_| model.config().attn_experts().is_some()).map(|layer| {
        let shares = values(&cache.get(hook::attn_expert_weights(layer as isize)).unwrap());
        let rows = [shares.shape()[0] * shares.shape()[1], shares.shape()[2]];
        shares.mapv(|share| if share > 0.0 { 1.0 } else { 0.0 }).into_shape_with_order(IxDyn(&rows)).unwrap()
    });
    of_mlps.chain(of_attention).collect()
}

/// For each of `rows` rows, how many of its first `len` tokens are routed to the same experts in both.
fn tokens_routed_alike(a: &[ArrayD<f32>], b: &[ArrayD<f32>], [rows, len]: [usize; 2]) -> Vec<usize> {
    let alike = |row: usize| {
        let differs = |at: &usize| {
            let token = row * len + at;
            a.iter().zip(b).any(|(a, b)| a.index_axis(Axis(0), token) != b.index_axis(Axis(0), token))
        };
        (0..len).find(differs).unwrap_or(len)
    };
    (0..rows).map(alike).collect()
}

/// In bf16, the difference from the model in `f32` is at most twice that of Hugging Face.
#[test]
fn bf16_is_as_near_to_f32_as_hugging_face_is() {
    if !has(DType::BF16) {
        return;
    }
    let (mut compared, mut problems) = (0, vec![]);
    for case in fixtures_with("golden.safetensors") {
        let golden = Golden::read(&case);
        let (Some(exact), Some(theirs)) = (golden.get("logits"), golden.get("bf16.logits")) else { continue };
        let model = load(&case, LoadOptions::new().dtype(DType::BF16));
        let ours = values(&model.forward(golden.tokens("")).unwrap());
        // A near tie between experts may route a token differently, after which differences are not due to rounding.
        let shape @ [_, len] = golden.tokens("").shape();
        let in_f32 = chosen_experts(&load(&case, LoadOptions::new()), &golden);
        let alike = tokens_routed_alike(&in_f32, &chosen_experts(&model, &golden), shape);
        let kept = |x: &ArrayD<f32>| {
            let width = x.shape()[2];
            let rows = x.as_slice().unwrap().chunks(len * width).zip(&alike);
            Array1::from_iter(rows.flat_map(|(row, alike)| row[..alike * width].iter().copied())).into_dyn()
        };
        let exact = kept(exact);
        let (ours, theirs) = (spread(&kept(&ours), &exact), spread(&kept(theirs), &exact));
        compared += 1;
        if ours > 2.0 * theirs {
            problems.push(format!("{case}: {ours:e} from f32, Hugging Face {theirs:e}"));
        }
    }
    assert!(compared > 80, "{compared}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn losses(model: &HookedTransformer, golden: &Golden, tally: &mut Tally) {
    let output = || model.run(golden.tokens(""), ForwardOptions::new().loss().loss_per_token()).unwrap();
    if let Some(loss) = golden.get("tl.loss") {
        tally.compare("tl.loss", &values(&output().loss.unwrap()), loss);
    }
    if let Some(each) = golden.get("tl.loss_per_token") {
        tally.compare("tl.loss_per_token", &values(&output().loss_per_token.unwrap()), each);
    }
}

/// Every fixture, and every tensor in it.
#[test]
fn every_point_of_every_fixture_agrees() {
    let cases = fixtures_with("golden.safetensors");
    assert!(cases.len() >= 35, "only {} fixtures found", cases.len());
    let mut total = 0;
    let mut problems = vec![];
    for case in cases {
        let tally = check(&case);
        println!("{case}: {} tensors compared, {} differ", tally.compared, tally.problems.len());
        assert!(tally.compared > 0, "{case} compares nothing");
        total += tally.compared;
        problems.extend(tally.problems.into_iter().map(|problem| format!("{case}: {problem}")));
    }
    println!("{total} tensors compared");
    assert!(problems.is_empty(), "{} of {total} differ:\n{}", problems.len(), problems.join("\n"));
}

/// Points fire in TransformerLens's order, which the golden files record.
#[test]
fn points_fire_in_transformer_lens_order() {
    let mut checked = 0;
    for case in fixtures_with("golden.safetensors") {
        let bytes = fs::read(fixtures().join(&case).join("golden.safetensors")).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let Some(orders) = metadata.metadata().as_ref().and_then(|m| m.get("orders")) else { continue };
        let orders: serde_json::Value = serde_json::from_str(orders).unwrap();
        let model = load(&case, LoadOptions::new());
        for order in orders.as_object().unwrap().values() {
            let theirs: Vec<&str> = order.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            if theirs.is_empty() {
                continue;
            }
            let mut ours = vec![];
            let watch = at(theirs.clone()).read_any(|_, at| ours.push(at.name().to_string()));
            model.run_with_hooks(Golden::read(&case).tokens(""), [watch]).unwrap();
            assert_eq!(ours, theirs, "{case}");
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked}");
}

/// Tokens given as a tensor are the same tokens.
#[test]
fn a_token_tensor_is_a_batch_of_tokens() {
    let model = load("gpt2", LoadOptions::new());
    let ids = Tensor::<2, Int>::from_data(TensorData::new(vec![1, 2, 3, 4], [2, 2]), &device());
    let by_tensor = model.forward(&ids).unwrap();
    let by_rows = model.forward(vec![vec![1, 2], vec![3, 4]]).unwrap();
    assert_eq!(values(&by_tensor), values(&by_rows));
}
