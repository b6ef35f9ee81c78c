//! Parts spliced into models: their points have the properties of the model's own points.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hooklens::hook::{Inside, Part, PartPoint};
use hooklens::prelude::*;
use hooklens::{Halt, HookError};
use proptest::prelude::*;

use crate::support::{any_config, assert_close, cases, fixtures, has, precise, random_model, smooth};
use hooklens_model::config::Settings;

/// A part that returns its input.
pub(crate) struct Same;

impl Part for Same {
    fn name(&self) -> String {
        "same".into()
    }

    fn points(&self) -> Vec<PartPoint> {
        Vec::new()
    }

    fn forward(&self, x: Activation, _: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
        Ok(x)
    }
}

/// A dictionary with an error term, whose features are shifted, rectified coordinates.
struct Dictionary {
    name: &'static str,
    /// Whether the reconstruction error is added back.
    error: bool,
    runs: Arc<AtomicUsize>,
}

fn dictionary(name: &'static str, error: bool) -> Dictionary {
    Dictionary { name, error, runs: Arc::default() }
}

const FEATURES: &[Axis] = &[Axis::Batch, Axis::Pos, Axis::Feature];
const STREAM: &[Axis] = &[Axis::Batch, Axis::Pos, Axis::DModel];

impl Part for Dictionary {
    fn name(&self) -> String {
        self.name.into()
    }

    fn points(&self) -> Vec<PartPoint> {
        let named = |what: &str, axes| PartPoint::new(format!("hook_{}_{what}", self.name), axes);
        vec![named("acts_pre", FEATURES), named("acts_post", FEATURES), named("output", STREAM)]
    }

    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let x: Tensor<3> = x.to_tensor()?;
        let named = |what: &str| format!("hook_{}_{what}", self.name);
        let clean = (x.clone() - 0.1).clamp_min(0.0) * 0.5;
        let left = x.clone() - clean;
        let pre = inside.fire(&named("acts_pre"), x - 0.1)?;
        let acts = inside.fire(&named("acts_post"), pre.clamp_min(0.0))?;
        let output = if self.error { acts * 0.5 + left } else { acts * 0.5 };
        Ok(inside.fire(&named("output"), output)?.into())
    }
}

fn rows() -> Vec<Vec<u32>> {
    vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8, 0, 5]]
}

fn record_all() -> Record {
    Record::new(Selection::matching(|_| true))
}

proptest! {
    #![proptest_config(cases(30))]

    /// An identity part changes nothing at any point of any model, bit for bit if the point's tensor is computed
    /// anyway.
    #[test]
    fn a_part_that_gives_back_its_input_is_no_part(config in any_config(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        let expected = model.run(rows(), record_all()).unwrap();
        let points = model.catalog().points().to_vec();
        for point in points.iter().filter(|point| !point.integer).step_by(1 + seed as usize % 3) {
            let spliced = model.splice(&*point.name, Same).unwrap();
            let given = spliced.run(rows(), record_all()).unwrap();
            for (name, tensor) in expected.cache.iter().filter(|(_, tensor)| tensor.dtype().is_float()) {
                let given = given.cache.activation(name).unwrap().to_ndarray().unwrap();
                let (worst, largest) = tensor.to_ndarray().unwrap().iter().zip(&given).filter(|(a, b)| a != b)
                    .fold((0f32, 1f32), |(worst, largest), (a, b)| (worst.max((a - b).abs()), largest.max(a.abs())));
                prop_assert!(worst < 2e-5 * largest, "{}: {} by {worst} of {largest}", point.name, name);
            }
        }
    }

    /// A dictionary with its error term changes nothing. Editing one of its points edits the stream, its gradients
    /// match finite differences, and several parts can follow each other.
    #[test]
    fn the_points_of_a_part_are_like_the_models_own(config in any_config(), seed in 0u64..1000) {
        if !has(DType::F64) {
            return Ok(());
        }
        let layer = seed as usize % config.n_layers();
        let model = precise(smooth(config), seed);
        let host = hook::resid_post(layer);
        let spliced = model.splice(&host, dictionary("sae", true)).unwrap();
        let plain = model.forward(rows()).unwrap();
        assert_close(&spliced.forward(rows()).unwrap(), &plain, 1e-9, "error term");

        // Recorded alone, in any order, on request: the results are the same.
        let acts = host.inner::<3>("hook_sae_acts_post");
        let cache = spliced.record(rows(), &acts).unwrap();
        let stream = model.record(rows(), &host).unwrap().get(&host).unwrap();
        assert_close(&cache.get(&acts).unwrap(), &(stream - 0.1).clamp_min(0.0), 1e-9, "acts");
        let globbed = spliced.record(rows(), "*hook_sae_acts_post").unwrap();
        prop_assert_eq!(globbed.len(), 1);
        let short = format!("resid_post{layer}.hook_sae_acts_post");
        prop_assert!(cache.contains(&*short));

        // Editing a feature equals the corresponding edit of the stream.
        let edited = spliced.run_with_hooks(rows(), [acts.clone().unit(2).edit(|x, _| x + 3.0)]).unwrap();
        let by_hand = model.run_with_hooks(rows(), [host.clone().unit(2).edit(|x, _| x + 1.5)]).unwrap();
        assert_close(&edited, &by_hand, 1e-9, "edit");

        // Gradients of later activations along one direction.
        let scalar = |logits: Tensor<3>| (logits.clone() * logits.sin()).sum();
        let output = spliced.run_with_gradients(rows(), Record::new(&acts), scalar).unwrap();
        let along = output.cache.grad(&acts).unwrap().sum().into_scalar::<f64>();
        let at_step = |step: f64| {
            let logits = spliced.run_with_hooks(rows(), [acts.clone().edit(move |x, _| x + step)]).unwrap();
            scalar(logits).into_scalar::<f64>()
        };
        let slope = (at_step(1e-5) - at_step(-1e-5)) / 2e-5;
        prop_assert!((along - slope).abs() <= 1e-4 * slope.abs().max(1.0), "{along} for {slope}");

        // A second part after the first reads the first one's output.
        let both = spliced.splice(&host, dictionary("second", false)).unwrap();
        let cache = both.record(rows(), record_all()).unwrap();
        let first = cache.get(host.inner::<3>("hook_sae_output")).unwrap();
        let second = cache.get(host.inner::<3>("hook_second_acts_post")).unwrap();
        assert_close(&second, &(first - 0.1).clamp_min(0.0), 1e-9, "second");
        assert_close(&cache.get(&host).unwrap(), &(second * 0.5), 1e-9, "the point fires with what the parts gave");
    }

    /// With a cache, a part computes the same as in a single run, and the cache records the part.
    #[test]
    fn a_part_behind_a_cache(config in any_config(), seed in 0u64..1000) {
        prop_assume!(!config.bidirectional());
        let model = random_model(config, seed).splice("resid_pre0", dictionary("sae", false)).unwrap();
        let whole = model.run(vec![rows()[0].clone()], record_all()).unwrap();
        let mut cache = model.prefill(vec![rows()[0][..3].to_vec()]).unwrap();
        prop_assert_eq!(cache.interventions(), ["sae at blocks.0.hook_resid_pre"]);
        let options = ForwardOptions::new().kv_cache(&mut cache).record("*hook_sae_acts_post");
        let behind = model.run(vec![rows()[0][3..].to_vec()], options).unwrap();
        let acts = "blocks.0.hook_resid_pre.hook_sae_acts_post";
        let expected: Tensor<3> = whole.cache.get(acts).unwrap();
        assert_close(&behind.cache.get(acts).unwrap(), &expected.narrow(1, 3, 2), 1e-4, "acts");
        assert_close(&behind.logits.unwrap(), &whole.logits.unwrap().narrow(1, 3, 2), 1e-4, "logits");
        prop_assert_eq!(cache.interventions().len(), 1);
    }
}

/// A transcoder can be spliced into an encoder, and into both stacks of an encoder-decoder.
#[test]
fn parts_in_encoders_too() {
    let model = HookedEncoder::from_pretrained(fixtures().join("bert-pretraining").to_str().unwrap()).unwrap();
    let spliced = model.splice_between("blocks.1.mlp.hook_in", "mlp_out1", dictionary("transcoder", false)).unwrap();
    let record = ["blocks.1.mlp.hook_in", "blocks.1.hook_mlp_out", "*hook_transcoder_acts_post"];
    let cache = spliced.record([3, 9, 1, 7], record).unwrap();
    let read: Tensor<3> = cache.get("blocks.1.mlp.hook_in").unwrap();
    let written: Tensor<3> = cache.get("blocks.1.hook_mlp_out").unwrap();
    assert_close(&written, &((read - 0.1).clamp_min(0.0) * 0.5), 1e-6, "transcoder");

    let model = HookedEncoderDecoder::from_pretrained(fixtures().join("t5").to_str().unwrap()).unwrap();
    let input = ([5, 6, 7, 1], [0, 4, 9]);
    let plain = model.forward(input).unwrap();
    for host in ["encoder.1.hook_resid_mid", "decoder.0.hook_resid_mid_cross", "decoder.1.hook_resid_post"] {
        let same = model.splice(host, dictionary("sae", true)).unwrap();
        assert_close(&same.forward(input).unwrap(), &plain, 1e-5, host);
        let other = model.splice(host, dictionary("sae", false)).unwrap();
        let cache = other.record(input, "*hook_sae_acts_post").unwrap();
        assert_eq!(cache.names().collect::<Vec<_>>(), [format!("{host}.hook_sae_acts_post")]);
        assert!((other.forward(input).unwrap() - plain.clone()).abs().max().into_scalar::<f32>() > 1e-4);
    }
}

/// A run that only needs a point of a spliced part ends there, and a part after the last requested point does not run.
#[test]
fn parts_run_as_far_as_they_are_wanted() {
    let model = random_model(hooklens::TransformerConfig::new(3, 16, 2, 20, 16), 1);
    let sae = dictionary("sae", true);
    let runs = sae.runs.clone();
    let spliced = model.splice("resid_post1", sae).unwrap();
    spliced.record(rows(), "resid_post0").unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    spliced.record(rows(), "resid_post1.hook_sae_acts_pre").unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let stopped = spliced.run(rows(), ForwardOptions::new().stop_at_layer(1)).unwrap();
    assert!(stopped.residual.is_some() && runs.load(Ordering::Relaxed) == 1);
}

#[test]
fn errors_of_parts_name_them() {
    let model = random_model(hooklens::TransformerConfig::new(2, 16, 2, 20, 16), 1);
    let message = |error: hooklens::Error| hooklens::error_chain(&error);
    let spliced = model.splice("resid_post0", dictionary("sae", true)).unwrap();
    let twice = message(spliced.splice("resid_post0", dictionary("sae", true)).unwrap_err());
    assert_eq!(
        twice,
        "the part `sae` can't be spliced in at `blocks.0.hook_resid_post`: there is already a point \
         `blocks.0.hook_resid_post.hook_sae_acts_pre`"
    );
    let integers = message(model.splice("hook_tokens", Same).unwrap_err());
    assert_eq!(integers, "the part `same` can't be spliced in at `hook_tokens`: it holds integers");
    let late = message(model.splice_between("resid_post1", "mlp_out0", Same).unwrap_err());
    assert!(late.ends_with("`blocks.1.hook_resid_post`, which the part reads, fires later"), "{late}");
    let unknown = message(spliced.record(rows(), "resid_post0.hook_sae_acts_pst").unwrap_err());
    assert!(unknown.contains("hook_sae_acts_p"), "{unknown}");
    let processed = message(spliced.clone().processed(&Processing::standard()).map(drop).unwrap_err());
    assert_eq!(
        processed,
        "can't process a model with spliced parts (sae at blocks.0.hook_resid_post); \
         process the model first, then splice them in"
    );
    // A run that starts after the point that a part reads, but includes the point that it writes.
    let across = model.splice_between("resid_pre0", "resid_post1", Same).unwrap();
    let stream = model.forward_with(rows(), ForwardOptions::new().stop_at_layer(1)).unwrap();
    let left_out = message(across.forward_with(stream, ForwardOptions::new().start_at_layer(1)).unwrap_err());
    assert_eq!(left_out, "`blocks.0.hook_resid_pre` does not fire: the run starts at a later layer");

    /// A part that fails, returns another shape, or fires an undeclared point.
    struct Wrong(u8);

    impl Part for Wrong {
        fn name(&self) -> String {
            "wrong".into()
        }

        fn points(&self) -> Vec<PartPoint> {
            vec![PartPoint::new("hook_acts", FEATURES)]
        }

        fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
            match self.0 {
                0 => return Err("too few features".into()),
                1 => drop(inside.fire("hook_act", x.to_tensor::<3>()?)?),
                2 => drop(inside.fire("hook_acts", Tensor::<2>::zeros([1, 1], &x.device()))?),
                _ => {}
            }
            Ok(x.narrow(1, 0, 1))
        }
    }

    let run = |kind| message(model.splice("resid_post0", Wrong(kind)).unwrap().forward(rows()).unwrap_err());
    assert_eq!(run(0), "the part `wrong` at `blocks.0.hook_resid_post` failed: too few features");
    assert!(
        run(1).starts_with("no hook point is called `blocks.0.hook_resid_post.hook_act` in this model"),
        "{}",
        run(1)
    );
    assert!(run(2).contains("has rank 3 [batch, pos, d_sae], but rank 2 was requested"), "{}", run(2));
    assert!(run(3).contains("the point's shape is [2, 5, 16] [batch, pos, d_model]"), "{}", run(3));
    let error = model.splice("resid_post0", Wrong(0)).unwrap().forward(rows()).unwrap_err();
    assert!(matches!(error, hooklens::Error::Hook(HookError::Part { .. })));
}

/// Hooks on slices equal the same edit by hand, and positions count real tokens.
#[test]
fn slices_of_named_axes() {
    let model = random_model(hooklens::TransformerConfig::new(2, 16, 4, 20, 16), 3);
    let logits = |hooks: Vec<hooklens::hook::Hook<'_>>| model.run_with_hooks(rows(), hooks).unwrap();
    let by_hand = logits(vec![hook::z(0).edit(|z, _| {
        let [batch, pos, _, d_head] = z.dims();
        z.clone().slice_assign([0..batch, 0..pos, 1..2, 0..d_head], z.narrow(2, 1, 1).zeros_like())
    })]);
    assert_close(&logits(vec![hook::z(0).head(1).zero()]), &by_hand, 1e-7, "head");
    assert_close(&logits(vec![hook::z(0).head(-3).scale(0.0)]), &by_hand, 1e-7, "negative head");
    assert_close(&logits(vec![hook::z(0).heads([0, 1, 2, 3]).zero()]), &logits(vec![hook::z(0).zero()]), 1e-7, "all");

    let other = vec![vec![4, 4, 4, 11, 2], vec![1, 12, 3, 3, 3]];
    let donor = model.record(&other, Record::new(["*hook_resid_pre", "*hook_z"])).unwrap();
    let patched = logits(vec![hook::resid_pre(1).positions(-1).replace(&donor)]);
    let given = donor.get(hook::resid_pre(1)).unwrap();
    let by_hand = logits(vec![
        hook::resid_pre(1).edit(move |x, _| x.slice_assign([0..2, 4..5, 0..16], given.clone().narrow(1, 4, 1))),
    ]);
    assert_close(&patched, &by_hand, 1e-7, "replace");
    let mean = donor.get(hook::z(1)).unwrap().mean_dim(0).mean_dim(1);
    let by_hand = logits(vec![hook::z(1).edit(move |z, _| {
        let mean = mean.clone().narrow(2, 2, 1).expand([2, 5, 1, 4]);
        z.slice_assign([0..2, 0..5, 2..3, 0..4], mean)
    })]);
    assert_close(&logits(vec![hook::z(1).head(2).mean(&donor)]), &by_hand, 1e-6, "mean");
    let vector = Tensor::<1>::ones([16], &Device::flex());
    let by_hand = logits(vec![hook::resid_post(0).edit(|x, _| x + 1.0)]);
    assert_close(&logits(vec![hook::resid_post(0).add(vector)]), &by_hand, 1e-6, "add");

    // In a padded row, the last position is the last real token.
    let padded = Tokens::padded(&[vec![3, 9, 1, 7, 9], vec![2, 2]], 0, hooklens::PaddingSide::Right).unwrap();
    let hooked = model.hooks([hook::resid_pre(0).positions(-1).zero()]);
    let cache = hooked.record(&padded, hook::resid_pre(0)).unwrap();
    let zero = |row: usize, pos: usize| {
        let place = cache.get(hook::resid_pre(0)).unwrap().narrow(0, row, 1).narrow(1, pos, 1);
        place.abs().max().into_scalar::<f32>() == 0.0
    };
    assert!(zero(0, 4) && zero(1, 1) && !zero(0, 1) && !zero(1, 4));

    let message = model.run_with_hooks(rows(), [hook::z(0).head(9).zero()]).unwrap_err().to_string();
    assert_eq!(message, "`blocks.0.attn.hook_z` [batch, pos, head, d_head] of shape [2, 5, 4, 4] has no head 9");
    let none = model.run_with_hooks(rows(), [hook::resid_pre(0).head(0).zero()]).unwrap_err().to_string();
    assert!(none.ends_with("has no head 0"), "{none}");
    let absent = model.run_with_hooks(rows(), [hook::mlp_out(0).replace(&donor)]).unwrap_err().to_string();
    assert!(absent.contains("was not recorded"), "{absent}");
}
