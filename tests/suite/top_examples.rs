//! Top examples equal those found by sorting all recorded values.

use hooklens::experiments::{FoundExamples, ioi_prompts};
use hooklens::prelude::*;
use hooklens::{Error, InputError};
use ndarray::{ArrayD, Axis as Dim};
use proptest::prelude::*;

use crate::support::{any_config, any_row, cases, device, random_model};
use hooklens_model::config::Layers;

/// `(text, position, value)` of all positions, text by text, each run alone.
fn all_values(
    model: &HookedTransformer,
    point: &str,
    rows: &[Vec<u32>],
    number: impl Fn(ArrayD<f32>) -> f32,
) -> Vec<(usize, usize, f32)> {
    let mut all = Vec::new();
    for (text, row) in rows.iter().enumerate() {
        let recorded = model.record(row, point).unwrap().activation(point).unwrap().to_ndarray().unwrap();
        let by_position = if recorded.ndim() == 2 { recorded } else { recorded.index_axis_move(Dim(0), 0) };
        for (position, at) in by_position.outer_iter().enumerate() {
            all.push((text, position, number(at.to_owned())));
        }
    }
    all
}

/// The largest values; among equal ones, the first.
fn largest(mut all: Vec<(usize, usize, f32)>, k: usize) -> Vec<(usize, usize, f32)> {
    all.sort_by(|a, b| b.2.total_cmp(&a.2)); // stable for equal values
    all.truncate(k);
    all
}

fn places(found: &FoundExamples) -> Vec<(usize, usize, f32)> {
    found.examples.iter().map(|one| (one.text, one.position, one.value)).collect()
}

#[track_caller]
fn assert_near(found: &[(usize, usize, f32)], due: &[(usize, usize, f32)], all: &[(usize, usize, f32)]) {
    assert_eq!(found.len(), due.len());
    let size = all.iter().map(|one| one.2.abs()).fold(1e-3, f32::max);
    for (number, (one, other)) in found.iter().zip(due).enumerate() {
        assert!((one.2 - other.2).abs() <= 1e-4 * size, "number {number}: {one:?}, not {other:?}");
        // A different order is due to rounding between equal values.
        let own = all.iter().find(|at| (at.0, at.1) == (one.0, one.1)).unwrap();
        assert!((own.2 - one.2).abs() <= 1e-4 * size, "number {number}: {one:?} is {own:?}");
    }
    let mut once: Vec<(usize, usize)> = found.iter().map(|one| (one.0, one.1)).collect();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), found.len(), "each place once");
}

proptest! {
    #![proptest_config(cases(12))]

    /// A neuron of the stream, a coordinate of a head, a direction, a norm: the results equal brute force, with batches
    /// of any size.
    #[test]
    fn found_is_what_brute_force_finds(
        config in any_config(), seed in 0..1000u64,
        rows in prop::collection::vec(any_row(1..7), 1..7),
        k in 1..30usize, batch in 1..5usize, head in 0..3usize, at in 0..8usize,
    ) {
        let in_head = at % config.d_value_of(0);
        let model = random_model(config, seed);
        let direction: Vec<f32> = (0..16).map(|n| ((n * 7 + seed as usize) % 5) as f32 - 2.0).collect();
        let vector = Tensor::<1>::from_floats(direction.as_slice(), &device());
        let stream = "blocks.1.hook_resid_post";
        let asked = |asked: TopExamples| places(&asked.k(k).batch_size(batch).run(&model, rows.clone()).unwrap());

        let all = all_values(&model, stream, &rows, |v| v[[at]]);
        assert_near(&asked(TopExamples::new(stream).neuron(at)), &largest(all.clone(), k), &all);
        let all = all_values(&model, stream, &rows, |v| v.iter().zip(&direction).map(|(a, b)| a * b).sum());
        assert_near(&asked(TopExamples::new(("resid_post", -1)).direction(vector)), &largest(all.clone(), k), &all);
        let all = all_values(&model, "blocks.0.attn.hook_z", &rows, |v| v[[head, in_head]]);
        assert_near(&asked(TopExamples::new(hook::z(0)).head(head).neuron(in_head)), &largest(all.clone(), k), &all);
        let norm = |v: ArrayD<f32>| v.index_axis(Dim(0), head).iter().map(|x| x * x).sum::<f32>().sqrt();
        let all = all_values(&model, "blocks.0.attn.hook_result", &rows, norm);
        assert_near(&asked(TopExamples::new(hook::result(0)).head(head).norm()), &largest(all.clone(), k), &all);
    }
}

fn ioi() -> (HookedTransformer, Vec<String>) {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let mut texts: Vec<String> = ioi_prompts(30, 3).into_iter().map(|prompt| prompt.text).collect();
    // Texts of many lengths.
    for (number, text) in texts.iter_mut().enumerate() {
        let words: Vec<&str> = text.split(' ').collect();
        *text = words[..2 + number % (words.len() - 2)].join(" ");
    }
    (model, texts)
}

#[test]
fn batches_change_nothing_but_rounding() {
    let (model, texts) = ioi();
    let asked = || TopExamples::new(hook::mlp_post(2)).neuron(5).k(25).exclude_bos();
    let one_by_one = asked().batch_size(1).run(&model, &texts).unwrap();
    for batch in [2, 7, 30, 1000] {
        let together = asked().batch_size(batch).run(&model, &texts).unwrap();
        assert_eq!(together.searched, one_by_one.searched);
        for (one, other) in one_by_one.examples.iter().zip(&together.examples) {
            assert!((one.value - other.value).abs() < 1e-4, "{one:?} {other:?}");
        }
    }
    // Texts may be anything that can be run, from any iterator.
    let rows: Vec<Vec<u32>> = texts.iter().map(|text| model.to_tokens(text).unwrap().row(0).to_vec()).collect();
    let streamed = texts.iter().map(String::as_str);
    assert_eq!(asked().run(&model, streamed).unwrap(), asked().run(&model, rows).unwrap());
    // A batch of tokens counts as several texts, without their padding.
    let padded = model.to_tokens(&texts).unwrap();
    assert!(padded.mask().is_some());
    assert_eq!(asked().run(&model, [padded]).unwrap(), asked().run(&model, &texts).unwrap());
}

#[test]
fn tokens_around_are_those_of_the_text_each_with_its_value() {
    let (model, texts) = ioi();
    for window in [0, 1, 3, 100, usize::MAX] {
        let found = TopExamples::new("mlp_post1").neuron(9).k(40).window(window).run(&model, &texts).unwrap();
        for one in &found.examples {
            let (text, position) = (&texts[one.text], one.position);
            let words = model.to_str_tokens(text).unwrap();
            let places =
                position.saturating_sub(window)..words.len().min(position.saturating_add(window).saturating_add(1));
            let expected: Vec<(usize, &str)> = places.clone().map(|place| (place, words[place].as_str())).collect();
            assert_eq!(
                one.context.iter().map(|(place, token, _)| (*place, token.as_str())).collect::<Vec<_>>(),
                expected
            );
            assert_eq!(one.token, words[position]);
            assert!(one.context.iter().any(|(place, _, value)| (*place, *value) == (position, one.value)));
            assert_eq!(one.id, model.to_tokens(text).unwrap().row(0)[position]);
            let recorded = model.record(text, hook::mlp_post(1)).unwrap().get(hook::mlp_post(1)).unwrap();
            let own = recorded.narrow(2, 9, 1).to_vec().unwrap();
            assert!(one.context.iter().all(|(place, _, value)| (own[*place] - value).abs() < 1e-4));
        }
    }
}

#[test]
fn of_equal_ones_the_first_and_one_a_text_if_asked() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    // The same text repeatedly: every value occurs five times, and the first texts are kept.
    let texts = ["king drum sun king"; 5];
    let asked = || TopExamples::new("resid_post0").neuron(3).batch_size(5);
    let once = asked().k(1).run(&model, &texts[..1]).unwrap();
    let found = asked().k(3).run(&model, texts).unwrap();
    let position = once.examples[0].position;
    assert_eq!(
        found.examples.iter().map(|one| (one.text, one.position)).collect::<Vec<_>>(),
        [0, 1, 2].map(|t| (t, position))
    );
    // By default, several examples may come from one text. On request, only the largest of each text is kept.
    let other = ["king drum sun king", "red fox tea red"];
    let all = asked().run(&model, other).unwrap();
    assert_eq!((all.examples.len(), all.searched), (10, [2, 10]));
    let one_each = asked().one_per_text().run(&model, other).unwrap();
    let mut texts: Vec<usize> = one_each.examples.iter().map(|one| one.text).collect();
    texts.sort_unstable();
    assert_eq!(texts, [0, 1]);
    for one in &one_each.examples {
        assert_eq!(all.examples.iter().find(|other| other.text == one.text), Some(one));
    }
    // With the first token excluded.
    let without = asked().exclude_bos().run(&model, other).unwrap();
    assert_eq!(without.examples.len(), 8);
    assert!(without.examples.iter().all(|one| one.position > 0 && one.token != "<bos>"));
    assert!(
        without
            .examples
            .iter()
            .any(|one| one.context.iter().any(|(place, token, _)| (*place, token.as_str()) == (0, "<bos>"))),
        "but it is shown"
    );
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    let (model, _) = ioi();
    let text = ["When Mary and John"];
    let message = |asked: TopExamples| asked.run(&model, text).unwrap_err().to_string();
    assert!(message(TopExamples::new("blocks.2.mlp.hook_pst").neuron(5)).contains("blocks.2.mlp.hook_post"));
    assert!(message(TopExamples::new("*hook_resid_post").neuron(5)).contains("names 4 points; expected exactly one"));
    assert_eq!(
        message(TopExamples::new(hook::resid_post(1)).neuron(64)),
        "`neuron` is 64; expected 0 to 63: `blocks.1.hook_resid_post` [batch, pos, d_model] is 64 wide"
    );
    assert_eq!(
        message(TopExamples::new(hook::z(1)).neuron(0)),
        "`head` is not chosen; expected a head of `blocks.1.attn.hook_z` [batch, pos, head, d_head]"
    );
    assert_eq!(
        message(TopExamples::new(hook::z(1)).head(4).neuron(0)),
        "`head` is 4; expected 0 to 3: `blocks.1.attn.hook_z` [batch, pos, head, d_head] has 4 heads"
    );
    assert_eq!(
        message(TopExamples::new("mlp_post0").head(1).neuron(0)),
        "`head` is 1; expected no head: `blocks.0.mlp.hook_post` [batch, pos, d_mlp] has no heads"
    );
    assert!(
        message(TopExamples::new("mlp_post0"))
            .starts_with("`neuron` is not chosen; expected an index on the last axis of")
    );
    let direction = Tensor::ones([3], &device());
    assert_eq!(
        message(TopExamples::new("mlp_post0").direction(direction)),
        "the direction is [3]; expected [256], as wide as `blocks.0.mlp.hook_post` [batch, pos, d_mlp]"
    );
    assert_eq!(
        message(TopExamples::new("pattern0").neuron(0)),
        "`point` is `blocks.0.attn.hook_pattern` [batch, head, query, key]; expected a point with axes \
         [batch, pos, d] or [batch, pos, head, d]"
    );
    assert_eq!(
        message(TopExamples::new("hook_tokens").neuron(0)),
        "`hook_tokens` holds integers, but floats were requested"
    );
    assert_eq!(message(TopExamples::new("mlp_post0").neuron(0).k(0)), "`k` is 0; expected 1 or more");
    let asked = TopExamples::new("mlp_post0").neuron(0);
    let none: [&str; 0] = [];
    assert_eq!(
        asked.run(&model, none).unwrap_err().to_string(),
        "the list of texts is empty; there is nothing to run on"
    );
    // The error names the text, however many came before it, in whatever batch.
    for batch in [1, 2, 8] {
        let asked = asked.clone().batch_size(batch);
        let error = asked.run(&model, ["When", "Mary", "", "John"]).unwrap_err();
        assert!(matches!(&error, Error::Input(InputError::Text { number: 2, .. })), "{error:?}");
        let said = hooklens::error_chain(&error);
        assert_eq!(said, "text 2, counted from 0: the text \"\" is empty; there is nothing to run on");
        let message = asked.run(&model, vec![vec![0u32, 1], vec![], vec![0]]).unwrap_err();
        let message = hooklens::error_chain(&message);
        assert!(message.starts_with("text 1, counted from 0: "), "{message}");
        let message = asked.run(&model, vec![vec![0u32], vec![0, 99]]).unwrap_err();
        let message = hooklens::error_chain(&message);
        assert!(message.starts_with("text 1, counted from 0: ") && message.contains("vocabulary of 61"), "{message}");
        let message = asked.run(&model, vec![vec![0u32], vec![1; 1000]]).unwrap_err();
        let message = hooklens::error_chain(&message);
        assert!(message.starts_with("text 1, counted from 0: the input has 1000 positions"), "{message}");
    }
}

#[test]
fn experts_and_models_without_texts_can_be_looked_at() {
    let mixture =
        TransformerConfig::new(1, 16, 2, 20, 32).with_gated_mlp(true).with_mixture(hooklens_model::config::Experts {
            renormalize: false,
            ..hooklens_model::config::Experts::new(3, 1)
        });
    let model = random_model(mixture, 1);
    let rows = [vec![1, 2, 3, 4], vec![5, 6]];
    let point = "blocks.0.mlp.hook_expert_weights";
    let found = TopExamples::new(point).neuron(2).k(4).run(&model, rows.clone()).unwrap();
    let all = all_values(&model, point, &rows, |v| v[[2]]);
    assert_near(&places(&found), &largest(all.clone(), 4), &all);
    // Without a tokenizer, tokens are shown by id.
    assert!(found.examples.iter().all(|one| one.token == one.id.to_string() && one.id == rows[one.text][one.position]));
    let message = TopExamples::new(point).neuron(0).run(&model, ["text"]).unwrap_err();
    let message = hooklens::error_chain(&message);
    assert!(message.contains("no tokenizer"), "{message}");
    // A trained direction, on a device with autodiff.
    let direction = Tensor::<1>::ones([16], &device().autodiff()).require_grad();
    let by_sum = TopExamples::new("resid_post0").direction(direction).run(&model, rows.clone()).unwrap();
    let all = all_values(&model, "blocks.0.hook_resid_post", &rows, |v| v.sum());
    assert_near(&places(&by_sum), &largest(all.clone(), 10), &all);
}

#[test]
fn found_examples_show_themselves() {
    let (model, texts) = ioi();
    let found = TopExamples::new("mlp_post2").neuron(5).k(3).window(2).run(&model, &texts).unwrap();
    let message = found.to_string();
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].starts_with("blocks.2.mlp.hook_post, neuron 5: the 3 largest of "), "{message}");
    assert!(lines[0].ends_with(" tokens in 30 texts") && lines.len() == 4, "{message}");
    for (line, one) in lines[1..].iter().zip(&found.examples) {
        assert!(
            line.contains(&format!("[{}]", one.token))
                && line.contains(&format!("text {}, position {}", one.text, one.position))
        );
    }
    let shown = found.shown().unwrap();
    assert_eq!(
        (shown[0].mime, shown[0].content.as_str(), shown[1].mime),
        ("text/plain", message.as_str(), "text/html")
    );
    let html = &shown[1].content;
    assert!(html.contains("hooklens-text") && html.matches("<details open>").count() == 3, "{html}");
    let tokens: usize = found.examples.iter().map(|one| one.context.len()).sum();
    assert_eq!(html.matches("<span title=").count(), tokens);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("neuron.html");
    ColoredText::of(&found).unwrap().save(&path).unwrap();
    assert!(std::fs::read_to_string(path).unwrap().starts_with("<!doctype html>"));
}
