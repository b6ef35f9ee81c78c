//! `shared_prefix.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::{KeyValueCache, Logits};
use std::time::Instant;

let model = HookedTransformer::from_pretrained("embedded:induction")?;
// Three lists, each repeated once: examples of the task.
let words = model.config().d_vocab() as u32 - 1;
fn list(seed: u32, words: u32) -> Vec<u32> {
    (0..8).map(|at| 1 + (seed * 2017 + at * 7919) % words).collect()
}
let prefix: Vec<u32> = (0..3).flat_map(|seed| [list(seed, words), list(seed, words)].concat()).collect();
// 256 queries, each a list followed by its first word: what comes next?
let queries: Vec<Vec<u32>> = (100..356).map(|seed| [list(seed, words), vec![list(seed, words)[0]]].concat()).collect();
println!("a prefix of {} tokens, {} queries of {}", prefix.len(), queries.len(), queries[0].len());
let mut cache = model.prefill(prefix.clone())?;
cache.freeze();
(&(cache)).displayed();
let options = ForwardOptions::new().kv_cache(&mut cache).logits(Logits::Last).record(hook::pattern(1));
let output = model.run(queries.clone(), options)?;
(&(output.cache)).displayed();
let whole: Vec<Vec<u32>> = queries.iter().map(|query| [&prefix[..], query].concat()).collect();
let again = model.run(whole.clone(), ForwardOptions::new().logits(Logits::Last))?;
let largest: f32 = (output.logits.unwrap() - again.logits.unwrap()).abs().max().into_scalar();
println!("largest difference of a logit: {largest:.0e}");
assert!(largest < 1e-3);
let start = Instant::now();
model.run(queries.clone(), ForwardOptions::new().kv_cache(&mut cache).logits(Logits::Last))?;
let shared = start.elapsed();
let start = Instant::now();
model.run(whole.clone(), ForwardOptions::new().logits(Logits::Last))?;
println!("{:.0} times as fast behind the prefix", start.elapsed().as_secs_f64() / shared.as_secs_f64());
cache.unfreeze();
let before = cache.len();
model.forward_with(vec![queries[0].clone()], ForwardOptions::new().kv_cache(&mut cache.scoped()))?;
println!("{before} positions before, {} after a scope", cache.len());
let mut branches = cache.fork(4)?;
let four = queries[..4].to_vec();
model.forward_with(four, ForwardOptions::new().kv_cache(&mut branches))?;
(&(branches)).displayed();
let path = std::env::temp_dir().join("prefix.safetensors");
cache.save(&path, &model)?;
let mut loaded = KeyValueCache::load(&path, &model)?;
let one = vec![queries[7].clone()];
let same: f32 = (model.forward_with(one.clone(), ForwardOptions::new().kv_cache(&mut cache))?
    - model.forward_with(one, ForwardOptions::new().kv_cache(&mut loaded))?).abs().max().into_scalar();
println!("loaded and kept differ by {same}");
Ok(())
}
