//! Dictionaries of features: published formats against their goldens.

use std::path::{Path, PathBuf};

use burn::tensor::{Tensor, TensorData};
use hooklens::features::{
    Architecture, Dictionary, DictionaryWeights, Metadata, Normalization, SpliceDictionary, Splicing,
};
use hooklens::prelude::*;
use hooklens::{DType, WeightFiles};
use proptest::prelude::*;

use crate::support::{any_config, assert_close, device, distance, fixtures, has, random_model, smooth, values};

fn folder(case: &str) -> PathBuf {
    fixtures().join("features").join(case)
}

/// What a case is to give.
pub(crate) struct Golden(WeightFiles);

impl Golden {
    pub(crate) fn of(case: &Path) -> Self {
        Self(WeightFiles::open(&[case.join("golden.safetensors")]).unwrap())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.info(name).is_some()
    }

    /// Its batch and positions together, and what comes behind as one axis: `[row, width]`.
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

fn told(error: hooklens::Error) -> String {
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
                wrong.push(format!("{case}: {}", told(error)));
                continue;
            }
        };
        if golden.has("factor") {
            opened = opened.with_scale(golden.number("factor"));
        }
        let input = golden.rows("input");
        let mut compare = |name: &str, given: hooklens::Result<Tensor<2>>| match given {
            Ok(given) => {
                let gap = distance(&values(&given), &values(&golden.rows(name)));
                if gap > 1e-5 {
                    wrong.push(format!("{case} ({}): {name} differs by {gap:e}", opened.format()));
                }
            }
            Err(error) => wrong.push(format!("{case}: {}", told(error))),
        };
        compare("acts_post", opened.encode(input.clone()));
        compare("recons", opened.forward(input));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
    let made = made.with_normalization(normalization[seed as usize % 3]).with_centered_input(seed % 2 == 0);
    made.with_metadata(Metadata::at(point))
}

fn rows() -> Vec<Vec<u32>> {
    vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8, 0, 5]]
}

const ACTS: &str = "hook_sae_acts_post";

proptest! {
    #![proptest_config(crate::support::cases(24))]

    /// With its error term a dictionary is no dictionary, whoever looks; an edit of a latent by a number adds that many
    /// of its direction; its points are those of the dictionary itself.
    #[test]
    fn dictionaries_with_error_terms_change_nothing_but_what_is_edited(
        config in any_config(), seed in 0u64..1000, kind in 0u8..4,
    ) {
        let layer = seed as usize % config.n_layers;
        let model = random_model(config.clone(), seed);
        let host = hook::resid_post(layer);
        let sae = random_dictionary(kind, &host.name(), config.d_model, 24, seed);
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

        // Unchanged by a hook that changes nothing, though computed anew.
        let same = spliced.run_with_hooks(rows(), [host.inner::<3>(ACTS).edit(|acts, _| acts)]).unwrap();
        assert_close(&same, &plain, 1e-5, "edited by nothing");
        if sae.normalization() == Normalization::None {
            let direction = sae.direction(5).unwrap();
            let edited = spliced.run_with_hooks(rows(), [host.inner::<3>(ACTS).unit(5).edit(|acts, _| acts + 3.0)]);
            let by_hand = model.run_with_hooks(rows(), [host.clone().add(direction * 3.0)]).unwrap();
            assert_close(&edited.unwrap(), &by_hand, 1e-5, "an edit");
        }

        // Without the error term, the reconstruction goes on.
        let bare = model.splice_dictionary_with(&sae, &Splicing::new().error_term(false)).unwrap();
        let by_hand = model.run_with_hooks(rows(), [host.clone().edit(|x, _| sae.forward(x).unwrap())]).unwrap();
        assert_close(&bare.forward(rows()).unwrap(), &by_hand, 1e-5, "reconstruction");

        // At tokens that are left out, nothing happens: no latents, no error, the point as it is.
        let left = model.splice_dictionary_with(&sae, &Splicing::new().error_term(false).leaving_out([9])).unwrap();
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

    /// Gradients at latents are those of the point times the decoder; the error term is a constant; they are slopes.
    #[test]
    fn gradients_reach_latents(config in any_config(), seed in 0u64..1000, kind in 0u8..4) {
        let layer = seed as usize % config.n_layers;
        let model = random_model(smooth(config.clone()), seed);
        let host = hook::resid_post(layer);
        let sae = random_dictionary(kind, &host.name(), config.d_model, 24, seed).with_normalization(Normalization::None);
        let spliced = model.splice_dictionary(&sae).unwrap();
        let scalar = |logits: Tensor<3>| logits.narrow(2, 1, 1).sum();
        let points = [host.inner::<3>(ACTS).name(), host.name()];
        let output = spliced.run_with_gradients(rows(), Record::new(points), scalar).unwrap();
        let at_point = output.cache.grad(&host).unwrap();
        let at_latents = output.cache.grad(host.inner::<3>(ACTS)).unwrap();
        let decoder = sae.decoder().unwrap().transpose().unsqueeze::<3>();
        assert_close(&at_latents, &at_point.matmul(decoder), 1e-4, "times the decoder");
        let plain = model.run_with_gradients(rows(), Record::new(&host), scalar).unwrap();
        assert_close(&output.cache.grad(&host).unwrap(), &plain.cache.grad(&host).unwrap(), 1e-4, "at the point");

        // Below the dictionary, the way back goes through encoder and decoder, and not past them.
        if layer > 0 && has(DType::F64) {
            let below = hook::resid_pre(layer);
            let precise = crate::support::precise(smooth(config), seed).splice_dictionary(&sae).unwrap();
            let output = precise.run_with_gradients(rows(), Record::new(&below), scalar).unwrap();
            let along = output.cache.grad(&below).unwrap().sum().into_scalar::<f64>();
            let error = precise.record(rows(), host.inner::<3>("hook_sae_error")).unwrap();
            let error = error.get(host.inner::<3>("hook_sae_error")).unwrap();
            let at_step = |step: f64| {
                // The same error in both, as it counts as a constant.
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

    /// Behind a cache latents are those of the whole prompt; two dictionaries and a transcoder go together.
    #[test]
    fn dictionaries_behind_caches_and_together(config in any_config(), seed in 0u64..1000, kind in 0u8..3) {
        prop_assume!(!config.bidirectional && !config.attn_only);
        let model = random_model(config.clone(), seed);
        let first = random_dictionary(kind, "blocks.0.hook_resid_pre", config.d_model, 24, seed);
        let last = random_dictionary(0, &hook::resid_post(config.n_layers - 1).name(), config.d_model, 10, seed + 1);
        let metadata = Metadata::between("blocks.0.mlp.hook_in", "blocks.0.hook_mlp_out");
        let transcoder = random_dictionary(1, "", config.d_model, 12, seed + 2)
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
