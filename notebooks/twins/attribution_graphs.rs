//! `attribution_graphs.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::attribution::graph::{AttributionGraph, FeatureEdit, GraphFile, GraphOptions, GraphTarget, Hold, Replacement, intervene};
use hooklens::features::Transcoders;

let model = HookedTransformer::from_pretrained("embedded:ioi")?;
let prompt = "When Mary and John went to the store, John gave a drink to";
let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
let options = GraphOptions::new().target(GraphTarget::difference(&model, "Mary", "John")?);
let graph = AttributionGraph::new(&model, prompt, &replacement, &options)?;
println!("every row sums to its value, to {:.0e}; {:?}", graph.deviation(), graph.scores());
(&(GraphFile::with_defaults(&graph, &model)?)).displayed();
let pruned = graph.prune(0.8, 0.98)?;
let target = graph.nodes().len() - 1;
for path in graph.paths(&pruned, target, 5)? {
    println!("{:.1} %  {path}", 100.0 * path.share);
}
(&(graph.check(&model, &replacement, 5)?)).displayed();
fn lead(model: &HookedTransformer, replacement: &Replacement, edits: &[FeatureEdit]) -> hooklens::Result<f32> {
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let logits = intervene(model, prompt, replacement, edits, Hold::Nothing)?.narrow(1, 14, 1);
    let at = |token: u32| logits.clone().narrow(2, token as usize, 1).into_scalar::<f32>();
    Ok(at(model.to_single_token("Mary")?) - at(model.to_single_token("John")?))
}
let mut features: Vec<usize> = (0..target).filter(|node| graph.nodes()[*node].is_feature()).collect();
let effects = graph.effects_on(target).unwrap().to_vec();
features.sort_by(|a, b| effects[*b].total_cmp(&effects[*a]));
fn off(graph: &AttributionGraph, of: &[usize]) -> Vec<FeatureEdit> {
    of.iter().filter_map(|node| graph.nodes()[*node].edit(0.0)).collect()
}
let [strongest, others] = [off(&graph, &features[..8]), off(&graph, &features[8..16])];
for (what, edits) in [("whole", &Vec::new()), ("without the strongest", &strongest), ("without others", &others)] {
    println!("Mary over John, {what}: {:+.2}", lead(&model, &replacement, edits)?);
}
let mary = graph.nodes().iter().position(|node| node.layer.is_none() && node.position == 2).unwrap();
let hears = {
    let heard = |node: &usize| graph.effects_on(*node).map_or(0.0, |effects| effects[mary]);
    let last = features.iter().copied().filter(|node| graph.nodes()[*node].position == 14);
    last.max_by(|a, b| heard(a).total_cmp(&heard(b))).unwrap()
};
let heads = graph.heads(&model, &replacement, hears)?;
let carried = heads.strongest(mary, 3);
for (layer, head, share) in &carried {
    println!("head {layer}.{head} carried {share:+.2} of {:+.2}", graph.effects_on(hears).unwrap()[mary]);
}
let (layer, head, _) = carried[0];
let pairs = graph.attention_pairs(&model, &replacement, (layer, head), [14, 2], 5)?;
for pair in &pairs.strongest {
    let side = |node: Option<usize>| node.map_or("a constant".to_string(), |node| graph.words(node));
    println!("{:+.2}  {} looks for {}", pair.score, side(pair.query), side(pair.key));
}
let by_neurons = AttributionGraph::new(&model, prompt, &Replacement::neurons(16), &options)?;
(&(by_neurons.scores())).displayed();
Ok(())
}
