//! Commands and dumps for every kind of model.

use hooklens::dump::Dump;
use hooklens::hook::{Inside, Part, PartPoint};
use hooklens::prelude::*;
use hooklens::{DumpError, Halt, PaddingSide};

use crate::dump::read;
use crate::support::{fixtures, program, random_model};

fn near(given: &ndarray::ArrayD<f32>, expected: &ndarray::ArrayD<f32>) -> bool {
    given.shape() == expected.shape() && given.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// A dump of an encoder contains for each prompt what running it alone records.
#[test]
fn dumps_of_encoders_hold_what_each_prompt_gives_alone() {
    let model = HookedEncoder::from_pretrained(fixtures().join("bert-pretraining").to_str().unwrap()).unwrap();
    let rows = vec![vec![2, 5, 9, 3], vec![2, 7, 3], vec![2, 8, 4, 4, 3]];
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("all.safetensors");
    let points = ["*hook_z", "*hook_normalized_resid_post", "*hook_attn_scores"];
    Dump::new(points).batch_size(2).logits(Logits::All).run(&model, &rows, &out).unwrap();
    let file = read(&out);
    for (number, row) in rows.iter().enumerate() {
        let output = model.run(row, Record::new(points)).unwrap();
        let z = output.cache.activation("z1").unwrap().to_ndarray().unwrap();
        let [len, heads, width] = [row.len(), z.shape()[2], z.shape()[3]];
        let of_row = file["blocks.1.attn.hook_z"]
            .index_axis(ndarray::Axis(0), number)
            .slice(ndarray::s![..len, .., ..])
            .to_owned()
            .into_shape_with_order(ndarray::IxDyn(&[1, len, heads, width]))
            .unwrap();
        assert!(near(&of_row, &z), "{number}");
        let logits = Activation::from(output.logits.unwrap()).to_ndarray().unwrap();
        let of_row = file["logits"].index_axis(ndarray::Axis(0), number).slice(ndarray::s![..len, ..]).to_owned();
        assert!(near(&of_row.into_dyn(), &logits.index_axis(ndarray::Axis(0), 0).to_owned()), "{number}");
    }
    let behind = Dump::new("z0").prefix(vec![5]).run(&model, &rows, &out).unwrap_err();
    let behind = hooklens::error_chain(&behind);
    assert!(behind.ends_with("an encoder or encoder-decoder does not support the option `prefix`"), "{behind}");
}

/// A dump of an encoder-decoder contains for each prompt what its encoder computes for it alone; also under hooks.
#[test]
fn dumps_of_encoder_decoders_hold_what_the_encoder_makes() {
    let model = HookedEncoderDecoder::from_pretrained(fixtures().join("t5-gated").to_str().unwrap()).unwrap();
    let rows = vec![vec![5, 6, 7, 1], vec![8, 1], vec![4, 4, 9, 9, 1]];
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("all.safetensors");
    let hooked = model.hooks([hook::attn_out(0).of_encoder().scale(2.0)]);
    Dump::new("encoder*").batch_size(2).run(&hooked, &rows, &out).unwrap();
    let file = read(&out);
    for (number, row) in rows.iter().enumerate() {
        let cache = hooked.record(row.clone(), Record::new("encoder*")).unwrap();
        let last = cache.activation("encoder_final_ln.hook_normalized").unwrap().to_ndarray().unwrap();
        let of_row = file["encoder_final_ln.hook_normalized"].index_axis(ndarray::Axis(0), number).to_owned();
        let of_row = of_row.slice(ndarray::s![..row.len(), ..]).to_owned().into_dyn();
        assert!(near(&of_row, &last.index_axis(ndarray::Axis(0), 0).to_owned()), "{number}");
    }
    let refused = Dump::new("decoder.0.hook_resid_pre").run(&model, &rows, &out).unwrap_err();
    assert!(matches!(refused.downcast_ref(), Some(DumpError::OfDecoder { .. })), "{refused}");
}

/// A part that keeps positive coordinates.
struct Positive;

impl Part for Positive {
    fn name(&self) -> String {
        "positive".into()
    }

    fn points(&self) -> Vec<PartPoint> {
        vec![PartPoint::new("hook_acts", &[Axis::Batch, Axis::Pos, Axis::Feature])]
    }

    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
        Ok(inside.fire("hook_acts", x.to_tensor::<3>()?.clamp_min(0.0))?.into())
    }
}

/// A dump under hooks, or of a model with a spliced part, contains what such runs record, and resumes only with the
/// same hooks and part.
#[test]
fn dumps_under_hooks_and_with_parts() {
    let model = random_model(hooklens::TransformerConfig::new(2, 16, 2, 20, 90), 5);
    let begin: Vec<u32> = (0..70).map(|n| n % 20).collect();
    let rows: Vec<Vec<u32>> = (0..4).map(|last| [&begin[..], &[last, 7]].concat()).collect();
    let folder = tempfile::tempdir().unwrap();
    let hooked = model.hooks([hook::resid_pre(1).add(Tensor::ones([16], &Device::flex()))]);
    let out = folder.path().join("steered");
    Dump::new("resid_post1").batch_size(2).run(&hooked, &rows, &out).unwrap();
    let shard = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let mut shards: Vec<_> = shard.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
    shards.sort();
    let first = read(&shards[0]);
    let expected = hooked.record(rows[..2].to_vec(), "resid_post1").unwrap();
    assert!(near(
        &first["blocks.1.hook_resid_post"],
        &expected.activation("resid_post1").unwrap().to_ndarray().unwrap()
    ));
    let plain = Dump::new("resid_post1").batch_size(2).resume(true).run(&model, &rows, &out).unwrap_err();
    assert!(matches!(plain.downcast_ref(), Some(DumpError::Mismatch { .. })), "{plain:?}");

    // Prompts with a common prefix are computed together with a part, too.
    let spliced = model.splice("resid_post0", Positive).unwrap();
    let out = folder.path().join("features.safetensors");
    let report = Dump::new(["*hook_acts", "resid_post1"]).run(&spliced, &rows, &out).unwrap();
    assert!(report.shared > 0);
    let file = read(&out);
    let expected = spliced.record(&rows, ["*hook_acts", "resid_post1"]).unwrap();
    for (name, activation) in expected.iter() {
        assert!(near(&file[name], &activation.to_ndarray().unwrap()), "{name}");
    }
}

/// Texts can be given directly as prompts.
#[test]
fn dumps_take_texts() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("texts.safetensors");
    Dump::new("resid_post1").positions(-1).run(&model, ["red fox", "king drum sun"], &out).unwrap();
    let file = read(&out);
    let last = model.record("king drum sun", Record::new("resid_post1").positions(-1)).unwrap();
    let last = last.activation("resid_post1").unwrap().to_ndarray().unwrap();
    let row = file["blocks.1.hook_resid_post"].slice(ndarray::s![1..2, .., ..]).to_owned().into_dyn();
    assert!(near(&row, &last));
}

/// A command's output, or its error.
fn said(args: &[&str]) -> (bool, String) {
    let done = program().args(args).env_remove("HOOKLENS_DEVICE").output().unwrap();
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (done.status.success(), text)
}

#[test]
fn commands_take_every_kind_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| fixtures().join(name).to_str().unwrap().to_string();
    let (bert, t5) = (named("bert-pretraining"), named("t5"));
    let out = folder.path().join("z.safetensors");
    let out = out.to_str().unwrap();
    let (done, message) =
        said(&["dump", "--model", &bert, "--tokens", "2,5,9,3;2,7,3", "--hooks", "*hook_z", "--out", out]);
    assert!(done && message.contains("2 prompts, 7 tokens"), "{message}");
    assert_eq!(read(std::path::Path::new(out))["tokens"].shape(), [2, 4]);
    let (done, message) =
        said(&["dump", "--model", &bert, "--tokens", "2", "--hooks", "z0", "--out", out, "--prefix-tokens", "3"]);
    assert!(!done && message.contains("--prefix requires a decoder"), "{message}");
    let (done, message) = said(&["dump", "--model", &t5, "--tokens", "5,6", "--hooks", "*", "--out", out]);
    assert!(!done && message.contains("belongs to the decoder") && message.contains("`encoder*`"), "{message}");
    let (done, message) = said(&["dump", "--model", &t5, "--tokens", "5,6;7", "--hooks", "encoder*", "--out", out]);
    assert!(done && message.contains("2 prompts, 3 tokens"), "{message}");
    let (done, message) =
        said(&["dump", "--model", &t5, "--tokens", "5", "--hooks", "encoder*", "--logits", "all", "--out", out]);
    assert!(!done && message.contains("`logits` belongs to the decoder"), "{message}");

    // A dump does not overwrite its inputs, even if they are named differently.
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixtures().join("t5").join(file), own.join(file)).unwrap();
    }
    let weights = own.join("model.safetensors");
    let link = folder.path().join("link.safetensors");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&weights, &link).unwrap();
    for out in [&weights, &link] {
        let args = ["dump", "--model", own.to_str().unwrap(), "--tokens", "5", "--hooks", "encoder*"];
        let (done, message) = said(&[&args[..], &["--out", out.to_str().unwrap()]].concat());
        assert!(!done && message.contains("is also an input"), "{message}");
    }

    let page = folder.path().join("page.html");
    for model in [&bert, &t5, &named("modernbert"), &named("deberta-v3"), &named("albert")] {
        let (done, message) =
            said(&["attention", "--model", model, "--tokens", "5,6,7,1", "--out", page.to_str().unwrap()]);
        assert!(done && message.contains("L0H0") && page.is_file(), "{message}");
        let (done, message) = said(&["lens", "--model", model, "--prompt", "a", "--mid"]);
        assert!(!done && message.contains("--mid and --tuned require a decoder"), "{message}");
        let (done, message) = said(&["attribute", "--model", model, "--prompt", "a", "--answer", "b"]);
        assert!(!done && message.contains("`hooklens attribute` requires a decoder"), "{message}");
        let (done, message) = said(&["bench", "--model", model, "--rounds", "1"]);
        assert!(done && message.contains("forward") && message.contains("patching"), "{message}");
        let (done, message) = said(&["bench", "--model", model, "--work", "decode"]);
        assert!(!done && message.contains("forward, cache or patch for a model that is not a decoder"), "{message}");
    }
    let (done, message) = said(&["generate", "--model", &t5, "--tokens", "5,6,7,1", "--max-new-tokens", "3", "--json"]);
    assert!(done && message.contains("new_tokens"), "{message}");
    let (done, message) = said(&["generate", "--model", &bert, "--tokens", "5,6,7,1", "--max-new-tokens", "3"]);
    assert!(!done && message.contains("an encoder predicts masked tokens and cannot generate text"), "{message}");
}

/// A dump of the decoder contains what running the model on both texts gives, from Rust and from the command line.
#[test]
fn dumps_of_encoder_decoders_hold_what_the_decoder_makes() {
    let (read_rows, written) =
        (vec![vec![5, 6, 7, 1], vec![8, 1], vec![4, 4, 9, 9, 1]], vec![vec![0, 4], vec![0, 3, 9, 2], vec![0]]);
    for (name, points) in [
        ("t5-gated", ["decoder.0.hook_resid_post", "decoder.1.cross_attn.hook_z"]),
        ("bart", ["decoder.0.hook_resid_post", "decoder.1.cross_attn.hook_z"]),
    ] {
        let path = fixtures().join(name);
        let model = HookedEncoderDecoder::from_pretrained(path.to_str().unwrap()).unwrap();
        let start = model.decoder_start_token();
        let written: Vec<Vec<u32>> = written.iter().map(|row| [&[start], &row[1..]].concat()).collect();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("all.safetensors");
        let dump = Dump::new(points).batch_size(2).encoder_rows(read_rows.clone());
        for dump in [dump.clone(), dump.clone().padding_side(PaddingSide::Left)] {
            let left = format!("{dump:?}").contains("Left");
            dump.logits(Logits::Last).run(&model, &written, &out).unwrap();
            let file = read(&out);
            for (number, (encoder, decoder)) in read_rows.iter().zip(&written).enumerate() {
                let input = (encoder.clone(), decoder.clone());
                let cache = model.record(input, Record::new(points)).unwrap();
                for point in points {
                    let own = cache.activation(point).unwrap().to_ndarray().unwrap();
                    let own = own.index_axis(ndarray::Axis(0), 0).to_owned();
                    let row = file[point].index_axis(ndarray::Axis(0), number);
                    let (len, width) = (decoder.len(), row.shape()[0]);
                    let from = if left { width - len } else { 0 };
                    let of_row = row.slice_axis(ndarray::Axis(0), (from..from + len).into()).to_owned().into_dyn();
                    assert!(near(&of_row, &own.into_dyn()), "{name} {point} {number}");
                }
            }
        }
        let cross = Dump::new("decoder.0.cross_attn.hook_pattern").encoder_rows(read_rows.clone());
        for refused in [cross, Dump::new("encoder.0.hook_resid_pre").encoder_rows(read_rows.clone())] {
            let refused = refused.run(&model, &written, &out).unwrap_err();
            assert!(matches!(refused.downcast_ref(), Some(DumpError::OfEncoder { .. })), "{refused}");
        }
        // Lines with both texts as token ids.
        let corpus = folder.path().join("pairs.jsonl");
        let line = |(read, written): (&Vec<u32>, &Vec<u32>)| {
            format!("{}\n", serde_json::json!({"tokens": read, "target": written[1..]}))
        };
        let lines: String = read_rows.iter().zip(&written).filter(|(_, written)| written.len() > 1).map(line).collect();
        std::fs::write(&corpus, lines).unwrap();
        let of_program = folder.path().join("program.safetensors");
        let output = program()
            .args(["dump", "--hooks", points[0], "--field", "tokens", "--decoder-field", "target", "--model"])
            .arg(&path)
            .arg("--prompts")
            .arg(&corpus)
            .arg("--out")
            .arg(&of_program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        dump.run(&model, &written, &out).unwrap();
        let (own, given) = (read(&out), read(&of_program));
        for number in 0..2 {
            let [own, given] =
                [&own, &given].map(|file| file[points[0]].index_axis(ndarray::Axis(0), number).to_owned());
            assert!(near(&given, &own), "{name} {number}");
        }
        // The same text for every prompt, as token ids.
        let ids: Vec<String> = written[1][1..].iter().map(u32::to_string).collect();
        let output = program()
            .args(["dump", "--hooks", points[0], "--tokens", "8,1", "--decoder-tokens", &ids.join(","), "--model"])
            .arg(&path)
            .arg("--out")
            .arg(&of_program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let given = read(&of_program)[points[0]].index_axis(ndarray::Axis(0), 0).to_owned();
        let own = own[points[0]].index_axis(ndarray::Axis(0), 1).to_owned();
        assert!(near(&given, &own), "{name}");
    }
}
