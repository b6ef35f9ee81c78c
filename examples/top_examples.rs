//! Draws three pictures of one neuron over many texts: its top activating examples as colored texts, the distribution
//! of its activations as a histogram, and its mean activation by token as bars.
//!
//! ```sh
//! cargo run --release --example top_examples -- neuron.html histogram.svg bars.svg
//! ```

use std::collections::BTreeMap;

use hooklens::experiments::ioi_prompts;
use hooklens::plot::{Bars, Histogram};
use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut file = |name: &str| arguments.next().unwrap_or(name.into());
    let (page, histogram, bars) = (file("neuron.html"), file("histogram.svg"), file("bars.svg"));
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let texts: Vec<String> = ioi_prompts(200, 0).into_iter().map(|prompt| prompt.text).collect();
    let point = hook::mlp_post(1);

    // The neuron with the highest variance across positions.
    let post = model.record(&texts[..20], &point)?.get(&point)?; // [batch, pos, d_mlp]
    let [batch, pos, width] = post.dims();
    let neuron = post.reshape([batch * pos, width]).var(0).argmax_tokens()?[0] as usize;

    let found = TopExamples::new(&point).neuron(neuron).k(8).window(6).one_per_text().run(&model, &texts)?;
    println!("{found}");
    ColoredText::of(&found)?.save(&page)?;

    let unit = format!("neuron {neuron}");
    // The histogram and the bars use all activations, not only the largest.
    let all = TopExamples::new(&point).neuron(neuron).k(usize::MAX).window(0).run(&model, &texts)?;
    Histogram::of(&unit, all.examples.iter().map(|one| one.value))?.title(all.heading()).save(&histogram)?;

    let mut by_token = BTreeMap::<&str, (f64, f64)>::new();
    for one in &all.examples {
        let (sum, count) = by_token.entry(&one.token).or_default();
        (*sum, *count) = (*sum + f64::from(one.value), *count + 1.0);
    }
    let mut means: Vec<(&str, f64)> = by_token.into_iter().map(|(token, (sum, count))| (token, sum / count)).collect();
    means.sort_by(|a, b| b.1.total_cmp(&a.1));
    means.truncate(12);
    Bars::new("token", "mean activation", means)?.horizontal().title(&unit).save(&bars)?;
    println!("wrote {page}, {histogram} and {bars}");
    Ok(())
}
