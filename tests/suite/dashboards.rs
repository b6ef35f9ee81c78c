//! Dashboards of latents against what is computed naively, and the finding of latents.

use hooklens::features::{
    DashboardOptions, Dictionary, Labels, SpliceDictionary, Units, dashboards, latents_by_activation,
    latents_by_attribution, latents_by_difference,
};
use hooklens::prelude::*;
use serde_json::Value;

use crate::support::program;

fn setting() -> (HookedTransformer, Dictionary, Vec<Vec<u32>>) {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    let names = ["Mary", "John", "Anna", "James", "Clara"];
    let places = ["store", "park", "garden"];
    let text = |at: usize| {
        let (a, b, place) = (names[at % 5], names[(at + 1 + at / 5) % 5], places[at % 3]);
        format!("When {a} and {b} went to the {place}, {b} gave a drink to {a}.")
    };
    let prompts = (0..23).map(|at| model.to_tokens(&*text(at)).unwrap().row(0).to_vec()).collect();
    (model, sae, prompts)
}

/// The data of a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn pages_show_what_is_computed() {
    let (model, sae, prompts) = setting();
    let labels: Labels = [(3, "</script><script>alert(1)</script>")].into_iter().collect();
    let units = || Units::latents(&sae).unwrap().with_labels(labels.clone());
    let options = || DashboardOptions::new().leaving_out([0]).query("When Mary and John");
    let all = dashboards(&model, units(), &prompts, options().batch_size(7), |_| {}).unwrap();
    let by_one = dashboards(&model, units(), &prompts, options().batch_size(1), |_| {}).unwrap();

    // Naively: every prompt's activations, one prompt at a time.
    let point = hook::resid_post(2);
    let mut acts: Vec<Vec<f32>> = Vec::new(); // [prompt][pos * latents]
    for prompt in &prompts {
        let stream = model.record(vec![prompt.clone()], &point).unwrap().get(&point).unwrap();
        acts.push(sae.encode(stream).unwrap().to_data().iter().collect());
    }
    let at = |prompt: usize, pos: usize, latent: usize| acts[prompt][pos * 256 + latent];
    let places = || (0..prompts.len()).flat_map(|prompt| (1..prompts[prompt].len()).map(move |pos| (prompt, pos)));
    let tokens = places().count();
    assert_eq!((all.len(), all.tokens()), (256, tokens));
    let density = all.density();
    for (latent, density) in density.iter().enumerate() {
        let active = places().filter(|(prompt, pos)| at(*prompt, *pos, latent) != 0.0).count();
        assert!((density - active as f64 / tokens as f64).abs() < 2.0 / tokens as f64, "{latent}");
    }
    assert_eq!(all.density(), by_one.density());

    let shown = [all.by_density()[0], 153, 3];
    let page = all.page(shown).unwrap();
    assert!(!page.contains("<script>alert") && !page.contains("__HOOKLENS_DATA__") && !page.contains("http://"));
    let page = data(&page);
    assert_eq!(page["list"]["label"][3], "</script><script>alert(1)</script>");
    assert_eq!((page["unit"].as_str(), page["count"].as_u64()), (Some("latent"), Some(256)));
    let strings = page["strings"].as_array().unwrap();
    for (place, latent) in shown.iter().enumerate() {
        let own = &page["latents"][place];
        assert_eq!(own["id"].as_u64(), Some(*latent as u64));
        let number = |value: &Value| value.as_f64().unwrap() as f32;
        let most = places().map(|(prompt, pos)| at(prompt, pos, *latent)).fold(0f32, f32::max);
        assert!((number(&own["max"]) - most).abs() < 1e-4, "{latent}");
        let counts: u64 = own["histogram"]["counts"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(counts, (own["density"].as_f64().unwrap() * tokens as f64).round() as u64);
        // Of each prompt its largest, the largest first.
        let mut best: Vec<f32> = (0..prompts.len())
            .map(|prompt| (1..prompts[prompt].len()).map(|pos| at(prompt, pos, *latent)).fold(0f32, f32::max))
            .filter(|best| *best > 0.0)
            .collect();
        best.sort_by(|a, b| b.total_cmp(a));
        let largest = own["groups"][0]["examples"].as_array().unwrap();
        assert_eq!(largest.len(), best.len().min(20));
        for (example, best) in largest.iter().zip(&best) {
            let of = |key: &str| example[key].as_u64().unwrap() as usize;
            let (prompt, first, pos) = (of("prompt"), of("first"), of("at"));
            assert!((number(&example["acts"][pos - first]) - best).abs() < 1e-4);
            for (offset, (act, token)) in
                example["acts"].as_array().unwrap().iter().zip(example["tokens"].as_array().unwrap()).enumerate()
            {
                assert!((number(act) - at(prompt, first + offset, *latent)).abs() < 1e-4);
                let text = model.to_string(&prompts[prompt][first + offset..=first + offset]).unwrap();
                assert_eq!(strings[token.as_u64().unwrap() as usize].as_str().unwrap().trim(), text.trim());
            }
        }
        // Examples of an interval lie in it.
        for group in own["groups"].as_array().unwrap().iter().skip(1) {
            let (low, high) = (number(&group["low"]), number(&group["high"]));
            for example in group["examples"].as_array().unwrap() {
                let at = (example["at"].as_u64().unwrap() - example["first"].as_u64().unwrap()) as usize;
                let act = number(&example["acts"][at]);
                assert!(act >= low - 1e-4 && act <= high + 1e-4, "{low} {act} {high}");
            }
        }
    }
    // Latent 153 speaks for Mary.
    let promoted = page["latents"][1]["logits"]["promoted"][0][0].as_u64().unwrap() as usize;
    assert_eq!(strings[promoted], "Mary");
    assert_eq!(page["query"]["tokens"].as_array().unwrap().len(), 5);
    let missing = all.page([256]).unwrap_err().to_string();
    assert!(missing.ends_with("has no latent 256: they are 0 to 255"), "{missing}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latents.jsonl");
    all.save_neuronpedia(shown, &path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["pos_str"][0]), (3, &Value::from("Mary")));
    assert_eq!(lines[1]["vector"].as_array().unwrap().len(), 64);
    assert!(lines[1]["activations"][0]["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()));
}

/// Neurons, heads and directions are shown by the same page.
#[test]
fn other_units_are_shown_too() {
    let (model, _, prompts) = setting();
    let direction = Tensor::<2>::ones([2, 64], &Device::flex());
    for (units, count) in
        [(Units::neurons(1), 256), (Units::heads(2), 4), (Units::directions(hook::resid_post(1).name(), direction), 2)]
    {
        let all = dashboards(&model, units, &prompts[..3], DashboardOptions::new(), |_| {}).unwrap();
        assert_eq!(all.len(), count);
        let page = data(&all.page([1]).unwrap());
        assert!(page["latents"][0]["groups"][0]["examples"].as_array().is_some_and(|all| !all.is_empty()));
    }
    let wide = Tensor::<2>::ones([2, 65], &Device::flex());
    let error = dashboards(&model, Units::directions("resid_post1", wide), &prompts, DashboardOptions::new(), |_| {});
    let told = hooklens::error_chain(&error.unwrap_err());
    assert!(told.contains("has width 64, the dictionary's is 65"), "{told}");
}

#[test]
fn latents_are_found() {
    let (model, sae, _) = setting();
    let text = "When Mary and John went to the store, John gave a drink to";
    let prompt = model.to_tokens(text).unwrap().row(0).to_vec();
    let (mary, john) = (model.to_single_token("Mary").unwrap(), model.to_single_token("John").unwrap());
    let found = latents_by_attribution(&model, &sae, &prompt, mary, Some(john)).unwrap();
    // What was found is what ablation finds: without it Mary is less likely.
    let best = found.iter().find(|one| one.score > 0.0).unwrap();
    let acts = hook::resid_post(2).inner::<3>("hook_sae_acts_post");
    let spliced = model.splice_dictionary(&sae).unwrap();
    let difference = |logits: Tensor<3>| {
        let last = logits.narrow(1, prompt.len() - 1, 1);
        let of = |id: u32| last.clone().narrow(2, id as usize, 1).into_scalar::<f32>();
        of(mary) - of(john)
    };
    let whole = difference(spliced.forward(vec![prompt.clone()]).unwrap());
    let without = spliced.run_with_hooks(vec![prompt.clone()], [acts.unit(best.latent).positions(-1).zero()]).unwrap();
    assert!(difference(without) < whole - 0.3 * best.score, "{best:?}");

    let active = latents_by_activation(&model, &sae, &prompt, Some(14)).unwrap();
    assert!(active.len() <= 20 && active.iter().all(|one| one.position == Some(14)));
    assert!(latents_by_activation(&model, &sae, &prompt, Some(15)).is_err());
    assert!(latents_by_attribution(&model, &sae, &prompt, 61, None).is_err());
    let row = |text: &str| model.to_tokens(text).unwrap().row(0).to_vec();
    let (more, less) = ([row("When Mary went to the store")], [row("When John went to the store")]);
    let apart = latents_by_difference(&model, &sae, &more, &less, &[0]).unwrap();
    let turned = latents_by_difference(&model, &sae, &less, &more, &[0]).unwrap();
    assert!(apart[0].latent == turned[0].latent && (apart[0].score + turned[0].score).abs() < 1e-5);
    assert!(latents_by_difference(&model, &sae, &more, &[vec![0]], &[0]).is_err());
}

#[test]
fn pages_and_findings_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prompts.txt"), "When Mary and John went to the store.\nMary went.\n").unwrap();
    let run = |arguments: &[&str]| {
        let common = ["--model", "embedded:ioi"];
        let output =
            program().current_dir(folder.path()).arg("features").args(arguments).args(common).output().unwrap();
        let [told, warned] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), told, warned)
    };
    let sae = ["--dictionary", "embedded:ioi-sae", "--prompts", "prompts.txt"];
    let show = |more: &[&str]| run(&[&["show"], more].concat());
    let (code, told, warned) = show(&[&sae[..], &["--latents", "1,5", "--out", "page.html"]].concat());
    assert!(code == Some(0) && told.contains("2 shown"), "{told}{warned}");
    assert!(std::fs::read_to_string(folder.path().join("page.html")).unwrap().starts_with("<!"), "page");
    let wrong = [
        (show(&[&sae[..], &["--out", "page.pdf"]].concat()), "ends in .html or .jsonl"),
        (show(&[&sae[..], &["--latents", "900", "--out", "p.html"]].concat()), "has no latent 900"),
        (show(&["--prompts", "prompts.txt", "--out", "p.html"]), "says what to show"),
        (show(&["--neurons", "9", "--prompts", "prompts.txt", "--out", "p.html"]), "layer"),
        (run(&["find", "--dictionary", "embedded:none", "--prompt", "Mary"]), "embedded dictionaries are"),
        (run(&["find", "--prompt", "Mary"]), "--dictionary names"),
    ];
    for ((code, _, warned), expected) in wrong {
        assert!(code != Some(0) && warned.contains(expected), "{expected}: {warned}");
    }
    let text = "When Mary and John went to the store, John gave a drink to";
    let given = ["find", "--dictionary", "embedded:ioi-sae", "--prompt", text, "--answer", "Mary", "--wrong", "John"];
    let (code, told, _) = run(&[&given[..], &["--json", "--top", "3"]].concat());
    let found: Value = serde_json::from_str(&told).unwrap();
    assert!(code == Some(0) && found.as_array().unwrap().len() == 3 && found[0]["position"] == 14, "{told}");
}
