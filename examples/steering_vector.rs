//! Learns a steering vector that, added to the residual stream, makes the model `ioi` predict a given name after any
//! sentence. The model's own weights stay unchanged.
//!
//! ```sh
//! cargo run --release --example steering_vector
//! cargo run --release --example steering_vector -- Julia
//! ```

use burn::module::Param;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::log_softmax;
use hooklens::experiments::{SteeringVector, ioi_prompts};
use hooklens::prelude::*;

const POINT: &str = "resid_post1";
const STEPS: usize = 40;

fn main() -> hooklens::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "Clara".to_string());
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let token = model.to_single_token(&name)?;

    // Only the vector is trained: it is on a device with autodiff, and the model is on a device without.
    let zeros = Tensor::zeros([model.config().d_model()], &model.device().autodiff());
    let mut vector = Param::from_tensor(zeros);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..STEPS {
        let texts = ioi_prompts(16, step as u64).into_iter().map(|prompt| prompt.text).collect();
        let loss = loss(&model, texts, token, &SteeringVector::new(POINT, vector.val()))?;
        let gradients = GradientsParams::from_grads(loss.backward(), &vector);
        vector = optimizer.step(0.1, vector, gradients);
    }
    let nothing = SteeringVector::new(POINT, Tensor::zeros([model.config().d_model()], &model.device()));
    let learned = SteeringVector::new(POINT, vector.val().without_autodiff());
    for (when, steering) in [("before", nothing), ("after", learned)] {
        measure(when, &model, token, &steering)?;
    }
    Ok(())
}

/// Mean negative log-likelihood of the token after each text.
fn loss(
    model: &HookedTransformer,
    texts: Vec<String>,
    token: u32,
    steering: &SteeringVector,
) -> hooklens::Result<Tensor<1>> {
    let options = ForwardOptions::new().logits(Logits::Last).hooks([steering.hook(1.0)]);
    let logits = model.forward_with(texts, options)?; // [batch, 1, d_vocab]
    Ok(-log_softmax(logits, 2).narrow(2, token as usize, 1).mean())
}

/// Loss on held-out sentences, and a text that the model generates.
fn measure(when: &str, model: &HookedTransformer, token: u32, steering: &SteeringVector) -> hooklens::Result<()> {
    let texts = ioi_prompts(100, 1_000_000).into_iter().map(|prompt| prompt.text).collect();
    println!("{when}: loss {:.3}", loss(model, texts, token, steering)?.into_scalar::<f32>());
    let prompt = "When Mary and John went to the store , John gave a drink to";
    let options = GenerateOptions::new().max_new_tokens(2).hooks([steering.hook(1.0)]);
    for row in model.generate_with(prompt, options)?.rows {
        println!("  {prompt} [{}]", row.text.unwrap_or_default());
    }
    Ok(())
}
