//! Activations that TransformerLens 4.3's `TransformerBridge` computes for some of the tiny models, written by
//! `tests/fixtures/transformer_lens_4.py`, and the names that the guide gives for 4.3.
//!
//! 4.3 keeps the weights as published, as hooklens does, so everything is compared without processing.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use hooklens::prelude::*;
use hooklens::{NormKind, TransformerConfig};
use ndarray::{ArrayD, Axis, IxDyn};
use safetensors::SafeTensors;

use crate::guide::{code, guide};
use crate::parity::{Golden, Tally, load};
use crate::support::{distance, fixtures, root, values};
use hooklens_model::config::Layers;

const FILE: &str = "transformer_lens_4.safetensors";

/// Cases whose attention 4.3 leaves to transformers: `hook_attn_scores` is the pattern there.
const DELEGATED: [&str; 2] = ["gptj", "opt"];

fn cases() -> Vec<String> {
    let entries = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap());
    let written = entries.filter(|entry| entry.path().join(FILE).is_file());
    written.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// hooklens's name for what 4.3 computes under a name of 2.16.1, or `None` if hooklens does not compute it.
fn counterpart(case: &str, name: &str, config: &TransformerConfig) -> Option<String> {
    let (module, hook) = name.rsplit_once('.').unwrap_or(("", name));
    let of_norm = module.rsplit('.').next().is_some_and(|module| module.starts_with("ln"));
    let layer_norm = config.norm() == NormKind::LayerNorm;
    match hook {
        // In 4.3, `hook_normalized` precedes a layer norm's weights; here, as in 2.16.1, it follows them.
        "hook_normalized" if of_norm && layer_norm => None,
        "hook_out" if of_norm => layer_norm.then(|| format!("{module}.hook_normalized")),
        "hook_attn_scores" if DELEGATED.contains(&case) => Some(format!("{module}.hook_pattern")),
        // In 4.3, a mixture's `hook_pre` and `hook_post` are its input and output.
        "hook_pre" if config.experts().is_some() => Some(format!("{module}.hook_in")),
        "hook_post" if config.experts().is_some() => Some(format!("{module}.hook_out")),
        // In 4.3, Bloom's heads' inputs follow the norm.
        "hook_q_input" | "hook_k_input" | "hook_v_input" if case == "bloom" => None,
        _ => Some(name.to_string()),
    }
}

/// 4.3's tensor in 2.16.1's layout: norms of heads' queries and keys have one row per head of each position.
fn in_our_layout(theirs: &ArrayD<f32>, shape: &[usize]) -> ArrayD<f32> {
    if theirs.shape() == shape || theirs.len() != shape.iter().product::<usize>() {
        return theirs.clone();
    }
    let by_position = match theirs.ndim() {
        4 => theirs.clone().permuted_axes(IxDyn(&[0, 2, 1, 3])),
        _ => theirs.clone(),
    };
    by_position.as_standard_layout().into_owned().into_shape_with_order(IxDyn(shape)).unwrap()
}

/// Scores relative to each query's first key: 4.3's ALiBi adds the key's position, ours its distance to the query.
fn relative_to_first_key(scores: &ArrayD<f32>) -> ArrayD<f32> {
    let last = Axis(scores.ndim() - 1);
    scores - &scores.index_axis(last, 0).insert_axis(last)
}

/// Weights of the experts in use, which sum to one in 4.3. Ours are of all experts.
fn of_chosen_experts(weights: &ArrayD<f32>, theirs: &ArrayD<f32>) -> ArrayD<f32> {
    let chosen = weights * &theirs.mapv(|weight| if weight > 0.0 { 1.0 } else { 0.0 });
    let sum = chosen.sum_axis(Axis(1)).insert_axis(Axis(1));
    chosen / sum
}

#[test]
fn activations_agree_with_the_bridge() {
    let cases = cases();
    assert!(cases.len() >= 15, "only {cases:?}");
    let (mut compared, mut problems) = (0, vec![]);
    for case in &cases {
        let golden = Golden::of_file(case, FILE);
        let model = load(case, LoadOptions::new());
        let named = golden.points("");
        let pairs: Vec<(String, String)> =
            named.iter().filter_map(|name| Some((name.clone(), counterpart(case, name, model.config())?))).collect();
        let points: Vec<String> = pairs.iter().map(|(_, point)| point.clone()).collect();
        let output = model.run(golden.tokens(""), ForwardOptions::new().record(points)).unwrap();
        let mut tally = Tally::default();
        tally.compare("logits", &values(&output.logits.unwrap()), golden.get("logits").unwrap());
        for (name, point) in pairs {
            let mut ours = output.cache.activation(&point).unwrap().to_ndarray().unwrap();
            let mut theirs = in_our_layout(golden.get(&name).unwrap(), ours.shape());
            if name.ends_with("hook_attn_scores") && case == "bloom" {
                (ours, theirs) = (relative_to_first_key(&ours), relative_to_first_key(&theirs));
            }
            if name.ends_with("hook_expert_weights") {
                ours = of_chosen_experts(&ours, &theirs);
            }
            tally.compare(&name, &ours, &theirs);
        }
        compared += tally.compared;
        problems.extend(tally.problems.into_iter().map(|problem| format!("{case}: {problem}")));
    }
    assert!(problems.is_empty(), "{} of {compared} differ:\n{}", problems.len(), problems.join("\n"));
    assert!(compared > 700, "only {compared}");
}

/// The differences listed in the guide exist: without the conversions above, these names would not agree.
#[test]
fn the_names_with_another_meaning_differ() {
    for (case, name) in [
        ("gpt2", "blocks.0.ln1.hook_normalized"),
        ("neox-serial", "ln_final.hook_normalized"),
        ("gptj", "blocks.0.attn.hook_attn_scores"),
        ("bloom", "blocks.0.hook_q_input"),
        ("bloom", "blocks.0.attn.hook_attn_scores"),
        ("mixtral", "blocks.0.mlp.hook_expert_weights"),
    ] {
        let golden = Golden::of_file(case, FILE);
        let cache = load(case, LoadOptions::new()).record(golden.tokens(""), name).unwrap();
        let ours = cache.activation(name).unwrap().to_ndarray().unwrap();
        assert!(distance(&ours, golden.get(name).unwrap()) > 1e-2, "{case}: {name}");
    }
}

/// The part of the guide about 4.3.
fn section() -> String {
    let guide = guide();
    let start = guide.find("\n## TransformerLens 4.3").expect("a section about 4.3");
    let after = guide[start + 1..].find("\n## ").map_or(guide.len(), |end| start + 1 + end);
    guide[start..after].to_string()
}

/// Names such as `model.to_tokens` in one column of the tables in `text`.
fn names(text: &str) -> HashSet<String> {
    let other = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
    code(text, 1).flat_map(|code| code.split(other)).map(str::to_string).collect()
}

fn listed(file: &str) -> HashSet<String> {
    fs::read_to_string(root().join("tests/fixtures").join(file)).unwrap().lines().map(str::to_string).collect()
}

#[test]
fn the_guide_covers_the_public_names() {
    let (old, new) = (listed("transformer_lens_names.txt"), listed("transformer_lens_4_names.txt"));
    let section = names(&section());
    let mut added: Vec<&String> = new.difference(&old).filter(|name| !section.contains(*name)).collect();
    added.sort();
    assert!(new.len() > 400 && added.is_empty(), "4.3's own names are missing: {added:?}");
    // Classes and modules that no longer exist have one row.
    let owner = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    let owners: HashSet<String> = new.iter().map(|name| owner(name)).collect();
    let gone = |name: &&String| owners.contains(&owner(name)) && !section.contains(*name);
    let mut removed: Vec<&String> = old.difference(&new).filter(gone).collect();
    removed.sort();
    assert!(removed.is_empty(), "names that 4.3 removed are missing: {removed:?}");
    let known = |name: &&String| owners.contains(&owner(name)) && name.contains('.');
    let mut unknown: Vec<&String> =
        section.iter().filter(known).filter(|name| !old.contains(*name) && !new.contains(*name)).collect();
    unknown.sort();
    assert!(unknown.is_empty(), "neither version has: {unknown:?}");
}

/// 4.3's own name of each hook point in the guide is the one that the bridge gives it.
#[test]
fn the_guide_names_the_hook_points_as_the_bridge_does() {
    let mut canonical: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    for case in cases() {
        let bytes = fs::read(fixtures().join(&case).join(FILE)).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let names: BTreeMap<String, String> =
            serde_json::from_str(&header.metadata().as_ref().unwrap()["canonical"]).unwrap();
        names.into_iter().for_each(|(name, own)| {
            canonical.entry(name).or_default().insert(own);
        });
    }
    let section = section();
    let rows = section.lines().filter(|line| line.starts_with("| `blocks.0.") || line.starts_with("| `embed."));
    let mut checked = 0;
    for row in rows {
        let cell = |column: usize| row.split('|').nth(column).unwrap().split('`').skip(1).step_by(2);
        let old = cell(3).next().expect("a name of 2.16.1");
        for own in cell(1) {
            assert!(canonical.get(old).is_some_and(|known| known.contains(own)), "{own} is not {old}");
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked}");
}
