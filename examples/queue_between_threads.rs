//! One thread runs the model and pushes an attention pattern of each pass to a shared `ActivationQueue`. Another thread
//! pops the patterns as they arrive and sums up each head's attention to the token after a word's earlier occurrence.
//!
//! ```sh
//! cargo run --release --example queue_between_threads -- embedded:induction
//! ```

use std::thread;

use hooklens::ActivationQueue;
use hooklens::HookError;
use hooklens::prelude::*;

/// Words per phrase. A prompt is a BOS token and a phrase repeated once.
const PHRASE: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let model = HookedTransformer::from_pretrained(std::env::args().nth(1).unwrap_or("embedded:induction".into()))?;
    let layer = model.config().n_layers() - 1;
    let words = ["king", "drum", "sun", "star", "moon", "tea", "fox"];
    let prompts: Vec<String> = (0..words.len())
        .map(|first| (0..2 * PHRASE).map(|word| words[(first + word % PHRASE) % words.len()]).collect::<Vec<_>>())
        .map(|words| words.join(" "))
        .collect();

    let (passes, (seen, heads)) = thread::scope(|scope| {
        // Waits for each pattern, and ends once the queue is closed and empty.
        let reader = scope.spawn(|| -> Result<(usize, Vec<f32>), HookError> {
            let (mut seen, mut heads) = (0, Vec::new());
            while let Ok(pattern) = ActivationQueue::shared().wait("pattern") {
                let pattern = pattern.to_ndarray()?; // [batch, head, query, key]
                let queries = PHRASE + 1..=2 * PHRASE;
                heads.resize(pattern.shape()[1], 0.0);
                for (head, total) in heads.iter_mut().enumerate() {
                    let looked: f32 = queries.clone().map(|query| pattern[[0, head, query, query - PHRASE + 1]]).sum();
                    *total += looked / PHRASE as f32;
                }
                seen += 1;
            }
            Ok((seen, heads))
        });
        let ran = prompts.iter().try_for_each(|prompt| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let pattern = model.record(prompt, hook::pattern(layer))?.get(hook::pattern(layer))?;
            Ok(ActivationQueue::shared().push("pattern", pattern)?)
        });
        ActivationQueue::shared().close();
        let read = reader.join().map_err(|_| "the reading thread panicked")??;
        ran.map(|()| (prompts.len(), read))
    })?;

    println!("{passes} passes pushed, {seen} patterns popped");
    for (head, total) in heads.iter().enumerate() {
        println!(
            "L{layer}H{head}  {:.2} of its attention goes to the token after the earlier occurrence",
            total / seen.max(1) as f32
        );
    }
    Ok(())
}
