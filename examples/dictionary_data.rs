//! Writes activations for training and evaluating dictionaries, to compare with other libraries. The activations come
//! from `embedded:ioi` on IOI sentences, or from another model on texts sampled from that model.
//!
//! ```sh
//! cargo run --release --example dictionary_data -- embedded:ioi blocks.2.hook_resid_post ioi 20000
//! cargo run --release --example dictionary_data -- ./stories260k blocks.2.hook_resid_post stories 5000
//! ```
//!
//! This writes `ioi_dump.safetensors`, a dump that `hooklens features train --dump` reads, and `ioi.safetensors`, which
//! `benches/saelens_train.py` reads. The latter contains two tensors of shape `[token, width]`: `train` with the same
//! activations, and `test` with the activations of additional prompts, a tenth as many. BOS tokens are included.

use hooklens::dump::Dump;
use hooklens::experiments::ioi_prompts;
use hooklens::generation::Sampling;
use hooklens::prelude::*;

/// Maximum number of tokens per sampled text.
const LENGTH: usize = 200;
/// Number of texts sampled together.
const TOGETHER: usize = 50;

fn main() -> hooklens::Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [name, point, out, count] = &given[..] else {
        eprintln!("usage: dictionary_data MODEL POINT OUT PROMPTS");
        std::process::exit(2);
    };
    let count: usize = count.parse().unwrap_or(1000);
    let model = HookedTransformer::from_pretrained(name.as_str())?;
    let mut rows = match name.as_str() {
        "embedded:ioi" => sentences(&model, count + count / 10)?,
        _ => sampled(&model, count + count / 10)?,
    };
    let held_back = rows.split_off(count);
    let report = Dump::new(point.as_str()).run(&model, &rows, format!("{out}_dump.safetensors"))?;
    println!("{} prompts, {} tokens", report.rows, rows.iter().map(Vec::len).sum::<usize>());
    let tensors =
        [("train", &rows), ("test", &held_back)].map(|(part, rows)| Ok((part, activations(&model, point, rows)?)));
    let tensors = tensors.into_iter().collect::<hooklens::Result<Vec<_>>>()?;
    let tensors = tensors.iter().map(|(part, tensor)| (part.to_string(), tensor));
    Ok(hooklens::write_safetensors(format!("{out}.safetensors").as_ref(), tensors, Default::default())?)
}

fn sentences(model: &HookedTransformer, count: usize) -> hooklens::Result<Vec<Vec<u32>>> {
    ioi_prompts(count, 0)
        .iter()
        .map(|prompt| Ok(model.to_tokens(format!("{} {}", prompt.text, prompt.answer))?.row(0).to_vec()))
        .collect()
}

fn sampled(model: &HookedTransformer, count: usize) -> hooklens::Result<Vec<Vec<u32>>> {
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let bos = model.tokenizer()?.bos().unwrap_or(0);
    let mut rows = Vec::with_capacity(count);
    while rows.len() < count {
        let options = GenerateOptions::new().max_new_tokens(LENGTH).sampling(sampling).seed(rows.len() as u64);
        let made = model.generate_with(vec![vec![bos]; TOGETHER.min(count - rows.len())], options)?;
        rows.extend(made.rows.into_iter().map(|row| [row.prompt, row.new].concat()));
    }
    Ok(rows)
}

/// Activations of every token at a hook point, `[token, width]`.
fn activations(model: &HookedTransformer, point: &str, rows: &[Vec<u32>]) -> hooklens::Result<Activation> {
    let one = |row: &Vec<u32>| -> hooklens::Result<Tensor<2>> {
        let recorded: Tensor<3> = model.record(vec![row.clone()], point)?.get(point)?;
        Ok(recorded.squeeze_dim(0))
    };
    Ok(Tensor::cat(rows.iter().map(one).collect::<hooklens::Result<Vec<_>>>()?, 0).into())
}
