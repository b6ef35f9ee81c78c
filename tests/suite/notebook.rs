//! Display of values in notebooks.

use std::process::{Command, Stdio};

use hooklens::patching::{Metric, Patching};
use hooklens::plot::{
    AttentionPatterns, ColoredText, Heatmap, LensShade, LensTable, Line, LinePlot, PatternGrid, Shown,
};
use hooklens::prelude::*;
use hooklens::{LabeledArray, LabeledAxis};
use hooklens_plot::LensCells;
use ndarray::{ArrayD, Axis};

use crate::support::device;

/// What a notebook shows of a value, as HTML.
pub(crate) fn html(shown: &impl Show) -> String {
    let shown = shown.shown().unwrap();
    shown.into_iter().find(|form| form.mime == "text/html").unwrap().content
}

fn embedded(name: &str) -> HookedTransformer {
    HookedTransformer::from_pretrained(format!("embedded:{name}")).unwrap()
}

fn form(shown: &[Shown], mime: &str) -> String {
    shown.iter().find(|form| form.mime == mime).unwrap_or_else(|| panic!("no {mime} in {shown:?}")).content.clone()
}

#[test]
fn tensors_show_shape_statistics_and_colors() {
    let tensor = Tensor::<3>::from_floats([[[1.0, -2.0, 0.5], [0.0, 4.0, 1.0]]], &device());
    let shown = tensor.shown().unwrap();
    assert_eq!(
        form(&shown, "text/plain"),
        "[1, 2, 3] f32: min -2.00, mean 0.75, max 4.00, std 1.77\n[1.00, -2.00, 0.50, 0, 4.00, 1.00]"
    );
    let html = form(&shown, "text/html");
    assert!(html.contains("data:image/png;base64,iVBOR") && html.contains("[0]</figcaption>"), "{html}");
    // A single number is printed without a picture.
    let one = form(&Tensor::<1>::from_floats([2.5], &device()).shown().unwrap(), "text/html");
    assert!(one.contains("2.50") && !one.contains("<img"));
    // Values that are not finite are counted, not averaged.
    let odd = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, 1.0, 1.0], &device()).shown().unwrap();
    assert!(form(&odd, "text/plain").contains("min 1.00, mean 1.00, max 1.00, std 0, 1 NaN, 1 infinite"));
    let none = Tensor::<1>::from_floats([f32::NAN, f32::NAN], &device()).shown().unwrap();
    assert!(form(&none, "text/plain").contains("no finite values, 2 NaN"));
    // Empty tensors, integers, many matrices, large matrices.
    let empty = Tensor::<2>::zeros([0, 3], &device()).shown().unwrap();
    assert_eq!(form(&empty, "text/plain"), "[0, 3] f32");
    let ids = Tensor::<2, Int>::from_ints([[3, 1]], &device());
    assert!(form(&ids.shown().unwrap(), "text/plain").contains("min 1.00, mean 2.00, max 3.00"));
    let many = Tensor::<4>::ones([2, 12, 300, 300], &device()).shown().unwrap();
    let html = form(&many, "text/html");
    assert!(html.contains("8 of 24 matrices") && html.contains("[0, 7]") && html.len() < 20_000, "{}", html.len());
}

#[test]
fn caches_and_models_are_tables() {
    let model = embedded("induction");
    let (_, cache) = model.run_with_cache("king drum sun", "*hook_{pattern,z}").unwrap();
    let shown = cache.shown().unwrap();
    let text = form(&shown, "text/plain");
    assert!(text.starts_with("ActivationCache of 4 points, ") && text.ends_with("kB"), "{text}");
    let one = model.record("king drum sun", "blocks.0.hook_resid_pre").unwrap().shown().unwrap();
    assert!(form(&one, "text/plain").starts_with("ActivationCache of 1 point, "));
    let html = form(&shown, "text/html");
    for part in ["blocks.1.attn.hook_pattern", "batch, head, query, key", "[1, 4, 4, 4]", "f32"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    let mut prefix = model.prefill("king drum sun").unwrap();
    prefix.freeze();
    let text = form(&prefix.shown().unwrap(), "text/plain");
    assert!(text.starts_with("KeyValueCache, growing: 1 row of 4 positions in 2 layers, "), "{text}");
    assert!(text.ends_with(", frozen"));
    assert!(form(&prefix.shown().unwrap(), "text/html").contains("0..4"));
    let html = form(&model.shown().unwrap(), "text/html");
    assert!(html.contains("d_model") && html.contains("parameters") && html.contains("37"), "{html}");
}

#[test]
fn pictures_show_themselves() {
    let model = embedded("ioi");
    let (clean, corrupted) = (
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
    );
    let metric = Metric::logit_diff(&model, "Mary", "John").unwrap();
    let found = Patching::new(&model, clean, corrupted, metric).unwrap().resid_pre().unwrap();
    assert!(form(&found.shown().unwrap(), "image/svg+xml").contains("<svg"));
    let patterns = AttentionPatterns::run(&model, clean, &[]).unwrap();
    assert!(form(&patterns.shown().unwrap(), "text/html").contains("hooklens-attention"));
    // A picture too large for SVG in a notebook is shown as a bitmap.
    let svg = PatternGrid::of(&patterns).unwrap();
    let kind = svg.shown().unwrap()[1].mime;
    assert_eq!(kind, if svg.to_svg().unwrap().len() > 400_000 { "image/png" } else { "image/svg+xml" });
    let labeled = |shape: &[usize]| {
        let axes = shape.iter().enumerate().map(|(at, len)| LabeledAxis::numbered(format!("a{at}"), *len));
        LabeledArray::new(axes.collect::<Vec<_>>(), ArrayD::ones(shape)).unwrap()
    };
    assert!(form(&Heatmap::of(&labeled(&[300, 300])).unwrap().shown().unwrap(), "image/png").starts_with("iVBOR"));
    assert!(form(&labeled(&[4]).shown().unwrap(), "image/svg+xml").contains("<svg"));
    let message = labeled(&[2, 2, 2, 2, 2]).shown().unwrap_err().to_string();
    assert!(message.contains("two axes") && message.contains("a0, a1, a2, a3, a4"), "{message}");
    let lines = LinePlot::new("step", "loss", [Line::new("train", [(0.0, 1.0), (1.0, 0.5)])]).unwrap();
    assert!(form(&lines.shown().unwrap(), "image/svg+xml").contains("loss"));
    let text = ColoredText::new(["a"]).row("loss", [1.0]).unwrap();
    assert!(form(&text.shown().unwrap(), "text/html").contains("hooklens-text"));
    assert!(form(&model.test_prompt(clean, "Mary", 2).unwrap().shown().unwrap(), "text/plain").contains("Mary"));
}

#[test]
fn evcxr_finds_the_forms_between_its_marks() {
    // In the child process this prints; in the parent, it reads the output as evcxr would.
    if std::env::var("HOOKLENS_TEST_DISPLAY").is_ok() {
        let text = ColoredText::new(["EVCXR_END_CONTENT", "\nEVCXR_END_CONTENT\n"]).row("x", [1.0, 2.0]).unwrap();
        text.evcxr_display();
        let array = LabeledArray::new([LabeledAxis::numbered("a", 0)], ArrayD::zeros(vec![0])).unwrap();
        array.evcxr_display();
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["once::notebook::evcxr_finds_the_forms_between_its_marks", "--exact", "--nocapture"])
        .env("HOOKLENS_TEST_DISPLAY", "1")
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    let mut forms = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in said.lines() {
        match (line.strip_prefix("EVCXR_BEGIN_CONTENT "), open.as_mut()) {
            (Some(mime), None) => open = Some((mime.into(), String::new())),
            (None, Some(_)) if line == "EVCXR_END_CONTENT" => forms.extend(open.take()),
            (None, Some((_, content))) => content.push_str(&format!("{line}\n")),
            (Some(_), Some(_)) => panic!("a form begins in another"),
            (None, None) => {}
        }
    }
    let mimes: Vec<&str> = forms.iter().map(|(mime, _)| mime.as_str()).collect();
    assert_eq!(mimes, ["text/plain", "text/html", "text/plain"], "{said}");
    assert!(forms[1].1.trim_end().ends_with("</div>"), "the page is whole");
    assert!(forms[2].1.starts_with("cannot be displayed: there is nothing to draw"), "{}", forms[2].1);
}

#[test]
fn a_lens_table_says_what_each_stage_would_say() {
    let model = embedded("ioi");
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let table = LensTable::run(&model, prompt, LensShade::Probability).unwrap();
    let shape = table.shades().values().shape().to_vec();
    assert_eq!(shape, [model.config().n_layers() + 1, model.to_tokens(prompt).unwrap().shape()[1]]);
    // The last stage is the model's output, and the colors are its probability.
    let report = model.test_prompt(prompt, "Mary", 1).unwrap();
    let (text, _, share) = &report.answer[0].top[0];
    assert_eq!(table.texts()[shape[0] - 1][shape[1] - 1].trim(), text.trim());
    assert!((table.shades().values()[[shape[0] - 1, shape[1] - 1]] - f64::from(*share)).abs() < 1e-5);
    let entropy = LensTable::run(&model, prompt, LensShade::Entropy).unwrap();
    let mary = model.to_single_token("Mary").unwrap();
    let of_mary = LensTable::run(&model, prompt, LensShade::ProbabilityOf(mary)).unwrap();
    assert_eq!(
        of_mary.shades().values()[[shape[0] - 1, shape[1] - 1]],
        table.shades().values()[[shape[0] - 1, shape[1] - 1]]
    );
    let kl = LensTable::run(&model, prompt, LensShade::KlToFinal).unwrap();
    assert!(kl.shades().values().iter().all(|nats| *nats >= 0.0));
    assert!(
        kl.shades().values().index_axis(Axis(0), shape[0] - 1).iter().all(|nats| *nats < 1e-6),
        "nothing is far from itself"
    );
    assert!(
        entropy.shades().values().iter().all(|nats| *nats <= f64::from(model.config().d_vocab() as u32).ln() + 1e-4)
    );

    let html = html(&table.clone().title("<i>"));
    assert!(html.contains("&lt;i&gt;") && html.contains("Mary") && html.matches("<td").count() == shape[0] * shape[1]);
    let last = table.clone().positions(-1).unwrap();
    assert_eq!(last.shades().axes()[1].labels, [format!("{} to", shape[1] - 1)]);
    assert!(last.to_svg().unwrap().contains("probability"));
    assert!(last.to_png(2).unwrap().starts_with(b"\x89PNG"));
    assert!(table.clone().positions(shape[1] as isize..).is_err());

    // Invalid input: a number of tokens that differs from the positions, a missing row, text that is too long.
    let cache = model.record(prompt, Record::all()).unwrap();
    let reading = model.analyze(&cache).unwrap().positions(-1).unwrap().logit_lens(Per::Layer).unwrap();
    let message = LensTable::of(&model, &reading, &[1, 2], 0, LensShade::Entropy).unwrap_err().to_string();
    assert_eq!(
        message,
        "the lens was read at 1 positions, but 2 tokens were given; give the tokens at those positions"
    );
    assert!(LensTable::of(&model, &reading, &[1], 1, LensShade::Entropy).is_err());
    assert!(LensTable::of(&model, &reading, &[1], 0, LensShade::ProbabilityOf(u32::MAX)).is_err());
}

#[test]
fn a_notebook_to_begin_with_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("first.ipynb");
    let ran = |arguments: &[&str]| {
        let output = crate::support::program().arg("notebook").args(arguments).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let name = file.to_str().unwrap();
    assert_eq!(ran(&[name, "--prompt", "a \"quote\"\n"]).0, 0);
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let code: Vec<String> = written["cells"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cell| cell["cell_type"] == "code")
        .map(|cell| cell["source"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect())
        .collect();
    assert!(
        code[0].starts_with(":dep hooklens = { path = ") && code[0].contains("default-features = false"),
        "{code:?}"
    );
    assert!(!code[0].contains("hub") && code[1].contains("embedded:induction"));
    assert!(code[2].contains(r#"to_tokens("a \"quote\"\n")"#), "{}", code[2]);
    let (status, said) = ran(&[name]);
    assert!(status == 1 && said.contains("--force"), "{said}");
    assert_eq!(ran(&[name, "--force", "--model", "gpt2"]).0, 0);
    assert!(std::fs::read_to_string(&file).unwrap().contains("hub"));
    assert_eq!(ran(&["first.txt"]).0, 2);
    assert_eq!(ran(&["/dev/null/first.ipynb"]).0, 1);
}
