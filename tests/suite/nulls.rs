//! Null settings in `config.json`: the same result as transformers, or an error that names the setting.
//! `tests/fixtures/nulls.py` sets each setting of each fixture to null in transformers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hooklens::encoder::HookedEncoder;
use hooklens::encoder_decoder::HookedEncoderDecoder;
use hooklens::prelude::*;
use hooklens::{Error, ModelConfig, inspect};
use ndarray::{ArrayD, Axis};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parity::Golden;
use crate::seeded::fixture;
use crate::support::{fixtures, fixtures_with, values};

/// Results of transformers for a fixture with one setting at a time set to null.
#[derive(Deserialize)]
struct Tried {
    /// Settings that are not in the file.
    fields: Vec<String>,
    /// Settings that raise an error.
    errors: Vec<String>,
    /// Settings that change the result, with the maximum and the first values of the last row of each output.
    others: BTreeMap<String, Vec<Vec<f32>>>,
}

/// Settings that fail in transformers if null, but which may be accepted if they do not affect results: those of
/// training, dropout and parts other than the text model; those that another setting or the weights' shapes also give,
/// such as a head's width; those that the kind of rotary embedding does not read, though transformers validates them;
/// and those that apply to no layer of the fixture, such as a window that no layer has.
const WITHOUT_EFFECT: &[&str] = &[
    "activation_dropout",
    "attention_dropout",
    "attention_factor",
    "attention_layers",
    "attention_probs_dropout_prob",
    "attention_types",
    "attn_pdrop",
    "beta_fast",
    "beta_slow",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_pooling",
    "default_prepend_bos",
    "dense_act_fn",
    "downsample_ratio",
    "dropout",
    "dropout_rate",
    "emb_pdrop",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "factor",
    "head_dim",
    "hidden_dropout",
    "hidden_dropout_prob",
    "high_freq_factor",
    "image_token_index",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "is_gated_act",
    "layer_norm_epsilon",
    "layer_types",
    "long_factor",
    "low_freq_factor",
    "mamba_chunk_size",
    "mamba_d_head",
    "max_relative_positions",
    "mlp_dropout",
    "mlp_only_layers",
    "mm_tokens_per_image",
    "moe_norm_min",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "n_ctx",
    "n_devices",
    "no_rope_layer_interval",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "parallel_attn",
    "pretraining_tp",
    "projector_hidden_act",
    "qk_head_dim",
    "quantization_config",
    "resid_dropout",
    "resid_pdrop",
    "residual_dropout",
    "rope_scaling",
    "rope_theta",
    "scale_factor",
    "short_factor",
    "sliding_window",
    "spatial_merge_size",
    "tie_word_embeddings",
    "truncate",
    "vision_config",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "vocab_size",
];

/// Settings that only transformers 5 knows, so the code of 4.57.1 ignores them. For transformers 5, null means false.
const NEWER: [(&str, &str); 1] = [("v5-t5", "scale_decoder_outputs")];

/// Settings whose null makes another setting or a tensor useless, which the error names instead.
const NAMED_BY_ANOTHER: [&str; 4] = ["architectures", "attn_only", "head_dim", "tie_word_embeddings"];

/// Paths of all settings, including those in nested objects.
fn paths(json: &Value, before: &str, into: &mut Vec<String>) {
    const CLOSED: [&str; 7] =
        ["vision_config", "audio_config", "speech_config", "id2label", "label2id", "auto_map", "task_specific_params"];
    for (name, value) in json.as_object().into_iter().flatten() {
        if !value.is_null() {
            into.push(format!("{before}{name}"));
        }
        if value.is_object() && !CLOSED.contains(&name.as_str()) {
            paths(value, &format!("{before}{name}."), into);
        }
    }
}

fn with_null(json: &Value, path: &str) -> Value {
    let mut changed = json.clone();
    let (within, name) = path.rsplit_once('.').map_or((None, path), |(within, name)| (Some(within), name));
    let place = within.into_iter().flat_map(|within| within.split('.'));
    let object = place.fold(&mut changed, |object, name| &mut object[name]);
    object[name] = Value::Null;
    changed
}

/// The outputs that nulls.py keeps: logits of a decoder; masked-token logits or else the last hidden states of an
/// encoder; logits and greedy output of an encoder-decoder.
fn computed(folder: &Path, json: &Value, golden: &Golden) -> Result<Vec<ArrayD<f32>>, Error> {
    fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let name = folder.to_str().unwrap();
    let first = |of: &str| -> Vec<u32> {
        golden.get(of).unwrap().index_axis(Axis(0), 0).iter().map(|number| *number as u32).collect()
    };
    let tokens = || Tokens::new(vec![first("tokens")]).unwrap();
    let row = |tensor: &burn::tensor::Tensor<3>| values(tensor).index_axis(Axis(0), 0).to_owned();
    match inspect(name)?.config {
        ModelConfig::Decoder(_) => {
            let logits = HookedTransformer::from_pretrained(name)?.forward(tokens())?;
            Ok(vec![row(&logits)])
        }
        ModelConfig::Encoder(..) => {
            let model = HookedEncoder::from_pretrained(name)?;
            let mut input = hooklens::encoder::EncoderInput::from(tokens());
            if golden.get("types").is_some() && hooklens_model::encoder::config_of(&model).token_types > 0 {
                input = input.token_types(vec![first("types")]);
            }
            let output = model.run(input, Record::all())?;
            Ok(output.logits.or(output.hidden).iter().map(row).collect())
        }
        ModelConfig::EncoderDecoder(_) => {
            let model = HookedEncoderDecoder::from_pretrained(name)?;
            let (tokens, decoded) = (tokens(), Tokens::new(vec![first("decoder_tokens")]).unwrap());
            let logits = model.forward((&tokens, &decoded))?;
            let greedy = GenerateOptions::new().max_new_tokens(4).stop_at_eos(false);
            let mut written = model.generate_with(&tokens, greedy)?.rows.swap_remove(0).new;
            written.insert(0, model.decoder_start_token());
            let written = written.into_iter().map(|id| id as f32).collect();
            Ok(vec![row(&logits), ArrayD::from_shape_vec(vec![1, 5], written).unwrap()])
        }
    }
}

fn largest(numbers: impl IntoIterator<Item = f32>) -> f32 {
    numbers.into_iter().fold(0.0, |most, number| if number.is_nan() { f32::INFINITY } else { most.max(number.abs()) })
}

/// Whether the outputs equal those of the unchanged model.
fn same(given: &[ArrayD<f32>], base: &[ArrayD<f32>]) -> bool {
    let near = |(given, base): (&ArrayD<f32>, &ArrayD<f32>)| {
        given.shape() == base.shape()
            && largest(given.iter().zip(base).map(|(a, b)| a - b)) <= 1e-4 * largest(base.iter().copied())
    };
    given.len() == base.len() && given.iter().zip(base).all(near)
}

/// The values that nulls.py keeps of each output.
fn kept(parts: &[ArrayD<f32>]) -> Vec<Vec<f32>> {
    let of = |part: &ArrayD<f32>| {
        let last = part.index_axis(Axis(0), part.shape()[0] - 1);
        let row = last.iter().take(8).copied();
        std::iter::once(largest(part.iter().copied())).chain(row).collect()
    };
    parts.iter().map(of).collect()
}

/// A copy of a fixture without its golden values, and its configuration.
fn copied(case: &str) -> (TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixture(case)).unwrap().map(Result::unwrap) {
        let name = file.file_name();
        let golden =
            ["golden", "encoder.", "analysis", "config"].iter().any(|of| name.to_str().unwrap().starts_with(of));
        if !golden && file.path().is_file() {
            fs::copy(file.path(), folder.path().join(name)).unwrap();
        }
    }
    let json: Value = serde_json::from_slice(&fs::read(fixtures().join(case).join("config.json")).unwrap()).unwrap();
    (folder, json)
}

/// Differences between a fixture's results and those of transformers.
fn compare(case: &str, tried: &Tried, common: &[String]) -> Vec<String> {
    let (folder, json) = copied(case);
    let file = ["golden.safetensors", "encoder.safetensors"];
    let file = file.into_iter().find(|file| fixtures().join(case).join(file).is_file()).unwrap();
    let golden = Golden::of_file(case, file);
    let base = computed(folder.path(), &json, &golden).unwrap();
    let mut fields = Vec::new();
    paths(&json, "", &mut fields);
    fields.extend(tried.fields.iter().cloned());
    if json["architectures"] != json!(["HookedTransformer"]) {
        fields.extend(common.iter().filter(|field| json.get(field.as_str()).is_none()).cloned());
    }
    let mut problems = Vec::new();
    for field in &fields {
        let name = field.rsplit('.').next().unwrap();
        let expected = match (tried.errors.contains(field), tried.others.get(field)) {
            (true, _) => None,
            (false, Some(others)) => Some(Some(others)),
            (false, None) => Some(None),
        };
        let mut problem = |what: String| problems.push(format!("{case}: {field}: {what}"));
        match (computed(folder.path(), &with_null(&json, field), &golden), expected) {
            // Null may make a model that does not match the files.
            (Err(Error::Load(_)), None) => {}
            (Err(error), _) if error.to_string().contains(name) || NAMED_BY_ANOTHER.contains(&name) => {}
            (Err(error), _) => problem(format!("the error does not name it: {error}")),
            // A missing head is reported and gives no logits.
            (Ok(given), None) if given[0].shape() != base[0].shape() => {}
            (Ok(given), None) if WITHOUT_EFFECT.contains(&name) && same(&given, &base) => {}
            (Ok(given), None) => {
                let how = if same(&given, &base) { "without an effect" } else { "with other numbers" };
                problem(format!("transformers fails, and it is taken {how}"));
            }
            (Ok(given), Some(None)) if same(&given, &base) => {}
            (Ok(given), Some(None)) if name == "architectures" && given[0].shape() != base[0].shape() => {}
            (Ok(_), Some(None)) if NEWER.contains(&(case, field)) => {}
            (Ok(_), Some(None)) => problem("other numbers than those of the unchanged file".into()),
            (Ok(given), Some(Some(others))) => {
                let near = |(given, expected): (&Vec<f32>, &Vec<f32>)| {
                    given.len() == expected.len()
                        && given.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * expected[0])
                };
                let kept = kept(&given);
                if kept.len() != others.len() || !kept.iter().zip(others).all(near) {
                    problem(format!("{kept:?} in place of {others:?}"));
                }
            }
        }
    }
    problems
}

#[test]
fn null_is_what_transformers_takes_it_for_or_an_error() {
    let text = fs::read(fixtures().join("nulls.json")).unwrap();
    let mut golden: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
    let common: Vec<String> = serde_json::from_value(golden.remove("common").unwrap()).unwrap();
    let tried: Vec<(String, Tried)> =
        golden.into_iter().map(|(case, tried)| (case, serde_json::from_value(tried).unwrap())).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let compared = |of: usize| -> Vec<String> {
        let some = tried.iter().skip(of).step_by(threads);
        some.flat_map(|(case, tried)| compare(case, tried, &common)).collect()
    };
    let problems: Vec<String> = std::thread::scope(|scope| {
        let compared = &compared;
        let running: Vec<_> = (0..threads).map(|of| scope.spawn(move || compared(of))).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// There is no such list for files that transformers 4.57.1 can't read, from custom code or later versions. Null
/// booleans are false, as in Python.
#[test]
fn null_is_false_in_files_of_other_code() {
    let text = fs::read(fixtures().join("nulls.json")).unwrap();
    let golden: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
    let mut tried = 0;
    let files = ["golden.safetensors", "encoder.safetensors"];
    let cases = files.into_iter().flat_map(|file| fixtures_with(file).into_iter().map(move |case| (case, file)));
    for (case, file) in cases {
        if golden.contains_key(&case) || !fixtures().join(&case).join("config.json").is_file() {
            continue;
        }
        let (folder, json) = copied(&case);
        let values = Golden::of_file(&case, file);
        let flags = json.as_object().unwrap().iter().filter(|(_, value)| value.is_boolean());
        for (field, _) in flags.filter(|(field, _)| !WITHOUT_EFFECT.contains(&field.as_str())) {
            let mut changed = json.clone();
            changed[field] = Value::Bool(false);
            let off = computed(folder.path(), &changed, &values);
            match (computed(folder.path(), &with_null(&json, field), &values), off) {
                (Ok(null), Ok(off)) => assert!(same(&null, &off), "{case}: {field}"),
                (Err(_), Err(_)) => {}
                (Ok(_), Err(error)) => panic!("{case}: null is taken for `{field}`, and false is not: {error}"),
                (Err(error), Ok(_)) => panic!("{case}: false is taken for `{field}`, and null is not: {error}"),
            }
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried} settings were tried");
}
