//! Encoders and encoder-decoders compared with Hugging Face and TransformerLens, on the tiny models from
//! `tests/fixtures/encoders.py` and `newer_encoders.py`, and their invariants.

use burn::tensor::Tensor;
use hooklens::encoder::{EncoderInput, HookedEncoder, Pooling, SentenceEmbedding};
use hooklens::encoder_decoder::{DecoderCache, HookedEncoderDecoder};
use hooklens::prelude::*;
use hooklens::{Error, InputError};
use hooklens::{NormKind, PaddingSide};
use hooklens_model::model::ModelParts;
use ndarray::{Array1, ArrayD, Axis as Dim};

use crate::parity::{Golden, Tally};
use crate::support::{assert_close, distance, fixtures, has, skipped, values};

const ENCODERS: [&str; 42] = [
    "bert",
    "bert-pretraining",
    "bert-bare",
    "bert-old-names",
    "roberta",
    "roberta-bare",
    "xlm-roberta",
    "distilbert",
    "distilbert-relu",
    "distilbert-bare",
    "albert",
    "albert-groups",
    "albert-bare",
    "electra",
    "electra-discriminator",
    "electra-bare",
    "mpnet",
    "mpnet-bare",
    "mpnet-heads",
    "xlm-roberta-xl",
    "xlm-roberta-xl-bare",
    "xlm-roberta-xl-untied",
    "esm2",
    "esm1b",
    "esm2-bare",
    "modernbert",
    "modernbert-biases",
    "modernbert-bare",
    "v5-modernbert",
    "nomic-bert",
    "nomic-bert-bare",
    "nomic-bert-original",
    "deberta",
    "deberta-bare",
    "deberta-plain",
    "deberta-v2",
    "deberta-v3",
    "deberta-v2-bare",
    "t5-encoder",
    "t5-encoder-gated",
    "mt5-encoder",
    "umt5-encoder",
];
pub(crate) const ENCODER_DECODERS: [&str; 31] = [
    "t5",
    "t5-gated",
    "t5-buckets",
    "mt5",
    "umt5",
    "umt5-buckets",
    "umt5-untied",
    "t5gemma",
    "t5gemma-apart",
    "t5gemma-biases",
    "marian",
    "marian-apart",
    "marian-odd",
    "bart",
    "bart-apart",
    "bart-bare",
    "mbart",
    "mbart-apart",
    "mbart-relu",
    "pegasus",
    "pegasus-apart",
    "pegasus-gelu",
    "m2m",
    "m2m-apart",
    "m2m-unscaled",
    "blenderbot",
    "blenderbot-scaled",
    "blenderbot-apart",
    "blenderbot-small",
    "blenderbot-small-scaled",
    "blenderbot-small-apart",
];

fn path(case: &str) -> String {
    fixtures().join(case).to_str().unwrap().to_string()
}

fn golden(case: &str) -> Golden {
    Golden::of_file(case, "encoder.safetensors")
}

fn encoder(case: &str) -> HookedEncoder {
    HookedEncoder::from_pretrained(path(case)).unwrap()
}

fn t5(case: &str) -> HookedEncoderDecoder {
    HookedEncoderDecoder::from_pretrained(path(case)).unwrap()
}

/// The rows of real tokens, concatenated.
fn real(x: &ArrayD<f32>, tokens: &Tokens) -> ArrayD<f32> {
    let width = x.shape()[2];
    let mask = tokens.mask().map_or(vec![true; x.len() / width], <[bool]>::to_vec);
    let flat = x.as_standard_layout();
    let rows = flat.as_slice().unwrap().chunks(width).zip(mask).filter(|(_, real)| *real);
    Array1::from_iter(rows.flat_map(|(row, _)| row.iter().copied())).into_dyn()
}

fn typed(golden: &Golden, prefix: &str) -> EncoderInput {
    let types = golden.get("types").unwrap();
    let types = types.rows().into_iter().map(|row| row.iter().map(|kind| *kind as u32).collect()).collect();
    EncoderInput::from(golden.tokens(prefix)).token_types(types)
}

fn compare_recorded(tally: &mut Tally, cache: &ActivationCache, name: &str, expected: &ArrayD<f32>, what: &str) {
    tally.compare(what, &cache.activation(name).unwrap().to_ndarray().unwrap(), expected);
}

#[test]
fn encoders_are_hugging_faces() {
    let mut total = Tally::default();
    for case in ENCODERS {
        let (model, golden) = (encoder(case), golden(case));
        // Heads for other tasks are not read.
        let other = |name: &&String| !name.contains("contact_head") && !name.starts_with("discriminator_predictions");
        assert!(model.load_report().unused.iter().find(other).is_none(), "{case}: {}", model.load_report());
        let mut tally = Tally::default();
        let output = model.run(typed(&golden, ""), Record::all()).unwrap();
        let last = model.config().n_layers();
        let hidden = golden.get(&format!("hidden.{last}")).unwrap();
        tally.compare("hidden", &values(&output.hidden.unwrap()), hidden);
        for layer in 0..=last {
            let name = match layer == last {
                // For a norm without centering, the hook point comes before its weight.
                true if model.config().norm() == NormKind::Rms => continue,
                true if hooklens_model::encoder::config_of(&model).pre_norms => "ln_final.hook_normalized".to_string(),
                true => format!("blocks.{}.hook_normalized_resid_post", last - 1),
                false => format!("blocks.{layer}.hook_resid_pre"),
            };
            let expected = golden.get(&format!("hidden.{layer}")).unwrap();
            compare_recorded(&mut tally, &output.cache, &name, expected, &format!("hidden.{layer}"));
            if let Some(pattern) = golden.get(&format!("attn.{layer}")) {
                let name = format!("blocks.{layer}.attn.hook_pattern");
                compare_recorded(&mut tally, &output.cache, &name, pattern, &format!("attn.{layer}"));
            }
        }
        let parts = [("logits", output.logits.map(|x| values(&x))), ("pooled", output.pooled.map(|x| values(&x)))];
        for (name, given) in parts.into_iter().chain([("nsp", output.next_sentence.map(|x| values(&x)))]) {
            assert_eq!(given.is_some(), golden.get(name).is_some(), "{case}: {name}");
            if let (Some(given), Some(expected)) = (given, golden.get(name)) {
                tally.compare(name, &given, expected);
            }
        }
        for side in ["left.", "right."].into_iter().filter(|side| golden.get(&format!("{side}tokens")).is_some()) {
            let tokens = golden.tokens(side);
            let given = real(&values(&model.encode(typed(&golden, side)).unwrap()), &tokens);
            tally.compare(
                &format!("{side}hidden"),
                &given,
                &real(golden.get(&format!("{side}hidden")).unwrap(), &tokens),
            );
        }
        let names = golden.points("tl.");
        if !names.is_empty() {
            let cache = model.run(typed(&golden, ""), Record::new(names.clone())).unwrap().cache;
            for name in &names {
                compare_recorded(&mut tally, &cache, name, golden.get(&format!("tl.{name}")).unwrap(), name);
            }
        }
        println!("{case}: {} tensors compared", tally.compared);
        total.compared += tally.compared;
        total.problems.extend(tally.problems.into_iter().map(|problem| format!("{case}: {problem}")));
    }
    println!("{} tensors compared", total.compared);
    assert!(total.compared > 370, "{}", total.compared);
    assert!(total.problems.is_empty(), "{}", total.problems.join("\n"));
}

/// The lens after the last layer equals the model's output, for pre-norm and post-norm models.
#[test]
fn the_lens_after_the_last_layer_is_the_model() {
    for case in ENCODERS {
        let model = encoder(case);
        let Ok(logits) = model.forward(vec![vec![7, 9, 11, 8]]) else {
            assert!(model.weights().get::<2>("mlm_head.W").is_err(), "{case}");
            continue;
        };
        let stages = model.logit_lens(vec![vec![7, 9, 11, 8]]).unwrap();
        let last = stages.logits.clone().narrow(0, model.config().n_layers(), 1).squeeze_dim::<3>(0);
        assert_close(&last, &logits, 1e-5, case);
    }
}

/// DeBERTa's published files name the masked-token head differently than transformers.
#[test]
fn the_authors_head_of_deberta_is_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures().join("deberta-v3/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = std::fs::read(fixtures().join("deberta-v3/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let fields = config.as_object_mut().unwrap();
    // As in the files of DeBERTa 3.
    for field in ["architectures", "legacy", "tie_word_embeddings"] {
        fields.remove(field);
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let model = HookedEncoder::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert!(model.load_report().unused.is_empty());
    let rows = || vec![vec![7, 9, 11, 8]];
    assert_close(&model.forward(rows()).unwrap(), &encoder("deberta-v3").forward(rows()).unwrap(), 1e-6, "head");
}

/// Layers that share a block have one set of weights.
#[test]
fn alberts_layers_share_weights() {
    let mut model = encoder("albert-groups");
    let counts = (model.config().n_layers(), model.parts().blocks.len());
    assert_eq!(counts, (8, 4));
    let input = || vec![vec![7, 9, 11]];
    let before = model.record(input(), "*hook_attn_out").unwrap();
    model.parts_mut().blocks[3].attn.o.bias = None;
    let after = model.record(input(), "*hook_attn_out").unwrap();
    // Both layers of the second group's second block change, and nothing before them.
    let moved = |layer: usize| {
        let [a, b] = [&before, &after].map(|cache| values(&cache.get(hook::attn_out(layer)).unwrap()));
        distance(&a, &b) > 1e-4
    };
    assert_eq!([0, 1, 2, 3, 4, 5, 7].map(moved), [false, false, false, false, false, true, true]);
}

#[test]
fn encoder_decoders_are_hugging_faces() {
    let mut total = Tally::default();
    for case in ENCODER_DECODERS {
        let (model, golden) = (t5(case), golden(case));
        assert!(model.load_report().unused.is_empty(), "{case}: {}", model.load_report());
        let mut tally = Tally::default();
        let written = golden.tokens("decoder_");
        let output = model.run((golden.tokens(""), &written), Record::all()).unwrap();
        let logits = golden.get("logits").unwrap();
        tally.compare("logits", &values(&output.logits.unwrap()), logits);
        let stacks = [("encoder", model.encoder_config().n_layers()), ("decoder", model.decoder_config().n_layers())];
        for (stack, layers) in stacks {
            for layer in 0..=layers {
                let key = format!("{stack}.hidden.{layer}");
                let name = match layer == layers {
                    // Hugging Face's last hidden state has passed the norm. T5's hook point comes before the norm's
                    // weight.
                    true if model.encoder_config().norm() == NormKind::Rms => continue,
                    true if hooklens_model::encoder_decoder::config_of(&model).norm_after => {
                        format!("{stack}.{}.hook_normalized_resid_post", layers - 1)
                    }
                    true => format!("{stack}_final_ln.hook_normalized"),
                    false => format!("{stack}.{layer}.hook_resid_pre"),
                };
                compare_recorded(&mut tally, &output.cache, &name, golden.get(&key).unwrap(), &key);
                if layer == layers {
                    continue;
                }
                let key = format!("{stack}.attn.{layer}");
                let name = format!("{stack}.{layer}.attn.hook_pattern");
                compare_recorded(&mut tally, &output.cache, &name, golden.get(&key).unwrap(), &key);
            }
        }
        for layer in 0..model.decoder_config().n_layers() {
            let name = format!("decoder.{layer}.cross_attn.hook_pattern");
            let key = format!("cross.attn.{layer}");
            compare_recorded(&mut tally, &output.cache, &name, golden.get(&key).unwrap(), &key);
        }
        let (tokens, decoded) = (golden.tokens("padded."), padded_decoder(&golden));
        let given = model.forward((&tokens, &decoded)).unwrap();
        tally.compare(
            "padded",
            &real(&values(&given), &decoded),
            &real(golden.get("padded.logits").unwrap(), &decoded),
        );

        // Two tokens, then one by one, with caches of both attentions.
        let encoded = model.encode(golden.tokens("")).unwrap();
        let mut cache = model.decoder_cache(encoded);
        let piece = |from: usize, to: usize| {
            Tokens::new((0..2).map(|row| written.row(row)[from..to].to_vec()).collect()).unwrap()
        };
        let steps: Vec<Tensor<3>> = [(0, 2), (2, 3), (3, 4), (4, 5)]
            .map(|(from, to)| model.decode(&mut cache, piece(from, to)).unwrap().logits.unwrap())
            .to_vec();
        tally.compare("cached", &values(&Tensor::cat(steps, 1)), logits);

        let greedy = GenerateOptions::new().max_new_tokens(8).stop_at_eos(false);
        let made = model.generate_with(&tokens, greedy).unwrap();
        for (row, made) in made.rows.iter().enumerate() {
            let expected: Vec<u32> =
                golden.get("greedy").unwrap().index_axis(Dim(0), row).iter().map(|id| *id as u32).collect();
            assert_eq!(made.new, expected, "{case}, row {row}");
        }
        if let Some(first) = golden.get("first.token") {
            let first = *first.iter().next().unwrap() as u32;
            let greedy = GenerateOptions::new().max_new_tokens(8).stop_at_eos(false).first_token(first);
            let made = model.generate_with(&tokens, greedy).unwrap();
            let expected = golden.get("first.greedy").unwrap();
            for (made, expected) in made.rows.iter().zip(expected.rows()) {
                assert_eq!(made.new, expected.iter().map(|id| *id as u32).collect::<Vec<_>>(), "{case}");
            }
        }
        let names = golden.points("tl.");
        if !names.is_empty() {
            let start = golden.tokens("tl.decoder_");
            let cache = model.run((golden.tokens(""), &start), Record::new(names.clone())).unwrap().cache;
            for name in &names {
                let expected = golden.get(&format!("tl.{name}")).unwrap();
                compare_recorded(&mut tally, &cache, name, expected, name);
            }
        }
        println!("{case}: {} tensors compared", tally.compared);
        total.compared += tally.compared;
        total.problems.extend(tally.problems.into_iter().map(|problem| format!("{case}: {problem}")));
    }
    println!("{} tensors compared", total.compared);
    assert!(total.compared > 500, "{}", total.compared);
    assert!(total.problems.is_empty(), "{}", total.problems.join("\n"));
}

#[test]
fn points_fire_in_transformer_lens_order() {
    for case in ["bert-pretraining", "t5"] {
        let bytes = std::fs::read(fixtures().join(case).join("encoder.safetensors")).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let order = metadata.metadata().as_ref().unwrap()["order"].clone();
        let theirs: Vec<String> = serde_json::from_str(&order).unwrap();
        let (golden, mut ours) = (golden(case), vec![]);
        let watch = at(theirs.clone()).read_any(|_, at| ours.push(at.name().to_string()));
        if case == "t5" {
            let options = ForwardOptions::new().hooks([watch]);
            t5(case).run((golden.tokens(""), golden.tokens("tl.decoder_")), options).unwrap();
        } else {
            encoder(case).run(typed(&golden, ""), ForwardOptions::new().hooks([watch])).unwrap();
        }
        assert_eq!(ours, theirs, "{case}");
    }
}

fn padded_decoder(golden: &Golden) -> Tokens {
    let rows = |name: &str| golden.get(name).unwrap().rows().into_iter().map(|row| row.to_vec()).collect::<Vec<_>>();
    let ids = rows("padded.decoder_tokens").iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect();
    let mask = rows("padded.decoder_attention_mask").iter().map(|row| row.iter().map(|m| *m > 0.0).collect()).collect();
    Tokens::new(ids).unwrap().with_mask(mask).unwrap()
}

/// In bf16, the difference from the model in `f32` is at most twice that of Hugging Face.
#[test]
fn bf16_stays_as_near_as_hugging_faces() {
    if !has(DType::BF16) {
        return;
    }
    let spread = |a: &ArrayD<f32>, b: &ArrayD<f32>| (a - b).mapv(|x| x * x).mean().unwrap().sqrt();
    let in_bf16 = || LoadOptions::new().dtype(DType::BF16);
    for case in ENCODERS {
        let golden = golden(case);
        let Some(theirs) = golden.get("bf16.hidden") else {
            assert!(case.starts_with("deberta") && !case.starts_with("deberta-v"), "{case}");
            continue;
        };
        let model = HookedEncoder::from_pretrained_with(path(case), in_bf16()).unwrap();
        let exact = golden.get(&format!("hidden.{}", model.config().n_layers())).unwrap();
        let ours = spread(&values(&model.encode(typed(&golden, "")).unwrap()), exact);
        let theirs = spread(theirs, exact);
        assert!(ours <= 2.0 * theirs, "{case}: {ours:e} from f32, Hugging Face {theirs:e}");
    }
    for case in ENCODER_DECODERS {
        let golden = golden(case);
        let model = HookedEncoderDecoder::from_pretrained_with(path(case), in_bf16()).unwrap();
        let exact = golden.get("logits").unwrap();
        let logits = model.forward((golden.tokens(""), golden.tokens("decoder_"))).unwrap();
        let (ours, theirs) = (spread(&values(&logits), exact), spread(golden.get("bf16.logits").unwrap(), exact));
        assert!(ours <= 2.0 * theirs, "{case}: {ours:e} from f32, Hugging Face {theirs:e}");
    }
}

#[test]
fn padding_on_any_side_changes_no_encoder() {
    let row = vec![5, 9, 11, 7];
    for case in ENCODERS {
        let model = encoder(case);
        let alone = values(&model.encode(vec![row.clone()]).unwrap());
        for side in [PaddingSide::Left, PaddingSide::Right] {
            let tokens = Tokens::padded(&[row.clone(), vec![3, 4, 5, 6, 7, 8, 9]], 1, side).unwrap();
            let both = values(&model.encode(&tokens).unwrap());
            let from = if side == PaddingSide::Left { 3 } else { 0 };
            let own = both.slice_axis(Dim(0), (0..1).into()).slice_axis(Dim(1), (from..from + 4).into()).to_owned();
            assert!(distance(&own, &alone) < 1e-5, "{case}, {side:?}");
        }
    }
}

/// A row gives the same output as when it is run alone, with padding anywhere in the encoder's or decoder's input.
#[test]
fn padding_on_any_side_changes_no_encoder_decoder() {
    let (row, written) = (vec![5, 9, 11, 7], vec![3, 4, 8]);
    for case in ENCODER_DECODERS {
        let model = t5(case);
        let alone = model.forward((vec![row.clone()], vec![written.clone()])).unwrap();
        for side in [PaddingSide::Left, PaddingSide::Right] {
            let read = Tokens::padded(&[row.clone(), vec![3, 4, 5, 6, 7, 8, 9]], 1, side).unwrap();
            let begun = Tokens::padded(&[written.clone(), vec![3, 4, 5, 6, 7]], 1, side).unwrap();
            let both = model.forward((&read, &begun)).unwrap();
            let from = if side == PaddingSide::Left { 2 } else { 0 };
            let own = both.narrow(0, 0, 1).narrow(1, from, 3);
            assert_close(&own, &alone, 1e-4, &format!("{case}, {side:?}"));
        }
    }
}

/// The lens's last stage equals the model's output, for any final norm.
#[test]
fn lenses_of_encoder_decoders_end_in_their_logits() {
    for case in ["marian", "bart-apart", "mbart", "m2m", "umt5", "t5gemma", "t5gemma-apart"] {
        let model = t5(case);
        let input = ([5, 6, 7, 2], [3, 4, 9]);
        let read = model.logit_lens(input).unwrap();
        let stages = read.labels.len();
        assert_eq!(stages, model.decoder_config().n_layers() + 1);
        let last = read.logits.clone().narrow(0, stages - 1, 1).squeeze_dim::<3>(0);
        assert_close(&last, &model.forward(input).unwrap(), 1e-4, case);
    }
}

/// The hook points of post-norm blocks are at the right places, which is checked by recomputing their activations by
/// hand.
#[test]
fn norms_of_sums_have_points_where_they_stand() {
    let model = t5("bart-apart");
    let cache = model.run(([5, 6, 7, 2], [3, 4, 9]), Record::all()).unwrap().cache;
    let get = |name: &str| cache.get::<3>(name).unwrap();
    let near = |a: Tensor<3>, b: Tensor<3>, what: &str| assert_close(&a, &b, 1e-5, what);
    near(get("encoder.0.hook_resid_pre") + get("encoder.0.hook_attn_out"), get("encoder.0.hook_resid_mid"), "mid");
    near(
        get("encoder.0.ln1.hook_normalized") + get("encoder.0.hook_mlp_out"),
        get("encoder.0.hook_resid_post"),
        "post",
    );
    let normalized = "decoder.0.hook_normalized_resid_post";
    near(get("decoder.0.ln3.hook_normalized"), get(normalized), "last norm");
    near(get("decoder.1.hook_resid_pre"), get(normalized), "next block");
    let crossed = get("decoder.0.ln1.hook_normalized") + get("decoder.0.hook_cross_attn_out");
    near(crossed, get("decoder.0.hook_resid_mid_cross"), "across");
    near(get("encoder_embed_ln.hook_normalized"), get("encoder.0.hook_resid_pre"), "embedding");
    assert_eq!(get("hook_pos_embed").dims(), [1, 4, 24]);
    let record = |point: &str| model.run(([5, 6], [3]), Record::new(point)).unwrap_err().to_string();
    assert!(record("decoder_final_ln.hook_normalized").contains("after each sublayer"));
    let message = t5("t5").run(([5, 6], [3]), Record::new("hook_pos_embed")).unwrap_err().to_string();
    assert!(message.contains("the model uses relative position biases"), "{message}");
    // An edit affects everything after it: here, the last norm of the block.
    let edit = at(normalized).edit(|x: Tensor<3>, _| x * 0.0 + 1.0);
    let run =
        |hooks| model.run(([5, 6, 7, 2], [3, 4, 9]), ForwardOptions::new().hooks(hooks).record(normalized)).unwrap();
    let edited = run(vec![edit]);
    assert!((edited.logits.unwrap() - run(vec![]).logits.unwrap()).abs().max().into_scalar::<f32>() > 1e-3);
}

#[test]
fn hooks_edit_encoders_and_identity_hooks_change_nothing() {
    let model = encoder("bert-pretraining");
    let rows = || vec![vec![5, 9, 11, 7], vec![4, 4, 8, 30]];
    let plain = model.forward(rows()).unwrap();
    let same = at("*").edit_any(|x, _| Ok(Some(x)));
    let hooked = model.forward_with(rows(), ForwardOptions::new().hooks([same])).unwrap();
    assert_close(&hooked, &plain, 1e-6, "identity");
    for layer in 0..2 {
        let zeroed = hook::z(layer).edit(|z, _| z.zeros_like());
        let ablated = model.run(rows(), ForwardOptions::new().hooks([zeroed]).record("*hook_attn_out")).unwrap();
        assert!(distance(&values(&ablated.logits.unwrap()), &values(&plain)) > 1e-3, "layer {layer}");
    }
    // A head's own queries, read from its own input.
    let edit = hook::q_input(0).edit(|x, _| x * -4.0);
    let edited = model.forward_with(rows(), ForwardOptions::new().hooks([edit])).unwrap();
    let moved = distance(&values(&edited), &values(&plain));
    assert!(moved > 1e-3, "{moved}");
}

/// `encode` skips the output heads, but recorded points are still computed.
#[test]
fn a_watched_head_is_computed() {
    let model = encoder("bert-pretraining");
    for name in ["mlm_head.ln.hook_normalized", "pooler.hook_pooler_out", "nsp_head.hook_nsp_out"] {
        let mut seen = 0;
        let read = at(name).read_any(|_, _| seen += 1);
        model.encode_with(vec![vec![5, 9, 11]], ForwardOptions::new().hooks([read])).unwrap();
        assert_eq!(seen, 1, "{name}");
    }
}

#[test]
fn sentences_are_pooled_over_real_tokens() {
    let model = encoder("bert-bare");
    assert_eq!(model.sentence_embedding().unwrap(), SentenceEmbedding::default());
    assert_eq!(model.sentence_embedding().unwrap().pooling, Pooling::Mean);
    let error = model.sentence_embeddings(&["no tokenizer"]).unwrap_err();
    assert!(matches!(error, Error::Input(InputError::NoTokenizer)), "{error}");
}

/// Pooling uses the first token, not the padding before it.
#[test]
fn pooling_skips_padding() {
    let model = encoder("bert-pretraining");
    let run = |tokens: &Tokens| {
        let output = model.run(tokens, ForwardOptions::new()).unwrap();
        (values(&output.pooled.unwrap()), values(&output.next_sentence.unwrap()))
    };
    let alone = run(&Tokens::new(vec![vec![5, 9, 11]]).unwrap());
    let both = run(&Tokens::padded(&[vec![5, 9, 11], vec![3, 4, 5, 6, 7]], 0, PaddingSide::Left).unwrap());
    let first = |x: &ArrayD<f32>| x.slice_axis(Dim(0), (0..1).into()).to_owned();
    assert!(distance(&first(&both.0), &alone.0) < 1e-5 && distance(&first(&both.1), &alone.1) < 1e-5);
}

#[test]
fn a_module_that_is_not_supported_leaves_the_encoder_usable() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixtures().join("bert-bare").join(file), folder.path().join(file)).unwrap();
    }
    let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).unwrap();
    let model = HookedEncoder::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert!(model.encode(vec![vec![1, 2]]).is_ok());
    let error = model.sentence_embeddings(&["text"]).unwrap_err().to_string();
    assert!(error.contains("Dense") && error.contains("with_sentence_embedding"), "{error}");
    let own = SentenceEmbedding { pooling: Pooling::First, normalize: false, max_len: None };
    assert_eq!(model.with_sentence_embedding(own).sentence_embedding().unwrap(), own);
    // Configuration files must be inside the folder.
    for path in ["../elsewhere", "/etc"] {
        let modules = format!(r#"[{{"type": "sentence_transformers.models.Pooling", "path": "{path}"}}]"#);
        std::fs::write(folder.path().join("modules.json"), modules).unwrap();
        let error = HookedEncoder::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("is outside the folder"), "{error}");
    }
}

#[test]
fn wrong_input_of_encoders_is_refused() {
    let model = encoder("distilbert-bare");
    let says = |error: Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    says(model.forward(vec![vec![1, 2]]).unwrap_err(), "masked-token");
    says(model.next_sentence(vec![vec![1, 2]]).unwrap_err(), "next-sentence");
    says(model.encode(vec![vec![1, 99]]).unwrap_err(), "99");
    says(model.encode(vec![vec![1; 40]]).unwrap_err(), "40");
    says(model.encode(Vec::<Vec<u32>>::new()).unwrap_err(), "empty");
    says(model.encode(model.encode(vec![vec![1]]).unwrap()).unwrap_err(), "residual stream");
    says(model.encode(EncoderInput::from(vec![vec![1]]).token_types(vec![vec![1]])).unwrap_err(), "token_types");
    says(model.encode(EncoderInput::from(vec![vec![1]]).token_types(vec![vec![0, 0]])).unwrap_err(), "[1, 2]");
    says(model.run(vec![vec![1]], Record::new("pooler.hook_pooler_out")).unwrap_err(), "no pooler");
    says(model.run(vec![vec![1]], Record::new("blocks.0.hook_patern")).unwrap_err(), "attn.hook_pattern");
    says(HookedTransformer::from_pretrained(path("bert")).unwrap_err(), "HookedEncoder");
    says(HookedEncoder::from_pretrained(path("gpt2")).unwrap_err(), "HookedTransformer");
    says(HookedEncoder::from_pretrained(path("t5")).unwrap_err(), "HookedEncoderDecoder");
    let processed = LoadOptions::new().process(Processing::standard());
    let processed = HookedEncoder::from_pretrained_with(path("bert"), processed);
    says(processed.unwrap_err(), "does not support weight processing");
}

#[test]
fn wrong_input_of_encoder_decoders_is_refused() {
    let model = t5("t5");
    let says = |error: Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    let (input, start) = (vec![vec![5, 6, 7]], vec![vec![0]]);
    says(model.forward((input.clone(), vec![vec![0], vec![0]])).unwrap_err(), "decoder's has 2");
    says(model.forward((vec![vec![500]], start.clone())).unwrap_err(), "500");
    says(model.encode_with(input.clone(), Record::new("decoder.0.hook_resid_pre")).unwrap_err(), "only the encoder");
    let encoded = model.encode(input.clone()).unwrap();
    let record = Record::new("encoder.0.hook_resid_pre");
    says(model.decode_with(&encoded, start.clone(), record).unwrap_err(), "has run already");
    let mut cache = model.decoder_cache(encoded.clone());
    says(model.decode(&mut cache, vec![vec![0], vec![0]]).unwrap_err(), "rows");
    assert!(model.decode(&mut cache, start.clone()).is_ok());
    assert_eq!(cache.own().len(), 1);
    // Several texts for one input.
    let twice = encoded.repeat(2);
    let both = model.decode(&twice, vec![vec![0, 4], vec![0, 9]]).unwrap().logits.unwrap();
    let one = model.decode(&encoded, vec![vec![0, 9]]).unwrap().logits.unwrap();
    assert_close(&both.narrow(0, 1, 1), &one, 1e-5, "one input, two texts");
    let prefixed = model.generate_with(input, GenerateOptions::new().max_new_tokens(0));
    says(prefixed.unwrap_err(), "max_new_tokens");
}

/// Rows of a decoder's cache keep the input that they are decoded from.
#[test]
fn rows_of_a_decoder_cache_belong_to_their_inputs() {
    let model = t5("t5");
    let encoded = model.encode(vec![vec![5, 6, 7, 1], vec![8, 9, 3, 1]]).unwrap();
    let (mut cache, mut fresh) = (model.decoder_cache(encoded.clone()), model.decoder_cache(encoded));
    cache.select_rows(&[1, 0]).unwrap();
    for (rows, swapped) in [([0, 0], [0, 0]), ([4, 9], [9, 4])] {
        let run =
            |cache: &mut DecoderCache, [a, b]: [u32; 2]| model.decode(cache, vec![vec![a], vec![b]]).unwrap().logits;
        let (given, expected) = (run(&mut cache, swapped).unwrap(), run(&mut fresh, rows).unwrap());
        assert_close(&given.flip([0]), &expected, 1e-6, "swapped before the first token");
        cache.select_rows(&[1, 0]).unwrap();
        fresh.select_rows(&[1, 0]).unwrap();
        let (given, expected) = (run(&mut cache, rows).unwrap(), run(&mut fresh, swapped).unwrap());
        assert_close(&given.flip([0]), &expected, 1e-6, "swapped between tokens");
        cache.select_rows(&[1, 0]).unwrap();
        fresh.select_rows(&[1, 0]).unwrap();
    }
    assert!(cache.select_rows(&[2]).unwrap_err().to_string().contains('2'));
    cache.select_rows(&[0, 0, 1]).unwrap();
    assert_eq!(model.decode(&mut cache, vec![vec![4]; 3]).unwrap().logits.unwrap().dims()[0], 3);
}

/// A run that fails after the blocks leaves nothing in the cache: neither its own keys nor the encoder's keys that a
/// hook had edited.
#[test]
fn a_failed_run_leaves_the_decoder_cache_alone() {
    let model = t5("t5");
    let encoded = model.encode(vec![vec![5, 6, 7]]).unwrap();
    let mut cache = model.decoder_cache(encoded.clone());
    let edit = at("decoder.0.cross_attn.hook_k").edit(|keys: Tensor<4>, _| keys * 3.0);
    let fail = at("decoder_final_ln.hook_normalized").edit(|_: Tensor<3>, _| Err::<Tensor<3>, _>("no"));
    let failed = model.decode_with(&mut cache, vec![vec![0, 4]], ForwardOptions::new().hooks([edit, fail]));
    assert!(failed.is_err());
    assert!(cache.own().is_empty() && cache.own().interventions().is_empty());
    let mut fresh = model.decoder_cache(encoded);
    for rows in [vec![vec![0, 4]], vec![vec![9]]] {
        let run = |cache: &mut DecoderCache| model.decode(cache, rows.clone()).unwrap().logits.unwrap();
        assert_eq!(values(&run(&mut cache)), values(&run(&mut fresh)));
    }
}

/// A trained sentence encoder compared with its own runtime, if the all-MiniLM-L6-v2 folder is available.
#[test]
fn trained_sentence_embeddings_are_sentence_transformers() {
    let Some(folder) = std::env::var_os("HOOKLENS_MINILM") else {
        skipped("HOOKLENS_MINILM names no folder of all-MiniLM-L6-v2");
        return;
    };
    let model = HookedEncoder::from_pretrained(folder.to_str().unwrap()).unwrap();
    assert_eq!(model.sentence_embedding().unwrap().max_len, Some(256));
    let read = |name: &str| std::fs::read(fixtures().join("sentences").join(name)).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&read("texts.json")).unwrap();
    let expected = Golden::of_file("sentences", "embeddings.safetensors");
    let expected = expected.get("embeddings").unwrap();
    let given = values(&model.sentence_embeddings(&texts).unwrap());
    for (text, (a, b)) in texts.iter().zip(given.rows().into_iter().zip(expected.rows())) {
        let cosine = a.dot(&b) / (a.dot(&a) * b.dot(&b)).sqrt();
        println!("{cosine:.7} {text:.40}");
        assert!(cosine >= 0.9999, "{cosine}: {text}");
    }
    assert!(distance(&given, expected) < 1e-4, "{}", distance(&given, expected));
    let one = values(&model.sentence_embeddings(&texts[..1]).unwrap());
    assert!(distance(&one, &given.slice_axis(Dim(0), (0..1).into()).to_owned()) < 1e-5, "alone as in a batch");
    let pattern = model.run("It rains.", Record::new("blocks.5.attn.hook_pattern")).unwrap();
    assert_eq!(pattern.cache.get(hook::pattern(5)).unwrap().dims(), [1, 12, 5, 5]);
}
