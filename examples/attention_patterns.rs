//! Which heads of a model do what, from their attention patterns alone, and a picture of one.
//!
//! ```sh
//! cargo run --release --example attention_patterns -- embedded:induction pattern.svg
//! ```

use hooklens::experiments::head_scores;
use hooklens::prelude::*;
use plotters::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = HookedTransformer::from_pretrained(arguments.next().unwrap_or("embedded:induction".into()))?;
    let path = arguments.next().unwrap_or("pattern.svg".into());
    let phrase = "king drum sun star moon tea";
    let prompt = format!("{phrase} {phrase}");
    let tokens = model.to_tokens(&prompt)?;
    let cache = model.record(&tokens, "*hook_pattern")?;

    let mut best = (0, 0, 0.0);
    for layer in 0..model.config().n_layers {
        let scores = head_scores(cache.activation(("pattern", layer as isize))?, &tokens)?;
        for (head, score) in scores.iter().enumerate() {
            println!(
                "L{layer}H{head}  previous token {:.2}  duplicate token {:.2}  induction {:.2}",
                score.previous_token, score.duplicate_token, score.induction
            );
            if score.induction > best.2 {
                best = (layer, head, score.induction);
            }
        }
    }
    let (layer, head, score) = best;
    println!("best induction head: L{layer}H{head} ({score:.2}); its pattern is in {path}");

    // One cell a query and key, dark where much is paid.
    let pattern = cache.activation(("pattern", layer as isize))?.to_ndarray()?;
    let words = model.to_str_tokens(&prompt)?;
    let area = SVGBackend::new(&path, (560, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let count = words.len() as i32;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("L{layer}H{head}"), ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(50)
        .y_label_area_size(60)
        .build_cartesian_2d((0..count - 1).into_segmented(), (0..count - 1).into_segmented())?;
    let name = |at: &SegmentValue<i32>| match at {
        SegmentValue::CenterOf(i) | SegmentValue::Exact(i) => words.get(*i as usize).cloned().unwrap_or_default(),
        SegmentValue::Last => String::new(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(words.len())
        .y_labels(words.len())
        .x_label_formatter(&name)
        .y_label_formatter(&|at| match at {
            SegmentValue::CenterOf(i) => name(&SegmentValue::CenterOf(count - 1 - i)),
            other => name(other),
        })
        .x_desc("key")
        .y_desc("query")
        .draw()?;
    chart.draw_series((0..count).flat_map(|query| (0..=query).map(move |key| (query, key))).map(|(query, key)| {
        let light = 1.0 - f64::from(pattern[[0, head, query as usize, key as usize]]);
        let shade = |strongest: f64| (255.0 - (255.0 - strongest) * (1.0 - light)) as u8;
        let row = count - 1 - query;
        let corner = |x: i32, y: i32| (SegmentValue::Exact(x), SegmentValue::Exact(y));
        Rectangle::new(
            [corner(key, row), corner(key + 1, row + 1)],
            RGBColor(shade(8.0), shade(48.0), shade(107.0)).filled(),
        )
    }))?;
    area.present()?;
    Ok(())
}
