//! Generation stops at every EOS id in a model's files, in Hugging Face's order of precedence.

use std::fs;
use std::path::{Path, PathBuf};

use hooklens::generation::Stop;
use hooklens::prelude::*;
use serde_json::{Value, json};

use crate::support::{fixtures, program};

/// A copy of a model's folder with other settings; `null` removes a file.
fn copied(from: &Path, files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with("golden.safetensors") {
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    for (name, json) in files {
        let path = folder.path().join(name);
        match json {
            Value::Null => drop(fs::remove_file(path)),
            Value::Object(fields) if *name == "config.json" => {
                let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                config.as_object_mut().unwrap().extend(fields.clone());
                fs::write(path, config.to_string()).unwrap();
            }
            json => fs::write(path, json.to_string()).unwrap(),
        }
    }
    folder
}

fn llama(files: &[(&str, Value)]) -> HookedTransformer {
    let folder = copied(&fixtures().join("llama"), files);
    HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap()
}

#[test]
fn each_end_stops() {
    let prompt = [5, 6, 7];
    let written = |model: &HookedTransformer, count| {
        let made = model.generate_with(prompt, GenerateOptions::new().max_new_tokens(count)).unwrap();
        (made.rows[0].new.clone(), made.rows[0].stop.clone())
    };
    let free = llama(&[("config.json", json!({"eos_token_id": null}))]);
    assert!(free.eos_tokens().is_empty());
    let (all, stop) = written(&free, 12);
    assert_eq!(stop, Stop::Length);
    let mut distinct = all.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let other = (0..).find(|id| !all.contains(id)).unwrap();
    for end in distinct {
        let at = all.iter().position(|id| *id == end).unwrap();
        for (files, ends) in [
            (vec![("generation_config.json", json!({"eos_token_id": end}))], vec![end]),
            (vec![("generation_config.json", json!({"eos_token_id": [other, end]}))], vec![other, end]),
            (vec![("config.json", json!({"eos_token_id": [end, other]}))], vec![end, other]),
            (
                vec![
                    ("config.json", json!({"eos_token_id": other})),
                    ("generation_config.json", json!({"eos_token_id": [end]})),
                ],
                vec![end],
            ),
        ] {
            let model = llama(&files);
            assert_eq!(model.eos_tokens(), ends);
            assert_eq!(written(&model, 12), (all[..=at].to_vec(), Stop::Token(end)), "{files:?}");
            let free = GenerateOptions::new().max_new_tokens(12).stop_at_eos(false);
            assert_eq!(model.generate_with(prompt, free).unwrap().rows[0].new, all);
        }
        // If there is a generation_config.json, the value in config.json is ignored.
        for generation in [json!({"eos_token_id": other}), json!({"eos_token_id": null}), json!({})] {
            let says = generation["eos_token_id"].is_null();
            let model = llama(&[("config.json", json!({"eos_token_id": end})), ("generation_config.json", generation)]);
            assert_eq!(written(&model, 12), (all.clone(), Stop::Length));
            let ignored = &model.load_report().ignored;
            assert_eq!(ignored.iter().any(|message| message.contains("eos_token_id")), says, "{ignored:?}");
        }
    }
}

#[test]
fn ends_are_saved() {
    let model = llama(&[("generation_config.json", json!({"eos_token_id": [3, 9]}))]);
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let again = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(again.eos_tokens(), [3, 9]);
}

#[test]
fn an_end_that_is_no_id_is_refused() {
    let folder = copied(&fixtures().join("llama"), &[("generation_config.json", json!({"eos_token_id": "</s>"}))]);
    let message = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(message.contains("eos_token_id"), "{message}");
}

#[test]
fn a_decoder_after_an_encoder_stops_too() {
    let load = |files: &[(&str, Value)]| {
        let folder = copied(&fixtures().join("t5"), files);
        HookedEncoderDecoder::from_pretrained(folder.path().to_str().unwrap()).unwrap()
    };
    let written = |model: &HookedEncoderDecoder| {
        let made = model.generate_with([5, 6, 7, 1], GenerateOptions::new().max_new_tokens(8)).unwrap();
        (made.rows[0].new.clone(), made.rows[0].stop.clone())
    };
    let (all, _) = written(&load(&[("config.json", json!({"eos_token_id": null}))]));
    let end = all[0];
    let model = load(&[("generation_config.json", json!({"decoder_start_token_id": 0, "eos_token_id": [1, end]}))]);
    assert_eq!(written(&model), (vec![end], Stop::Token(end)));
}

#[test]
fn the_program_says_which_end_it_was() {
    let Some(stories): Option<PathBuf> = crate::trained::folder("stories260k") else { return };
    let end = 267;
    let folder = copied(&stories, &[("generation_config.json", json!({"eos_token_id": [2, end]}))]);
    let args = ["generate", "--prompt", "Once upon a time", "--max-new-tokens", "60", "--json", "--model"];
    let done = program().args(args).arg(folder.path()).output().unwrap();
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let row = &json["rows"][0];
    assert_eq!(row["stop"], json!({"token": end}), "{json}");
    assert_eq!(row["new_tokens"].as_array().unwrap().last(), Some(&json!(end)));
}

#[test]
fn whether_texts_begin_is_heeded() {
    let Some(stories) = crate::trained::folder("stories260k") else { return };
    let config: Value = serde_json::from_slice(&fs::read(stories.join("tokenizer_config.json")).unwrap()).unwrap();
    for (adds, first) in [(json!(false), None), (json!(true), Some(1)), (Value::Null, Some(1))] {
        let mut config = config.clone();
        config["add_bos_token"] = adds;
        let folder = copied(&stories, &[("tokenizer_config.json", config)]);
        let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
        let tokens = model.to_tokens("Once").unwrap();
        assert_eq!(tokens.row(0).first().filter(|id| **id == 1).copied(), first);
        assert!(model.load_report().ignored.iter().all(|message| !message.contains("add_")));
    }
    let mut config = config;
    config["add_eos_token"] = json!(true);
    let folder = copied(&stories, &[("tokenizer_config.json", config)]);
    let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert!(model.load_report().ignored.iter().any(|message| message.contains("add_eos_token")));
}
