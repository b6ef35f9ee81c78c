//! Edits of features: an intervention is a hook on the feature in the model its dictionary is spliced into, whatever is edited
//! twice, at overlapping ranges, or where the dictionary is not used.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use hooklens::attribution::graph::{FeatureEdit, Hold, Replacement, generate_edited, intervene};
use hooklens::features::{Dictionary, SpliceDictionary, Transcoders};
use hooklens::hook::Hook;
use hooklens::prelude::*;
use proptest::prelude::*;

use crate::graphs::{random_cross_layer, random_dictionaries, tokens};
use crate::support::{any_plain, assert_close, cases, program, random_model};

/// An edit as a test draws it.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    /// Which of the dictionaries.
    place: usize,
    position: usize,
    latent: usize,
    onward: bool,
    times: bool,
    value: f32,
}

impl Drawn {
    fn edit(self, layer: usize) -> FeatureEdit {
        let make = if self.times { FeatureEdit::times } else { FeatureEdit::set };
        let edit = make(layer, self.position, self.latent, self.value);
        if self.onward { edit.onward() } else { edit }
    }

    fn is_at(self, pos: usize) -> bool {
        pos == self.position || (self.onward && pos > self.position)
    }
}

/// Few features and positions, so that many edits are of the same ones.
fn edits(positions: usize) -> impl Strategy<Value = Vec<Drawn>> {
    let one = (0..2usize, 0..positions, 0..3usize, any::<bool>(), any::<bool>(), -2.0..3.0f32);
    let drawn = one.prop_map(|(place, position, latent, onward, times, value)| Drawn {
        place,
        position,
        latent: 4 * latent,
        onward,
        times,
        value,
    });
    // Some are given twice.
    prop::collection::vec((drawn, any::<bool>()), 1..6)
        .prop_map(|all| all.into_iter().flat_map(|(one, twice)| vec![one; 1 + usize::from(twice)]).collect())
}

/// The edits of one place as a hook: assigned one after the other, so that the last counts. `clean` are the unedited
/// activations of the prompt, `[1, pos, unit]`.
fn hook_of(point: String, clean: Tensor<3>, edits: Vec<Drawn>) -> Hook<'static> {
    hook::at(point).edit(move |acts: Tensor<3>, at| {
        let (offset, [_, len, _]) = (at.offset(), acts.dims());
        let before = acts.clone();
        let mut out = acts;
        for (one, row) in edits.iter().flat_map(|one| (0..len).map(move |row| (one, row))) {
            let pos = offset + row;
            if !one.is_at(pos) {
                continue;
            }
            let place = |row: usize| [0..1, row..row + 1, one.latent..one.latent + 1];
            let held =
                if pos < clean.dims()[1] { clean.clone().slice(place(pos)) } else { before.clone().slice(place(row)) };
            let new = if one.times { held * one.value } else { held * 0.0 + one.value };
            out = out.slice_assign(place(row), new);
        }
        out
    })
}

/// Hooks of edits in a model with these dictionaries in it, by the points they write.
fn hooks_of(spliced: &HookedTransformer, prompt: &[u32], writes: &[String], edits: &[Drawn]) -> Vec<Hook<'static>> {
    let acts = |place: usize| format!("{}.hook_sae_acts_post", writes[place]);
    let mut by_place: BTreeMap<usize, Vec<Drawn>> = BTreeMap::new();
    edits.iter().for_each(|one| by_place.entry(one.place).or_default().push(*one));
    let hook = |(place, own): (usize, Vec<Drawn>)| {
        let clean = spliced.record(vec![prompt.to_vec()], &*acts(place)).unwrap().get::<3>(&*acts(place)).unwrap();
        hook_of(acts(place), clean, own)
    };
    by_place.into_iter().map(hook).collect()
}

fn written(one: &Dictionary) -> String {
    let metadata = one.metadata();
    metadata.writes.clone().or_else(|| metadata.reads.clone()).unwrap()
}

fn layer_of(point: &str) -> usize {
    point.split('.').nth(1).unwrap().parse().unwrap()
}

/// What both say of the prompt, and of text that follows it.
fn check(
    name: &str,
    model: &HookedTransformer,
    spliced: &HookedTransformer,
    replacement: &Replacement,
    (writes, drawn): (&[String], &[Drawn]),
) {
    let edits: Vec<FeatureEdit> = drawn.iter().map(|one| one.edit(layer_of(&writes[one.place]))).collect();
    let given = intervene(model, tokens(), replacement, &edits, Hold::Nothing).unwrap().logits;
    let wanted = spliced.run_with_hooks(tokens(), hooks_of(spliced, &tokens(), writes, drawn)).unwrap();
    assert_close(&given, &wanted, 1e-5, &format!("{name}: {drawn:?}"));

    let options = || GenerateOptions::new().max_new_tokens(3).logits();
    let made = generate_edited(model, tokens(), replacement, &edits, options()).unwrap();
    let wanted = spliced.hooks(hooks_of(spliced, &tokens(), writes, drawn)).generate_with(tokens(), options()).unwrap();
    // Of tokens that are equally likely either may be taken, and what follows is another text.
    if made.rows[0].new == wanted.rows[0].new {
        assert_close(&made.logits.unwrap(), &wanted.logits.unwrap(), 1e-5, &format!("{name}, text: {drawn:?}"));
    }
}

proptest! {
    #![proptest_config(cases(40))]

    /// Transcoders of each layer, autoencoders of the stream and cross-layer transcoders, used at all tokens or not at all.
    #[test]
    fn interventions_are_hooks_in_the_spliced_model(
        config in any_plain(), seed in 0u64..1000, drawn in edits(6), excludes in any::<bool>(),
    ) {
        let model = random_model(config, seed);
        let left_out: &[u32] = if excludes { &[9] } else { &[] };
        for (name, all) in random_dictionaries(&model, seed) {
            let all: Vec<Dictionary> = all.into_iter().map(|one| one.excluding(left_out.iter().copied())).collect();
            let spliced = all.iter().fold(model.clone(), |model, one| model.splice_dictionary(one).unwrap());
            let writes: Vec<String> = all.iter().map(written).collect();
            let drawn: Vec<Drawn> = drawn.iter().map(|one| Drawn { place: one.place % all.len(), ..*one }).collect();
            // An edit names a layer, of which one dictionary stands at the first place.
            let first = |place: usize| writes.iter().position(|other| layer_of(other) == layer_of(&writes[place]));
            let drawn: Vec<Drawn> = drawn.iter().map(|one| Drawn { place: first(one.place).unwrap(), ..*one }).collect();
            check(name, &model, &spliced, &Replacement::dictionaries(all), (&writes, &drawn));
        }
        if !model.config().attn_only {
            let all = random_cross_layer(&model, seed).excluding(left_out.iter().copied());
            let spliced = model.splice_transcoders(&all).unwrap();
            let writes: Vec<String> = all.layers().iter().map(written).collect();
            let drawn: Vec<Drawn> = drawn.iter().map(|one| Drawn { place: one.place % writes.len(), ..*one }).collect();
            check("across layers", &model, &spliced, &Replacement::transcoders(all), (&writes, &drawn));
        }
    }

    /// Neurons are changed as a hook on their activations changes them.
    #[test]
    fn interventions_on_neurons_are_hooks(config in any_plain(), seed in 0u64..1000, drawn in edits(6)) {
        prop_assume!(!config.attn_only && config.experts.is_none());
        let model = random_model(config, seed);
        let point = |layer: usize| format!("blocks.{layer}.mlp.hook_post");
        let mut hooks = Vec::new();
        for layer in 0..model.config().n_layers {
            let own: Vec<Drawn> = drawn.iter().copied().filter(|one| one.place == layer).collect();
            let clean = model.record(tokens(), &*point(layer)).unwrap().get::<3>(&*point(layer)).unwrap();
            hooks.push(hook_of(point(layer), clean, own));
        }
        let drawn: Vec<Drawn> = drawn.iter().copied().filter(|one| one.place < model.config().n_layers).collect();
        let edits: Vec<FeatureEdit> = drawn.iter().map(|one| one.edit(one.place)).collect();
        let given = intervene(&model, tokens(), &Replacement::neurons(5), &edits, Hold::Nothing).unwrap().logits;
        assert_close(&given, &model.run_with_hooks(tokens(), hooks).unwrap(), 1e-5, &format!("{drawn:?}"));
    }
}

/// The command's answer to edits of one feature: once, twice, by a range and a position in it, by two values.
#[test]
fn an_edit_given_twice_is_one_edit() {
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let after = |sets: &[&str]| -> f64 {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let output = program()
            .args(["graph", "--model", "embedded:ioi", "--prompt", prompt, "--json"])
            .args(sets)
            .output()
            .unwrap();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let tokens = told["changed"]["tokens"].as_array().unwrap().clone();
        tokens.iter().find(|one| one["token"] == "Mary").unwrap()["after"].as_f64().unwrap()
    };
    let once = after(&["3:14:12=0"]);
    assert!((once - 0.979).abs() < 1e-3, "{once}");
    for sets in [
        &["3:14:12=0", "3:14:12=0"][..],
        &["3:14+:12=0", "3:14:12=0"],
        &["3:14:12=7", "3:14:12=0"],
        &["3:14:12=x2", "3:14:12=x0"],
    ] {
        assert!((after(sets) - once).abs() < 1e-6, "{sets:?}");
    }
    // The hook in the spliced model.
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let transcoders = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let spliced = model.splice_transcoders(&transcoders).unwrap();
    let acts = hook::mlp_out(3).inner::<3>("hook_sae_acts_post");
    let zero = acts.edit(|acts: Tensor<3>, _| {
        let zero = Tensor::zeros([1, 1, 1], &acts.device());
        acts.slice_assign([0..1, 14..15, 12..13], zero)
    });
    let logits = spliced.run_with_hooks(prompt, [zero]).unwrap().narrow(1, 14, 1);
    let mary = model.to_single_token("Mary").unwrap() as usize;
    let logit = logits.narrow(2, mary, 1).into_scalar::<f32>();
    assert!((logit - 8.418).abs() < 1e-3, "{logit}");
}

/// An edit where the dictionary is not used changes nothing, and the command says so.
#[test]
fn edits_at_tokens_that_are_left_out_are_reported() {
    let graph = |more: &[&str]| {
        let prompt =
            ["graph", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-transcoders", "--prompt", "When Mary"];
        let output = program().args(prompt).args(more).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let told = graph(&["--set", "3:0:12=50"]);
    assert!(told.contains("--set 3:0:12") && told.contains("\"<bos>\""), "{told}");
    for other in [&["--set", "3:1:12=50"][..], &["--set", "3:0:12=50", "--all-tokens"], &["--set", "3:0+:12=50"]] {
        assert!(!graph(other).contains("changes nothing"), "{other:?}");
    }
}
