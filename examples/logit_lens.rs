//! Decodes a model's prediction after each layer, and attributes it to heads.
//!
//! ```sh
//! cargo run --release --example logit_lens
//! ```

use hooklens::prelude::*;

fn main() -> hooklens::Result<()> {
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let (answer, wrong) = ("Mary", "John");
    println!("{}", model.test_prompt(prompt, answer, 3)?);

    let cache = model.record(prompt, Record::all())?;
    let analysis = model.analyze(&cache)?.positions(-1)?;

    // The logit lens: the final norm and the unembedding, applied to each layer.
    let lens = analysis.logit_lens(Per::Layer)?;
    let rank = lens.rank(model.to_single_token(answer)?)?;
    for (stage, (label, top)) in lens.labels.iter().zip(lens.top(3)?).enumerate() {
        let said: Vec<String> = top[0][0]
            .iter()
            .map(|(token, probability)| Ok(format!("{} {:.0} %", model.to_string(&[*token])?, probability * 100.0)))
            .collect::<hooklens::Result<_>>()?;
        println!("{label:>10}  {answer} is ranked {}: {}", rank[[stage, 0, 0]] + 1, said.join(", "));
    }

    // Direct logit attribution: what each head, MLP and neuron contributes to the logit difference.
    for (what, components) in [
        ("layers", analysis.decompose_resid(Stage::Final)?),
        ("heads", analysis.stack_head_results(Stage::Final)?),
        ("neurons", analysis.stack_neuron_results(Stage::Final)?),
    ] {
        let shares = analysis.logit_attrs(&components, Direction::token(answer).minus(wrong))?;
        let mut order: Vec<(usize, f32)> = shares.to_vec()?.into_iter().enumerate().collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let best: Vec<String> =
            order.iter().take(4).map(|(at, share)| format!("{} {share:+.2}", components.labels()[*at])).collect();
        println!("{what:>10}  {}", best.join("   "));
    }
    Ok(())
}
