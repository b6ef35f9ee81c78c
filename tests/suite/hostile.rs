//! Files and requests made to break a reader give errors, never panics.

use std::fs;

use hooklens::PaddingSide;
use hooklens::prelude::*;
use hooklens::{Error, InputError, LoadError, WeightFiles, inspect};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{any_config, cases, device, random_model};

fn opened(bytes: &[u8]) -> Result<WeightFiles, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, bytes).unwrap();
    WeightFiles::open(&[path])
}

fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn unsound_files_are_refused() {
    let tensor = |offsets: &str, shape: &str, dtype: &str| {
        format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("three bytes", vec![1, 2, 3]),
        ("a header of 2^64 bytes", [&[0xff; 8][..], b"{}"].concat()),
        ("a header past the end", [&1000u64.to_le_bytes()[..], b"{}"].concat()),
        ("a header that is no JSON", file("{nonsense", 4)),
        ("a header that is no object", file("[1,2]", 4)),
        ("data cut short", file(&tensor("[0,16]", "[4]", "F32"), 12)),
        ("data too long", file(&tensor("[0,16]", "[4]", "F32"), 20)),
        ("an offset out of range", file(&tensor("[0,160]", "[4]", "F32"), 16)),
        ("offsets the wrong way round", file(&tensor("[16,0]", "[4]", "F32"), 16)),
        ("a shape that is not the data's", file(&tensor("[0,16]", "[5]", "F32"), 16)),
        ("a shape that overflows", file(&tensor("[0,16]", "[4294967296,4294967296,16]", "F32"), 16)),
        ("an unknown element type", file(&tensor("[0,16]", "[4]", "F33"), 16)),
        (
            "tensors that overlap",
            file(
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}",
                24,
            ),
        ),
    ];
    for (what, bytes) in cases {
        let error = opened(&bytes).expect_err(what);
        assert!(matches!(error, LoadError::Corrupt { .. }), "{what}: {error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
}

#[test]
fn integer_weights_are_refused_by_name() {
    let files = opened(&file("{\"weight\":{\"dtype\":\"I32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16)).unwrap();
    let error = files.read("weight", DType::F32).unwrap_err();
    assert!(matches!(&error, LoadError::DType { name, .. } if name == "weight"), "{error}");
    assert!(
        matches!(files.read("wieght", DType::F32), Err(LoadError::MissingTensor { nearest, .. }) if nearest == ["weight"])
    );
}

/// A valid file with damage anywhere in it is rejected or read, without a panic.
#[test]
fn damaged_models_never_panic() {
    let model = random_model(TransformerConfig::new(1, 8, 2, 10, 8), 1);
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let weights = fs::read(folder.path().join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let config = proptest::test_runner::Config { cases: 300, failure_persistence: None, ..Default::default() };
    proptest!(config, |(at in 0..header, byte: u8, cut in prop::option::of(0..weights.len()))| {
        let mut bytes = weights.clone();
        bytes[at] = byte;
        bytes.truncate(cut.unwrap_or(weights.len()));
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        if let Ok(model) = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()) {
            let _ = model.forward([1, 2]);
        }
    });
}

fn config_error(json: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    inspect(folder.path().to_str().unwrap()).unwrap_err().to_string()
}

fn llama() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
        "vocab_size": 50, "intermediate_size": 64, "max_position_embeddings": 32})
}

#[test]
fn wrong_configurations_say_which_field() {
    let with = |field: &str, value: Value| {
        let mut json = llama();
        json[field] = value;
        config_error(&json)
    };
    let unknown = with("architectures", json!(["MambaForCausalLM"]));
    assert!(unknown.contains("MambaForCausalLM") && unknown.contains("GPT2LMHeadModel"), "{unknown}");
    for (field, value, says) in [
        ("num_attention_heads", json!(5), "num_attention_heads"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("num_key_value_heads", json!(3), "n_kv_heads"),
        ("hidden_size", json!(-4), "hidden_size"),
        ("hidden_size", json!("wide"), "hidden_size"),
        ("hidden_size", json!(null), "hidden_size"),
        ("vocab_size", json!(0), "d_vocab"),
        ("vocab_size", json!(u64::MAX), "d_vocab"),
        ("head_dim", json!(7), "rotary.dim"),
        ("hidden_act", json!("swoosh"), "swoosh"),
        ("rope_theta", json!(-1.0), "rotary.base"),
        ("rope_scaling", json!({"rope_type": "spiral", "factor": 2.0}), "spiral"),
        ("rope_scaling", json!({"rope_type": "longrope", "factor": 2.0}), "short_factor"),
        ("rope_scaling", json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}), "1 short"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0.0}), "factor"),
        ("rms_norm_eps", json!(-1.0), "eps"),
        ("rope_scaling", json!("x"), "`rope_scaling` is \"x\", not an object"),
        ("rope_scaling", json!([]), "not an object"),
        ("rope_scaling", json!({"rope_type": null, "factor": 2.0}), "`rope_type` is null"),
        ("rope_parameters", json!(true), "not an object"),
        ("rope_scaling", json!({"factor": 4.0}), "rope_scaling"),
        ("rope_scaling", json!({"type": null, "factor": 4.0}), "`type` is null"),
    ] {
        let error = with(field, value.clone());
        assert!(error.contains(says), "{field} = {value}: {error}");
    }
    let mut neox = llama();
    neox["architectures"] = json!(["GPTNeoXForCausalLM"]);
    neox["rotary_pct"] = json!(0.0);
    assert!(config_error(&neox).contains("rotary.dim"), "{}", config_error(&neox));
    assert!(config_error(&json!([1, 2])).contains("JSON object"));
    assert!(config_error(&json!({})).contains("architectures"));
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,6}".prop_map(Value::from),
        prop::collection::vec(any::<i8>().prop_map(Value::from), 0..4).prop_map(Value::from),
        Just(json!({"rope_type": "yarn", "factor": 1e300})),
        Just(json!({"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(1500) })]

    /// Any field of any family's configuration replaced by any value gives a result, never a panic.
    #[test]
    fn configurations_never_panic(family in 0..60usize, fields in prop::collection::vec((0..200usize, any_json()), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let mut json = match family {
            0 => llama(),
            1 => json!({"architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_head": 4, "n_layer": 1, "vocab_size": 9, "n_positions": 8,
                "n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "scale_attn_weights": true}),
            2 => json!({"architectures": ["GPTNeoXForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50,
                "intermediate_size": 64, "max_position_embeddings": 32, "rotary_pct": 0.5, "rotary_emb_base": 100, "use_parallel_residual": false}),
            3 => json!({"architectures": ["MistralForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
                "vocab_size": 50, "intermediate_size": 64, "max_position_embeddings": 32, "sliding_window": 4, "rope_theta": 1e4}),
            4 => json!({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50,
                "intermediate_size": 64, "max_position_embeddings": 32, "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1, "layer_types": null}),
            6.. => {
                let mut configs: Vec<_> = fs::read_dir(crate::support::fixtures()).unwrap()
                    .map(|entry| entry.unwrap().path().join("config.json")).filter(|path| path.is_file()).collect();
                configs.sort();
                let which = family * 7919 + fields.len();
                serde_json::from_slice(&fs::read(&configs[which % configs.len()]).unwrap()).unwrap()
            }
            _ => {
                let model = random_model(TransformerConfig::new(1, 8, 2, 10, 8), 1);
                model.save_pretrained(folder.path()).unwrap();
                serde_json::from_str(&fs::read_to_string(folder.path().join("config.json")).unwrap()).unwrap()
            }
        };
        let names: Vec<String> = json.as_object().unwrap().keys().cloned().collect();
        for (which, value) in fields {
            json[&names[which % names.len()]] = value;
        }
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
        let _ = inspect(folder.path().to_str().unwrap());
    }

    /// Any text as a selection, against any model, gives a result, never a panic.
    #[test]
    fn selections_never_panic(config in any_config(), text in "[a-z0-9_.*?\\[\\]{},!-]{0,24}") {
        let model = random_model(config, 0);
        let _ = Selection::from(text.as_str()).resolve(model.catalog());
        let _ = text.parse::<Positions>();
    }
}

fn input_error<T: std::fmt::Debug>(result: Result<T, Error>) -> InputError {
    match result.unwrap_err() {
        Error::Input(error) => error,
        other => panic!("not about the input: {other}"),
    }
}

#[test]
fn wrong_input_is_refused_before_the_run() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 8), 7);
    let token = input_error(model.forward(vec![vec![1, 2], vec![3, 20]]));
    assert!(matches!(token, InputError::Token { token: 20, row: 1, position: 1, d_vocab: 20 }));
    assert!(matches!(input_error(model.forward(vec![vec![]])), InputError::Empty { .. }));
    assert!(matches!(input_error(model.forward(Vec::<Vec<u32>>::new())), InputError::Empty { .. }));
    assert!(matches!(input_error(model.forward(vec![vec![1], vec![1, 2]])), InputError::Ragged { row: 1, .. }));
    assert!(matches!(input_error(model.forward(vec![vec![1; 9]])), InputError::TooLong { len: 9, n_ctx: 8 }));
    assert!(matches!(input_error(model.forward("text")), InputError::NoTokenizer));
    let mask =
        |rows: Vec<Vec<bool>>| input_error(model.forward_with([1, 2, 3], ForwardOptions::new().attention_mask(rows)));
    assert!(matches!(mask(vec![vec![true; 2]]), InputError::MaskShape { expected: [1, 3], given: [1, 2] }));
    assert!(matches!(mask(vec![vec![true; 3]; 2]), InputError::MaskShape { expected: [1, 3], given: [2, 3] }));
    let layer = |l| input_error(model.forward_with([1, 2], ForwardOptions::new().stop_at_layer(l)));
    assert!(matches!(layer(3), InputError::Layer { layer: 3, n_layers: 2 }));
    assert!(matches!(layer(-3), InputError::Layer { layer: -3, .. }));
    let resid = Tensor::<3>::zeros([1, 2, 15], &device());
    let wide = input_error(model.forward_with(resid.clone(), ForwardOptions::new().start_at_layer(0)));
    assert!(matches!(wide, InputError::Residual { d_model: 16, .. }));
    assert!(matches!(input_error(model.forward(resid)), InputError::Needs { .. }));
    assert!(matches!(input_error(model.loss([1])), InputError::NothingToPredict));
    assert!(matches!(
        input_error(model.forward_with([1], ForwardOptions::new().logits(Logits::None))),
        InputError::NoOutput { what: "logits", .. }
    ));
    let negative = Tensor::<2, Int>::from_ints([[1, -2]], &device());
    assert!(model.forward(negative).unwrap_err().to_string().contains("-2"));
    let batch = model.record(vec![vec![1, 2]; 2], Record::all().remove_batch()).unwrap_err();
    assert!(batch.to_string().contains("2 rows"), "{batch}");
    // Only tokens to be predicted need a logit; padding does not.
    let narrow = TransformerConfig::new(1, 16, 4, 20, 8).with_d_vocab_out(10);
    let narrow = random_model(narrow, 7);
    let target = input_error(narrow.loss([15, 3, 12]));
    assert!(matches!(target, InputError::Token { token: 12, row: 0, position: 2, d_vocab: 10 }));
    let padded = Tokens::padded(&[vec![15, 3, 2], vec![1, 2]], 19, PaddingSide::Right).unwrap();
    assert!(narrow.loss(&padded).unwrap().into_scalar::<f32>().is_finite());
    let mut cache = KeyValueCache::new(narrow.config(), 1);
    let lonely = Tokens::new(vec![vec![1, 0, 0]]).unwrap().with_mask(vec![vec![true, false, false]]).unwrap();
    assert!(matches!(
        input_error(narrow.loss_with(&lonely, ForwardOptions::new().kv_cache(&mut cache))),
        InputError::NothingToPredict
    ));
    assert!(cache.is_empty());
    let outside = model.record([1, 2], Record::all().positions(5)).unwrap_err();
    assert!(outside.to_string().contains("2 positions"), "{outside}");
}

#[test]
fn an_unusable_tokenizer_is_named() {
    let model = random_model(TransformerConfig::new(1, 8, 2, 10, 8), 1);
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    for text in ["", "{", "{\"model\": 3}", "[]"] {
        fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}

/// Damage within a tokenizer's decoder, on which the library that reads it panics.
#[test]
fn a_damaged_tokenizer_is_an_error() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    json["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "Fuse"}]});
    let text = json.to_string();
    let broken = [
        text.replace("\"Sequence\",", "\"Sequence\""),
        text.replace("\"Fuse\"", "\"\\ud800\""),
        text.replace("{\"type\":\"Fuse\"}", "{\"type\":\"Fuse\","),
    ];
    for text in broken {
        fs::write(&path, text).unwrap();
        let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Load(LoadError::Tokenizer { .. })), "{error:?}");
        let info = crate::support::program().args(["info", "--model"]).arg(folder.path()).output().unwrap();
        let message = String::from_utf8(info.stderr).unwrap();
        assert!(
            info.status.code() == Some(1) && message.starts_with("error:") && !message.contains("panicked"),
            "{message}"
        );
    }
}

/// A tokenizer that would expand one letter into a terabyte is rejected.
#[test]
fn tokenizers_that_grow_texts_are_refused() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)});
    for part in ["normalizer", "decoder"] {
        let mut grown = json.clone();
        let parts = if part == "normalizer" { "normalizers" } else { "decoders" };
        grown[part] = json!({"type": "Sequence", parts: vec![replace.clone(); 4]});
        fs::write(&path, grown.to_string()).unwrap();
        let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err();
        let message = hooklens::error_chain(&error);
        assert!(message.contains(&format!("`{part}` may turn one character into 1e12")), "{message}");
    }
    // Padding requested by the file is ignored.
    json["padding"] = json!({"strategy": {"Fixed": 1_000_000_000_000u64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<bos>"});
    fs::write(&path, json.to_string()).unwrap();
    let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(model.tokenizer().unwrap().encode("king").unwrap().len(), 1);
}

/// Control characters from files and prompts are escaped by the program, not sent to the terminal.
#[test]
fn terminals_are_not_controlled() {
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(TransformerConfig::new(1, 8, 2, 10, 8), 1);
    model.save_pretrained(folder.path()).unwrap();
    let place = folder.path().to_str().unwrap();
    let escape = "\u{1b}]0;x\u{7}\u{9b}31m\r\u{202e}";
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let ran = |args: &[&str]| {
        let done = crate::support::program().args(args).output().unwrap();
        for (name, bytes) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
            let message = String::from_utf8(bytes.clone()).unwrap();
            assert!(
                !message.contains(|c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}'),
                "{args:?}: {name}: {message:?}"
            );
        }
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["architectures"] = json!([escape]);
    fs::write(&config, json.to_string()).unwrap();
    assert!(ran(&["info", "--model", place]).contains("‹U+001B›"));
    fs::write(&config, &text).unwrap();
    // A tensor's name, in a note.
    let header =
        json!({(format!("{escape}.weight")): {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).to_string();
    fs::write(folder.path().join("model-2.safetensors"), file(&header, 4)).unwrap();
    let index = json!({"weight_map": {(format!("{escape}.weight")): "model-2.safetensors"}});
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    ran(&["info", "--model", place]);
    ran(&["generate", "--model", place, "--tokens", "1,2", "--max-new-tokens", "1"]);
    // A token's text.
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    model.save_pretrained(folder.path()).unwrap();
    fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    let renamed = fs::read_to_string(&tokenizer).unwrap().replace("\"fox\"", &json!(escape).to_string());
    fs::write(&tokenizer, renamed).unwrap();
    assert!(ran(&["vocabulary", "--model", place]).contains("‹U+001B›"));
    ran(&["vocabulary", "--model", place, "--json"]);
    ran(&["generate", "--model", place, "--tokens", "0,9,1,9", "--max-new-tokens", "3"]);
    ran(&["generate", "--model", place, "--tokens", "0,9,1,9", "--max-new-tokens", "3", "--json"]);
    ran(&["lens", "--model", place, "--prompt", "king"]);
    ran(&["lens", "--model", place, "--prompt", escape]);
    ran(&["dump", "--model", place, "--prompt", "king", "--hooks", escape, "--out", "x.safetensors"]);
}

/// Commands do not wait for special files, and a reference with nothing to compare is an error.
#[test]
#[cfg(unix)]
fn devices_pipes_and_empty_comparisons() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    HookedTransformer::from_pretrained("embedded:induction").unwrap().save_pretrained(place).unwrap();
    let ran = |args: &[&str]| {
        let done = crate::support::program().args(args).current_dir(place).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    for name in ["tokenizer_config.json", "generation_config.json", "config.json"] {
        fs::remove_file(folder.path().join(name)).ok();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).unwrap();
        let (code, message) = ran(&["info", "--model", "."]);
        // Special files next to a tokenizer are ignored.
        assert!(
            code == Some(0) || message.contains("not a file") || message.contains("config.json"),
            "{name}: {message}"
        );
    }
    let reference = folder.path().join("reference.safetensors");
    std::os::unix::fs::symlink("/dev/zero", &reference).unwrap();
    let (code, message) = ran(&["parity", "--model", "embedded:induction", "--reference", "reference.safetensors"]);
    assert!(code == Some(1) && message.contains("not a file"), "{message}");
    fs::remove_file(&reference).unwrap();
    let ints = |values: [f32; 3]| Activation::from(Tensor::<2>::from_floats([values], &device()));
    let named = [
        ("tokens".to_string(), &ints([1.0, 2.0, 3.0])),
        ("attention_mask".to_string(), &ints([0.0; 3])),
        ("logits".to_string(), &Activation::from(Tensor::<3>::zeros([1, 3, 63], &device()))),
    ];
    hooklens::write_safetensors(&reference, named, Default::default()).unwrap();
    let parity = ["parity", "--model", "embedded:induction", "--reference", "reference.safetensors"];
    let (code, message) = ran(&parity);
    assert!(code == Some(1) && message.contains("excludes every token"), "{message}");
    assert_eq!(ran(&[&parity[..], &["--tolerance", "inf"]].concat()).0, Some(2));
    // Masks without columns but with many rows, and nested braces.
    let header = json!({"tokens": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]},
        "attention_mask": {"dtype": "I64", "shape": [1u64 << 40, 0], "data_offsets": [8, 8]}});
    fs::write(&reference, file(&header.to_string(), 8)).unwrap();
    let (code, message) = ran(&parity);
    assert!(code == Some(1) && message.contains("attention_mask"), "{message}");
    let braces = "{x,".repeat(2000) + &"}".repeat(2000);
    let (code, message) = ran(&[
        "dump",
        "--model",
        "embedded:induction",
        "--prompt",
        "king",
        "--hooks",
        &braces,
        "--out",
        "x.safetensors",
    ]);
    assert!(code == Some(1) && message.contains("nested braces"), "{code:?} {message}");
    // A lens without stages.
    let nothing =
        [Activation::from(Tensor::<2>::zeros([0, 0], &device())), Activation::from(Tensor::<1>::zeros([0], &device()))];
    let named = [("0.weight".to_string(), &nothing[0]), ("0.bias".to_string(), &nothing[1])];
    hooklens::write_safetensors(&folder.path().join("lens.safetensors"), named, Default::default()).unwrap();
    let (code, message) =
        ran(&["lens", "--model", "embedded:induction", "--prompt", "king", "--tuned", "lens.safetensors"]);
    assert!(code == Some(1) && message.contains("0.weight"), "{message}");
}

/// An output that would overwrite an input is rejected, even if it is named differently.
#[test]
fn outputs_are_not_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    HookedTransformer::from_pretrained("embedded:ioi").unwrap().save_pretrained(&model).unwrap();
    let pairs = folder.path().join("pairs.json");
    let pair = json!({"clean": "When Mary and John went to the store, John gave a drink to", "corrupted":
        "When Mary and John went to the store, Mary gave a drink to", "answer": "Mary", "wrong": "John"});
    fs::write(&pairs, pair.to_string()).unwrap();
    let config = model.join("config.json");
    let before = [&pairs, &config].map(|path| fs::read(path).unwrap());
    let link = folder.path().join("link.json");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&config, &link).unwrap();
    let prompt = ["--prompt", "When Mary"];
    let pairs_of = ["--pairs", pairs.to_str().unwrap()];
    for (command, given, out) in [
        ("patch", &pairs_of[..], &pairs),
        ("patch", &pairs_of, &config),
        ("attribute", &["--to", "edges", pairs_of[0], pairs_of[1]], &pairs),
        ("attribute", &["--prompt", "When Mary", "--answer", "John"], &config),
        ("circuit", &pairs_of, &pairs),
        ("lens", &prompt, &config),
        ("lens", &prompt, &link),
        ("attention", &prompt, &config),
        ("heads", &prompt, &link),
    ] {
        if !out.exists() {
            continue; // symlinks are not supported here
        }
        let mut program = crate::support::program();
        program.arg(command).args(["--model", model.to_str().unwrap()]).args(given).arg("--out").arg(out);
        let done = program.output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(1) && message.contains("is also an input"), "{command} {out:?}: {message}");
    }
    assert_eq!([&pairs, &config].map(|path| fs::read(path).unwrap()), before);
    // The base that an adapter names, and a file that the model's folder links to.
    let adapter = folder.path().join("adapter");
    fs::create_dir(&adapter).unwrap();
    let json = json!({"peft_type": "LORA", "base_model_name_or_path": "../model", "r": 1, "lora_alpha": 1});
    fs::write(adapter.join("adapter_config.json"), json.to_string()).unwrap();
    let refused = |model: &std::path::Path, out: &std::path::Path| {
        let mut program = crate::support::program();
        program.args(["dump", "--prompt", "When Mary", "--hooks", "z0", "--model"]).arg(model).arg("--out").arg(out);
        let message = String::from_utf8(program.output().unwrap().stderr).unwrap();
        assert!(message.contains("is also an input"), "{message}");
    };
    refused(&adapter, &model.join("model.safetensors"));
    #[cfg(unix)]
    {
        let blob = folder.path().join("blob.safetensors");
        fs::rename(model.join("model.safetensors"), &blob).unwrap();
        std::os::unix::fs::symlink(&blob, model.join("model.safetensors")).unwrap();
        refused(&model, &blob);
    }
}

/// Sizes beyond any memory are errors, not an abort.
#[test]
fn absurd_counts_are_errors() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    for count in [1 << 50, usize::MAX / 2, usize::MAX - 5, usize::MAX] {
        let options =
            GenerateOptions::new().max_new_tokens(count).cache_kind(hooklens::CacheKind::GROWING.limited(count));
        assert!(model.generate_with("When Mary", options).is_err(), "{count}");
    }
    let random = random_model(TransformerConfig::new(1, 8, 2, 10, 8).with_positional(hooklens::Positional::None), 1);
    for count in [1 << 50, usize::MAX - 5] {
        let options =
            GenerateOptions::new().max_new_tokens(count).cache_kind(hooklens::CacheKind::GROWING.limited(count));
        let error = random.generate_with([1, 2, 3], options).map(drop).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    }
    let done = crate::support::program().args(["patch", "--model", "embedded:ioi", "--ioi", "1000000000000"]).output();
    assert_eq!(done.unwrap().status.code(), Some(2));
}

/// Patterns beyond any memory are errors when requested.
#[test]
fn very_long_prompts_are_errors() {
    let config = TransformerConfig::new(1, 8, 2, 10, 8).with_positional(hooklens::Positional::None);
    let model = random_model(config, 1);
    let tokens = vec![1u32; 3_000_000];
    let error = model.record(tokens, "*hook_pattern").map(drop).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

/// Weights with NaN are an error wherever a result is reported.
#[test]
fn what_is_no_number_is_said() {
    let mut model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let weight = model.weights().get::<2>("blocks.1.attn.W_O").unwrap();
    model.weights_mut().set("blocks.1.attn.W_O", weight * f32::NAN).unwrap();
    let prompt = "king drum sun king";
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let dump = hooklens::dump::Dump::new(["resid_post0", "resid_post1", "attn_scores0"]);
    let error = dump.run(&model, vec![vec![0, 1], vec![0, 2, 3]], &out).unwrap_err().to_string();
    assert!(error.contains("`blocks.1.hook_resid_post` contains NaN at prompt 1, position 0"), "{error}");
    assert!(!out.exists());
    let report = dump.allow_non_finite(true).run(&model, vec![vec![0, 1], vec![0, 2, 3]], &out).unwrap();
    assert_eq!(report.non_finite, ["blocks.1.hook_resid_post"]);

    let no_number = |error: Error| {
        assert!(matches!(&error, Error::NotANumber { .. }), "{error}");
    };
    no_number(model.generate_with(prompt, GenerateOptions::new().max_new_tokens(3)).map(drop).unwrap_err());
    let cache = model.record(prompt, Record::all()).unwrap();
    no_number(model.analyze(&cache).unwrap().logit_lens(Per::Layer).unwrap().top(1).map(drop).unwrap_err());
    let metric = Metric::logit(&model, "sun").unwrap();
    assert!(model.ablating(prompt, Ablation::Zero).metric(metric).unwrap().attn_out().is_err());
    let saved = folder.path().join("saved");
    model.save_pretrained(&saved).unwrap();
    for args in [
        &["heads"][..],
        &["lens", "--prompt", prompt],
        &["generate", "--prompt", prompt, "--max-new-tokens", "3"],
        &["attribute", "--prompt", prompt, "--answer", "sun"],
    ] {
        let done = crate::support::program().args(args).args(["--model", saved.to_str().unwrap()]).output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        // The last layer's output is damaged, but its patterns are not.
        assert!(args[0] == "heads" || (!done.status.success() && message.contains("NaN")), "{args:?} {message}");
    }
}

/// Positions beyond a rotary model's context are run, with a note.
#[test]
fn long_prompts_of_rotary_models_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let llama = crate::support::fixtures().join("llama");
    let n_ctx = HookedTransformer::from_pretrained(llama.to_str().unwrap()).unwrap().config().n_ctx();
    for (file, len, noted) in [("short.safetensors", n_ctx, false), ("LONG.SAFETENSORS", n_ctx + 1, true)] {
        let tokens = vec!["3"; len].join(",");
        let out = folder.path().join(file);
        let args = ["dump", "--model", llama.to_str().unwrap(), "--hooks", "z0", "--tokens", &tokens, "--out"];
        let done = crate::support::program().args(args).arg(&out).output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success() && out.is_file(), "{message}");
        assert_eq!(message.contains(&format!("the model's context is {n_ctx}")), noted, "{message}");
    }
}

/// An unsupported variant of a known family is rejected, naming the setting that requests it.
#[test]
fn unsupported_variants_are_refused_by_their_setting() {
    for (case, field, value) in [
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "is_decoder", json!(true)),
        ("albert", "num_hidden_groups", json!(0)),
        ("albert", "inner_group_num", json!(0)),
        ("deberta", "talking_head", json!(true)),
        ("deberta", "position_buckets", json!(4)),
        ("deberta-v2", "conv_kernel_size", json!(3)),
        ("deberta-v2", "pos_att_type", json!(["p2p"])),
        ("deberta-v2", "embedding_size", json!(16)),
        ("deberta-v3", "norm_rel_ebd", json!("batch_norm")),
        ("electra", "is_decoder", json!(true)),
        ("esm2", "position_embedding_type", json!("relative_key")),
        ("esm2", "is_folding_model", json!(true)),
        ("modernbert", "global_attn_every_n_layers", json!(0)),
        ("mpnet", "relative_attention_num_buckets", json!(16)),
        ("nomic-bert", "head_dim", json!(4)),
        ("nomic-bert-original", "prenorm", json!(true)),
        ("nomic-bert-original", "qkv_proj_bias", json!(true)),
        ("nomic-bert-original", "rotary_scaling_factor", json!(2.0)),
        ("nomic-bert-original", "activation_function", json!("gelu")),
        ("gemma3", "use_bidirectional_attention", json!(true)),
        ("gpt-neo", "attention_layers", json!(["spiral", "global"])),
        ("gpt2", "add_cross_attention", json!(true)),
        ("hf-olmo", "alibi", json!(true)),
        ("hf-olmo", "block_type", json!("llama")),
        ("hf-olmo", "include_bias", json!(true)),
        ("hf-olmo", "rope", json!(false)),
        ("olmo", "clip_qkv", json!("8")),
        ("phi", "qk_layernorm", json!("yes")),
        ("qwen1", "no_bias", json!(false)),
        ("deepseek", "moe_layer_freq", json!(2)),
        ("deepseek-v2", "norm_topk_prob", json!(true)),
        ("deepseek-v2", "topk_method", json!("noaux_tc")),
        ("deepseek-v3", "scoring_func", json!("softmax")),
        ("deepseek-v3", "topk_method", json!("greedy")),
        ("hunyuan-moe", "use_cla", json!(true)),
        ("phimoe-long", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        ("qwen2-moe", "use_sliding_window", json!(true)),
        ("qwen3-moe", "decoder_sparse_step", json!(0)),
        ("qwen3-moe", "mlp_only_layers", json!(["all"])),
        ("santacoder", "attention_head_type", json!("multihead")),
        ("t5", "feed_forward_proj", json!("gated-swoosh")),
        ("t5-encoder", "feed_forward_proj", json!("gated-swoosh")),
        ("t5gemma", "tie_word_embeddings", json!(false)),
        ("llama4", "no_rope_layers", json!([1, 2])),
        ("llama4", "layer_types", json!(["chunked_attention", "sliding_attention"])),
        ("llama4", "moe_layers", json!([0, -1])),
        ("qwen3-next", "layer_types", json!(["linear_attention", "mamba", "full_attention", "full_attention"])),
        ("qwen3-next", "hidden_act", json!("gelu")),
        ("v5-mellum", "mlp_layer_types", json!(["sparse", "thin"])),
        ("bart", "tie_word_embeddings", json!(false)),
        ("marian", "tie_encoder_decoder", json!(true)),
        ("marian", "bad_words_ids", json!([[3, 4]])),
        ("mbart", "forced_bos_token_id", json!([3])),
        ("gemma3", "layer_types", json!(["sliding_attentoin", "full_attention"])),
        ("gemma2", "layer_types", json!([])),
        ("gpt-oss", "layer_types", json!([null, 0])),
        ("gemma2", "sliding_window", json!(null)),
        ("smollm3", "no_rope_layers", json!([0, -1])),
        ("toy-solu", "architecture", json!("neel-solu-old")),
        ("llama", "quantization_config", json!({"quant_method": "hqq", "bits": 4})),
    ] {
        let text = fs::read_to_string(crate::support::fixtures().join(case).join("config.json")).unwrap();
        let mut json: Value = serde_json::from_str(&text).unwrap();
        json[field] = value;
        let error = config_error(&json);
        let says = match field {
            "quantization_config" => "unsupported method (hqq)",
            "feed_forward_proj" => "swoosh",
            "sliding_window" => "layer_types",
            field => field,
        };
        assert!(error.contains(says), "{case}: {error}");
    }
}
