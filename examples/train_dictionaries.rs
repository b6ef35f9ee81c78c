//! Trains the embedded dictionaries for `embedded:ioi`: a sparse autoencoder on the residual stream after the third
//! block, and a transcoder for each MLP.
//!
//! ```sh
//! cargo run --release --example train_dictionaries -- src/embedded
//! ```

use std::path::Path;

use hooklens::experiments::ioi_text;
use hooklens::features::{EvaluateOptions, Opened, Trained, Training, TrainingRun, Transcoders, evaluate};
use hooklens::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "dictionaries".into());
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let bos = model.tokenizer()?.bos();
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let prompts = (0..6000)
        .map(|_| Ok(model.to_tokens(ioi_text(&mut random))?.row(0).to_vec()))
        .collect::<Result<Vec<_>, hooklens::Error>>()?;
    let (train, test) = prompts.split_at(5500);

    let settings = |training: Training| {
        training.k(8.0).tokens(4_000_000).batch_size(1024).learning_rate(3e-3).model("embedded:ioi").prepend_bos(true)
    };
    let point = hook::resid_post(2).name();
    let sae = settings(Training::autoencoder(&point, 256)).named("ioi-sae");
    let transcoders = (0..model.config().n_layers()).map(|layer| {
        let (read, write) = (hook::mlp_reads(layer).name(), hook::mlp_out(layer).name());
        settings(Training::transcoder(read, write, 256)).named(format!("ioi-transcoders, layer {layer}"))
    });
    let run = TrainingRun::new([sae].into_iter().chain(transcoders)).exclude_tokens(bos);
    let trained = run.on_model(&model, train, |dictionary, step| {
        if step.step % 500 == 0 {
            println!("{dictionary} {step:?}");
        }
    })?;

    let mut all = Vec::new();
    for Trained { dictionary, .. } in trained {
        let Opened::Dictionary(dictionary) = dictionary else { continue };
        let measured = evaluate(&model, &dictionary, test, &EvaluateOptions::new(), |_| {})?;
        println!("{}\n{measured}", dictionary.name());
        all.push(dictionary);
    }
    all[0].save(Path::new(&folder).join("ioi-sae"))?;
    Transcoders::new("ioi-transcoders", all.split_off(1)).save(Path::new(&folder).join("ioi-transcoders"))?;
    Ok(())
}
