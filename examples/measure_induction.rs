//! Measures how well a model does induction: its loss on repeated random words, and the heads that are responsible.
//!
//! ```sh
//! cargo run --release --example measure_induction -- embedded:induction
//! ```

use hooklens::experiments::head_scores;
use hooklens::prelude::*;
use rand::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = HookedTransformer::from_pretrained(std::env::args().nth(1).unwrap_or("embedded:induction".into()))?;
    let words = model.config().d_vocab() as u32 - 1;
    let mut rng = StdRng::seed_from_u64(99);
    for len in [10, 20, 25] {
        let row = |rng: &mut StdRng| {
            let once: Vec<u32> = (0..len).map(|_| rng.random_range(1..=words)).collect();
            [vec![0], once.clone(), once].concat()
        };
        let tokens = Tokens::new((0..64).map(|_| row(&mut rng)).collect())?;
        let output = model.run(&tokens, ForwardOptions::new().loss_per_token().record("*hook_pattern"))?;
        let each = output.loss_per_token.ok_or("no loss")?;
        let mean = |from: usize, to: usize| each.clone().narrow(1, from, to - from).mean().into_scalar::<f32>();
        let mut heads = Vec::new();
        for layer in 0..model.config().n_layers() {
            heads.extend(head_scores(output.cache.activation(("pattern", layer))?, &tokens)?);
        }
        let previous = heads.iter().map(|head| head.previous_token).fold(0.0, f32::max);
        let induction = heads.iter().map(|head| head.induction).fold(0.0, f32::max);
        let (first, second) = (mean(0, len), mean(len + 1, 2 * len));
        println!(
            "{len} words repeated: loss {first:.3}, then {second:.3}; previous-token head {previous:.2}, induction head {induction:.2}"
        );
    }
    Ok(())
}
