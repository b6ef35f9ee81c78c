//! Variants of families: text models within multimodal models, models without a head, scaled rotary embeddings with
//! caches.

use std::fs;
use std::path::Path;

use hooklens::prelude::*;
use hooklens::{
    CacheError, Error, InputError, PaddingSide, Positional, RopeScaling, Rotary, WeightFiles, inspect,
    write_safetensors,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parity::{Golden, Tally, load};
use crate::support::{device, fixtures, random_model, values};
use hooklens_model::config::{Layers, NormDetails};

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A fixture with its settings changed and its tensors renamed or removed.
fn changed(case: &str, settings: impl FnOnce(&mut Value), rename: impl Fn(&str) -> Option<String>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut json = read_json(&fixtures().join(case).join("config.json"));
    settings(&mut json);
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    let files = WeightFiles::open(&[fixtures().join(case)]).unwrap();
    let kept = files.tensors().filter_map(|(name, _)| {
        let data = files.read(name, DType::F32).unwrap();
        let tensor = match data.shape().len() {
            1 => Activation::from(Tensor::<1>::from_data(data, &device())),
            2 => Activation::from(Tensor::<2>::from_data(data, &device())),
            _ => return None,
        };
        Some((rename(name)?, tensor))
    });
    let kept: Vec<_> = kept.collect();
    let named = kept.iter().map(|(name, tensor)| (name.clone(), tensor));
    write_safetensors(&folder.path().join("model.safetensors"), named, Default::default()).unwrap();
    folder
}

fn open(folder: &TempDir) -> Result<HookedTransformer, Error> {
    HookedTransformer::from_pretrained(folder.path().to_str().unwrap())
}

const PARTS: [&str; 11] = [
    "gemma3",
    "mistral3",
    "qwen2-vl",
    "qwen25-vl",
    "qwen3-vl",
    "llava",
    "llava-next",
    "llava-onevision",
    "smolvlm",
    "idefics3",
    "internvl",
];

/// Parts of a multimodal model that are not read are reported by loading and by `info`.
#[test]
fn other_parts_are_told() {
    let both = PARTS.iter().flat_map(|part| [format!("part-{part}"), format!("v5-part-{part}")]);
    for case in both.chain(
        [
            "part-llama4",
            "v5-part-qwen3-5",
            "v5-part-qwen3-5-moe",
            "part-qwen3-vl-moe",
            "dots-ocr",
            "phi3-v",
            "v5-part-gemma4",
            "v5-part-lighton-ocr",
            "v5-part-gemma4-unified",
        ]
        .map(String::from),
    ) {
        let model = load(&case, LoadOptions::new());
        let report = model.load_report();
        assert!(report.unused.is_empty(), "{case}: {report}");
        let message = report.ignored.iter().any(|line| line.contains("not part of the text model"));
        assert!(message, "{case}: {report}");
        let info = inspect(fixtures().join(&case).to_str().unwrap()).unwrap();
        let stored = info.weights.unwrap();
        assert!(info.text_part && stored.missing.is_empty() && !stored.other_parts.is_empty(), "{case}");
    }
    let said =
        crate::support::program().args(["info", "--model"]).arg(fixtures().join("part-gemma3")).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("the text model; not read: "), "{said}");
    // A part may also be stored at the top level next to the others.
    let report = load("llava-llama", LoadOptions::new()).load_report().to_string();
    assert!(report.contains("1 tensors of model.vision_tower"), "{report}");
}

/// An unused tensor of the text model does not count as another part's.
#[test]
fn parts_that_do_not_fit_are_errors() {
    let same = |name: &str| Some(name.to_string());
    let strange =
        changed("part-llava", |_| (), |name| Some(name.replace("language_model.model", "language_part.model")));
    let message = open(&strange).unwrap_err().to_string();
    assert!(message.contains("LlavaForConditionalGeneration contains no text model"), "{message}");
    let missing =
        changed("part-llava", |_| (), |name| (!name.contains("layers.1.self_attn.q_proj")).then(|| name.to_string()));
    let message = open(&missing).unwrap_err().to_string();
    assert!(message.contains("language_model.model.layers.1.self_attn.q_proj.weight"), "{message}");
    let other = changed("part-llava", |json| json["text_config"]["model_type"] = json!("mamba9"), same);
    let message = open(&other).unwrap_err().to_string();
    assert!(message.contains("text model mamba9"), "{message}");
    let wide = changed("part-llava", |json| json["text_config"]["hidden_size"] = json!(40), same);
    let message = open(&wide).unwrap_err().to_string();
    assert!(message.contains("shape"), "{message}");
    let more = changed("part-llava", |_| (), |name| Some(name.replace("layers.1.mlp.up", "layers.1.mlp.upper")));
    let message = open(&more).unwrap_err().to_string();
    assert!(message.contains("layers.1.mlp.up_proj"), "{message}");
}

/// A model without a head has everything except logits.
#[test]
fn base_models_have_all_but_logits() {
    let bare = |json: &mut Value, architecture: &str| json["architectures"] = json!([architecture]);
    let cases = [
        ("llama", "LlamaModel", "model.", "lm_head.weight"),
        ("gpt2-untied", "GPT2Model", "transformer.", "lm_head.weight"),
        ("phi", "PhiModel", "model.", "lm_head"),
    ];
    for (case, architecture, prefix, head) in cases {
        let folder = changed(
            case,
            |json| bare(json, architecture),
            |name| (!name.starts_with(head)).then(|| name.strip_prefix(prefix).unwrap_or(name).to_string()),
        );
        let model = open(&folder).unwrap();
        assert_eq!(model.config().d_vocab_out(), 0, "{case}");
        let golden = Golden::read(case);
        let output = model.run(golden.tokens(""), ForwardOptions::new().record(Record::all())).unwrap();
        assert!(output.logits.is_none());
        let mut tally = Tally::default();
        let layers = model.config().n_layers();
        for layer in 0..layers {
            let stream = values(&output.cache.get(hook::resid_pre(layer)).unwrap());
            tally.compare(&format!("{case} {layer}"), &stream, golden.get(&format!("hf.hidden.{layer}")).unwrap());
        }
        assert!(tally.problems.is_empty(), "{:?}", tally.problems);
        let message = model.forward([1, 2]).unwrap_err();
        assert!(matches!(message, Error::Input(InputError::NoHead { .. })), "{message}");
        assert!(model.generate_with([1, 2], GenerateOptions::new()).is_err());
        let stop = ForwardOptions::new().stop_at_layer(-1);
        assert_eq!(model.forward_with([1, 2], stop).unwrap().dims()[2], model.config().d_model());
        assert!(model.run([1, 2], ForwardOptions::new().loss()).is_err());
        // A cache gives the same residual streams.
        let mut cache = KeyValueCache::new(model.config(), 1);
        model.run([1, 2, 3], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let last = ForwardOptions::new().kv_cache(&mut cache).record(hook::resid_post(-1));
        let behind = model.run([4], last).unwrap().cache.get(hook::resid_post(-1)).unwrap();
        let whole = model.record([1, 2, 3, 4], hook::resid_post(-1)).unwrap().get(hook::resid_post(-1)).unwrap();
        crate::support::assert_close(&behind, &whole.narrow(1, 3, 1), 1e-4, case);
        // The model can be saved, loaded, processed and decomposed.
        let saved = tempfile::tempdir().unwrap();
        model.save_pretrained(saved.path()).unwrap();
        let again = open(&saved).unwrap();
        assert_eq!(again.config(), model.config());
        assert!(model.fingerprint().is_ok());
        let processed = model.clone().processed(&Processing::standard()).unwrap();
        let of = |model: &HookedTransformer| {
            values(&model.record([1, 2, 3], "ln_final.hook_normalized").unwrap().get(hook::final_normalized()).unwrap())
        };
        let mut tally = Tally::default();
        if model.config().final_norm() != hooklens::NormKind::LayerNorm || !model.config().norm().centers() {
            tally.compare("processed", &of(&processed), &of(&model));
        }
        assert!(tally.problems.is_empty(), "{:?}", tally.problems);
        assert!(model.clone().processed(&Processing::none().center_unembed()).is_err());
    }
    // A head that a text model lacks is missing.
    let folder = changed("llama", |_| (), |name| (name != "lm_head.weight").then(|| name.to_string()));
    let message = open(&folder).unwrap_err().to_string();
    assert!(message.contains("lm_head.weight"), "{message}");
    // A base model's own head is read, and a tied one is the embedding.
    let folder = changed("llama", |json| bare(json, "LlamaModel"), |name| Some(name.to_string()));
    assert!(open(&folder).unwrap().forward([1, 2]).is_ok());
    let folder = changed("gpt2", |json| bare(json, "GPT2Model"), |name| Some(name.to_string()));
    assert!(open(&folder).unwrap().forward([1, 2]).is_ok());
}

fn stretched(scaling: RopeScaling) -> HookedTransformer {
    let rotary = Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling };
    let positional = Positional::Rotary(rotary);
    random_model(TransformerConfig::new(2, 16, 2, 20, 6).with_positional(positional), 4)
}

fn stretchings() -> [RopeScaling; 2] {
    let long = RopeScaling::Long {
        short_factor: vec![1.0, 1.1, 1.2, 1.3],
        long_factor: vec![1.0, 3.0, 6.0, 12.0],
        attention_factor: 1.1,
        original_context: 6,
    };
    [RopeScaling::Dynamic { factor: 4.0, original_context: 6 }, long]
}

/// Beyond the context that a model was trained for, generating with its own cache equals generating without one.
#[test]
fn generation_crosses_the_original_context() {
    for scaling in stretchings() {
        let model = stretched(scaling);
        let prompts = vec![vec![3, 7, 1], vec![5]];
        let options = GenerateOptions::new().max_new_tokens(9).stop_at_eos(false);
        let tokens = Tokens::padded(&prompts, 0, PaddingSide::Left).unwrap();
        let made = model.generate_with(&tokens, options).unwrap();
        for (row, prompt) in prompts.into_iter().enumerate() {
            let mut ids = prompt.clone();
            for step in 0..9 {
                let logits = model.forward_with(ids.clone(), ForwardOptions::new().logits(Logits::Last)).unwrap();
                let best = logits.argmax(2).into_scalar::<i32>() as u32;
                assert_eq!(made.rows[row].new[step], best, "row {row}, step {step}");
                ids.push(best);
            }
        }
        // With hooks or recordings, a second run would be observable, so it is an error, as with a caller's cache.
        let recorded = GenerateOptions::new().max_new_tokens(9).record("hook_embed");
        assert!(matches!(
            model.generate_with([3, 7, 1], recorded).unwrap_err(),
            Error::Cache(CacheError::Outgrown { .. })
        ));
        let mut cache = KeyValueCache::new(model.config(), 1);
        model.run([1, 2, 3], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let message = model.run([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap_err();
        assert!(matches!(message, Error::Cache(CacheError::Outgrown { original_context: 6, len: 7 })), "{message}");
        assert_eq!(cache.len(), 3);
    }
}

/// Each row depends on its own length: a short row next to a long one crosses the limit later.
#[test]
fn rows_outgrow_their_context_one_by_one() {
    let [_, long] = stretchings();
    let model = stretched(long);
    let mask = vec![vec![true; 7], vec![false, false, false, true, true, true, true]];
    let tokens = Tokens::new(vec![vec![1; 7], vec![2; 7]]).unwrap().with_mask(mask).unwrap();
    let mut cache = KeyValueCache::new(model.config(), 2);
    model.run(&tokens, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let mut next = |ids: [u32; 2]| {
        model.run(vec![vec![ids[0]], vec![ids[1]]], ForwardOptions::new().kv_cache(&mut cache)).map(|_| ())
    };
    next([3, 4]).unwrap();
    next([3, 4]).unwrap();
    assert!(matches!(next([3, 4]).unwrap_err(), Error::Cache(CacheError::Outgrown { len: 7, .. })));
}

/// Operations that are undefined for post-norm residual streams are rejected by name.
#[test]
fn streams_that_are_no_sums_are_not_taken_apart() {
    for case in ["opt-behind", "bloom-normalized"] {
        let model = load(case, LoadOptions::new());
        let cache = model.record([1, 2, 3], Record::all()).unwrap();
        let message = model.analyze(&cache).unwrap_err().to_string();
        assert!(message.contains("is not the sum of the layers' outputs"), "{message}");
        assert!(model.clone().processed(&Processing::none().fold_ln()).is_err());
        assert!(model.clone().processed(&Processing::none().center_writing_weights()).is_err());
        let processed = model.clone().processed(&Processing::standard()).unwrap();
        let (a, b) = (model.forward([1, 2, 3]).unwrap(), processed.forward([1, 2, 3]).unwrap());
        let log = |x| burn::tensor::activation::log_softmax(x, 2);
        crate::support::assert_close(&log(a), &log(b), 1e-4, case);
    }
}

/// DoRA magnitudes without the setting, and the setting without magnitudes, are rejected.
#[test]
fn adapters_with_half_of_dora_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("dora-llama");
    let mut json = read_json(&from.join("adapter_config.json"));
    json["base_model_name_or_path"] = json!(fixtures().join("llama").to_str().unwrap());
    json["use_dora"] = json!(false);
    fs::write(folder.path().join("adapter_config.json"), json.to_string()).unwrap();
    fs::copy(from.join("adapter_model.safetensors"), folder.path().join("adapter_model.safetensors")).unwrap();
    let message = open(&folder).unwrap_err().to_string();
    assert!(message.contains("lora_magnitude_vector"), "{message}");
    json["use_dora"] = json!(true);
    fs::write(folder.path().join("adapter_config.json"), json.to_string()).unwrap();
    open(&folder).unwrap();
    let plain = fixtures().join("lora-llama").join("adapter_model.safetensors");
    fs::copy(plain, folder.path().join("adapter_model.safetensors")).unwrap();
    let message = open(&folder).unwrap_err().to_string();
    assert!(message.contains("has no magnitude vector"), "{message}");
}
