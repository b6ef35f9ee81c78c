//! Dictionaries: published formats compared with goldens.

use std::path::{Path, PathBuf};

use burn::tensor::{Tensor, TensorData};
use hooklens::features::{
    Architecture, Dictionary, DictionaryWeights, EvaluateOptions, ExcludedTokens, Labels, Metadata, Normalization,
    SpliceDictionary, Transcoders, evaluate, evaluate_transcoders, latents_by_activation,
};
use hooklens::prelude::*;
use hooklens::{DType, WeightFiles};
use hooklens_features::{decoder_across, is_cross_layer, summary};
use proptest::prelude::*;
use serde_json::json;

use crate::evaluation::metric;
use crate::support::{
    any_config, assert_close, cross_layer, device, distance, fixtures, has, random_model, smooth, values,
};
use hooklens_model::config::Settings;

fn folder(case: &str) -> PathBuf {
    fixtures().join("features").join(case)
}

/// Norms of a dictionary's decoder rows, `[latent, 1]`.
pub(crate) fn row_norms(of: &Dictionary) -> Tensor<2> {
    of.weights().unwrap().decoder.square().sum_dim(1).sqrt()
}

/// Expected values of a case.
pub(crate) struct Golden(WeightFiles);

impl Golden {
    pub(crate) fn of(case: &Path) -> Self {
        Self(WeightFiles::open(&[case.join("golden.safetensors")]).unwrap())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.info(name).is_some()
    }

    /// Merges batch and position axes, and the remaining axes into one: `[row, width]`.
    pub(crate) fn rows(&self, name: &str) -> Tensor<2> {
        let data = self.0.read(name, DType::F32).unwrap();
        let rows: usize = data.shape()[..2.min(data.shape().len() - 1)].iter().product();
        let width = data.shape().iter().product::<usize>() / rows;
        let numbers: Vec<f32> = data.iter().collect();
        Tensor::from_data(TensorData::new(numbers, [rows, width]), &device())
    }

    fn number(&self, name: &str) -> f32 {
        self.0.read(name, DType::F32).unwrap().iter::<f32>().next().unwrap()
    }
}

/// The cases that have this key.
fn cases(key: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("features")).unwrap().map(|entry| entry.unwrap().path());
    let cases = entries.filter(|case| case.join("golden.safetensors").is_file() && Golden::of(case).has(key));
    let mut names: Vec<String> = cases.map(|case| case.file_name().unwrap().to_str().unwrap().to_string()).collect();
    names.sort();
    names
}

fn message(error: hooklens::Error) -> String {
    hooklens::error_chain(&error)
}

#[test]
fn published_dictionaries_compute_as_their_libraries_say() {
    let (cases, mut wrong) = (cases("input"), Vec::new());
    assert!(cases.len() > 35, "{cases:?}");
    for case in &cases {
        let golden = Golden::of(&folder(case));
        let mut opened = match Dictionary::open(folder(case)) {
            Ok(opened) => opened.to_device(&device()),
            Err(error) => {
                wrong.push(format!("{case}: {}", message(error)));
                continue;
            }
        };
        if golden.has("factor") {
            opened = opened.with_normalization(Normalization::Scale(Some(golden.number("factor"))));
        }
        let input = golden.rows("input");
        let mut compare = |name: &str, given: hooklens::Result<Tensor<2>>| match given {
            Ok(given) => {
                let gap = distance(&values(&given), &values(&golden.rows(name)));
                if gap > 1e-5 {
                    wrong.push(format!("{case} ({}): {name} differs by {gap:e}", summary(&opened).format));
                }
            }
            Err(error) => wrong.push(format!("{case}: {}", message(error))),
        };
        compare("acts_post", opened.encode(input.clone()));
        compare("recons", opened.forward(input));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn transcoders_of_all_layers_compute_as_their_libraries_say() {
    let (cases, mut wrong) = (cases("input.0"), Vec::new());
    assert!(cases.len() > 5, "{cases:?}");
    let saved = tempfile::tempdir().unwrap();
    for case in &cases {
        let golden = Golden::of(&folder(case));
        let at = [folder(case), folder(case).join("clt/width_32_l0_small_affine")];
        let path = at.iter().rev().find(|path| path.is_dir()).unwrap();
        let opened = Transcoders::open(path).unwrap_or_else(|error| panic!("{case}: {}", message(error)));
        assert_eq!(is_cross_layer(&opened), case.contains("clt"), "{case}");
        let mut all = vec![(case.clone(), opened.clone())];
        // Everything the format can represent is unchanged by saving and reopening.
        let copy = saved.path().join(case);
        match opened.save(&copy) {
            Ok(()) => all.push((format!("{case}, saved"), Transcoders::open(&copy).unwrap())),
            Err(error) => assert!(case == "gemma-scope-2-clt", "{case}: {}", message(error)),
        }
        for (name, set) in all {
            let set = set.to_device(&device());
            let input = |layer: usize| golden.rows(&format!("input.{layer}"));
            let layers = set.layers();
            let acts: Vec<Tensor<2>> =
                (0..layers.len()).map(|layer| layers[layer].encode(input(layer)).unwrap()).collect();
            for layer in 0..layers.len() {
                let recons = set.decode(layer, &acts, input(layer)).unwrap();
                for (what, given) in [("acts_post", &acts[layer]), ("recons", &recons)] {
                    let gap = distance(&values(given), &values(&golden.rows(&format!("{what}.{layer}"))));
                    if gap > 1e-5 {
                        wrong.push(format!("{name}: {what}.{layer} differs by {gap:e}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A dictionary that is saved in SAELens's format and reopened gives the same output, from any source format. Folding
/// norms and scales changes nothing.
#[test]
fn saved_dictionaries_are_the_same() {
    let (saved, mut refused) = (tempfile::tempdir().unwrap(), Vec::new());
    for case in cases("input") {
        let golden = Golden::of(&folder(&case));
        let opened = Dictionary::open(folder(&case)).unwrap();
        let opened = if golden.has("factor") {
            opened.with_normalization(Normalization::Scale(Some(golden.number("factor"))))
        } else {
            opened
        };
        let input = golden.rows("input");
        let expected = values(&opened.clone().to_device(&device()).forward(input.clone()).unwrap());
        let gap = |other: &Dictionary| {
            distance(&values(&other.to_device(&device()).forward(input.clone()).unwrap()), &expected)
        };
        let copy = saved.path().join(&case);
        match opened.save(&copy) {
            Ok(()) => {
                let again = Dictionary::open(&copy).unwrap_or_else(|error| panic!("{case}: {}", message(error)));
                assert!(gap(&again) < 1e-5, "{case}: {}", gap(&again));
                assert_eq!(again.metadata().reads, opened.metadata().reads, "{case}");
                assert_eq!(again.metadata().writes, opened.metadata().writes, "{case}");
            }
            Err(error) => refused.push(format!("{case}: {}", message(error))),
        }
        match opened.fold_decoder_norms() {
            Ok(folded) => {
                assert!(gap(&folded) < 1e-5, "{case}, folded");
                let norms = row_norms(&folded) - 1.0;
                assert!(norms.abs().max().into_scalar::<f32>() < 1e-5, "{case}");
            }
            Err(error) => assert!(message(error).contains("would change which latents"), "{case}"),
        }
    }
    refused.sort();
    let of: Vec<&str> = refused.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(of, ["sparsify-groupmax", "sparsify-transcoder-skip"], "{refused:?}");

    let labeled = Dictionary::open(folder("saelens-topk")).unwrap();
    let labels: Labels = [(3, "names, of \"people\"")].into_iter().collect();
    labeled.with_labels(labels.clone()).unwrap().save(saved.path().join("labeled")).unwrap();
    assert_eq!(*Dictionary::open(saved.path().join("labeled")).unwrap().labels(), labels);
}

/// A random dictionary for points of this width.
fn random_dictionary(kind: u8, point: &str, width: usize, latents: usize, seed: u64) -> Dictionary {
    let device = device();
    device.seed(seed);
    let random = |shape: [usize; 2], scale: f64| {
        Tensor::<2>::random(shape, burn::tensor::Distribution::Normal(0.0, scale), &device)
    };
    let vector = |len: usize, scale: f64| random([1, len], scale).reshape([len]);
    let weights = DictionaryWeights {
        encoder: random([width, latents], 1.0),
        encoder_bias: vector(latents, 0.3),
        decoder: random([latents, width], 0.5),
        decoder_bias: vector(width, 0.2),
        skip: None,
    };
    let numbers = |scale: f64| vector(latents, scale).abs().to_data().iter::<f32>().collect::<Vec<_>>();
    let architecture = match kind {
        0 => Architecture::Standard,
        1 => Architecture::JumpRelu { thresholds: numbers(0.5), positive: true },
        2 => Architecture::TopK { k: latents.min(4) },
        _ => Architecture::Gated { gate_bias: numbers(0.2), log_scale: numbers(0.1) },
    };
    let normalization = [Normalization::None, Normalization::LayerNorm, Normalization::ConstantNorm];
    let made = Dictionary::new("random", weights).unwrap().with_architecture(architecture).unwrap();
    let made = made.with_normalization(normalization[seed as usize % 3]).with_centered_input(seed.is_multiple_of(2));
    made.with_metadata(Metadata::at(point))
}

fn rows() -> Vec<Vec<u32>> {
    vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8, 0, 5]]
}

const ACTS: &str = "hook_sae_acts_post";

proptest! {
    #![proptest_config(crate::support::cases(24))]

    /// A dictionary with its error term changes nothing. Editing a latent adds a multiple of its direction, and its
    /// points are those of the dictionary itself.
    #[test]
    fn dictionaries_with_error_terms_change_nothing_but_what_is_edited(
        config in any_config(), seed in 0u64..1000, kind in 0u8..4,
    ) {
        let layer = seed as usize % config.n_layers();
        let model = random_model(config.clone(), seed);
        let host = hook::resid_post(layer);
        let sae = random_dictionary(kind, &host.name(), config.d_model(), 24, seed);
        let spliced = model.splice_dictionary(&sae).unwrap();
        let plain = model.forward(rows()).unwrap();
        let unwatched = spliced.forward(rows()).unwrap();
        assert_close(&unwatched, &plain, crate::support::rounding(), "unwatched");
        let (watched, cache) = spliced.run_with_cache(rows(), "*hook_sae_*").unwrap();
        assert_close(&watched, &plain, crate::support::rounding(), "watched");
        prop_assert_eq!(cache.len(), 6);

        let x = model.record(rows(), &host).unwrap().get(&host).unwrap();
        let acts = cache.get(host.inner::<3>(ACTS)).unwrap();
        assert_close(&acts, &sae.encode(x.clone()).unwrap(), 1e-5, "latents");
        let error = cache.get(host.inner::<3>("hook_sae_error")).unwrap();
        assert_close(&(sae.forward(x.clone()).unwrap() + error), &x, 1e-5, "reconstruction and error");

        // An identity hook changes nothing, although it forces recomputation.
        let same = spliced.run_with_hooks(rows(), [host.inner::<3>(ACTS).edit(|acts, _| acts)]).unwrap();
        assert_close(&same, &plain, 1e-5, "edited by nothing");
        if summary(&sae).normalization == Normalization::None {
            let direction = sae.direction(5).unwrap();
            let edited = spliced.run_with_hooks(rows(), [host.inner::<3>(ACTS).unit(5).edit(|acts, _| acts + 3.0)]);
            let by_hand = model.run_with_hooks(rows(), [host.clone().add(direction * 3.0)]).unwrap();
            assert_close(&edited.unwrap(), &by_hand, 1e-5, "an edit");
        }

        // Without the error term, the reconstruction is passed on.
        let bare = model.splice_dictionary(&sae.clone().with_error_term(false)).unwrap();
        let by_hand = model.run_with_hooks(rows(), [host.clone().edit(|x, _| sae.forward(x).unwrap())]).unwrap();
        assert_close(&bare.forward(rows()).unwrap(), &by_hand, 1e-5, "reconstruction");

        // At excluded tokens, there are no latents and no error, and the activation is unchanged.
        let left = model.splice_dictionary(&sae.clone().with_error_term(false).exclude_tokens([9])).unwrap();
        let cache = left.record(rows(), ["*hook_sae_acts_post", "*hook_sae_output"]).unwrap();
        let (acts, output) = (cache.get(host.inner::<3>(ACTS)).unwrap(), cache.get(host.inner::<3>("hook_sae_output")));
        let output = output.unwrap();
        for (row, pos) in [(0, 1), (0, 4)] {
            let at = |x: &Tensor<3>| x.clone().narrow(0, row, 1).narrow(1, pos, 1);
            prop_assert_eq!(at(&acts).abs().max().into_scalar::<f32>(), 0.0);
            assert_close(&at(&output), &at(&x), 1e-6, "left out");
        }
        let reconstructed = sae.forward(x.clone()).unwrap();
        assert_close(&output.narrow(1, 0, 1), &reconstructed.narrow(1, 0, 1), 1e-5, "not left out");
    }

    /// Gradients at latents are the point's gradient times the decoder, the error term is a constant, and they match
    /// finite differences.
    #[test]
    fn gradients_reach_latents(config in any_config(), seed in 0u64..1000, kind in 0u8..4) {
        let layer = seed as usize % config.n_layers();
        let model = random_model(smooth(config.clone()), seed);
        let host = hook::resid_post(layer);
        let sae = random_dictionary(kind, &host.name(), config.d_model(), 24, seed).with_normalization(Normalization::None);
        let spliced = model.splice_dictionary(&sae).unwrap();
        let scalar = |logits: Tensor<3>| logits.narrow(2, 1, 1).sum();
        let points = [host.inner::<3>(ACTS).name(), host.name()];
        let output = spliced.run_with_gradients(rows(), Record::new(points), scalar).unwrap();
        let at_point = output.cache.grad(&host).unwrap();
        let at_latents = output.cache.grad(host.inner::<3>(ACTS)).unwrap();
        let decoder = sae.weights().unwrap().decoder.transpose().unsqueeze::<3>();
        assert_close(&at_latents, &at_point.matmul(decoder), 1e-4, "times the decoder");
        let plain = model.run_with_gradients(rows(), Record::new(&host), scalar).unwrap();
        assert_close(&output.cache.grad(&host).unwrap(), &plain.cache.grad(&host).unwrap(), 1e-4, "at the point");

        // Before the dictionary, the backward pass goes through encoder and decoder only.
        if layer > 0 && has(DType::F64) {
            let below = hook::resid_pre(layer);
            let precise = crate::support::precise(smooth(config), seed).splice_dictionary(&sae).unwrap();
            let output = precise.run_with_gradients(rows(), Record::new(&below), scalar).unwrap();
            let along = output.cache.grad(&below).unwrap().sum().into_scalar::<f64>();
            let error = precise.record(rows(), host.inner::<3>("hook_sae_error")).unwrap();
            let error = error.get(host.inner::<3>("hook_sae_error")).unwrap();
            let at_step = |step: f64| {
                // The same error in both runs, because it counts as a constant.
                let held = error.clone();
                let hooks = [
                    below.clone().edit(move |x, _| x + step),
                    host.inner::<3>("hook_sae_error").edit(move |_, _| held.clone()),
                ];
                scalar(precise.run_with_hooks(rows(), hooks).unwrap()).into_scalar::<f64>()
            };
            let slope = (at_step(1e-6) - at_step(-1e-6)) / 2e-6;
            prop_assert!((along - slope).abs() <= 1e-3 * slope.abs().max(1.0), "{along} for {slope}");
        }
    }

    /// With a cache, latents equal those of a run of the whole prompt. Two dictionaries and a transcoder can be
    /// combined.
    #[test]
    fn dictionaries_behind_caches_and_together(config in any_config(), seed in 0u64..1000, kind in 0u8..3) {
        prop_assume!(!config.bidirectional() && !config.attn_only());
        let model = random_model(config.clone(), seed);
        let first = random_dictionary(kind, "blocks.0.hook_resid_pre", config.d_model(), 24, seed);
        let last = random_dictionary(0, &hook::resid_post(config.n_layers() - 1).name(), config.d_model(), 10, seed + 1);
        let metadata = Metadata::between("blocks.0.mlp.hook_in", "blocks.0.hook_mlp_out");
        let transcoder = random_dictionary(1, "", config.d_model(), 12, seed + 2)
            .with_normalization(Normalization::None)
            .with_centered_input(false)
            .with_metadata(metadata);
        let all = model.splice_dictionary(&first).unwrap();
        let all = all.splice_dictionary(&last).unwrap().splice_dictionary(&transcoder).unwrap();
        let record = || Record::new(["*hook_sae_acts_post", "blocks.0.mlp.hook_in", "blocks.0.hook_mlp_out"]);
        let (logits, cache) = all.run_with_cache(vec![rows()[0].clone()], record()).unwrap();
        assert_close(&logits, &model.forward(vec![rows()[0].clone()]).unwrap(), crate::support::rounding(), "all");
        let read = cache.get("blocks.0.mlp.hook_in").unwrap();
        let acts = "blocks.0.hook_mlp_out.hook_sae_acts_post";
        let encoded: Tensor<3> = transcoder.encode(read).unwrap();
        assert_close(&cache.get(acts).unwrap(), &encoded, 1e-5, "transcoder");

        let mut kept = all.prefill(vec![rows()[0][..3].to_vec()]).unwrap();
        let options = ForwardOptions::new().kv_cache(&mut kept).record(record());
        let behind = all.run(vec![rows()[0][3..].to_vec()], options).unwrap();
        for name in ["blocks.0.hook_resid_pre.hook_sae_acts_post", acts] {
            let whole: Tensor<3> = cache.get(name).unwrap();
            assert_close(&behind.cache.get(name).unwrap(), &whole.narrow(1, 3, 2), 1e-4, name);
        }
    }
}

/// Latents of a cross-layer transcoder write to all later layers: an edit adds its directions there, a plain run equals
/// the model's, and without error terms the layers' reconstructions are passed on.
#[test]
fn cross_layer_transcoders_in_a_model() {
    let model = random_model(TransformerConfig::new(3, 16, 2, 20, 16), 5);
    let folder = tempfile::tempdir().unwrap();
    let clt = cross_layer(3, 16, folder.path(), "hook_resid_mid", "hook_mlp_out");
    let spliced = model.splice_transcoders(&clt).unwrap();
    let plain = model.forward(rows()).unwrap();
    assert_close(&spliced.forward(rows()).unwrap(), &plain, 1e-5, "with error terms");

    let acts = |layer: usize| hook::mlp_out(layer).inner::<3>(ACTS);
    let edited = spliced.run_with_hooks(rows(), [acts(0).unit(4).edit(|acts, _| acts + 2.0)]).unwrap();
    // By hand: add the latent's direction for each layer to the output of the layer's MLP.
    let added = |layer: usize| {
        let decoder = match layer {
            0 => clt.layers()[0].weights().unwrap().decoder,
            _ => decoder_across(&clt, 0, layer).unwrap().unwrap(),
        };
        decoder.to_device(&device()).narrow(0, 4, 1).reshape([16]) * 2.0
    };
    let by_hand = model.run_with_hooks(rows(), (0..3).map(|layer| hook::mlp_out(layer).add(added(layer)))).unwrap();
    // Later MLPs are the model's own, because their transcoders' error terms compensate.
    let cache = spliced.hooks([acts(0).unit(4).edit(|acts, _| acts + 2.0)]);
    let cache = cache.record(rows(), ["resid_mid1", "*hook_sae_acts_unedited", "*hook_sae_acts_post"]).unwrap();
    let encoded = clt.layers()[1].encode(cache.get("blocks.1.hook_resid_mid").unwrap()).unwrap();
    assert_close(&cache.get(acts(1)).unwrap(), &encoded, 1e-5, "latents of the next layer");
    let change = cache.get(acts(0)).unwrap() - cache.get("blocks.0.hook_mlp_out.hook_sae_acts_unedited").unwrap();
    assert!((change.sum().into_scalar::<f32>() - 20.0).abs() < 1e-3);
    assert_close(&edited, &by_hand, 1e-4, "an edit");

    let bare = model.splice_transcoders(&clt.clone().with_error_term(false)).unwrap();
    let record = ["*hook_resid_mid", "*hook_mlp_out", "*hook_sae_acts_post"];
    let cache = bare.record(rows(), record).unwrap();
    let all: Vec<Tensor<3>> = (0..3).map(|layer| cache.get(acts(layer)).unwrap()).collect();
    for layer in 0..3 {
        let input: Tensor<3> = cache.get(hook::resid_mid(layer)).unwrap();
        let expected = clt.to_device(&device()).decode(layer, &all, input).unwrap();
        assert_close(&cache.get(hook::mlp_out(layer)).unwrap(), &expected, 1e-5, "reconstruction");
    }
    let other = random_model(TransformerConfig::new(2, 16, 2, 20, 16), 5);
    let refused = message(other.splice_transcoders(&clt).unwrap_err());
    assert!(refused.ends_with("cannot be used at `blocks`: it has 3 layers, but the model has 2"), "{refused}");
}

#[test]
fn what_is_wrong_with_a_dictionary_is_told() {
    let refused = |path: &Path| message(Dictionary::open(path).unwrap_err());
    let scratch = tempfile::tempdir().unwrap();
    let copy = |case: &str, change: &dyn Fn(&Path)| {
        let to = scratch.path().join(case).join(format!("{:p}", change));
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(folder(case)).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() && !entry.ends_with("golden.safetensors") {
                std::fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
            }
        }
        change(&to);
        to
    };
    let with_config = |from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let path = folder.join("cfg.json");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            std::fs::write(path, text.replace(from, to)).unwrap();
        }
    };
    type Case<'c> = (&'c str, &'c dyn Fn(&Path), &'c str);
    let cases: [Case<'_>; 6] = [
        ("saelens-topk", &with_config("\"d_in\": 8", "\"d_in\": 9"), "`d_in` is 9, but the tensors have 8"),
        (
            "saelens-topk",
            &with_config("\"k\": 4", "\"k\": 40"),
            "cfg.json: k is 40; expected 1 to 32, the number of latents",
        ),
        ("saelens-topk", &with_config("\"k\": 4", "\"l\": 4"), "cfg.json: `k` is missing"),
        ("saelens-topk", &with_config("\"topk\"", "\"topmost\""), "the architecture `topmost` is not supported"),
        (
            "saelens-topk",
            &|folder| drop(std::fs::remove_file(folder.join("sae_weights.safetensors"))),
            "no dictionary of a known format",
        ),
        (
            "saelens-topk",
            &|folder| {
                let path = folder.join("sae_weights.safetensors");
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(path, &bytes[..bytes.len() - 100]).unwrap();
            },
            "not a valid weight file",
        ),
    ];
    for (case, change, expected) in cases {
        let given = refused(&copy(case, change));
        assert!(given.contains(expected), "{given}");
    }
    let temporal = refused(&folder("saelens-temporal"));
    assert!(temporal.ends_with("cfg.json: the architecture `temporal` is not supported"), "{temporal}");
    let unscaled = Dictionary::open(folder("saelens-expected-average")).unwrap();
    let none = message(unscaled.encode(Tensor::<2>::ones([1, 8], &device())).unwrap_err());
    assert!(none.contains("set it with `with_normalization`"), "{none}");
    let narrow = Dictionary::open(folder("saelens-topk")).unwrap();
    let told_width = message(narrow.encode(Tensor::<2>::ones([1, 7], &device())).unwrap_err());
    assert!(told_width.ends_with("the input has width 7; expected 8"), "{told_width}");
    assert!(message(narrow.direction(32).unwrap_err()).ends_with("has no latent 32; valid latents are 0 to 31"));

    // Values that are not finite are reported where they are used; in the decoder, only for active latents.
    let spoiled = |which: &str, row: usize| {
        let sae = random_dictionary(0, "blocks.0.hook_resid_post", 8, 6, 1).with_normalization(Normalization::None);
        let spoil =
            |matrix: Tensor<2>| matrix.slice_assign([row..row + 1, 2..3], Tensor::full([1, 1], f32::NAN, &device()));
        let (mut encoder, mut decoder) = (sae.weights().unwrap().encoder, sae.weights().unwrap().decoder);
        if which == "encoder" {
            encoder = spoil(encoder)
        } else {
            decoder = spoil(decoder)
        }
        let weights = DictionaryWeights {
            encoder,
            encoder_bias: Tensor::from_floats([-9.0, -9.0, 9.0, -9.0, -9.0, -9.0], &device()),
            decoder,
            decoder_bias: sae.weights().unwrap().decoder_bias,
            skip: None,
        };
        let made = Dictionary::new("spoiled", weights).unwrap();
        let path = scratch.path().join(format!("{which}{row}"));
        made.save(&path).unwrap();
        Dictionary::open(path).unwrap().to_device(&device())
    };
    let small = || Tensor::<2>::ones([1, 8], &device()) * 0.01;
    let told_encoder = message(spoiled("encoder", 3).encode(small()).unwrap_err());
    assert!(
        told_encoder.ends_with("the tensor `W_enc` contains NaN at [3, 2]; expected finite values"),
        "{told_encoder}"
    );
    assert!(spoiled("decoder", 4).forward(small()).is_ok());
    if device() == burn::tensor::Device::flex() {
        let told_decoder = message(spoiled("decoder", 2).forward(small()).unwrap_err());
        assert!(
            told_decoder.ends_with("the tensor `W_dec` contains NaN at [2, 2]; expected finite values"),
            "{told_decoder}"
        );
    }

    // Points where it can't be spliced in.
    let model = random_model(TransformerConfig::new(2, 16, 2, 20, 16), 1);
    let put = |sae: Dictionary| message(model.splice_dictionary(&sae).map(drop).unwrap_err());
    let wide = random_dictionary(0, "blocks.0.hook_resid_post", 8, 6, 1);
    assert_eq!(put(wide.clone()), "random: `blocks.0.hook_resid_post` has width 16; expected 8");
    let wide = random_dictionary(0, "blocks.0.hook_resid_post", 16, 6, 1);
    let layer = put(wide.clone().at("blocks.7.hook_resid_post"));
    assert!(
        layer.starts_with("random cannot be used at `blocks.7.hook_resid_post`") && layer.contains("layers"),
        "{layer}"
    );
    assert!(
        put(wide.clone().at("blocks.0.attn.hook_pattern"))
            .contains("the axes of the point are [batch, head, query, key]")
    );
    assert!(put(wide.clone().at("blocks.0.hook_resid_pst")).contains("hook_resid_post"));
    assert!(put(wide.with_metadata(Metadata::default())).ends_with("the hook point that it reads; set it with `at`"));
}

/// SAELens's own evaluation on the same model, dictionary and tokens, with all tokens and with one excluded.
#[test]
fn measures_are_those_of_saelens() {
    let golden = Golden::of(&folder("evaluation"));
    let model = HookedTransformer::from_pretrained(fixtures().join("gpt2").to_str().unwrap()).unwrap();
    let sae = Dictionary::open(folder("evaluation").join("sae")).unwrap();
    let ids: Vec<u32> = {
        let bytes = std::fs::read(folder("evaluation").join("golden.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ids = file.tensor("tokens").unwrap();
        ids.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b).try_into().unwrap()).collect()
    };
    let prompts: Vec<Vec<u32>> = ids.chunks(12).map(<[u32]>::to_vec).collect();
    let mut wrong = Vec::new();
    let earlier = sae.clone().at("blocks.0.hook_resid_post");
    let cases: [(&str, &Dictionary, Vec<u32>); 3] =
        [("plain", &sae, vec![]), ("ignoring", &sae, vec![0]), ("earlier", &earlier, vec![0])];
    for (case, sae, left_out) in cases {
        let sae = sae.clone().exclude_tokens(left_out);
        let options = EvaluateOptions::new();
        let given = evaluate(&model, &sae, &prompts, &options, |_| {}).unwrap();
        for (name, number) in given.metrics() {
            let key = format!("{case}.{name}");
            if golden.has(&key) && (number - f64::from(golden.number(&key))).abs() > 1e-4 * number.abs().max(0.1) {
                wrong.push(format!("{key}: {number} for {}", golden.number(&key)));
            }
        }
        let each = given.feature_metrics().map(|(name, numbers)| {
            let place = if name.contains("feature") || name.contains("activation") { case } else { "weights" };
            (format!("{place}.{name}"), numbers)
        });
        for (key, numbers) in each.into_iter().filter(|(key, _)| golden.has(key)) {
            let expected: Vec<f64> = golden.0.read(&key, DType::F32).unwrap().iter().collect();
            if numbers.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-4 * b.abs().max(0.1)) {
                wrong.push(format!("{key}: {numbers:?} for {expected:?}"));
            }
        }
        // The same batch by batch, except for the formula that is applied per batch.
        let by_one = evaluate(&model, &sae, &prompts, &options.batch_size(1), |_| {}).unwrap();
        assert!((by_one.explained_variance - given.explained_variance).abs() < 1e-6);
        assert!((metric(&by_one, "kl_div_score") - metric(&given, "kl_div_score")).abs() < 1e-5);
        assert_eq!(by_one.tokens, given.tokens);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A dump stores latents sparsely, and a file of everything stores them densely. Patching and attribution patching work
/// on latents.
#[test]
fn latents_are_dumped_patched_and_attributed() {
    let model = random_model(TransformerConfig::new(2, 16, 2, 20, 16), 2);
    let host = hook::resid_post(0);
    let sae = random_dictionary(2, &host.name(), 16, 40, 4);
    let spliced = model.splice_dictionary(&sae).unwrap();
    let (acts, folder) = (host.inner::<3>(ACTS), tempfile::tempdir().unwrap());
    let out = folder.path().join("latents");
    let given = vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8]];
    hooklens::dump::Dump::new("*hook_sae_acts_post").batch_size(2).run(&spliced, &given, &out).unwrap();
    let bytes = std::fs::read(out.join("shard-00000.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let of = |part: &str| file.tensor(&format!("{}.{part}", acts.name())).unwrap();
    let wide = |part: &str| -> Vec<usize> {
        of(part).data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as usize).collect()
    };
    let (shape, offsets) = (wide("shape"), wide("offsets"));
    let words = |part: &str| of(part).data().as_chunks::<4>().0.to_vec();
    let mut dense = vec![0f32; shape.iter().product()];
    for row in 0..offsets.len() - 1 {
        for at in offsets[row]..offsets[row + 1] {
            let latent = i32::from_le_bytes(words("indices")[at]) as usize;
            dense[row * shape[2] + latent] = f32::from_le_bytes(words("values")[at]);
        }
    }
    assert_eq!((shape.as_slice(), offsets.len(), words("values").len()), (&[2, 5, 40][..], 11, 8 * 4));
    for (row, ids) in given.iter().enumerate() {
        let expected = spliced.record(vec![ids.clone()], &acts).unwrap().get(&acts).unwrap();
        let part = &dense[row * 5 * 40..][..ids.len() * 40];
        let stored = Tensor::<3>::from_data(TensorData::new(part.to_vec(), [1, ids.len(), 40]), &device());
        assert_close(&stored, &expected, 1e-5, "dumped");
    }
    let whole = folder.path().join("latents.safetensors");
    hooklens::dump::Dump::new("*hook_sae_acts_post").run(&spliced, &given, &whole).unwrap();
    let files = WeightFiles::open(&[whole]).unwrap();
    assert_eq!(files.info(&acts.name()).unwrap().shape, [2, 5, 40]);

    // Patching all latents at once equals patching the reconstruction, while the error stays.
    let (clean, corrupted) = (vec![3, 9, 1, 7], vec![3, 4, 1, 7]);
    let donor = spliced.record(vec![clean.clone()], &acts).unwrap();
    let patched = spliced.run_with_hooks(vec![corrupted.clone()], [acts.clone().replace(&donor)]).unwrap();
    let x = model.record(vec![corrupted.clone()], &host).unwrap().get(&host).unwrap();
    let y = model.record(vec![clean.clone()], &host).unwrap().get(&host).unwrap();
    let plain = sae.clone().with_normalization(Normalization::None).to_device(&device());
    if summary(&sae).normalization == Normalization::None {
        let moved = plain.forward(y).unwrap() - plain.forward(x.clone()).unwrap() + x;
        let by_hand =
            model.run_with_hooks(vec![corrupted.clone()], [host.clone().edit(move |_, _| moved.clone())]).unwrap();
        assert_close(&patched, &by_hand, 1e-5, "patched");
    }
    // Attribution patching: the gradient at latents times their change.
    let metric = |logits: Tensor<3>| logits.narrow(1, 3, 1).narrow(2, 5, 1).sum();
    let options = || Record::new(&acts);
    let output = spliced.run_with_gradients(vec![corrupted.clone()], options(), metric).unwrap();
    let change = donor.get(&acts).unwrap() - output.cache.get(&acts).unwrap();
    let estimated = (output.cache.grad(&acts).unwrap() * change).sum().into_scalar::<f32>();
    assert!(estimated.is_finite() && estimated != 0.0);
    let metric = hooklens::patching::Metric::logit(&spliced, 5).unwrap();
    let patching = hooklens::patching::Patching::new(&spliced, vec![clean], vec![corrupted], metric).unwrap();
    let attribution = patching.attribution("*hook_sae_acts_post").unwrap();
    let sites = || hooklens::patching::Sites::new("*hook_sae_acts_post").per([Axis::Pos, Axis::Feature]);
    let effects = attribution.sweep(&sites()).unwrap().effect();
    let sum: f64 = effects.values().iter().sum();
    assert!((sum - f64::from(estimated)).abs() < 1e-3 * f64::from(estimated.abs().max(1.0)), "{sum} {estimated}");
    // The actual patch of the latent with the largest estimate has the predicted sign.
    let found = patching.sweep(&sites()).unwrap().effect();
    let most = effects.values().iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).unwrap();
    assert!(found.values().iter().nth(most.0).unwrap() * most.1 > 0.0);
}

/// Excluded tokens in SAELens's files are respected by every use of a dictionary.
#[test]
fn tokens_that_a_dictionary_was_trained_without_are_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let said = |text: &str| {
        let path = scratch.path().join(text.chars().filter(char::is_ascii_alphanumeric).collect::<String>());
        std::fs::create_dir_all(&path).unwrap();
        let from = folder("saelens-topk");
        std::fs::copy(from.join("sae_weights.safetensors"), path.join("sae_weights.safetensors")).unwrap();
        let cfg = std::fs::read_to_string(from.join("cfg.json")).unwrap();
        let mut cfg: serde_json::Value = serde_json::from_str(&cfg).unwrap();
        cfg["metadata"]["exclude_special_tokens"] = serde_json::from_str(text).unwrap();
        std::fs::write(path.join("cfg.json"), cfg.to_string()).unwrap();
        Dictionary::open(path)
    };
    for (text, expected) in [
        ("false", ExcludedTokens::None),
        ("null", ExcludedTokens::None),
        ("true", ExcludedTokens::Special),
        ("[9, 3]", ExcludedTokens::Ids(vec![9, 3])),
    ] {
        let sae = said(text).unwrap();
        assert_eq!(sae.metadata().exclude_special_tokens, expected, "{text}");
        let copy = scratch.path().join("copy");
        sae.save(&copy).unwrap();
        assert_eq!(Dictionary::open(&copy).unwrap().metadata().exclude_special_tokens, expected, "{text}, saved");
    }
    let refused = message(said("\"bos\"").unwrap_err());
    assert!(refused.contains("`exclude_special_tokens` is \"bos\""), "{refused}");

    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    assert_eq!(ExcludedTokens::Special.ids(&model).unwrap(), [0]);
    let prompt = model.to_tokens("When Mary and John went to the store").unwrap().row(0).to_vec();
    let acts = hook::resid_post(2).inner::<3>(ACTS);
    let first = |sae: &Dictionary| {
        let cache = model.splice_dictionary(sae).unwrap().record(vec![prompt.clone()], &acts).unwrap();
        cache.get(&acts).unwrap().narrow(1, 0, 1).abs().max().into_scalar::<f32>()
    };
    let everywhere = sae.clone().exclude_tokens([]);
    assert_eq!(first(&sae), 0.0);
    assert!(first(&everywhere) > 0.0);
    let found = |sae: &Dictionary| latents_by_activation(&model, sae, &prompt, None).unwrap();
    assert!(found(&sae).iter().all(|one| one.position != Some(0)));
    assert!(found(&everywhere).iter().any(|one| one.position == Some(0)));
    let special = sae.clone().with_metadata({
        let mut metadata = sae.metadata().clone();
        metadata.exclude_special_tokens = ExcludedTokens::Special;
        metadata
    });
    assert_eq!(found(&special), found(&sae));
    let none = random_model(TransformerConfig::new(3, 64, 4, 63, 16), 1);
    assert!(message(none.splice_dictionary(&special).map(drop).unwrap_err()).contains("tokenizer"));
}

/// Layers of a set have the same measures as each layer alone, losses equal those computed by hand, and a layer can be
/// opened by name.
#[test]
fn transcoders_of_all_layers_are_measured_together() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let set = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let texts = ["When Mary and John went to the store, John gave a drink to Mary.", "Mary went to the park."];
    let prompts: Vec<Vec<u32>> = texts.iter().map(|text| model.to_tokens(*text).unwrap().row(0).to_vec()).collect();
    let options = EvaluateOptions::new();
    let measured = evaluate_transcoders(&model, &set, &prompts, &options, |_| {}).unwrap();
    let bare = model.splice_transcoders(&set.clone().with_error_term(false)).unwrap();
    for (layer, own) in measured.layers.iter().enumerate() {
        let one = Dictionary::open(format!("embedded:ioi-transcoders/layer_{layer}")).unwrap();
        assert_eq!(one.metadata(), set.layers()[layer].metadata());
        let alone = evaluate(&model, &one, &prompts, &options, |_| {}).unwrap();
        for name in ["l0", "mse", "explained_variance"] {
            assert_eq!(metric(&alone, name), metric(own, name), "{name}");
        }
        assert_eq!((&alone.density, alone.tokens), (&own.density, own.tokens));
        assert_eq!(own.to_json()["metrics"]["token_stats"]["left_out"], json!([0]));
        let loss = metric(own, "ce_loss_without_sae");
        assert!(metric(own, "ce_loss_with_sae") > loss);
        assert!((loss - metric(&alone, "ce_loss_without_sae")).abs() < 1e-9);
        assert_eq!(own.loss_recovered, measured.loss_recovered());
    }
    // Losses after every token except the first, which is excluded.
    let mut sums = [0.0, 0.0];
    for (sum, model) in sums.iter_mut().zip([&model, &bare]) {
        for prompt in &prompts {
            let run = model.run(vec![prompt.clone()], ForwardOptions::new().loss_per_token()).unwrap();
            *sum += run.loss_per_token.unwrap().to_data().iter::<f64>().skip(1).sum::<f64>();
        }
    }
    let count: usize = prompts.iter().map(|prompt| prompt.len() - 2).sum();
    assert!(
        (sums[0] / count as f64 - metric(&measured.layers[0], "ce_loss_without_sae")).abs() < 1e-5,
        "{sums:?} {measured}"
    );
    assert!(
        (sums[1] / count as f64 - metric(&measured.layers[0], "ce_loss_with_sae")).abs() < 1e-4,
        "{sums:?} {measured}"
    );
    let json = measured.to_json();
    assert_eq!(json["layers"].as_array().unwrap().len(), 4);
    let score = &json["metrics"]["model_performance_preservation"]["ce_loss_score"];
    assert_eq!(score.as_f64(), Some(measured.loss_recovered()));

    // For a cross-layer transcoder, the reconstruction includes what all earlier layers write.
    let model = random_model(TransformerConfig::new(3, 16, 2, 20, 16), 5);
    let scratch = tempfile::tempdir().unwrap();
    let clt = cross_layer(3, 16, scratch.path(), "hook_resid_mid", "hook_mlp_out");
    let measured = evaluate_transcoders(&model, &clt, &rows(), &options, |_| {}).unwrap();
    let cache = model.record(rows(), ["*hook_resid_mid", "*hook_mlp_out"]).unwrap();
    let here = clt.to_device(&device());
    let input = |layer: usize| cache.get(hook::resid_mid(layer)).unwrap();
    let acts: Vec<Tensor<3>> = (0..3).map(|layer| here.layers()[layer].encode(input(layer)).unwrap()).collect();
    for layer in 0..3 {
        let missed = here.decode(layer, &acts, input(layer)).unwrap() - cache.get(hook::mlp_out(layer)).unwrap();
        let expected = missed.square().sum().into_scalar::<f64>() / 10.0;
        let given = metric(&measured.layers[layer], "mse");
        assert!((given - expected).abs() < 1e-4 * expected, "layer {layer}: {given} for {expected}");
    }

    // One layer of a set can be opened by its name or its file. A layer of a cross-layer transcoder cannot be used
    // alone.
    let saved = scratch.path().join("set");
    set.save(&saved).unwrap();
    for name in ["layer_1", "layer_1.safetensors"] {
        let one = Dictionary::open(saved.join(name)).unwrap();
        assert_eq!(one.metadata().writes.as_deref(), Some("blocks.1.hook_mlp_out"), "{name}");
        assert_eq!(one.metadata().exclude_special_tokens, ExcludedTokens::Ids(vec![0]), "{name}");
    }
    let refused = |path: &Path| message(Dictionary::open(path).unwrap_err());
    let several = refused(&saved);
    assert!(several.contains("several dictionaries; choose one of: layer_0, layer_1"), "{several}");
    let beyond = refused(&saved.join("layer_4"));
    assert!(beyond.contains("it has no layer 4; valid layers are 0 to 3"), "{beyond}");
    let crossing = refused(&scratch.path().join("layer_0"));
    assert!(crossing.contains("it is a cross-layer transcoder"), "{crossing}");
}

/// Settings that determine where and how a dictionary is used.
#[test]
fn what_files_say_of_their_use_is_kept_to() {
    let scratch = tempfile::tempdir().unwrap();
    let changed = |case: &str, file: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let to = scratch.path().join(case);
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(folder(case)).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() && !entry.ends_with("golden.safetensors") {
                std::fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
            }
        }
        let path = to.join(file);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(path, value.to_string()).unwrap();
        Dictionary::open(to)
    };
    // dictionary_learning: whether the module's input or output is read.
    let of = |module: &'static str, io: &'static str| {
        changed("dl-autoencoder", "config.json", &move |config| {
            config["trainer"]["submodule_name"] = module.into();
            config["buffer"]["io"] = io.into();
        })
    };
    let points = |module, io| {
        let opened = of(module, io).unwrap();
        (opened.metadata().reads.clone().unwrap_or_default(), opened.metadata().writes.clone())
    };
    assert_eq!(points("mlp", "out"), ("blocks.0.hook_mlp_out".into(), None));
    assert_eq!(points("mlp", "in"), ("blocks.0.mlp.hook_in".into(), None));
    assert_eq!(points("mlp", "in_and_out"), ("blocks.0.mlp.hook_in".into(), Some("blocks.0.hook_mlp_out".into())));
    assert_eq!(points("resid_post_layer_0", "in"), ("blocks.0.hook_resid_pre".into(), None));
    let refused = message(of("attn", "in_and_out").unwrap_err());
    assert!(refused.contains("a transcoder of a module other than an MLP is not supported"), "{refused}");
    // SAELens: the version of the training determines the layout, and nested settings are never dropped.
    for version in [serde_json::json!("6.2.0"), serde_json::Value::Null] {
        let opened = changed("saelens-topk", "cfg.json", &|cfg| {
            let metadata = cfg["metadata"].as_object_mut().unwrap();
            metadata.remove("sae_lens_version");
            metadata.insert("sae_lens_training_version".into(), version.clone());
            metadata.insert("context_size".into(), 77.into());
        });
        let opened = opened.unwrap();
        assert_eq!(opened.metadata().reads.as_deref(), Some("blocks.0.hook_resid_post"), "{version}");
        assert_eq!(opened.metadata().context_size, Some(77), "{version}");
        assert_eq!(summary(&opened).format, if version.is_null() { "SAELens before 6.0" } else { "SAELens" });
    }
    // Llama Scope: unsupported settings are rejected by name.
    let llama = scratch.path().join("llama");
    let from = folder("llama-scope").join("Llama3_1-8B-Base-L0R-4x");
    std::fs::create_dir_all(llama.join("checkpoints")).unwrap();
    std::fs::copy(from.join("checkpoints/final.safetensors"), llama.join("checkpoints/final.safetensors")).unwrap();
    let hyperparams = std::fs::read_to_string(from.join("hyperparams.json")).unwrap();
    for (from, to, expected) in [
        ("\"use_glu_encoder\": false", "\"use_glu_encoder\": true", "`use_glu_encoder` is not supported"),
        ("\"dataset-wise\"", "\"batch-wise\"", "`norm_activation` `batch-wise` is not supported"),
        ("\"jumprelu\"", "\"tanh\"", "the activation `tanh` is not supported"),
    ] {
        assert!(hyperparams.contains(from), "{hyperparams}");
        std::fs::write(llama.join("hyperparams.json"), hyperparams.replace(from, to)).unwrap();
        let given = message(Dictionary::open(&llama).unwrap_err());
        assert!(given.contains(expected), "{given}");
    }
}

/// What a dictionary's files record about their model is compared with the model, and nothing else.
#[test]
fn dictionaries_tell_where_a_model_is_another() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    let with = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = sae.metadata().clone();
        change(&mut metadata);
        sae.clone().with_metadata(metadata)
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(sae.compatibility_warnings(&model, None), none);
    let other = with(&|metadata| metadata.model = Some("gpt2-small".into())).compatibility_warnings(&model, None);
    assert_eq!(other, ["embedded:ioi-sae was trained on the model gpt2-small, but this model is embedded:ioi"]);
    let bos = with(&|metadata| metadata.prepend_bos = Some(false)).compatibility_warnings(&model, None);
    assert!(bos[0].contains("trained on prompts without a beginning-of-sequence token"), "{bos:?}");
    // Prompts tokenized as the dictionary requires give no warnings.
    let without = with(&|metadata| metadata.prepend_bos = Some(false));
    assert_eq!(without.compatibility_warnings(&model, Some(false)), none);
    assert_eq!(
        sae.compatibility_warnings(&model, Some(!sae.metadata().prepend_bos.unwrap_or(true))).len(),
        usize::from(sae.metadata().prepend_bos.is_some())
    );
}
