//! Runs hundreds of queries after a few-shot prompt, and compares the time to compute the prompt once for all queries
//! with the time to compute it again for each query.
//!
//! ```sh
//! cargo run --release --example shared_prefix [MODEL] [QUERIES]
//! ```
//!
//! Without a model, the embedded induction model is used, with repeated lists as examples.

use std::time::Instant;

use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = HookedTransformer::from_pretrained(arguments.next().unwrap_or("embedded:induction".into()))?;
    let count: usize = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let config = model.config();
    let words = config.d_vocab() as u32 - 1;

    // Examples are repeated lists; a query is a list followed by its first word.
    let word = |i: usize| 1 + (i as u32 * 7919 + 13) % words;
    let list = |seed: usize| (0..5).map(|i| word(seed * 31 + i)).collect::<Vec<_>>();
    let examples: Vec<u32> = (0..4).flat_map(|seed| [list(seed), list(seed)].concat()).collect();
    let prompt = [&model.tokenizer()?.bos().map_or(vec![], |bos| vec![bos])[..], &examples].concat();
    let query = |seed: usize| [list(seed + 100), vec![list(seed + 100)[0]]].concat();
    let queries: Vec<Vec<u32>> = (0..count).map(query).collect();
    let answer = |seed: usize| list(seed + 100)[1];

    // Compute the prompt once, for all batches of queries.
    let start = Instant::now();
    let mut prefix = model.prefill(prompt.clone())?;
    prefix.freeze();
    let mut right = 0;
    for (batch, rows) in queries.chunks(32).enumerate() {
        let options = ForwardOptions::new().kv_cache(&mut prefix).logits(Logits::Last).record(hook::pattern(-1));
        let output = model.run(rows.to_vec(), options)?;
        // `output.cache` has the queries' attention patterns, over the keys of the prompt and of the query.
        right += best(&output.logits.ok_or("no logits")?)?
            .iter()
            .enumerate()
            .filter(|(i, t)| **t == answer(batch * 32 + i))
            .count();
    }
    let shared = start.elapsed();
    let bytes: usize = prefix.memory().iter().sum();

    // Compute the prompt again for each query.
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

    println!("{count} queries of {} tokens after a prompt of {}", queries[0].len(), prompt.len());
    println!("shared:   {shared:.1?}, {right} correct; the prompt takes {:.1} kB once", bytes as f64 / 1e3);
    println!(
        "separate: {whole:.1?}, {again} correct; one cache per query would take {:.1} kB",
        (bytes * 32) as f64 / 1e3
    );
    println!("shared / separate: {:.2} of the time", shared.as_secs_f64() / whole.as_secs_f64());
    Ok(())
}

/// The most likely token of each row of `[batch, 1, d_vocab]`.
fn best(logits: &Tensor<3>) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let best = logits.clone().argmax(2).try_into_data()?.convert::<i64>();
    Ok(best.try_into_vec::<i64>().map_err(|e| format!("{e:?}"))?.iter().map(|token| *token as u32).collect())
}
