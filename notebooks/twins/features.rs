//! `features.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::features::{
    DashboardOptions, Dictionary, EvaluateOptions, Opened, SpliceDictionary, Training, TrainingRun, Units, dashboards,
    evaluate, latents_by_attribution,
};

let model = HookedTransformer::from_pretrained("embedded:ioi")?;
let sae = Dictionary::open("embedded:ioi-sae")?;
(&(sae)).displayed();
let prompt = model.to_tokens("When Mary and John went to the store, John gave a drink to")?.row(0).to_vec();
let (mary, john) = (model.to_single_token("Mary")?, model.to_single_token("John")?);
let found = latents_by_attribution(&model, &sae, &prompt, mary, Some(john))?;
for latent in &found[..5] {
    println!("latent {:3} at {:?}: {:+.3}", latent.latent, latent.position, latent.score);
}
{
    let spliced = model.splice_dictionary(&sae)?;
    let acts = hook::resid_post(2).inner::<3>("hook_sae_acts_post");
    let most = found.iter().max_by(|a, b| a.score.total_cmp(&b.score)).unwrap().latent;
    let text = "When Mary and John went to the store, John gave a drink to Mary";
    let whole: f32 = spliced.loss(text)?.into_scalar();
    let off = [acts.unit(most).zero()];
    let without: f32 = spliced.hooks(off).run(text, ForwardOptions::new().loss())?.loss.unwrap().into_scalar();
    println!("loss {whole:.3}, without latent {most} {without:.3}");
};
{
    let other = "When Mary and John went to the store, Mary gave a drink to";
    let most = found.iter().max_by(|a, b| a.score.total_cmp(&b.score)).unwrap().latent;
    for factor in [0.0, 4.0, 8.0, 16.0] {
        let push = hook::resid_post(2).positions(-1).add(sae.direction(most)? * factor);
        let options = ForwardOptions::new().logits(Logits::Last).hooks([push]);
        let logits = model.forward_with(other, options)?;
        let logit = |id: u32| logits.clone().narrow(2, id as usize, 1).into_scalar::<f32>();
        println!("{factor:4} times latent {most}: Mary {:+.2}, John {:+.2}", logit(mary), logit(john));
    }
    let push = hook::resid_post(2).add(sae.direction(most)? * 16.0);
    let steered = model.generate_with(other, GenerateOptions::new().max_new_tokens(2).hooks([push]))?;
    println!("{other} [{}]", steered.rows[0].text.clone().unwrap_or_default());
};
use hooklens::experiments::ioi_prompts;

let texts = ioi_prompts(40, 0);
let prompts = texts.iter().map(|p| Ok(model.to_tokens(&p.text)?.row(0).to_vec())).collect::<Result<Vec<_>, hooklens::Error>>()?;
let options = DashboardOptions::new().exclude_tokens(model.tokenizer()?.bos());
let view = dashboards(&model, Units::latents(&sae)?, &prompts, options, |_| {})?.unit(found[0].latent)?;
(&(view)).displayed();
let measured = evaluate(&model, &sae, &prompts, &EvaluateOptions::new(), |_| {})?;
println!("L0 {:.1}, explained variance {:.3}, loss recovered {:.3}", measured.l0, measured.explained_variance, measured.loss_recovered);
let training = Training::autoencoder("blocks.1.hook_resid_post", 128).k(6.0).tokens(60_000).batch_size(500);
let trained = TrainingRun::new([training]).exclude_tokens(model.tokenizer()?.bos()).on_model(&model, &prompts, |_, _| {})?;
let (own_l0, own_explained) = {
    let Opened::Dictionary(own) = &trained[0].dictionary else { panic!("an autoencoder") };
    let measured = evaluate(&model, own, &prompts, &EvaluateOptions::new(), |_| {})?;
    (measured.l0, measured.explained_variance)
};
println!("L0 {own_l0:.1}, explained variance {own_explained:.3}");
Ok(())
}
