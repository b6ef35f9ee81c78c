//! Attention pages and pictures: their contents, the inputs they reject, and safe handling of tokens.

use std::path::Path;

use hooklens::encoder::HookedEncoder;
use hooklens::plot::{AttentionPatterns, AttentionView, ColoredText, PatternGrid, PlotError};
use hooklens::prelude::*;
use hooklens::{PaddingSide, TokenizeOptions};
use hooklens_plot::{ShownHeads, check_attention_view};
use ndarray::{Array3, s};
use serde_json::Value;

use super::notebook::html;
use crate::support::{fixtures, program};

/// Tokens that would be dangerous, invisible or misrendered if written verbatim.
const HOSTILE: [&str; 8] = [
    "</script><img src=x onerror=alert(1)>",
    "\n",
    "\u{0}",
    "\"'`&",
    "<!--<script>",
    "\u{202e}\u{2028}",
    "\u{fffd}",
    " a\tb",
];

/// The page that a plot saves.
fn saved(save: impl FnOnce(&Path) -> Result<(), PlotError>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    save(&path).unwrap();
    std::fs::read_to_string(path).unwrap()
}

/// Causal patterns `[head, query, key]` with rows that sum to one.
fn causal(heads: usize, len: usize) -> Array3<f32> {
    let raw =
        Array3::from_shape_fn(
            (heads, len, len),
            |(h, q, k)| {
                if k > q { 0.0 } else { 1.0 + ((h * 7 + q * 3 + k * 5) % 11) as f32 }
            },
        );
    let sums = raw.sum_axis(ndarray::Axis(2)).insert_axis(ndarray::Axis(2));
    raw / sums
}

fn hostile(layers: usize) -> AttentionPatterns {
    AttentionPatterns::new(HOSTILE, (0..layers).map(|layer| (layer, causal(2, HOSTILE.len())))).unwrap()
}

/// Leading spaces are visible even if a tokenizer's decoder drops them: `▁king`, and `▁` alone.
#[test]
fn spaces_before_words_are_kept() {
    let named = std::env::var_os("HOOKLENS_TEST_MODELS").map(|root| Path::new(&root).join("stories260k"));
    let Some(folder) = named.filter(|folder| folder.is_dir()) else {
        eprintln!("NOT RUN: stories260k is not at hand (HOOKLENS_TEST_MODELS)");
        return;
    };
    let model = HookedTransformer::from_pretrained(folder.to_str().unwrap()).unwrap();
    let patterns = AttentionPatterns::run(&model, "Once upon a time, she went outside.", &[0]).unwrap();
    let joined = patterns.tokens().concat();
    assert_eq!(joined, "<s> Once upon a time, she went outside.");
}

/// The data that a page's script reads.
fn data(page: &str) -> Value {
    let (_, after) = page.split_once("<script type=\"application/json\">").unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let four = |four: &[u8]| {
        let bits =
            four.iter().fold(0u32, |bits, letter| bits << 6 | u32::from(digit(*letter))) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    text.chunks(4).flat_map(four).collect()
}

#[test]
fn no_token_leaves_its_place() {
    let patterns = hostile(1);
    let page = saved(|path| AttentionView::of(&patterns)?.title("<b>\"title\"</b> & more").save(path));
    // The page contains only its own scripts, and none from a token.
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains("<!--") && !page.contains("<b>"));
    assert!(page.contains("<title>&lt;b&gt;&quot;title&quot;&lt;/b&gt; &amp; more</title>"));
    assert!(!page.chars().any(|c| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2028}')));
    let tokens = &data(&page)["tokens"];
    assert_eq!(tokens[0], HOSTILE[0].replace(' ', "·"));
    let shown = ["↵", "‹U+0000›", "\"'`&", "<!--<script>", "‹U+202E›‹U+2028›", "\u{fffd}", "·a\\tb"];
    assert_eq!(tokens.as_array().unwrap()[1..], shown.map(Value::from));

    let text = saved(|path| ColoredText::new(HOSTILE).row("<i>", HOSTILE.map(|_| 1.0))?.title("<i>").save(path));
    assert!(!text.contains("<img") && !text.contains("<script") && !text.contains("<!--") && !text.contains("<i>"));
    assert!(text.contains("&lt;/script&gt;&lt;img·src=x·onerror=alert(1)&gt;</span>"));
    let svg = PatternGrid::of(&patterns).unwrap().to_svg().unwrap();
    assert!(!svg.contains("<script") && !svg.contains("<img") && !svg.contains('\u{0}'));
}

#[test]
fn a_page_shows_several_texts() {
    let [one, other] = [hostile(1), AttentionPatterns::new(["a", "b"], [(3, causal(5, 2))]).unwrap()];
    let page = saved(|path| AttentionView::of(&one)?.and(&other)?.title("two").save(path));
    assert_eq!(page.matches("<script").count(), 2);
    let data = data(&page);
    assert_eq!((data["tokens"].as_array().unwrap().len(), data["heads"].as_array().unwrap().len()), (8, 2));
    let [other] = &data["others"].as_array().unwrap()[..] else { panic!("{}", data["others"]) };
    assert_eq!(other["tokens"], Value::from(vec!["a", "b"]));
    let heads = other["heads"].as_array().unwrap();
    assert!(heads.len() == 5 && heads.iter().all(|head| head["layer"] == 3 && head["cells"].is_string()));
    // Each of these texts fits into a page, but not both.
    let long = AttentionPatterns::new((0..1024).map(|n| n.to_string()), [(0, causal(14, 1024))]).unwrap();
    let view = AttentionView::of(&long).unwrap();
    assert!(matches!(view.and(&long), Err(PlotError::TooLarge { most: 16_000_000, .. })));
}

#[test]
fn values_are_kept_within_a_255th() {
    for (is_causal, factor) in [(true, 1.0), (true, 0.01), (false, 1.0)] {
        let mut values = causal(3, 9) * factor;
        if !is_causal {
            values[[0, 2, 5]] = 0.5;
        }
        let patterns = AttentionPatterns::new((0..9).map(|n| n.to_string()), [(4, values.clone())]).unwrap();
        assert_eq!(patterns.is_causal(), is_causal);
        let data = data(&html(&AttentionView::of(&patterns).unwrap()));
        assert_eq!(data["causal"], is_causal);
        for (number, head) in data["heads"].as_array().unwrap().iter().enumerate() {
            assert_eq!((&head["layer"], &head["head"]), (&4.into(), &number.into()));
            let (most, cells) = (head["most"].as_f64().unwrap() as f32, base64(head["cells"].as_str().unwrap()));
            let mut cells = cells.into_iter();
            for ((query, key), value) in values.slice(s![number, .., ..]).indexed_iter() {
                if !is_causal || key <= query {
                    let kept = f32::from(cells.next().unwrap()) / 255.0 * most;
                    assert!((kept - value).abs() <= most / 255.0, "{kept} for {value}");
                }
            }
            assert_eq!(cells.next(), None);
        }
    }
}

#[test]
fn pages_are_small_and_the_same_every_time() {
    let tokens: Vec<String> = (0..128).map(|n| format!(" token{n}")).collect();
    let patterns = AttentionPatterns::new(&tokens, (0..12).map(|layer| (layer, causal(12, 128)))).unwrap();
    let view = AttentionView::of(&patterns).unwrap().title("gpt2");
    let page = saved(|path| view.save(path));
    assert!(page.len() < 2_500_000, "{}", page.len());
    assert_eq!(page, saved(|path| view.save(path)));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let svg = PatternGrid::of(&patterns).unwrap().to_svg().unwrap();
    assert!(svg.contains("L11H11") && svg.len() < 20_000_000, "{}", svg.len());
    assert_eq!(svg, PatternGrid::of(&patterns).unwrap().to_svg().unwrap());
}

#[test]
fn what_is_too_large_or_wrong_is_said() {
    let message = check_attention_view(1, 2049, true).unwrap_err();
    assert!(matches!(message, PlotError::TooLong { tokens: 2049, most: 2048 }), "{message}");
    let message = check_attention_view(144, 1024, true).unwrap_err();
    assert!(matches!(message, PlotError::TooLarge { tokens: 1024, most: 16_000_000, .. }));
    assert!(message.to_string().contains("144 heads of 1024 tokens make a page of 101 MB"), "{message}");
    assert!(message.to_string().contains("choose fewer layers, heads or positions"), "{message}");
    assert!(check_attention_view(5, 2048, true).is_ok());

    let patterns = hostile(3);
    let message = patterns.clone().layers([1, 7]).unwrap_err().to_string();
    assert_eq!(message, "there is no layer 7; available: 0, 1, 2");
    assert!(matches!(patterns.clone().heads([2]), Err(PlotError::Absent { what: "head", asked: 2, .. })));
    assert!(matches!(patterns.clone().heads([]), Err(PlotError::NoPattern)));
    assert!(patterns.clone().positions(0..9).is_err());
    assert!(AttentionView::of(&patterns).unwrap().start_at(0, 5).is_err());
    assert!(matches!(AttentionPatterns::new(["a"], []), Err(PlotError::NoPattern)));
    let message = AttentionPatterns::new(["a", "b"], [(3, causal(1, 3))]).unwrap_err().to_string();
    assert!(message.contains("layer 3 has shape [1, 3, 3]; expected 2 queries by 2 keys"), "{message}");
    let mut broken = causal(2, 2);
    broken[[1, 1, 0]] = f32::NAN;
    let message = AttentionPatterns::new(["a", "b"], [(3, broken)]).unwrap_err().to_string();
    assert!(message.starts_with("the attention of L3H1 from 1 to 0 is NaN"), "{message}");
    let message = AttentionView::of(&patterns).unwrap().save("view.svg").unwrap_err().to_string();
    assert_eq!(message, "view.svg: the file name must end in .html");
    let message = ColoredText::new(["a"]).row("loss", [1.0, 2.0]).unwrap_err().to_string();
    assert_eq!(message, "`loss` has 2 values for 1 tokens; expected one per token");
    let tokens: Vec<String> = (0..64).map(|n| n.to_string()).collect();
    let many = AttentionPatterns::new(&tokens, (0..40).map(|layer| (layer, causal(16, 64)))).unwrap();
    let message = PatternGrid::of(&many).unwrap_err().to_string();
    assert!(message.contains("choose fewer along layers or heads or positions"), "{message}");
    // Tokens may have any length.
    let long = AttentionPatterns::new(["x".repeat(17_000_000)], [(0, causal(1, 1))]).unwrap();
    assert!(matches!(AttentionView::of(&long).unwrap().shown(), Err(PlotError::TooLarge { .. })));
}

#[test]
fn padding_is_no_part_of_a_row() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let texts = ["king drum sun star king", "red fox"];
    for padding_side in [PaddingSide::Left, PaddingSide::Right] {
        let options = TokenizeOptions { padding_side, ..TokenizeOptions::default() };
        let tokens = model.to_tokens_with(texts, options).unwrap();
        let cache = model.record(&tokens, "*hook_pattern").unwrap();
        for (row, text) in texts.iter().enumerate() {
            let of_batch = AttentionPatterns::of(&model, &cache, &tokens, row).unwrap();
            let alone = AttentionPatterns::run(&model, *text, &[]).unwrap();
            assert_eq!(of_batch.tokens(), model.to_str_tokens(text).unwrap());
            assert!(of_batch.is_causal());
            for (one, other) in of_batch.heads_shown().iter().zip(alone.heads_shown()) {
                assert_eq!(one.name(), other.name());
                assert!((&one.values - &other.values).iter().all(|apart| apart.abs() < 1e-5));
            }
        }
        assert!(AttentionPatterns::of(&model, &cache, &tokens, 2).is_err());
    }
    let tokens = model.to_tokens("red fox blue").unwrap();
    let sliced = model.record(&tokens, Record::new("*hook_pattern").positions(-1)).unwrap();
    let message = AttentionPatterns::of(&model, &sliced, &tokens, 0).unwrap_err().to_string();
    assert!(message.contains("record all positions"), "{message}");
    let none = model.record(&tokens, "*hook_z").unwrap();
    assert!(AttentionPatterns::of(&model, &none, &tokens, 0).unwrap_err().to_string().contains("*hook_pattern"));
    let last = AttentionPatterns::run(&model, "red fox blue", &[1]).unwrap().positions(-2..4).unwrap();
    assert_eq!((last.tokens(), last.heads_shown().len()), (&["fox".to_string(), "blue".into()][..], 4));
    assert_eq!(last.to_labeled().axes()[1].labels, ["2: fox", "3: blue"]);
}

/// An encoder's queries attend to later positions, but never to padding.
#[test]
fn encoders_are_shown_whole() {
    let model = HookedEncoder::from_pretrained(fixtures().join("bert").to_str().unwrap()).unwrap();
    let tokens = Tokens::padded(&[vec![1, 2, 3, 4], vec![5, 6]], 0, PaddingSide::Right).unwrap();
    let cache = model.run(tokens.clone(), Record::new("*hook_pattern")).unwrap().cache;
    for (row, len) in [(0, 4), (1, 2)] {
        let patterns = AttentionPatterns::of(&model, &cache, &tokens, row).unwrap();
        assert!(!patterns.is_causal());
        assert_eq!(patterns.tokens().len(), len);
        for head in patterns.heads_shown() {
            assert!(head.values.sum_axis(ndarray::Axis(1)).iter().all(|sum| (sum - 1.0).abs() < 1e-4));
        }
        let page = html(&AttentionView::of(&patterns).unwrap());
        assert_eq!(data(&page)["heads"].as_array().unwrap().len(), patterns.heads_shown().len());
    }
}

#[test]
fn colors_of_a_text_are_centered_where_numbers_are_below_zero() {
    let text = ColoredText::new(["a", "b", "c"]).row("neuron 3", [-2.0, 0.0, f64::NAN]).unwrap();
    let html = super::notebook::html(&text.row("neuron 4", [0.5f32, 1.0, 2.0]).unwrap());
    assert!(html.contains("title=\"a: -2.0000\"") && html.contains("title=\"c: NaN\""));
    assert!(html.contains("background: #2166ac") && html.contains("background: #f7f7f7"), "{html}");
    assert_eq!(html.matches("<details open>").count(), 2);
    let rising = super::notebook::html(&ColoredText::new(["a"]).row("loss", [3.0]).unwrap());
    assert!(rising.contains("background: #08306b") && !rising.contains("#b2182b"));
}

#[test]
fn attention_writes_pages_pictures_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let run = |model: &str, arguments: &[&str]| {
        let output = program().args(["attention", "--model", model]).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let model = "embedded:induction";
    let prompt = ["--prompt", "king drum sun star moon king drum sun star moon"];
    let (code, said, error) = run(model, &prompt);
    assert!(code == 0 && said.lines().count() == 9, "{said}{error}");
    assert!(said.contains("previous  duplicate  induction  attends most to") && said.contains("4 back 0.42"), "{said}");
    let (_, few, _) = run(model, &[&prompt[..], &["--top", "2"]].concat());
    assert!(few.lines().count() == 4 && few.contains("... 2 of 8 heads"), "{few}");

    for ending in ["html", "svg", "png", "json", "csv"] {
        let path = folder.path().join(format!("attention.{ending}"));
        let chosen = ["--layers", "-1", "--heads", "0,2..4", "--out", path.to_str().unwrap()];
        let (code, said, error) = run(model, &[&prompt[..], &chosen].concat());
        assert!(code == 0 && said.contains("-> "), "{said}{error}");
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        match ending {
            "html" => assert_eq!(data(&text)["heads"].as_array().unwrap().len(), 3),
            "svg" => assert!(text.contains("L1H3") && text.contains("0 &lt;bos&gt;") && !text.contains("L0H")),
            "png" => assert!(bytes.starts_with(b"\x89PNG")),
            "json" => {
                let json: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(json["patterns"]["axes"][0]["labels"], serde_json::json!(["L1H0", "L1H2", "L1H3"]));
                assert!((json["patterns"]["values"][0][0][0].as_f64().unwrap() - 1.0).abs() < 1e-5);
                assert_eq!(json["tokens"][1], "king");
            }
            _ => assert!(text.starts_with("head,query,key,value\nL1H0,0: <bos>,0: <bos>,1")),
        }
    }
    for (wrong, code, says) in [
        (&["--prompt", "red", "--out", "x.gif"][..], 2, ".json, .csv, .svg, .png or .html"),
        (
            &["--prompt", "red", "--layers", "2"],
            1,
            "--layers 2 is out of range: the model has 2 layers, numbered 0 to 1",
        ),
        (&["--prompt", "red", "--heads", "1..9"], 1, "--heads"),
        (&["--prompt", "red", "--positions", "7"], 1, "2 positions"),
        (&["--tokens", "1,2;3,4", "--json"], 2, "one prompt"),
        (&["--tokens", "1,99"], 1, "outside the vocabulary"),
        (&["--prompt", "red", "--tokens", "1"], 2, "cannot be used with"),
        (&[], 2, "--prompt"),
    ] {
        let (given, _, error) = run(model, wrong);
        assert!(given == code && error.contains(says), "{wrong:?}: {given} {error}");
    }
}
