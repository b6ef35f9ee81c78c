//! Dictionary files: detecting the class, rejecting invalid files, and saving without changes.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Distribution, Tensor};
use hooklens::features::{Architecture, Dictionary, DictionaryWeights, Metadata, Normalization, Transcoders, open};
use hooklens_features::{DictionaryFiles, fold_scale, summary};
use ndarray::Axis;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::features::{Golden, row_norms};
use crate::support::{assert_close, cross_layer, device, fixtures, program, values};

fn case(name: &str) -> PathBuf {
    fixtures().join("features").join(name)
}

/// A case's files, except for its golden, with a changed configuration.
fn changed(name: &str, described: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(case(name)).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_file() && !entry.ends_with("golden.safetensors") {
            fs::copy(&entry, to.path().join(entry.file_name().unwrap())).unwrap();
        }
    }
    edit(&to.path().join(described), change);
    to
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn refused<T>(given: hooklens::Result<T>) -> String {
    hooklens::error_chain(&given.err().expect("it is refused"))
}

/// Asserts that a dictionary reproduces a case's golden latents and output.
fn assert_golden(name: &str, opened: &Dictionary, what: &str) {
    let golden = Golden::of(&case(name));
    let (opened, input) = (opened.to_device(&device()), golden.rows("input"));
    assert_close(&opened.encode(input.clone()).unwrap(), &golden.rows("acts_post"), 1e-5, what);
    assert_close(&opened.forward(input).unwrap(), &golden.rows("recons"), 1e-5, what);
}

/// dictionary_learning saves the same tensors for TopK and BatchTopK. The class is the one named in `config.json`, in
/// either of two keys and also by old names.
#[test]
fn classes_of_dictionary_learning_are_those_that_are_named() {
    let named = |name: &str, class: Option<&str>, trainer: Option<&str>| {
        let folder = changed(name, "config.json", |config| {
            for (key, value) in [("dict_class", class), ("trainer_class", trainer)] {
                match value {
                    Some(value) => config["trainer"][key] = value.into(),
                    None => drop(config["trainer"].as_object_mut().unwrap().remove(key)),
                }
            }
        });
        Dictionary::open(folder.path())
    };
    for (name, class, trainers) in [
        ("dl-topk", "AutoEncoderTopK", &["TopKTrainer", "TrainerTopK"][..]),
        ("dl-batchtopk", "BatchTopKSAE", &["BatchTopKTrainer", "TrainerBatchTopK"]),
        ("dl-batchtopk-untrained", "BatchTopKSAE", &["BatchTopKTrainer", "TrainerBatchTopK"]),
        ("dl-matryoshka", "MatryoshkaBatchTopKSAE", &["MatryoshkaBatchTopKTrainer", "MatroyshkaBatchTopKTrainer"]),
        ("dl-gated", "GatedAutoEncoder", &["GatedSAETrainer", "GatedAnnealTrainer"]),
        ("dl-jumprelu", "JumpReluAutoEncoder", &["JumpReluTrainer", "TrainerJumpRelu"]),
        ("dl-autoencoder", "AutoEncoder", &["StandardTrainer", "StandardTrainerAprilUpdate", "PAnnealTrainer"]),
        ("dl-autoencoder-new", "AutoEncoderNew", &["StandardTrainerNew", "StandardTrainer"]),
    ] {
        assert_golden(name, &named(name, Some(class), None).unwrap(), name);
        assert_golden(name, &named(name, Some(class), Some("MyTrainer")).unwrap(), name);
        for trainer in trainers {
            assert_golden(name, &named(name, None, Some(trainer)).unwrap(), trainer);
        }
        // If only one class has these tensors, the class is inferred.
        let alone = tempfile::tempdir().unwrap();
        fs::copy(case(name).join("ae.pt"), alone.path().join("ae.pt")).unwrap();
        let by_tensors = [Dictionary::open(alone.path()), named(name, None, None)];
        for opened in by_tensors {
            match name.starts_with("dl-topk") || name.starts_with("dl-batchtopk") {
                true => {
                    let message = refused(opened);
                    assert!(message.contains("Set `dict_class`, or `trainer_class` under `trainer`"), "{message}");
                }
                false => assert_golden(name, &opened.unwrap(), name),
            }
        }
    }
    // The classes select different latents: the k largest of each token, or all above the threshold.
    let kind = |trainer| named("dl-topk", None, Some(trainer)).unwrap().architecture().to_string();
    assert_eq!((&*kind("TopKTrainer"), &*kind("BatchTopKTrainer")), ("topk (k 4)", "jumprelu"));

    for (name, class, trainer, expected) in [
        (
            "dl-topk",
            Some("AutoEncoderTopK"),
            Some("BatchTopKTrainer"),
            "`dict_class` is AutoEncoderTopK, but `trainer_class` is BatchTopKTrainer",
        ),
        (
            "dl-topk",
            None,
            Some("JumpReluTrainer"),
            "`trainer_class` is JumpReluTrainer, but the tensors fit AutoEncoderTopK or BatchTopKSAE",
        ),
        (
            "dl-jumprelu",
            Some("AutoEncoderTopK"),
            None,
            "`dict_class` is AutoEncoderTopK, but the tensors fit JumpReluAutoEncoder",
        ),
        ("dl-gated", Some("AutoEncoder"), None, "`dict_class` is AutoEncoder, but the tensors fit GatedAutoEncoder"),
        (
            "dl-autoencoder",
            None,
            Some("TopKTrainer"),
            "`trainer_class` is TopKTrainer, but the tensors fit AutoEncoder",
        ),
        ("dl-topk", Some("TanhSAE"), Some("TopKTrainer"), "config.json: `dict_class` `TanhSAE` is not supported"),
        ("dl-autoencoder", None, Some("TanhTrainer"), "config.json: `trainer_class` `TanhTrainer` is not supported"),
    ] {
        let message = refused(named(name, class, trainer));
        assert!(message.contains(expected), "{message}");
    }
    let other = changed("dl-topk", "config.json", |config| config["trainer"]["k"] = 5.into());
    assert!(refused(Dictionary::open(other.path())).ends_with("`k` is 5 here, but the tensor `k` in the weights is 4"));
}

/// Old SAELens settings of the activation function are applied, or rejected by name, and so are excluded positions.
#[test]
fn saelens_settings_are_applied_or_refused() {
    let legacy = |change: &dyn Fn(&mut Value)| {
        let folder = changed("legacy-standard", "cfg.json", change);
        Dictionary::open(folder.path())
    };
    for (key, value, shown) in [
        ("activation_fn_str", json!("tanh-relu"), "\"tanh-relu\""),
        ("activation_fn_str", json!("identity"), "\"identity\""),
        ("activation_fn_str", json!("swish"), "\"swish\""),
        ("activation_fn_str", json!(3), "3"),
        ("activation_fn", json!("tanh-relu"), "\"tanh-relu\""),
    ] {
        let message = refused(legacy(&|cfg| {
            cfg.as_object_mut().unwrap().remove("activation_fn_str");
            cfg[key] = value.clone();
        }));
        let expected =
            format!("cfg.json: the activation function {shown} with the architecture `standard` is not supported");
        assert!(message.ends_with(&expected), "{message}");
    }
    assert_golden("legacy-standard", &legacy(&|cfg| cfg["activation_fn_str"] = Value::Null).unwrap(), "null");

    for value in [Value::Null, json!(3)] {
        let message = refused(legacy(&|cfg| cfg["architecture"] = value.clone()));
        assert!(message.contains(&format!("`architecture` is {value}, not a name")), "{message}");
    }

    // k is a setting or an argument of the activation function, in either layout.
    let top_k = |name: &'static str, change: &dyn Fn(&mut Value)| {
        let folder = changed(name, "cfg.json", change);
        Dictionary::open(folder.path())
    };
    for (architecture, activation) in [("topk", "topk"), ("topk", "relu"), ("standard", "topk")] {
        let opened = top_k("legacy-topk", &|cfg| {
            cfg["architecture"] = architecture.into();
            cfg["activation_fn_str"] = activation.into();
        });
        assert_golden("legacy-topk", &opened.unwrap(), architecture);
    }
    let newer = |k: Value, argument: Value| {
        top_k("saelens-topk", &move |cfg| {
            cfg["k"] = k.clone();
            cfg["activation_fn_kwargs"] = json!({ "k": argument });
        })
    };
    assert_golden("saelens-topk", &newer(Value::Null, 4.into()).unwrap(), "newer");
    assert!(refused(newer(3.into(), 4.into())).ends_with("`k` is 3, but `activation_fn_kwargs` has 4"));
    let without = top_k("legacy-topk", &|cfg| cfg["activation_fn_kwargs"] = json!({}));
    assert!(refused(without).ends_with("cfg.json: `k` is missing"));
    let newer = top_k("saelens-jumprelu", &|cfg| cfg["activation_fn"] = "tanh-relu".into());
    assert!(refused(newer).contains("the activation function \"tanh-relu\" with the architecture `jumprelu`"));

    for (name, metadata) in [("legacy-standard", false), ("legacy-standard", true), ("saelens-standard", true)] {
        let sliced = |slice: &Value| {
            let folder = changed(name, "cfg.json", |cfg| match metadata {
                true => cfg["metadata"]["seqpos_slice"] = slice.clone(),
                false => cfg["seqpos_slice"] = slice.clone(),
            });
            (open(folder.path()).map(drop), folder)
        };
        for all in ["null", "[null]", "[null, null]", "[0, null]", "[null, null, null]", "[0, null, 1]"] {
            sliced(&serde_json::from_str(all).unwrap()).0.unwrap();
        }
        for some in ["[5]", "[0]", "[1, null]", "[-5, null]", "[null, -1]", "[null, null, 2]"] {
            let (given, folder) = sliced(&serde_json::from_str(some).unwrap());
            let message = refused(given);
            let shown = some.replace(", ", ",");
            let expected = format!("trained at some positions only (`seqpos_slice` {shown}) is not supported");
            assert!(message.ends_with(&expected), "{message}");
            let out = folder.path().join("out");
            let convert = program().args(["features", "convert"]).arg(folder.path()).arg("--out").arg(&out).output();
            assert!(!convert.unwrap().status.success() && !out.exists());
        }
        for wrong in ["\"all\"", "[]", "[0, 1, 2, 3]"] {
            let message = refused(sliced(&serde_json::from_str(wrong).unwrap()).0);
            assert!(message.contains("`seqpos_slice` is ") && message.contains("one to three numbers"), "{message}");
        }
    }
}

const WIDTH: usize = 8;
const LATENTS: usize = 12;

/// Parameters of a random dictionary.
#[derive(Clone, Debug)]
struct Kind {
    architecture: u8,
    normalization: u8,
    by_norms: bool,
    finetuned: bool,
    centered: bool,
    transcoder: bool,
    skip: bool,
    heads: bool,
    seed: u64,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let flags = proptest::array::uniform6(any::<bool>());
    (0u8..8, 0u8..4, flags, 0u64..1000).prop_map(|(architecture, normalization, flags, seed)| {
        let [by_norms, finetuned, centered, transcoder, skip, heads] = flags;
        let skip = skip && transcoder;
        Kind { architecture, normalization, by_norms, finetuned, centered, transcoder, skip, heads, seed }
    })
}

fn random(shape: [usize; 2], scale: f64) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, scale), &device())
}

fn numbers(scale: f64) -> Vec<f32> {
    random([1, LATENTS], scale).to_data().iter().collect()
}

impl Kind {
    fn architecture(&self) -> Architecture {
        match self.architecture {
            0 => Architecture::Standard,
            1 => Architecture::JumpRelu { thresholds: numbers(0.5), positive: true },
            2 => {
                Architecture::JumpRelu { thresholds: numbers(0.5).into_iter().map(f32::abs).collect(), positive: false }
            }
            3 => Architecture::TopK { k: 4 },
            4 => Architecture::AbsTopK { k: 4 },
            5 => Architecture::Gated { gate_bias: numbers(0.4), log_scale: numbers(0.3) },
            6 => Architecture::GroupMax { k: 4 },
            _ => Architecture::MatchingPursuit { residual_threshold: 0.5, max_iterations: 5, until_repeated: true },
        }
    }

    /// Finetuning factors have no setter, so they are read from files.
    fn dictionary(&self, folder: &Path) -> Dictionary {
        device().seed(self.seed);
        let point = if self.heads { "blocks.0.attn.hook_z" } else { "blocks.0.hook_resid_mid" };
        let metadata = match self.transcoder {
            true => Metadata::between(point, "blocks.0.hook_mlp_out"),
            false => Metadata::at(point),
        };
        let decoder = random([LATENTS, WIDTH], 0.6);
        let pursuit = self.architecture == 7;
        let weights = DictionaryWeights {
            // Its decoder is also the encoder; unit norms make it terminate.
            encoder: if pursuit { decoder.clone().transpose() } else { random([WIDTH, LATENTS], 0.8) },
            encoder_bias: random([1, LATENTS], if pursuit { 0.0 } else { 0.3 }).reshape([LATENTS]),
            decoder,
            decoder_bias: random([1, WIDTH], 0.4).reshape([WIDTH]),
            skip: self.skip.then(|| random([WIDTH, WIDTH], 0.4)),
        };
        let mut made = Dictionary::new("random", weights).unwrap().with_metadata(metadata.clone());
        if self.finetuned {
            made.save(folder).unwrap();
            let path = folder.join("sae_weights.safetensors");
            let bytes = fs::read(&path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let factors: Vec<u8> = numbers(0.8).iter().flat_map(|factor| factor.to_le_bytes()).collect();
            let view =
                |data| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![LATENTS], data).unwrap();
            let mut all = file.tensors();
            all.push(("finetuning_scaling_factor".into(), view(&factors)));
            let bytes = safetensors::serialize(all, None).unwrap();
            fs::write(&path, bytes).unwrap();
            edit(&folder.join("cfg.json"), |cfg| cfg["finetuning_scaling_factor"] = true.into());
            made = Dictionary::open(folder).unwrap().to_device(&device());
        }
        let made = made.with_metadata(metadata);
        let normalization = match self.normalization {
            0 => Normalization::None,
            1 => Normalization::LayerNorm,
            2 => Normalization::ConstantNorm,
            _ => Normalization::Scale(Some(1.7)),
        };
        let made = made.with_normalization(normalization).with_centered_input(self.centered);
        made.with_decoder_norms(self.by_norms).with_architecture(self.architecture()).unwrap()
    }

    /// Whether folding would change encoder or decoder, which matching pursuit shares.
    fn folds(&self) -> bool {
        self.normalization == 3 || self.by_norms || self.finetuned
    }

    /// Whether SAELens supports such dictionaries.
    fn is_saved(&self) -> bool {
        match self.architecture {
            6 => false,
            7 => !self.folds(),
            0..=2 => true,
            _ => !self.transcoder,
        }
    }

    /// Whether the combination exists: matching pursuit is not used for transcoders or with norms.
    fn exists(&self) -> bool {
        self.architecture != 7 || !self.transcoder && !self.by_norms
    }
}

/// Random inputs `[row, d_in]` without rows for which a latent is so close to its threshold, or to another latent's
/// rank, that rounding decides whether it is active.
fn inputs(seed: u64, dictionaries: &[Dictionary]) -> Tensor<2> {
    device().seed(seed + 1000);
    let (x, nudge) = (random([20, WIDTH], 1.5), random([20, WIDTH], 1e-4));
    let active = |one: &Dictionary, x: Tensor<2>| values(&one.encode(x).unwrap()).mapv(|act| act != 0.0);
    let nudged = |one| [x.clone() + nudge.clone(), x.clone() - nudge.clone()].map(|x| active(one, x));
    let nudged: Vec<_> = dictionaries.iter().map(nudged).collect();
    let clear = (0..20).filter(|row| {
        nudged.iter().all(|[above, below]| above.index_axis(Axis(0), *row) == below.index_axis(Axis(0), *row))
    });
    let rows: Vec<Tensor<2>> = clear.take(6).map(|row| x.clone().narrow(0, row, 1)).collect();
    assert_eq!(rows.len(), 6, "rounding decides for most rows");
    Tensor::cat(rows, 0)
}

proptest! {
    #![proptest_config(crate::support::cases(200))]

    /// A dictionary that is saved and reopened computes the same activations and output, and flattens heads if it did
    /// before. Only those that SAELens has no name for are rejected.
    #[test]
    fn saved_is_what_was_opened(kind in kinds()) {
        prop_assume!(kind.exists());
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let made = kind.dictionary(first.path());
        let x = inputs(kind.seed, std::slice::from_ref(&made));
        let given = made.save(second.path());
        prop_assert_eq!(given.is_ok(), kind.is_saved(), "{:?}", given);
        if given.is_ok() {
            let again = Dictionary::open(second.path()).unwrap().to_device(&device());
            assert_close(&again.encode(x.clone()).unwrap(), &made.encode(x.clone()).unwrap(), 2e-5, "activations");
            assert_close(&again.forward(x.clone()).unwrap(), &made.forward(x).unwrap(), 2e-5, "outputs");
            let cfg: Value = serde_json::from_slice(&fs::read(second.path().join("cfg.json")).unwrap()).unwrap();
            let reshape = if kind.heads && !kind.transcoder { "hook_z" } else { "none" };
            prop_assert_eq!(&cfg["reshape_activations"], reshape);
        }
    }

    /// Folding the input scale changes no results. Folding norms multiplies activations by the norms of the decoder
    /// rows.
    #[test]
    fn folding_keeps_what_it_says(kind in kinds()) {
        prop_assume!(kind.exists());
        let folder = tempfile::tempdir().unwrap();
        let made = kind.dictionary(folder.path());
        let x = inputs(kind.seed, std::slice::from_ref(&made));
        let (acts, output) = (made.encode(x.clone()).unwrap(), made.forward(x.clone()).unwrap());
        match fold_scale(&made) {
            Ok(folded) => {
                prop_assert!(!matches!(summary(&folded).normalization, Normalization::Scale(_)));
                assert_close(&folded.encode(x.clone()).unwrap(), &acts, 2e-5, "activations, scale folded");
                assert_close(&folded.forward(x.clone()).unwrap(), &output, 2e-5, "output, scale folded");
            }
            Err(error) => prop_assert!(kind.architecture == 7 && kind.normalization == 3, "{}", error),
        }
        let chooses = [3, 4, 6, 7].contains(&kind.architecture);
        match made.fold_decoder_norms() {
            Ok(folded) => {
                prop_assert!(!chooses || kind.by_norms && !kind.finetuned);
                let lengths = (0..LATENTS).map(|latent| made.direction(latent).unwrap().square().sum().sqrt());
                let lengths = Tensor::cat(lengths.collect(), 0).unsqueeze::<2>();
                assert_close(&folded.encode(x.clone()).unwrap(), &(acts * lengths), 2e-5, "activations, norms folded");
                assert_close(&folded.forward(x).unwrap(), &output, 2e-5, "output, norms folded");
                let norms = row_norms(&folded) - 1.0;
                prop_assert!(norms.abs().max().into_scalar::<f32>() < 1e-5);
            }
            Err(error) => prop_assert!(chooses && (kind.finetuned || !kind.by_norms), "{}", error),
        }
    }

    /// A set of transcoders that is saved and reopened computes the same activations and outputs.
    #[test]
    fn saved_sets_are_what_was_opened(kind in kinds(), other in 0u64..1000) {
        let kind = Kind { transcoder: true, heads: false, ..kind };
        prop_assume!(kind.exists() && kind.architecture < 4);
        let folder = tempfile::tempdir().unwrap();
        let layer = |layer: usize, seed: u64| {
            let made = Kind { seed, ..kind.clone() }.dictionary(&folder.path().join(format!("{layer}")));
            let point = |end: &str| format!("blocks.{layer}.{end}");
            made.with_metadata(Metadata::between(point("hook_resid_mid"), point("hook_mlp_out")))
        };
        let set = Transcoders::new("random", vec![layer(0, kind.seed), layer(1, other)]);
        let saved = folder.path().join("set");
        let given = set.save(&saved);
        prop_assert_eq!(given.is_ok(), [0, 3].contains(&kind.normalization), "{:?}", given);
        if given.is_ok() {
            let again = Transcoders::open(&saved).unwrap().to_device(&device());
            for layer in 0..2 {
                let x = inputs(kind.seed + layer as u64, set.layers());
                let acts = |set: &Transcoders| -> Vec<Tensor<2>> {
                    set.layers().iter().map(|one| one.encode(x.clone()).unwrap()).collect()
                };
                assert_close(&acts(&again)[layer], &acts(&set)[layer], 2e-5, "activations");
                let outputs = |set: &Transcoders| set.decode(layer, &acts(set), x.clone()).unwrap();
                assert_close(&outputs(&again), &outputs(&set), 2e-5, "outputs");
            }
        }
    }
}

/// A missing layer file is named, however the set is opened, and also if only other files imply its existence.
#[test]
fn missing_layers_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let set = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let without = |name: &str, make: &dyn Fn(&Path), files: &[&str], expected: &str| {
        let folder = scratch.path().join(name);
        make(&folder);
        files.iter().for_each(|file| fs::remove_file(folder.join(file)).unwrap());
        let mut convert = program();
        convert.args(["features", "convert"]).arg(&folder).arg("--out").arg(scratch.path().join("out"));
        let mut message = vec![
            refused(Transcoders::open(&folder)),
            refused(Dictionary::open(&folder)),
            refused(open(&folder)),
            String::from_utf8(convert.output().unwrap().stderr).unwrap(),
        ];
        if name.starts_with("set") {
            message.push(refused(Dictionary::open(folder.join("layer_1"))));
        }
        for message in message {
            assert!(message.contains(folder.to_str().unwrap()) && message.contains(expected), "{name}: {message}");
        }
    };
    let saved = |folder: &Path| set.save(folder).unwrap();
    let layers = |numbers: &[usize]| -> String {
        numbers.iter().map(|layer| format!("layer_{layer}.safetensors")).collect::<Vec<_>>().join(", ")
    };
    for missing in 0..4 {
        let there: Vec<usize> = (0..4).filter(|layer| *layer != missing).collect();
        let expected = format!("layer_{missing} is missing from the set; found: {}", layers(&there));
        // Also the last one: the configuration says how many there are.
        without(&format!("set{missing}"), &saved, &[&format!("layer_{missing}.safetensors")], &expected);
    }
    // circuit-tracer's own configuration, which does not give the number, and none at all.
    let published = |folder: &Path| copy(&case("circuit-tracer-set"), folder);
    without("set-published", &published, &["layer_1.safetensors"], "layer_1 is missing");
    without("set-published-first", &published, &["layer_0.safetensors"], "layer_0 is missing");
    without("set-bare", &published, &["config.yaml", "layer_1.safetensors"], "layer_1 is missing");
    without("set-bare-first", &published, &["config.yaml", "layer_0.safetensors"], "layer_0 is missing");
    let listed = |folder: &Path| {
        published(folder);
        let path = folder.join("config.yaml");
        let config = fs::read_to_string(&path).unwrap();
        let files = "[layer_0.safetensors, other_1.safetensors, layer_2.safetensors]";
        fs::write(path, format!("{config}transcoders: {files}\n")).unwrap();
    };
    without("listed", &listed, &[], "other_1.safetensors, the file for layer 1, is missing");

    let crossing = |folder: &Path| drop(cross_layer(3, WIDTH, folder, "hook_resid_mid", "hook_mlp_out"));
    let published = |folder: &Path| copy(&case("circuit-tracer-clt"), folder);
    for (name, make) in [("made", &crossing as &dyn Fn(&Path)), ("published", &published)] {
        for layer in 0..3 {
            for kind in ["W_enc", "W_dec"] {
                let (file, expected) = (format!("{kind}_{layer}.safetensors"), format!("{kind}_{layer} is missing"));
                without(&format!("{name}-{kind}-{layer}"), make, &[&file], &expected);
            }
            // Both files of a layer; for the last layer, only the first decoder implies its existence.
            let files = ["W_enc", "W_dec"].map(|kind| format!("{kind}_{layer}.safetensors"));
            let expected = format!("W_enc_{layer} is missing");
            without(&format!("{name}-{layer}"), make, &files.each_ref().map(|file| &**file), &expected);
        }
        let all: Vec<String> = (0..3).map(|layer| format!("W_enc_{layer}.safetensors")).collect();
        without(
            &format!("{name}-encoders"),
            make,
            &all.iter().map(|file| &**file).collect::<Vec<_>>(),
            "W_enc_0 is missing",
        );
    }
    let scope = |folder: &Path| copy(&case("gemma-scope-2-clt").join("clt/width_32_l0_small_affine"), folder);
    for layer in 0..3 {
        let (file, expected) =
            (format!("params_layer_{layer}.safetensors"), format!("params_layer_{layer} is missing"));
        without(&format!("scope-{layer}"), &scope, &[&file], &expected);
    }

    // A smaller set replaces a larger one, including gaps: no file of the larger set is read with it.
    let folder = scratch.path().join("replaced");
    saved(&folder);
    fs::remove_file(folder.join("layer_1.safetensors")).unwrap();
    fs::copy(folder.join("layer_3.safetensors"), folder.join("layer_7.safetensors")).unwrap();
    Transcoders::new("one", vec![set.layer(0).unwrap()]).save(&folder).unwrap();
    assert_eq!(Transcoders::open(&folder).unwrap().layers().len(), 1);
    assert!(!folder.join("layer_3.safetensors").exists() && !folder.join("layer_7.safetensors").exists());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        if !entry.ends_with("golden.safetensors") {
            fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
        }
    }
}

/// circuit-tracer has one configuration for all layers of a set. Layers that differ are rejected, not written like the
/// first one.
#[test]
fn sets_of_layers_that_differ_are_refused() {
    let kind = |architecture: u8, seed: u64| Kind {
        architecture,
        normalization: 0,
        by_norms: false,
        finetuned: false,
        centered: false,
        transcoder: true,
        skip: false,
        heads: false,
        seed,
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |made: Dictionary, layer: usize| {
        let point = |end: &str| format!("blocks.{layer}.{end}");
        made.with_metadata(Metadata::between(point("mlp.hook_in"), point("hook_mlp_out")))
    };
    let made = |architecture: u8, layer: usize| at(kind(architecture, layer as u64).dictionary(folder.path()), layer);
    let other_k = made(3, 1).with_architecture(Architecture::TopK { k: 5 }).unwrap();
    let sae = made(0, 1).with_metadata(Metadata::at("blocks.1.mlp.hook_in")).with_centered_input(true);
    for (layers, expected) in [
        (vec![made(3, 0), other_k], "it is topk (k 5), but layer 0 is topk (k 4)"),
        (vec![made(0, 0), made(1, 1)], "it is jumprelu, but layer 0 is standard"),
        (
            vec![made(0, 1), made(0, 2)],
            "it is at `blocks.1.hook_mlp_out`, but circuit-tracer's format requires layer 0",
        ),
        (vec![made(0, 0), sae], "stores transcoders, not autoencoders"),
    ] {
        let message = refused(Transcoders::new("random", layers).save(folder.path().join("set")));
        assert!(
            message.contains(expected) || message.contains(&expected.replace("hook_mlp_out", "mlp.hook_in")),
            "{message}"
        );
    }
}

/// Everything that is known of each layer is kept, though circuit-tracer's format has places for little of it.
#[test]
fn sets_keep_the_metadata_of_every_layer() {
    let folder = tempfile::tempdir().unwrap();
    let layer = |layer: usize, own: Dictionary| {
        let mut metadata = own.metadata().clone();
        metadata.model_options.insert("fold_ln".into(), true.into());
        metadata.context_size = Some(64 + layer);
        metadata.neuronpedia = Some(format!("ioi/{layer}-transcoder"));
        metadata.dataset = Some("a \"quoted\": name\n# 2".into());
        metadata.others.insert("seed".into(), json!({ "of": [layer, null] }));
        own.with_metadata(metadata).exclude_tokens((0..layer as u32).map(|id| 7 * id))
    };
    let own = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let set =
        Transcoders::new("set", own.layers().iter().cloned().enumerate().map(|(at, own)| layer(at, own)).collect());
    let unnamed = set.layers().iter().map(|layer| {
        let mut metadata = layer.metadata().clone();
        metadata.model = None;
        layer.clone().with_metadata(metadata)
    });
    let unnamed = unnamed.collect();
    for set in [set, Transcoders::new("unnamed", unnamed)] {
        set.save(folder.path()).unwrap();
        let again = Transcoders::open(folder.path()).unwrap();
        assert_eq!(again.layers().len(), set.layers().len());
        for (own, again) in set.layers().iter().zip(again.layers()) {
            assert_eq!(own.metadata(), again.metadata());
        }
    }
    // A layer's file is found by its name alone, too.
    let run = program().args(["features", "info", "layer_1.safetensors"]).current_dir(folder.path()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));

    // What is not a file's name does not move later layers.
    let config = folder.path().join("config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    for (key, value) in [("transcoders", "[layer_0.safetensors, null]"), ("transcoders", "layer_0.safetensors")] {
        fs::write(&config, format!("{text}{key}: {value}\n")).unwrap();
        let message = refused(Transcoders::open(folder.path()));
        assert!(message.contains(&format!("`{key}` is not a list of texts")), "{message}");
    }
    fs::write(&config, text.replace("hooklens_metadata: \"", "hooklens_metadata: \"x")).unwrap();
    assert!(refused(Transcoders::open(folder.path())).contains("`hooklens_metadata`"));
}

/// A latent whose decoder row is zero contributes nothing, also where activations are divided by the norms of rows.
#[test]
fn rows_of_zeros_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let kind = Kind {
        architecture: 3,
        normalization: 0,
        by_norms: true,
        finetuned: false,
        centered: false,
        transcoder: false,
        skip: false,
        heads: false,
        seed: 3,
    };
    let mut weights = kind.dictionary(folder.path()).weights().unwrap();
    let [_, width] = weights.decoder.dims();
    weights.decoder = weights.decoder.slice_assign([2..3, 0..width], Tensor::zeros([1, width], &Device::flex()));
    let made = Dictionary::new("zeros", weights).unwrap().with_architecture(Architecture::TopK { k: 4 }).unwrap();
    let made = made.with_decoder_norms(true);
    let input = random([6, made.d_in()], 1.0);
    let output = made.forward(input.clone()).unwrap();
    let plain = made.clone().with_decoder_norms(true).fold_decoder_norms().unwrap();
    assert_close(&output, &plain.forward(input).unwrap(), 1e-5, "with norms folded");
    assert!(values(&output).iter().all(|x| x.is_finite()));
    assert!(values(&made.direction(2).unwrap()).iter().all(|x| *x == 0.0));
}

/// Settings that SAELens needs to run a dictionary at a point with heads: at their outputs, it flattens heads if the
/// file says so. At queries, keys and values, for a single head, and for transcoders, it rejects or ignores the
/// setting.
#[test]
fn points_with_heads_are_said_as_saelens_wants_it() {
    let scratch = tempfile::tempdir().unwrap();
    let weights = || DictionaryWeights {
        encoder: random([WIDTH, LATENTS], 0.8),
        encoder_bias: Tensor::zeros([LATENTS], &device()),
        decoder: random([LATENTS, WIDTH], 0.6),
        decoder_bias: Tensor::zeros([WIDTH], &device()),
        skip: None,
    };
    let made = || Dictionary::new("random", weights()).unwrap();
    let of_head = |head: usize| {
        let mut metadata = Metadata::at("blocks.1.attn.hook_z");
        metadata.head = Some(head);
        metadata
    };
    let reshaped = |made: &Dictionary| {
        let folder = scratch.path().join("saved");
        made.save(&folder).unwrap();
        let cfg: Value = serde_json::from_slice(&fs::read(folder.join("cfg.json")).unwrap()).unwrap();
        let again = Dictionary::open(&folder).unwrap();
        assert_eq!(again.fingerprint().unwrap(), made.fingerprint().unwrap());
        (cfg["reshape_activations"].as_str().unwrap().to_string(), cfg)
    };
    for (point, expected) in [
        ("blocks.1.attn.hook_z", "hook_z"),
        ("blocks.1.attn.hook_q", "none"),
        ("blocks.1.attn.hook_k", "none"),
        ("blocks.1.attn.hook_v", "none"),
        ("blocks.1.hook_resid_post", "none"),
        ("blocks.1.hook_attn_out", "none"),
    ] {
        assert_eq!(reshaped(&made().at(point)).0, expected, "{point}");
        assert_eq!(reshaped(&made().with_metadata(Metadata::at(point))).0, expected, "{point}");
    }
    assert_eq!(reshaped(&made().with_metadata(of_head(2))).0, "none");
    // After moving to another point, settings of the first no longer apply.
    let heads = Dictionary::open(case("saelens-hook-z")).unwrap();
    assert_eq!(reshaped(&heads).0, "hook_z");
    assert_eq!(reshaped(&heads.clone().at("blocks.0.hook_resid_post")).0, "none");
    // If a file says that heads are not flattened, they are not, even at a point where they are flattened by default.
    let apart = changed("saelens-hook-z", "cfg.json", |cfg| cfg["reshape_activations"] = "none".into());
    assert_eq!(reshaped(&Dictionary::open(apart.path()).unwrap()).0, "none");

    // The recorded processing of the model is kept, and `info` shows the head.
    let mut metadata = of_head(3);
    metadata.model_options.insert("fold_ln".into(), true.into());
    metadata.model_options.insert("center_writing_weights".into(), false.into());
    let one = made().with_metadata(metadata);
    let (_, cfg) = reshaped(&one);
    assert_eq!(
        cfg["metadata"]["model_from_pretrained_kwargs"],
        json!({"fold_ln": true, "center_writing_weights": false})
    );
    assert_eq!(cfg["metadata"]["hook_head_index"], 3);
    let info = |more: &[&str]| {
        let output =
            program().args(["features", "info"]).arg(scratch.path().join("saved")).args(more).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(info(&[]).lines().any(|line| line.split_whitespace().eq(["head", "3"])), "{}", info(&[]));
    assert_eq!(serde_json::from_str::<Value>(&info(&["--json"])).unwrap()["head"], 3);
    made().exclude_tokens([0, 7]).save(scratch.path().join("saved")).unwrap();
    assert!(info(&[]).lines().any(|line| line.split_whitespace().eq(["exclude", "special", "tokens", "[0,7]"])));
    assert_eq!(serde_json::from_str::<Value>(&info(&["--json"])).unwrap()["exclude_special_tokens"], json!([0, 7]));
    reshaped(&made().at("blocks.0.hook_resid_post"));
    assert!(!info(&[]).contains("head "), "{}", info(&[]));
}
