//! The Rust side of `benches/python_bindings.py`: a recording of everything, and a sweep over heads.
//!
//! `python_bindings MODEL TOKENS REPEATS` prints the seconds of each repeat as JSON.

use std::time::Instant;

use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;

fn main() -> Result<(), hooklens::Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [model, tokens, repeats] = arguments.as_slice() else {
        // `cargo bench` runs every benchmark without arguments.
        println!("usage: python_bindings MODEL TOKENS REPEATS");
        return Ok(());
    };
    let number = |text: &String| text.parse::<usize>().unwrap_or(1);
    let (tokens, repeats) = (number(tokens), number(repeats));
    let model = HookedTransformer::from_pretrained_with(model, LoadOptions::new().process(Processing::standard()))?;
    let d_vocab = model.config().d_vocab();
    let ids = |shift: usize| -> Vec<u32> { (0..tokens).map(|at| ((at * 31 + shift) % d_vocab) as u32).collect() };
    let timed = |work: &mut dyn FnMut() -> Result<(), hooklens::Error>| -> Result<Vec<f64>, hooklens::Error> {
        work()?;
        let mut seconds = Vec::new();
        for _ in 0..repeats {
            let start = Instant::now();
            work()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    };
    let recording = timed(&mut || {
        let (logits, cache) = model.run_with_cache(ids(0), Record::all())?;
        assert!(logits.dims()[1] == tokens && !cache.is_empty());
        Ok(())
    })?;
    let sweep = timed(&mut || {
        let patching = Patching::new(&model, ids(0), ids(7), Metric::logit_diff(&model, 11u32, 13u32)?)?;
        assert!(patching.attn_head_out_all_pos()?.values.values().iter().all(|value| value.is_finite()));
        Ok(())
    })?;
    println!("{{\"recording\": {recording:?}, \"sweep\": {sweep:?}}}");
    Ok(())
}
