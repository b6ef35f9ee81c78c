//! Peak memory of a process that loads a model of GPT-2 small's shape and runs a few tokens, relative to the size of
//! the weights in the compute dtype. Each combination of settings runs in a separate process. The files have the
//! layouts of Hugging Face (GPT-2's fused and tied, NeoX's fused within heads, Llama's transposed) and of this crate.
//!
//! ```sh
//! cargo bench --bench load_memory
//! cargo bench --bench load_memory -- FOLDER...   # these models, in any file format
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use burn::tensor::{Device, Distribution, Tensor};
use hooklens::prelude::*;
use hooklens_hooks::write_safetensors;
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LAYERS: usize = 12;
const WIDTH: usize = 768;
const VOCABULARY: usize = 50257;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--load") {
        return load(&arguments[at + 1..]);
    }
    let given: Vec<&String> = arguments[1..].iter().filter(|argument| !argument.starts_with("--")).collect();
    let kinds = [["f32", "none"], ["f32", "standard"], ["bf16", "none"], ["bf16", "standard"]];
    let folder = tempfile::tempdir()?;
    println!(
        "| files | compute dtype | processing | weights | after loading | after a run |\n|---|---|---|---|---|---|"
    );
    for place in &given {
        let name = Path::new(place).file_name().unwrap_or_default().to_string_lossy().to_string();
        for [dtype, process] in kinds {
            Command::new(std::env::current_exe()?).args(["--load", &name, place, dtype, process]).status()?;
        }
    }
    for layout in ["native", "gpt2", "gpt_neox", "llama"].into_iter().filter(|_| given.is_empty()) {
        let path = folder.path().join(layout);
        std::fs::create_dir_all(&path)?;
        match layout {
            "native" => {
                HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?
                    .save_pretrained(&path)?
            }
            "gpt2" => write(&path, gpt2())?,
            "gpt_neox" => write(&path, gpt_neox())?,
            _ => write(&path, llama())?,
        }
        for [dtype, process] in kinds {
            let place = path.to_string_lossy();
            Command::new(std::env::current_exe()?).args(["--load", layout, &place, dtype, process]).status()?;
        }
        std::fs::remove_dir_all(&path)?;
    }
    Ok(())
}

type Files = (Value, Vec<(String, Vec<usize>)>);

fn write(folder: &Path, (config, tensors): Files) -> Outcome {
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let device = Device::flex();
    let made = tensors.iter().map(|(name, shape)| {
        let draw = Distribution::Normal(0.0, 0.02);
        let tensor: Activation = match shape[..] {
            [rows, columns] => Tensor::<2>::random([rows, columns], draw, &device).into(),
            _ => Tensor::<1>::random([shape[0]], draw, &device).into(),
        };
        (name.clone(), tensor)
    });
    let made: Vec<(String, Activation)> = made.collect();
    let named = made.iter().map(|(name, tensor)| (name.clone(), tensor));
    write_safetensors(&folder.join("model.safetensors"), named, HashMap::new())?;
    Ok(())
}

fn gpt2() -> Files {
    let config = json!({"architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_head": 12, "n_embd": WIDTH,
        "vocab_size": VOCABULARY, "n_positions": 1024});
    let mut tensors =
        vec![("wte.weight".to_string(), vec![VOCABULARY, WIDTH]), ("wpe.weight".into(), vec![1024, WIDTH])];
    for layer in 0..LAYERS {
        let mut linear = |name: &str, d_in, d_out| {
            tensors.push((format!("h.{layer}.{name}.weight"), vec![d_in, d_out]));
            tensors.push((format!("h.{layer}.{name}.bias"), vec![d_out]));
        };
        linear("attn.c_attn", WIDTH, 3 * WIDTH);
        linear("attn.c_proj", WIDTH, WIDTH);
        linear("mlp.c_fc", WIDTH, 4 * WIDTH);
        linear("mlp.c_proj", 4 * WIDTH, WIDTH);
        for norm in ["ln_1", "ln_2"] {
            tensors.extend(["weight", "bias"].map(|part| (format!("h.{layer}.{norm}.{part}"), vec![WIDTH])));
        }
    }
    tensors.extend(["weight", "bias"].map(|part| (format!("ln_f.{part}"), vec![WIDTH])));
    (config, tensors)
}

fn gpt_neox() -> Files {
    let config = json!({"architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": LAYERS, "num_attention_heads": 12,
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 1024});
    let mut tensors = vec![("gpt_neox.embed_in.weight".to_string(), vec![VOCABULARY, WIDTH])];
    tensors.push(("embed_out.weight".into(), vec![VOCABULARY, WIDTH]));
    let both = |name: String, shape: Vec<usize>| {
        let bias = vec![shape[0]];
        [(format!("{name}.weight"), shape), (format!("{name}.bias"), bias)]
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("gpt_neox.layers.{layer}.{part}");
        tensors.extend(both(name("attention.query_key_value"), vec![3 * WIDTH, WIDTH]));
        tensors.extend(both(name("attention.dense"), vec![WIDTH, WIDTH]));
        tensors.extend(both(name("mlp.dense_h_to_4h"), vec![4 * WIDTH, WIDTH]));
        tensors.extend(both(name("mlp.dense_4h_to_h"), vec![WIDTH, 4 * WIDTH]));
        tensors.extend(both(name("input_layernorm"), vec![WIDTH]));
        tensors.extend(both(name("post_attention_layernorm"), vec![WIDTH]));
    }
    tensors.extend(both("gpt_neox.final_layer_norm".into(), vec![WIDTH]));
    (config, tensors)
}

fn llama() -> Files {
    let (kv, mlp) = (WIDTH / 3, 4 * WIDTH);
    let config = json!({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, "num_attention_heads": 12,
        "num_key_value_heads": 4, "hidden_size": WIDTH, "intermediate_size": mlp, "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024});
    let mut tensors: Vec<(String, Vec<usize>)> =
        ["model.embed_tokens", "lm_head"].map(|name| (format!("{name}.weight"), vec![VOCABULARY, WIDTH])).into();
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", vec![WIDTH, WIDTH]),
            ("self_attn.k_proj", vec![kv, WIDTH]),
            ("self_attn.v_proj", vec![kv, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, WIDTH]),
            ("mlp.gate_proj", vec![mlp, WIDTH]),
            ("mlp.up_proj", vec![mlp, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, mlp]),
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    tensors.push(("model.norm.weight".into(), vec![WIDTH]));
    (config, tensors)
}

fn load(arguments: &[String]) -> Outcome {
    let [layout, path, dtype, process] = arguments else {
        return Err("--load LAYOUT FOLDER DTYPE none|standard".into());
    };
    let dtype: DType = dtype.parse()?;
    let before = peak();
    let processing = if process == "standard" { Processing::standard() } else { Processing::none() };
    let model = HookedTransformer::from_pretrained_with(path, LoadOptions::new().dtype(dtype).process(processing))?;
    let loaded = peak() - before;
    model.forward_with([1, 2, 3], ForwardOptions::new().logits(Logits::Last))?;
    // A tied unembedding shares the embedding's memory if it is not processed.
    let tied = if layout == "gpt2" && process == "none" { VOCABULARY * WIDTH } else { 0 };
    let weights = ((model.weights().count() - tied) * dtype.size()) as f64 / 1e6;
    let run = peak() - before;
    println!(
        "| {layout} | {dtype} | {process} | {weights:.0} MB | {loaded:.0} MB ({:.2}) | {run:.0} MB ({:.2}) |",
        loaded / weights,
        run / weights
    );
    Ok(())
}

/// Peak memory of the process, in megabytes.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok()).map_or(0.0, |kb| kb / 1e3)
}
