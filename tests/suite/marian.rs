//! Marian's tokenizers compared with transformers', on the files from `tests/fixtures/marian_text.py`, and translation.

use std::fs;
use std::path::Path;

use hooklens::Tokenizer;
use hooklens::prelude::*;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::support::{fixtures, program, values};

fn folder() -> std::path::PathBuf {
    fixtures().join("marian-text")
}

fn load(folder: &Path) -> Result<HookedEncoderDecoder, hooklens::Error> {
    HookedEncoderDecoder::from_pretrained(folder.to_str().unwrap())
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(folder().join("texts.json")).unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_are_taken_apart_as_transformers_does() {
    let model = load(&folder()).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let (end, expected) = (tokenizer.eos().unwrap(), expected());
    assert_eq!((end, tokenizer.pad(), tokenizer.vocab_size()), (0, 101, 102));
    assert_eq!((tokenizer.id(">>deu<<"), tokenizer.token(100).as_deref()), (Some(100), Some(">>deu<<")));
    assert_eq!(tokenizer.vocabulary().len(), 102);
    for case in expected["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let (read, written) = (ids(&case["ids"]), ids(&case["target"]));
        let of = |tokenizer: &Tokenizer| [tokenizer.encode(text).unwrap(), vec![end]].concat();
        assert_eq!(of(tokenizer), read, "{text:?}");
        assert_eq!(of(tokenizer.target()), written, "{text:?} as written");
        assert_eq!(tokenizer.decode(&read, false).unwrap(), case["decoded"].as_str().unwrap(), "{text:?}");
        assert_eq!(tokenizer.decode(&read, true).unwrap(), case["skipped"].as_str().unwrap(), "{text:?}");
    }
    // A batch is padded, and each row keeps its EOS token.
    let rows = model.to_tokens(["The cat", "The old house is green."]).unwrap();
    assert_eq!(rows.real(0).last(), Some(&0));
    assert_eq!(rows.real(1), ids(&expected["texts"][0]["ids"]));
}

#[test]
fn translations_are_transformers() {
    let (model, expected) = (load(&folder()).unwrap(), expected());
    let generated = expected["generated"].as_array().unwrap();
    let texts: Vec<&str> = generated.iter().map(|case| case["text"].as_str().unwrap()).collect();
    let made = model.generate_with(texts.clone(), GenerateOptions::new().max_new_tokens(6)).unwrap();
    for (row, case) in made.rows.iter().zip(generated) {
        assert_eq!(row.new, ids(&case["ids"]));
        let written = model.tokenizer().unwrap().target().decode(&row.new, true).unwrap();
        assert_eq!(written, case["written"].as_str().unwrap());
    }
    // Decoder text is tokenized in the target language.
    let prompt = model.record((texts[0], "Das alte Haus"), "decoder.0.hook_resid_pre").unwrap();
    let begun = ids(&expected["texts"][1]["target"]).len();
    assert!(prompt.get::<3>("decoder.0.hook_resid_pre").unwrap().dims()[1] < begun);
    let folder = folder();
    let said = program()
        .args(["generate", "--prompt", texts[0], "--max-new-tokens", "6", "--model", folder.to_str().unwrap()])
        .output()
        .unwrap();
    let message = String::from_utf8(said.stdout).unwrap();
    assert_eq!(message.trim_end(), generated[0]["written"].as_str().unwrap());
    // So are answers.
    let said = program()
        .args([
            "patch",
            "--clean",
            "The old house",
            "--corrupted",
            "The old garden",
            "--at",
            "encoder.*.hook_resid_pre",
        ])
        .args(["--decoder-prompt", "Das", "--answer", "Haus", "--wrong", "Garten", "--model", folder.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(!String::from_utf8(said.stderr).unwrap().contains("not one"), "the answer is one token");
    let said = program()
        .args(["generate", "--tokens", "5,6,0", "--max-new-tokens", "2", "--first-token", ">>deu<<", "--json"])
        .args(["--model", folder.to_str().unwrap()])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(json["rows"][0]["new_tokens"], json!([100, 0]));
}

/// A copy of a fixture with some files changed.
fn changed(fixture: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixtures().join(fixture)).unwrap().flatten() {
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    change(copy.path());
    copy
}

#[test]
fn files_that_would_be_read_wrong_are_refused() {
    let message = |name: &str, bytes: &[u8]| {
        let copy = changed("marian-text", |folder| fs::write(folder.join(name), bytes).unwrap());
        hooklens::error_chain(&load(copy.path()).unwrap_err())
    };
    let separate = message("tokenizer_config.json", br#"{"separate_vocabs": true}"#);
    assert!(separate.contains("separate_vocabs"), "{separate}");
    let lacks = message("vocab.json", br#"{"a": 0}"#);
    assert!(lacks.contains("it lacks `<unk>`"), "{lacks}");
    let twice = message("vocab.json", br#"{"a": 0, "<unk>": 0, "</s>": 1}"#);
    assert!(twice.contains("3 tokens have only 2 distinct ids"), "{twice}");
    let spm = fs::read(folder().join("target.spm")).unwrap();
    let damaged = message("target.spm", &spm[..spm.len() / 2]);
    assert!(damaged.contains("target.spm") && damaged.contains("damaged"), "{damaged}");
    // Without one of the files there is no tokenizer, but ids work.
    let copy = changed("marian-text", |folder| fs::remove_file(folder.join("source.spm")).unwrap());
    let model = load(copy.path()).unwrap();
    assert!(model.tokenizer().is_err() && model.forward([5, 6, 0]).is_ok());
}

/// A tied embedding may be stored under any of its names, and all that exist must agree.
#[test]
fn tied_tables_are_found_under_every_name() {
    let input = || ([5, 6, 7, 2], [3, 4]);
    for (case, table, names) in [
        ("bart", "model.shared.weight", &["model.encoder.embed_tokens.weight", "lm_head.weight"][..]),
        ("marian-apart", "model.decoder.embed_tokens.weight", &["lm_head.weight"]),
    ] {
        let plain = load(&fixtures().join(case)).unwrap();
        for name in names {
            let renamed = |also: bool| {
                changed(case, |folder| {
                    let file = folder.join("model.safetensors");
                    let bytes = fs::read(&file).unwrap();
                    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                    let mut all: Vec<(String, TensorView<'_>)> = tensors.tensors();
                    let own = tensors.tensor(table).unwrap();
                    let mut other = own.data().to_vec();
                    if also {
                        other[..4].copy_from_slice(&7.5f32.to_le_bytes());
                    } else {
                        all.retain(|(kept, _)| kept != table);
                    }
                    all.push((name.to_string(), TensorView::new(own.dtype(), own.shape().to_vec(), &other).unwrap()));
                    let made = safetensors::serialize(all, None).unwrap();
                    fs::write(&file, made).unwrap();
                })
            };
            let copy = renamed(false);
            let model = load(copy.path()).unwrap();
            assert_eq!(values(&model.forward(input()).unwrap()), values(&plain.forward(input()).unwrap()), "{name}");
            let message = load(renamed(true).path()).map(|model| model.load_report().to_string());
            if *name == "lm_head.weight" {
                assert!(message.unwrap_err().to_string().contains("lm_head.weight"), "{case}");
            }
        }
    }
}

#[test]
fn generation_keeps_within_what_a_model_has_vectors_for() {
    let model = load(&fixtures().join("marian")).unwrap();
    let message = |made: Result<hooklens::generation::Generation, hooklens::Error>| made.unwrap_err().to_string();
    let long = message(model.generate_with([5, 6], GenerateOptions::new().max_new_tokens(21)));
    assert!(long.contains("21") && long.contains("20"), "{long}");
    let first = message(model.generate_with([5, 6], GenerateOptions::new().first_token(50)));
    assert!(first.contains("first_token"), "{first}");
    assert!(model.forward(vec![vec![5; 21]]).unwrap_err().to_string().contains("20"));
    assert!(model.encode(vec![vec![5; 21]]).is_err());
    let mut cache = model.decoder_cache(model.encode([5, 6]).unwrap());
    model.decode(&mut cache, vec![vec![5; 20]]).unwrap();
    assert!(model.decode(&mut cache, vec![vec![5]]).is_err());
    // A decoder-only model accepts a first token, too.
    let induction = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let made = induction.generate_with("king drum", GenerateOptions::new().max_new_tokens(2).first_token(9)).unwrap();
    assert_eq!(made.rows[0].new[0], 9);
}

/// Languages are tokens: the source language's is put around the input, and the target language's starts the output.
#[test]
fn languages_are_told_by_tokens() {
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [{"id": 9, "content": "fra", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "eng", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"eng": {"id": "eng", "ids": [8], "tokens": ["eng"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "</s>": 2, "eng": 8, "fra": 9, "it": 5, "rains": 6}, "unk_token": "[UNK]"}});
    let copy = changed("m2m", |folder| {
        fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#).unwrap();
    });
    let model = load(copy.path()).unwrap();
    assert_eq!(model.to_tokens("it rains").unwrap().row(0), [8, 5, 6, 2]);
    assert_eq!(model.to_tokens_of("fra", "it rains").unwrap().row(0), [9, 5, 6, 2]);
    let message = model.to_tokens_of("deu", "it rains").unwrap_err().to_string();
    assert!(message.contains("language") && message.contains("deu"), "{message}");
    let said = program()
        .args(["generate", "--prompt", "it rains", "--source-language", "fra", "--first-token", "eng", "--json"])
        .args(["--max-new-tokens", "2", "--model", copy.path().to_str().unwrap()])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&json["rows"][0]["prompt_tokens"], &json["rows"][0]["new_tokens"][0]),
        (&json!([9, 5, 6, 2]), &json!(8))
    );
    let plain = load(&folder()).unwrap().to_tokens_of("<pad>", "the dog").unwrap_err().to_string();
    assert!(plain.contains("does not mark the language"), "{plain}");
}
