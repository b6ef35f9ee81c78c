//! A few-shot prompt, hundreds of queries: the prompt computed once, or again for each query.
//!
//! ```sh
//! cargo run --release --example shared_prefix [MODEL] [QUERIES]
//! ```
//!
//! Without a model the embedded one is asked, with examples of its own kind: lists that repeat.

use std::time::Instant;

use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = HookedTransformer::from_pretrained(arguments.next().unwrap_or("embedded:induction".into()))?;
    let count: usize = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let config = model.config();
    let words = config.d_vocab as u32 - 1;

    // Lists said twice, as examples; then queries: a list, and its first word again.
    let word = |i: usize| 1 + (i as u32 * 7919 + 13) % words;
    let list = |seed: usize| (0..5).map(|i| word(seed * 31 + i)).collect::<Vec<_>>();
    let examples: Vec<u32> = (0..4).flat_map(|seed| [list(seed), list(seed)].concat()).collect();
    let prompt = [&model.tokenizer()?.bos().map_or(vec![], |bos| vec![bos])[..], &examples].concat();
    let query = |seed: usize| [list(seed + 100), vec![list(seed + 100)[0]]].concat();
    let queries: Vec<Vec<u32>> = (0..count).map(query).collect();
    let answer = |seed: usize| list(seed + 100)[1];

    // Once, for every batch of queries.
    let start = Instant::now();
    let mut prefix = model.prefill(prompt.clone())?;
    prefix.freeze();
    let mut right = 0;
    for (batch, rows) in queries.chunks(32).enumerate() {
        let options = ForwardOptions::new().kv_cache(&mut prefix).logits(Logits::Last).record(hook::pattern(-1));
        let output = model.run(rows.to_vec(), options)?;
        // The patterns of the queries, over the prompt's keys and their own, are in `output.cache`.
        right += best(&output.logits.ok_or("no logits")?)?
            .iter()
            .enumerate()
            .filter(|(i, t)| **t == answer(batch * 32 + i))
            .count();
    }
    let shared = start.elapsed();
    let bytes: usize = prefix.memory().iter().sum();

    // Again and again.
    let start = Instant::now();
    let mut again = 0;
    for (batch, rows) in queries.chunks(32).enumerate() {
        let rows: Vec<Vec<u32>> = rows.iter().map(|row| [&prompt[..], row].concat()).collect();
        let output = model.run(rows, ForwardOptions::new().logits(Logits::Last).record(hook::pattern(-1)))?;
        again += best(&output.logits.ok_or("no logits")?)?
            .iter()
            .enumerate()
            .filter(|(i, t)| **t == answer(batch * 32 + i))
            .count();
    }
    let whole = start.elapsed();

    println!("{count} queries of {} tokens behind a prompt of {}", queries[0].len(), prompt.len());
    println!(
        "shared: {shared:.1?}, {right} answered as the list goes on; the prompt takes {:.1} kB once",
        bytes as f64 / 1e3
    );
    println!("apart:  {whole:.1?}, {again} answered; a cache a query would take {:.1} kB", (bytes * 32) as f64 / 1e3);
    println!("shared / apart: {:.2} of the time", shared.as_secs_f64() / whole.as_secs_f64());
    Ok(())
}

/// The most likely token of each row of `[batch, 1, d_vocab]`.
fn best(logits: &Tensor<3>) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let best = logits.clone().argmax(2).try_into_data()?.convert::<i64>();
    Ok(best.try_into_vec::<i64>().map_err(|e| format!("{e:?}"))?.iter().map(|token| *token as u32).collect())
}
