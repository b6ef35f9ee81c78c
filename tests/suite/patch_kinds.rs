//! Patching of encoders, encoder-decoders and models under hooks.

use hooklens::HookedModel;
use hooklens::encoder::EncoderInput;
use hooklens::patching::{PatchError, PatchingResult};
use hooklens::prelude::*;
use hooklens_hooks::BlockAccess;

use crate::splice::Same;
use crate::support::{fixtures, program, random_model};

fn encoder(name: &str) -> HookedEncoder {
    HookedEncoder::from_pretrained(fixtures().join(name).to_str().unwrap()).unwrap()
}

fn t5(name: &str) -> HookedEncoderDecoder {
    HookedEncoderDecoder::from_pretrained(fixtures().join(name).to_str().unwrap()).unwrap()
}

/// The sum of squares of all logits, which depends on every position.
fn squares() -> Metric {
    Metric::all(|logits: Tensor<3>, _| {
        let [rows, pos, vocab] = logits.dims();
        logits.square().reshape([rows, pos * vocab]).mean_dim(1).squeeze_dim(1)
    })
}

fn judged(logits: Tensor<3>) -> f64 {
    logits.square().mean().into_scalar::<f32>().into()
}

fn close(given: &PatchingResult, expected: &PatchingResult) -> bool {
    let pairs = given.values.values().iter().zip(expected.values.values());
    given.values.axes() == expected.values.axes()
        && pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()))
}

/// The metric with one slice of a point replaced by hand, at index `place` of axis `axis`.
fn by_hand<M: HookedModel>(
    model: &M,
    clean: M::Input,
    corrupted: M::Input,
    point: &str,
    axis: usize,
    place: usize,
) -> f64 {
    let source = model.record(clean, point).unwrap().activation(point).unwrap().clone();
    let hook = at(point).edit_any(move |tensor, _| {
        let mut block: Vec<_> = tensor.shape().iter().map(|len| 0..*len).collect();
        block[axis] = place..place + 1;
        Ok(Some(tensor.with_blocks([(block.clone(), source.block(&block))])))
    });
    judged(model.run_with_hooks(corrupted, [hook]).unwrap())
}

/// Every value of a sweep equals the result of a hook that replaces that site.
#[test]
fn sweeps_of_an_encoder_are_replacements_by_hand() {
    let model = encoder("bert-pretraining");
    let input = |ids: [u32; 5]| EncoderInput::from(ids).token_types(vec![vec![0, 0, 0, 1, 1]]);
    let (clean, corrupted) = (input([2, 5, 9, 7, 3]), input([2, 6, 9, 8, 3]));
    let patching = model.patching(clean.clone(), corrupted.clone()).metric(squares()).unwrap();
    let heads = patching.attn_head_out_all_pos().unwrap();
    let streams = patching.resid_pre().unwrap();
    for layer in 0..2 {
        for head in 0..model.config().n_heads() {
            let point = format!("blocks.{layer}.attn.hook_z");
            let expected = by_hand(&model, clean.clone(), corrupted.clone(), &point, 2, head);
            let given = heads.values.values()[[layer, head, 0]];
            assert!((given - expected).abs() < 1e-4 * expected, "{point} {head}: {given} {expected}");
        }
        for pos in 0..5 {
            let point = format!("blocks.{layer}.hook_resid_pre");
            let expected = by_hand(&model, clean.clone(), corrupted.clone(), &point, 1, pos);
            let given = streams.values.values()[[layer, pos, 0]];
            assert!((given - expected).abs() < 1e-4 * expected, "{point} {pos}: {given} {expected}");
        }
    }
    // Each pair has its own token types.
    let baseline = judged(model.forward(corrupted).unwrap());
    assert!((streams.baseline[0] - baseline).abs() < 1e-4 * baseline);
    let control = patching.identity_control(&Sites::new("*hook_pattern").per([Axis::Head, Axis::Query])).unwrap();
    assert!(control.effect().values().iter().all(|change| change.abs() < 1e-4 * baseline));
}

#[test]
fn sweeps_of_an_encoder_decoder_are_replacements_by_hand() {
    let model = t5("t5-gated");
    let clean = ([5, 6, 7, 1], [0, 4, 9]);
    let corrupted = ([5, 11, 7, 1], [0, 8, 9]);
    let patching = model.patching(clean, corrupted).metric(squares()).unwrap();
    for (point, per, axis) in [
        ("encoder.1.hook_resid_pre", Axis::Pos, 1),
        ("encoder.0.attn.hook_pattern", Axis::Head, 1),
        ("decoder.0.attn.hook_z", Axis::Head, 2),
        ("decoder.1.cross_attn.hook_k", Axis::Key, 1),
        ("decoder.1.cross_attn.hook_pattern", Axis::Key, 3),
        ("decoder.1.mlp.hook_post", Axis::Pos, 1),
    ] {
        let found = patching.sweep(&Sites::new(point).per([per])).unwrap();
        for (place, given) in found.values.values().iter().enumerate() {
            let expected = by_hand(&model, clean.into(), corrupted.into(), point, axis, place);
            assert!((given - expected).abs() < 1e-4 * expected, "{point} {place}: {given} {expected}");
        }
    }
    // Points of both stacks at once, with labels of each one's own tokens.
    let both = patching.sweep(&Sites::new("*.hook_resid_post")).unwrap();
    let (encoder, decoder) = (
        patching.sweep(&Sites::new("encoder.*.hook_resid_post")),
        patching.sweep(&Sites::new("decoder.*.hook_resid_post")),
    );
    let apart: Vec<f64> = [encoder, decoder]
        .into_iter()
        .flat_map(|found| found.unwrap().values.values().iter().copied().collect::<Vec<_>>())
        .collect();
    assert!(both.values.values().iter().zip(&apart).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!(both.values.axes()[0].name, "point");
    let pattern =
        patching.sweep(&Sites::new("decoder.*.cross_attn.hook_pattern").per([Axis::Query, Axis::Key])).unwrap();
    assert_eq!(pattern.values.values().shape(), [2, 3, 4, 1]);
    assert_eq!(pattern.values.axes()[0].name, "layer");
}

/// Attribution is exact if the metric is linear in the patched activation.
#[test]
fn attribution_of_other_kinds_is_exact_where_the_metric_is_linear() {
    let linear = || Metric::all(|logits: Tensor<3>, _| logits.narrow(1, 1, 1).narrow(2, 4, 1).reshape([-1]));
    let bert = encoder("bert");
    let patching = bert.patching([2, 5, 9, 3], [2, 6, 9, 3]).metric(linear()).unwrap();
    let sites = Sites::new("mlm_head.ln.hook_normalized").per([Axis::Pos]);
    let guess = patching.attribution("mlm_head.ln.hook_normalized").unwrap().sweep(&sites).unwrap();
    assert!(close(&guess, &patching.sweep(&sites).unwrap()), "{guess:?}");
    assert!(guess.effect().values()[[0, 1]].abs() > 1e-4);

    let model = t5("t5");
    let patching = model.patching(([5, 6, 1], [0, 4]), ([5, 8, 1], [0, 4])).metric(linear()).unwrap();
    let sites = Sites::new("decoder_final_ln.hook_normalized").per([Axis::Pos]);
    let guess = patching.attribution("decoder_final_ln.hook_normalized").unwrap().sweep(&sites).unwrap();
    assert!(close(&guess, &patching.sweep(&sites).unwrap()), "{guess:?}");
    assert!(guess.effect().values()[[0, 1]].abs() > 1e-5);
    // Through the whole model, attribution is only a first-order estimate.
    let heads = patching.attribution("encoder.*.attn.hook_z").unwrap();
    assert_eq!(
        heads.sweep(&Sites::new("encoder.*.attn.hook_z").per([Axis::Head])).unwrap().mean().axes()[0].name,
        "layer"
    );
}

/// Under identity hooks, whole runs give the same results as runs from a layer and position on.
#[test]
fn a_model_under_hooks_is_patched_under_them() {
    let model = random_model(hooklens::TransformerConfig::new(3, 16, 4, 20, 12), 7);
    let (clean, corrupted) = (vec![vec![1, 2, 3, 4], vec![5, 6, 7, 8]], vec![vec![1, 9, 3, 4], vec![5, 6, 11, 8]]);
    let plain = model.patching(&clean, &corrupted).logit_diff(4, 7).unwrap();
    let idle = model.hooks([hook::z(0).read(|_, _| ())]);
    let hooked = idle.patching(&clean, &corrupted).logit_diff(4, 7).unwrap();
    assert!(close(&hooked.resid_pre().unwrap(), &plain.resid_pre().unwrap()));
    assert!(close(&hooked.attn_head_out_by_pos().unwrap(), &plain.attn_head_out_by_pos().unwrap()));
    let zeroed = model.hooks([hook::attn_out(1).zero()]);
    let under = zeroed.patching(&clean, &corrupted).logit_diff(4, 7).unwrap();
    let expected = zeroed.forward(&corrupted).unwrap().narrow(0, 0, 1).narrow(1, 3, 1);
    let expected = (expected.clone().narrow(2, 4, 1) - expected.narrow(2, 7, 1)).into_scalar::<f32>();
    let streams = under.resid_pre().unwrap();
    assert!((streams.baseline[0] - f64::from(expected)).abs() < 1e-4);
    assert!(!close(&streams, &plain.resid_pre().unwrap()));
    let metric = Metric::logit(&model, 4).unwrap();
    let ablated = model.ablating(&clean, Ablation::Mean(corrupted.into())).metric(metric).unwrap();
    assert_eq!(ablated.resid_pre().unwrap().baseline.len(), 2);
}

#[test]
fn what_can_not_be_patched_is_said() {
    let bare = encoder("bert-bare");
    let message = bare.patching([2, 5, 3], [2, 6, 3]).metric(squares()).unwrap().resid_pre().unwrap_err();
    assert!(message.to_string().contains("masked-token head"), "{message}");
    let bert = encoder("bert");
    // Without a tokenizer, the mask token is unknown.
    let message =
        bert.patching([2, 5, 3], [2, 6, 3]).metric(Metric::logit(&bert, 4).unwrap()).unwrap().resid_pre().unwrap_err();
    assert!(message.to_string().contains("tokenizer"), "{message}");
    let model = t5("t5");
    let metric = Metric::logit(&model, 4).unwrap();
    let message = model.patching(([5, 6, 1], [0]), ([5, 6, 1], [0, 4])).metric(metric).unwrap_err();
    assert!(matches!(message.downcast_ref(), Some(PatchError::Lengths { clean: 1, corrupted: 2, .. })), "{message}");
    assert!(Metric::logit(&model, 99_999).is_err());
    let patching = model.patching([5, 6, 1], [5, 7, 1]).metric(Metric::logit(&model, 4).unwrap()).unwrap();
    assert!(patching.sweep(&Sites::new("encoder.*.attn.hook_pattern").per([Axis::Pos])).is_err());
}

/// A fixture's model with a tokenizer of words for the ids 2 to 9.
fn with_words(fixture: &str, folder: &std::path::Path) -> String {
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixtures().join(fixture).join(file), folder.join(file)).unwrap();
    }
    let vocab =
        serde_json::json!({"[UNK]": 0, "[MASK]": 2, "Rome": 3, "Paris": 4, "is": 5, "in": 6, "Italy": 7, "France": 8});
    let mask = serde_json::json!([{"id": 2, "content": "[MASK]", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let tokenizer = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": mask,
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"mask_token": "[MASK]"}"#).unwrap();
    folder.to_str().unwrap().to_string()
}

/// `hooklens patch` and `hooklens lens` accept encoders and encoder-decoders.
#[test]
fn the_program_patches_models_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let done = program().args(args).output().unwrap();
        let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (done.status.success(), text)
    };
    let bert = with_words("bert", folder.path());
    let pair = ["--answer", "France", "--wrong", "Italy"];
    let prompts = ["--clean", "Paris is in [MASK]", "--corrupted", "Rome is in [MASK]"];
    let out = folder.path().join("patch.json");
    let files = ["--out", out.to_str().unwrap()];
    let (done, message) = said(&[&["patch", "--model", &bert], &prompts[..], &pair, &files].concat());
    assert!(done && message.contains("1 prompt; "), "{message}");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(json["axes"][1]["labels"][0], "0 Rome"); // tokens of the patched prompts
    assert_eq!(json["axes"][1]["labels"][3], "3 [MASK]");
    // The metric applies to the masked token.
    let model = HookedEncoder::from_pretrained(&bert).unwrap();
    let logits = model.forward("Rome is in [MASK]").unwrap().narrow(1, 3, 1);
    let expected = (logits.clone().narrow(2, 8, 1) - logits.narrow(2, 7, 1)).into_scalar::<f32>();
    let baseline = json["baseline"][0].as_f64().unwrap();
    assert!((baseline - f64::from(expected)).abs() < 1e-4, "{baseline} {expected}");
    let masks = ["--clean", "Paris is in Italy", "--corrupted", "Rome is in Italy"];
    let (done, message) = said(&[&["patch", "--model", &bert], &masks[..], &pair].concat());
    assert!(!done && message.contains("0 masked tokens"), "{message}");
    let lens = folder.path().join("lens.html");
    let args = ["lens", "--model", &bert, "--prompt", "Paris is in [MASK]", "--answer", "France"];
    let (done, message) = said(&[&args[..], &["--out", lens.to_str().unwrap()]].concat());
    assert!(done && message.contains("rank") && lens.is_file(), "{message}");

    let other = tempfile::tempdir().unwrap();
    let t5 = with_words("t5", other.path());
    let at = ["--at", "encoder.*.hook_resid_pre", "--decoder-prompt", "is in"];
    let texts = ["--clean", "Paris is", "--corrupted", "Rome is"];
    let (done, message) = said(&[&["patch", "--model", &t5], &texts[..], &pair, &at].concat());
    assert!(done && message.contains("1 prompt; "), "{message}");
    let (done, message) =
        said(&["lens", "--model", &t5, "--prompt", "Paris is", "--decoder-prompt", "in", "--top", "2"]);
    assert!(done && message.contains("final_post"), "{message}");
    let (done, message) = said(&[&["patch", "--model", &bert, "--decoder-prompt", "is"], &prompts[..], &pair].concat());
    assert!(!done && message.contains("--decoder-prompt"), "{message}");
}

/// Means and edges are computed in f32, and used in the model's element type.
#[test]
fn every_element_type_is_patched() {
    for dtype in ["f16", "bf16", "f64"] {
        for arguments in [
            &["patch", "--at", "*attn.hook_z", "--per", "head", "--ablate", "mean"][..],
            &["circuit", "--nodes", "heads", "--method", "exact", "--ablate", "mean"],
            &["circuit", "--method", "eap"],
            &["circuit", "--method", "eap-ig", "--steps", "2"],
        ] {
            let output = program()
                .args(arguments)
                .args(["--model", "embedded:ioi", "--ioi", "2", "--dtype", dtype])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?} in {dtype}: {said}");
        }
    }
}

/// A metric is for the tokens of the model that it was made for.
#[test]
fn metrics_of_other_models_are_refused() {
    let [ioi, induction] = ["ioi", "induction"].map(|name| format!("embedded:{name}"));
    let [ioi, induction] = [ioi, induction].map(|name| HookedTransformer::from_pretrained(&name).unwrap());
    let names = Metric::logit_diff(&ioi, "Mary", "John").unwrap();
    let says = |error: hooklens::Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    let prompt = "king drum sun star";
    says(Patching::new(&induction, prompt, prompt, names.clone()).unwrap_err(), "a metric for this model");
    says(Patching::ablating(&induction, prompt, Ablation::Zero, names.clone()).unwrap_err(), "a metric for this model");
    // Of the same model with other processing, it is the same metric.
    let processed = ioi.processed(&Processing::standard()).unwrap();
    assert!(Patching::new(&processed, "When Mary", "When John", names).is_ok());
}

/// Path patching starts runs in the middle, which is not defined if a spliced part reads across layers.
#[test]
fn paths_through_spliced_parts_are_refused() {
    let model = random_model(TransformerConfig::new(3, 16, 4, 20, 16), 5);
    let across = model.splice_between("resid_pre0", "mlp_out2", Same).unwrap();
    let metric = Metric::logit(&across, 3u32).unwrap();
    let patching = Patching::new(&across, vec![vec![1, 2, 3]], vec![vec![1, 4, 3]], metric).unwrap();
    let message = patching.path_from_heads(&[Receiver::Logits], Freeze::default()).unwrap_err().to_string();
    assert!(message.contains("spliced parts that write to later layers"), "{message}");
}
