//! Dashboards and searches of latents compared with naive computations.

use hooklens::features::{
    DashboardOptions, Dashboards, Dictionary, DictionaryWeights, Labels, Metadata, SpliceDictionary, Units, dashboards,
    latents_by_activation, latents_by_attribution, latents_by_difference,
};
use hooklens::prelude::*;
use hooklens_features::DashboardCounts;
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

/// The page of these units.
fn page(all: &Dashboards<'_>, units: &[usize]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    all.save(units.iter().copied(), &path).unwrap();
    std::fs::read_to_string(path).unwrap()
}

/// The data of a page.
pub(crate) fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Whether nine tenths of the tokens around two positions are the same, from 12 before to 6 after.
fn repeats(prompts: &[Vec<u32>], one: (usize, usize), other: (usize, usize)) -> bool {
    let token = |(prompt, pos): (usize, usize), by: isize| prompts[prompt].get(pos.checked_add_signed(by)?).copied();
    let pairs: Vec<_> =
        (-12..=6).map(|by| (token(one, by), token(other, by))).filter(|pair| *pair != (None, None)).collect();
    pairs.iter().filter(|(one, other)| one == other).count() * 10 >= pairs.len() * 9
}

#[test]
fn units_active_in_the_query_come_first() {
    let (model, sae, prompts) = setting();
    let options = DashboardOptions::new().query("When Mary and John went to the store");
    let all = dashboards(&model, Units::latents(&sae).unwrap(), &prompts, options, |_| {}).unwrap();
    let (order, page) = (all.by_query(), data(&page(&all, &[0])));
    let acts = page["query"]["acts"].as_object().unwrap();
    let peak = |unit: &usize| {
        let own = acts.get(&unit.to_string()).and_then(Value::as_array).into_iter().flatten();
        own.filter_map(Value::as_f64).fold(0.0, f64::max)
    };
    let peaks: Vec<f64> = order.iter().map(peak).collect();
    let active = peaks.iter().filter(|peak| **peak > 0.0).count();
    assert!(
        active > 3 && peaks[..active].is_sorted_by(|a, b| a >= b) && peaks[active..].iter().all(|peak| *peak == 0.0)
    );
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let mut dense = all.by_density();
    dense.sort_unstable();
    assert_eq!(sorted, dense, "the same units in another order");
}

#[test]
fn pages_show_what_is_computed() {
    let (model, sae, prompts) = setting();
    let labels: Labels = [(3, "</script><script>alert(1)</script>")].into_iter().collect();
    let units = || Units::latents(&sae).unwrap().with_labels(labels.clone());
    let options = || DashboardOptions::new().exclude_tokens([0]).query("When Mary and John").dataset("names");
    let all = dashboards(&model, units(), &prompts, options().batch_size(7), |_| {}).unwrap();
    let by_one = dashboards(&model, units(), &prompts, options().batch_size(1), |_| {}).unwrap();

    // Naive computation: every prompt's activations, one prompt at a time.
    let point = hook::resid_post(2);
    let mut acts: Vec<Vec<f32>> = Vec::new(); // [prompt][pos * latents]
    for prompt in &prompts {
        let stream = model.record(vec![prompt.clone()], &point).unwrap().get(&point).unwrap();
        acts.push(sae.encode(stream).unwrap().to_data().iter().collect());
    }
    // Zeros at the BOS token, which is excluded.
    let at = |prompt: usize, pos: usize, latent: usize| if pos == 0 { 0.0 } else { acts[prompt][pos * 256 + latent] };
    let places = || (0..prompts.len()).flat_map(|prompt| (1..prompts[prompt].len()).map(move |pos| (prompt, pos)));
    let tokens = places().count();
    assert_eq!((all.density().len(), all.tokens()), (256, tokens));
    let density = all.density();
    for (latent, density) in density.iter().enumerate() {
        let active = places().filter(|(prompt, pos)| at(*prompt, *pos, latent) != 0.0).count();
        assert!((density - active as f64 / tokens as f64).abs() < 2.0 / tokens as f64, "{latent}");
    }
    assert_eq!(all.density(), by_one.density());

    let shown = [all.by_density()[0], 153, 3];
    let page = page(&all, &shown);
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
        // Each prompt's largest activation and its position, in descending order.
        let largest_of = |prompt: usize| {
            let each = (1..prompts[prompt].len()).map(|pos| (at(prompt, pos, *latent), pos));
            each.fold((0f32, 0), |most, one| if one.0 > most.0 { one } else { most })
        };
        let mut best: Vec<(f32, usize, usize)> =
            (0..prompts.len()).map(|prompt| (largest_of(prompt).0, prompt, largest_of(prompt).1)).collect();
        best.retain(|(value, ..)| *value > 0.0);
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        let largest = own["groups"][0]["examples"].as_array().unwrap();
        // Near-identical contexts are shown once, and others are not left out.
        let alike = |one: (usize, usize), other: (usize, usize)| repeats(&prompts, one, other);
        let shown: Vec<(usize, usize)> = (largest.iter())
            .map(|one| (one["prompt"].as_u64().unwrap() as usize, one["at"].as_u64().unwrap() as usize))
            .collect();
        for (place, one) in shown.iter().enumerate() {
            assert!(!shown[..place].iter().any(|other| alike(*one, *other)), "{latent}: {one:?} is shown twice");
        }
        assert_eq!(shown[0], (best[0].1, best[0].2));
        for (value, prompt, pos) in best.iter().filter(|(_, prompt, _)| !shown.iter().any(|(one, _)| one == prompt)) {
            let larger = best.iter().filter(|other| other.1 != *prompt && other.0 >= *value - 1e-4);
            let mut larger = larger.map(|other| (other.1, other.2));
            assert!(shown.len() == 20 || larger.any(|other| alike((*prompt, *pos), other)), "{latent}: {prompt}");
        }
        for example in largest {
            let of = |key: &str| example[key].as_u64().unwrap() as usize;
            let (prompt, first, pos) = (of("prompt"), of("first"), of("at"));
            let (best, _) = largest_of(prompt);
            assert!((number(&example["acts"][pos - first]) - best).abs() < 1e-4);
            for (offset, (act, token)) in
                example["acts"].as_array().unwrap().iter().zip(example["tokens"].as_array().unwrap()).enumerate()
            {
                assert!((number(act) - at(prompt, first + offset, *latent)).abs() < 1e-4);
                let text = model.to_string(&prompts[prompt][first + offset..=first + offset]).unwrap();
                assert_eq!(strings[token.as_u64().unwrap() as usize].as_str().unwrap().trim(), text.trim());
            }
        }
        // Examples of an interval lie within it, and intervals end at the largest activation.
        let ends = own["groups"].as_array().unwrap().iter().skip(1).map(|group| number(&group["high"]));
        assert!((ends.fold(0f32, f32::max) - most).abs() < 1e-4, "{latent}");
        for group in own["groups"].as_array().unwrap().iter().skip(1) {
            let (low, high) = (number(&group["low"]), number(&group["high"]));
            for example in group["examples"].as_array().unwrap() {
                let at = (example["at"].as_u64().unwrap() - example["first"].as_u64().unwrap()) as usize;
                let act = number(&example["acts"][at]);
                assert!(act >= low - 1e-4 && act <= high + 1e-4, "{low} {act} {high}");
            }
        }
    }
    // Latents without examples on the page show what they promote.
    let others = page["others"].as_object().unwrap();
    assert_eq!(others.len(), 256 - shown.len());
    let alone = data(&self::page(&all, &[7]));
    let text = |page: &Value, index: &Value| page["strings"][index.as_u64().unwrap() as usize].clone();
    for place in 0..5 {
        let [other, own] = [&others["7"]["promoted"][place], &alone["latents"][0]["logits"]["promoted"][place]];
        assert_eq!((text(&page, &other[0]), &other[1]), (text(&alone, &own[0]), &own[1]));
    }
    // Latent 153 promotes Mary.
    let promoted = page["latents"][1]["logits"]["promoted"][0][0].as_u64().unwrap() as usize;
    assert_eq!(strings[promoted], "Mary");
    assert_eq!(page["query"]["tokens"].as_array().unwrap().len(), 5);
    let missing = all.save([256], "missing.html").unwrap_err().to_string();
    assert!(missing.ends_with("has no latent 256; valid latents are 0 to 255"), "{missing}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latents.jsonl");
    all.save(shown, &path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["pos_str"][0]), (3, &Value::from("Mary")));
    assert_eq!(lines[1]["vector"].as_array().unwrap().len(), 64);
    let top = &lines[1]["activations"][0];
    assert!(top["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()));
    let most = places().map(|(prompt, pos)| at(prompt, pos, 153)).fold(0f32, f32::max);
    assert!(top["bin_min"] == -1.0 && top["bin_contains"] == -1.0);
    assert!((top["bin_max"].as_f64().unwrap() as f32 - most).abs() < 1e-4, "{}", top["bin_max"]);
    assert_eq!(lines[1]["dataset"], "names");

    // Naive correlations of latent 153 with the other latents and the residual stream's coordinates.
    let streams: Vec<Vec<f32>> = prompts
        .iter()
        .map(|prompt| {
            model.record(vec![prompt.clone()], &point).unwrap().get(&point).unwrap().to_data().iter().collect()
        })
        .collect();
    let own: Vec<f64> = places().map(|(prompt, pos)| f64::from(at(prompt, pos, 153))).collect();
    let pearson = |other: &[f64]| {
        let n = own.len() as f64;
        let (a, b) = (own.iter().sum::<f64>() / n, other.iter().sum::<f64>() / n);
        let both: f64 = own.iter().zip(other).map(|(x, y)| (x - a) * (y - b)).sum();
        let spread = |of: &[f64], mean: f64| of.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>().sqrt();
        both / (spread(&own, a) * spread(other, b))
    };
    let cosine = |other: &[f64]| {
        let size = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>().sqrt();
        own.iter().zip(other).map(|(x, y)| x * y).sum::<f64>() / (size(&own) * size(other))
    };
    let latent = |latent: usize| places().map(|(prompt, pos)| f64::from(at(prompt, pos, latent))).collect::<Vec<_>>();
    let coordinate =
        |which: usize| places().map(|(prompt, pos)| f64::from(streams[prompt][pos * 64 + which])).collect::<Vec<_>>();
    type Numbers<'n> = &'n dyn Fn(usize) -> Vec<f64>;
    let kinds: [(&str, Numbers<'_>, usize); 2] = [("features", &latent, 256), ("neurons", &coordinate, 64)];
    for (kind, numbers, count) in kinds {
        let all: Vec<f64> = (0..count)
            .filter(|other| kind == "neurons" || *other != 153)
            .map(|other| pearson(&numbers(other)))
            .collect();
        let best = all.iter().copied().filter(|x| x.is_finite()).fold(-1.0, f64::max);
        let message = |what: &str| lines[1][format!("correlated_{kind}_{what}")].as_array().unwrap().clone();
        assert_eq!(message("indices").len(), 3);
        assert!(
            (message("pearson")[0].as_f64().unwrap() - best).abs() < 1e-3,
            "{kind}: {:?} for {best}",
            message("pearson")
        );
        for place in 0..3 {
            let others = numbers(message("indices")[place].as_u64().unwrap() as usize);
            assert!((message("pearson")[place].as_f64().unwrap() - pearson(&others)).abs() < 1e-3, "{kind}");
            assert!((message("l1")[place].as_f64().unwrap() - cosine(&others)).abs() < 1e-3, "{kind}");
        }
    }
    let direction: Vec<f32> = sae.direction(153).unwrap().to_data().iter().collect();
    let first = lines[1]["neuron_alignment_indices"][0].as_u64().unwrap() as usize;
    let sum: f32 = direction.iter().map(|x| x.abs()).sum();
    let share = lines[1]["neuron_alignment_l1"][0].as_f64().unwrap() as f32;
    assert!(direction.iter().all(|x| x.abs() <= direction[first].abs()));
    assert!((share - direction[first].abs() / sum).abs() < 1e-5);
}

/// For a dictionary of head outputs, Neuronpedia gets the source positions of an activation: summed over all of them,
/// it is the pre-activation minus the bias.
#[test]
fn activations_of_heads_are_told_by_where_they_come_from() {
    let (model, _, prompts) = setting();
    Device::flex().seed(2);
    let random =
        |shape: [usize; 2]| Tensor::<2>::random(shape, burn::tensor::Distribution::Normal(0.0, 0.5), &Device::flex());
    let weights = DictionaryWeights {
        encoder: random([64, 12]),
        encoder_bias: random([1, 12]).reshape([12]),
        decoder: random([12, 64]),
        decoder_bias: Tensor::zeros([64], &Device::flex()),
        skip: None,
    };
    let sae = Dictionary::new("heads", weights).unwrap().with_metadata(Metadata::at("blocks.1.attn.hook_z"));
    let options = DashboardOptions::new().window(40, 40).exclude_tokens([0]);
    let all = dashboards(&model, Units::latents(&sae).unwrap(), &prompts[..4], options, |_| {}).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latents.jsonl");
    all.save([5], &path).unwrap();
    let message: Value = serde_json::from_str(std::fs::read_to_string(&path).unwrap().lines().next().unwrap()).unwrap();
    let by_head = message["decoder_weights_dist"].as_array().unwrap();
    assert_eq!(by_head.len(), 4);
    assert!((by_head.iter().filter_map(Value::as_f64).sum::<f64>() - 1.0).abs() < 1e-5);
    let bias: Vec<f32> = sae.weights().unwrap().encoder_bias.to_data().iter().collect();
    let activations = message["activations"].as_array().unwrap();
    assert!(activations.len() > 4);
    for one in activations {
        let numbers = |key: &str| one[key].as_array().unwrap().iter().filter_map(Value::as_f64).collect::<Vec<_>>();
        let (sources, place) = (numbers("dfa_values"), one["dfa_targetIndex"].as_u64().unwrap() as usize);
        let given = sources.iter().sum::<f64>() + f64::from(bias[5]);
        assert!((given - numbers("values")[place]).abs() < 1e-3, "{given} for {:?}", numbers("values")[place]);
        let most = sources.iter().copied().fold(f64::MIN, f64::max);
        assert_eq!(one["dfa_maxValue"].as_f64().unwrap(), most);
        assert!(sources[place + 1..].iter().all(|x| *x == 0.0));
    }
}

/// Tokens and queries with HTML are shown as text, in the page and in JSON.
#[test]
fn prompts_that_contain_html_are_text() {
    const HOSTILE: [&str; 4] = ["</script><img src=x onerror=alert(1)>", "<!--<script>", "<b>", "&lt;"];
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(crate::support::fixtures().join("gpt2")).unwrap().map(|entry| entry.unwrap().path())
    {
        std::fs::copy(&entry, folder.path().join(entry.file_name().unwrap())).unwrap();
    }
    let vocab: serde_json::Map<String, Value> = (0..50)
        .map(|id| (HOSTILE.get(id).map_or(format!("w{id}"), |text| text.to_string()), Value::from(id)))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w9"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    let prompts = [vec![0u32, 1, 2, 3, 9], vec![2, 0, 10, 1]];
    let options = DashboardOptions::new().query("<b> </script><script>alert(2)</script>");
    let all = dashboards(&model, Units::neurons(0), &prompts, options, |_| {}).unwrap();
    let shown_page = page(&all, &[0, 1]);
    let harmless = [vec![12u32, 13, 14]];
    let plain = dashboards(&model, Units::neurons(0), &harmless, DashboardOptions::new(), |_| {}).unwrap();
    let scripts = |page: &str| (page.matches("<script").count(), page.matches("</script").count());
    assert_eq!(scripts(&shown_page), scripts(&page(&plain, &[0, 1])));
    assert!(!shown_page.contains("<img") && !shown_page.contains("<!--<"));
    let shown = data(&shown_page);
    let strings: Vec<&str> = shown["strings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(HOSTILE.iter().all(|text| strings.contains(text)), "{strings:?}");
    assert_eq!(shown["query"]["text"], "<b> </script><script>alert(2)</script>");
    let path = folder.path().join("neurons.jsonl");
    all.save([0], &path).unwrap();
    let message: Value = serde_json::from_str(std::fs::read_to_string(&path).unwrap().trim()).unwrap();
    let tokens = message["activations"][0]["tokens"].as_array().unwrap();
    assert!(tokens.iter().any(|token| HOSTILE.contains(&token.as_str().unwrap())), "{tokens:?}");
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
        assert_eq!(all.density().len(), count);
        let page = data(&page(&all, &[1]));
        assert!(page["latents"][0]["groups"][0]["examples"].as_array().is_some_and(|all| !all.is_empty()));
    }
    // Values may have either sign. Neurons count as active above zero, and heads and directions above half of their
    // maximum.
    let point = hook::mlp_post(1);
    let record = |prompt: &Vec<u32>| model.record(vec![prompt.clone()], &point).unwrap().get(&point).unwrap();
    let numbers: Vec<f32> =
        prompts[..3].iter().flat_map(|prompt| record(prompt).to_data().iter::<f32>().collect::<Vec<_>>()).collect();
    let all = dashboards(&model, Units::neurons(1), &prompts[..3], DashboardOptions::new().largest(2), |_| {}).unwrap();
    let density = all.density();
    for neuron in [0, 1, 17, 100, 255] {
        let own: Vec<f32> = numbers.chunks_exact(256).map(|row| row[neuron]).collect();
        let positive = own.iter().filter(|x| **x > 0.0).count();
        assert!((density[neuron] - positive as f64 / own.len() as f64).abs() < 1.5 / own.len() as f64, "{neuron}");
        let shown = data(&page(&all, &[neuron]));
        assert_eq!(shown["active"], "above zero");
        let histogram = &shown["latents"][0]["histogram"];
        let (from, to) = (histogram["from"].as_f64().unwrap() as f32, histogram["to"].as_f64().unwrap() as f32);
        let (low, high) = own.iter().fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
        assert!(from <= low + 1e-5 && to >= high - 1e-5 && (from < 0.0) == (low < 0.0), "{from} {low} {high} {to}");
        let counts: Vec<u64> = histogram["counts"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        assert_eq!(counts.iter().sum::<u64>() as usize, own.len());
        // The smallest activations are shown along with the largest, and every example of an interval lies within it.
        let groups = shown["latents"][0]["groups"].as_array().unwrap();
        let titles: Vec<&str> = groups.iter().filter_map(|group| group["title"].as_str()).collect();
        assert_eq!(titles.contains(&"smallest activations"), low < 0.0, "{titles:?}");
        for group in groups.iter().filter(|group| !group["low"].is_null()) {
            let bound = |key: &str| group[key].as_f64().unwrap() as f32;
            for example in group["examples"].as_array().unwrap() {
                let at = (example["at"].as_u64().unwrap() - example["first"].as_u64().unwrap()) as usize;
                let value = example["acts"][at].as_f64().unwrap() as f32;
                assert!(value >= bound("low") - 1e-4 && value <= bound("high") + 1e-4, "{group}");
            }
        }
    }
    let point = hook::resid_post(1);
    let stream = |prompt: &Vec<u32>| model.record(vec![prompt.clone()], &point).unwrap().get(&point).unwrap();
    let along: Tensor<2> = stream(&prompts[0]).narrow(1, 5, 1).reshape([1, 64]);
    let both = Tensor::cat(vec![along.clone(), along.zeros_like()], 0);
    let units = Units::directions(point.name(), both);
    let all = dashboards(&model, units, &prompts[..3], DashboardOptions::new(), |_| {}).unwrap();
    let products = |prompt: &Vec<u32>| -> Vec<f32> {
        (stream(prompt) * along.clone().unsqueeze::<3>()).sum_dim(2).to_data().iter().collect()
    };
    let products: Vec<f32> = prompts[..3].iter().flat_map(products).collect();
    let most = products.iter().copied().fold(0f32, f32::max);
    let active = products.iter().filter(|x| **x >= most / 2.0).count() as f64;
    // Counts are exact except for values in the bin that contains half of the maximum.
    let near = products.iter().filter(|x| (**x - most / 2.0).abs() < most / 25.0).count() as f64;
    let density = all.density();
    assert!((density[0] * products.len() as f64 - active).abs() <= near + 1e-6, "{} {active} {near}", density[0]);
    assert!(density[1] == 0.0 && all.by_density() == [0]);
    let wide = Tensor::<2>::ones([2, 65], &Device::flex());
    let error = dashboards(&model, Units::directions("resid_post1", wide), &prompts, DashboardOptions::new(), |_| {});
    let message = hooklens::error_chain(&error.unwrap_err());
    assert!(message.contains("has width 64; expected 65"), "{message}");
}

#[test]
fn latents_are_found() {
    let (model, sae, _) = setting();
    let text = "When Mary and John went to the store, John gave a drink to";
    let prompt = model.to_tokens(text).unwrap().row(0).to_vec();
    let (mary, john) = (model.to_single_token("Mary").unwrap(), model.to_single_token("John").unwrap());
    let found = latents_by_attribution(&model, &sae, &prompt, mary, Some(john)).unwrap();
    // Ablation confirms the found latent: without it, Mary is less likely.
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
        let [message, warned] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), message, warned)
    };
    let sae = ["--dictionary", "embedded:ioi-sae", "--prompts", "prompts.txt"];
    let show = |more: &[&str]| run(&[&["show"], more].concat());
    let (code, message, warned) = show(&[&sae[..], &["--latents", "1,5", "--out", "page.html"]].concat());
    assert!(code == Some(0) && message.contains("2 shown"), "{message}{warned}");
    assert!(std::fs::read_to_string(folder.path().join("page.html")).unwrap().starts_with("<!"), "page");
    let wrong = [
        (show(&[&sae[..], &["--out", "page.pdf"]].concat()), "must end in .html or .jsonl"),
        (show(&[&sae[..], &["--latents", "900", "--out", "p.html"]].concat()), "has no latent 900"),
        (show(&["--prompts", "prompts.txt", "--out", "p.html"]), "or --more, is required"),
        (show(&["--neurons", "9", "--prompts", "prompts.txt", "--out", "p.html"]), "layer"),
        (
            run(&["find", "--dictionary", "embedded:none", "--prompt", "Mary"]),
            "expected a file, a folder, or embedded:ioi-sae",
        ),
        (run(&["find", "--prompt", "Mary"]), "exactly one --dictionary"),
    ];
    for ((code, _, warned), expected) in wrong {
        assert!(code != Some(0) && warned.contains(expected), "{expected}: {warned}");
    }
    // Directions from a file, and the difference between two files of prompts.
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let ones = format!("{:?}", vec![1; 64]);
    write("one.json", &ones);
    write("two.json", &format!("[{ones}, {ones}]"));
    write("odd.json", "[[1, 2], [1]]");
    write("mary.txt", "When Mary\nWhen John and Mary\n");
    write("john.txt", "When John\nWhen Mary and John\n");
    let at = ["--at", "blocks.1.hook_resid_post", "--prompts", "prompts.txt", "--out"];
    for (given, count) in [
        (&["--direction", "one.json"][..], "of 1 active"),
        (&["--direction", "two.json"], "of 2 active"),
        (&["--more", "mary.txt", "--less", "john.txt"], "of 1 active"),
    ] {
        let (code, message, warned) = show(&[given, &at[..], &["d.html"]].concat());
        assert!(code == Some(0) && message.contains(count), "{given:?}: {message}{warned}");
    }
    let page = data(&std::fs::read_to_string(folder.path().join("d.html")).unwrap());
    assert_eq!((page["unit"].as_str(), page["point"].as_str()), (Some("direction"), Some("blocks.1.hook_resid_post")));
    let tensors = [("probe", Activation::from(Tensor::<1>::ones([64], &Device::flex())))];
    let tensors = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor));
    hooklens::write_safetensors(&folder.path().join("probe.safetensors"), tensors, Default::default()).unwrap();
    let (code, _, warned) = show(&[&["--direction", "probe.safetensors"], &at[..], &["d.html"]].concat());
    assert_eq!(code, Some(0), "{warned}");
    let page = data(&std::fs::read_to_string(folder.path().join("d.html")).unwrap());
    assert_eq!(page["list"]["label"][0], "probe");
    let wrong = [
        (show(&[&["--direction", "odd.json"], &at[..], &["d.html"]].concat()), "the same width for all"),
        (show(&["--direction", "one.json", "--prompts", "prompts.txt", "--out", "d.html"]), "--at"),
        (
            show(&["--direction", "one.json", "--at", "hook_embd", "--prompts", "prompts.txt", "--out", "d.html"]),
            "hook_embed",
        ),
        (show(&["--at", "hook_embed", "--prompts", "prompts.txt", "--out", "d.html"]), "or --more, is required"),
    ];
    for ((code, _, warned), expected) in wrong {
        assert!(code != Some(0) && warned.contains(expected), "{expected}: {warned}");
    }
    let text = "When Mary and John went to the store, John gave a drink to";
    let given = ["find", "--dictionary", "embedded:ioi-sae", "--prompt", text, "--answer", "Mary", "--wrong", "John"];
    let (code, message, _) = run(&[&given[..], &["--json", "--top", "3"]].concat());
    let found: Value = serde_json::from_str(&message).unwrap();
    assert!(
        code == Some(0) && found["latents"].as_array().unwrap().len() == 3 && found["latents"][0]["position"] == 14,
        "{message}"
    );
}
