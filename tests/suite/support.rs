//! Shared test helpers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Distribution, Tensor};
use hooklens::features::{Dictionary, DictionaryWeights, Metadata, Transcoders};
use hooklens::prelude::*;
use hooklens::{ActivationFn, NormKind, Positional, ResidualScheme, RopeScaling, Rotary, Window};
use hooklens_model::config::{
    AttnExperts, ClippedGate, ExpertGroups, Experts, GatedDelta, Latent, Layers, MixerConfig, MlpConfig,
    PerLayerInputs, QkNorm, QkNormWeights, QueryGrowth, RouterFn, Settings, SharedExpert, ShortConv, StateSpace,
};
use ndarray::ArrayD;
use proptest::prelude::*;

/// Number of cases for a property test, capped at `HOOKLENS_TEST_CASES`, because cases are slow on a software GPU
/// driver.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let most = std::env::var("HOOKLENS_TEST_CASES").map_or(count, |most| most.parse().unwrap());
    ProptestConfig { cases: count.min(most), ..ProptestConfig::default() }
}

/// Records a skipped test, or a skipped part of a test, to be printed when the process exits.
pub(crate) fn skipped(what: &str) {
    static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    extern "C" fn tell() {
        let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!("NOT RUN: {} of the tests, or parts of them:", skipped.len());
        skipped.iter().for_each(|what| eprintln!("    {what}"));
    }
    let name = std::thread::current().name().unwrap_or("a test").to_string();
    let mut skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if skipped.is_empty() {
        // SAFETY: the function takes no arguments and only touches statics.
        unsafe { libc::atexit(tell) };
    }
    let line = format!("{name}: {what}");
    if !skipped.contains(&line) {
        skipped.push(line);
    }
}

/// Whether the tests' device supports a dtype; records a skip if not.
pub(crate) fn has(dtype: DType) -> bool {
    let has = hooklens_model::device::element_types(&device()).contains(&dtype);
    if !has {
        skipped(&format!("the device does not compute in {dtype}"));
    }
    has
}

/// Tolerance on the tests' device, relative to the maximum, for values that are bit-identical on other devices. On a
/// device that fuses operations, the order of summation differs between kernels.
pub(crate) fn rounding() -> f32 {
    let fuses = ["wgpu", "vulkan", "metal", "cuda"];
    let name = std::env::var(hooklens_model::device::DEVICE_VARIABLE).unwrap_or_default();
    if fuses.contains(&name.split(':').next().unwrap_or_default()) { 1e-5 } else { 0.0 }
}

/// Whether some layer has a recurrent state instead of attention.
pub(crate) fn has_states(config: &TransformerConfig) -> bool {
    (0..config.n_layers()).any(|layer| !config.attends(layer))
}

/// Tolerance, relative to the maximum, for models whose first layers compute in a different order. Random models with
/// recurrent states amplify differences: half a unit in the last place of an embedding changed the logits of one by
/// 2.7e-5.
pub(crate) fn rounding_of(config: &TransformerConfig) -> f32 {
    if has_states(config) { 1e-4 } else { 1e-5 }
}

/// The tests' device: the one named by `HOOKLENS_DEVICE`, or the CPU.
pub(crate) fn device() -> Device {
    hooklens::default_device().unwrap()
}

/// Path of the `hooklens` program built with the tests.
pub(crate) fn program() -> std::process::Command {
    std::process::Command::new(env!("CARGO_BIN_EXE_hooklens"))
}

/// Path of `tests/fixtures`.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
pub(crate) fn failure<T, E: std::error::Error + Send + Sync + 'static>(
    result: Result<T, hooklens::Error>,
) -> Option<E> {
    use hooklens::Error;
    let error: Box<dyn std::error::Error + Send + Sync> = match result.err()? {
        Error::Hook(error) => error.into(),
        Error::Config(error) => error.into(),
        Error::Load(error) => error.into(),
        Error::Input(error) => error.into(),
        Error::Cache(error) => error.into(),
        Error::Processing(error) => error.into(),
        Error::Weight(error) => error.into(),
        Error::Other(error) => error,
        other => other.into(),
    };
    error.downcast().ok().map(|error| *error)
}
pub(crate) fn fixtures() -> PathBuf {
    root().join("tests/fixtures")
}

/// Sorted names of the fixtures that contain `file`.
pub(crate) fn fixtures_with(file: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap());
    let with_file = entries.filter(|entry| entry.path().join(file).is_file());
    let mut names: Vec<String> = with_file.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Values of a float tensor.
pub(crate) fn values<const D: usize>(tensor: &Tensor<D>) -> ArrayD<f32> {
    Activation::from(tensor.clone()).to_ndarray().unwrap()
}

/// Largest difference relative to the expected values' largest magnitude. Infinities must be at the same positions.
pub(crate) fn distance(given: &ArrayD<f32>, expected: &ArrayD<f32>) -> f32 {
    assert_eq!(given.shape(), expected.shape(), "shapes differ");
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0f32, |m, x| m.max(x.abs()));
    let mut worst = 0f32;
    for (a, b) in given.iter().zip(expected) {
        if a.is_finite() && b.is_finite() {
            worst = worst.max((a - b).abs());
        } else if a != b {
            return f32::INFINITY;
        }
    }
    worst / largest.max(1e-6)
}

/// Asserts that two tensors agree to `tolerance`, relative to the largest value.
#[track_caller]
pub(crate) fn assert_close<const D: usize>(given: &Tensor<D>, expected: &Tensor<D>, tolerance: f32, what: &str) {
    let worst = distance(&values(given), &values(expected));
    assert!(worst <= tolerance, "{what}: differ by {worst:e} of the largest value");
}

/// Log probabilities.
pub(crate) fn log_probs(logits: Tensor<3>) -> Tensor<3> {
    burn::tensor::activation::log_softmax(logits, 2)
}

/// A model with three layers, and a random dictionary for the residual stream after the second layer.
pub(crate) fn with_dictionary() -> (HookedTransformer, Dictionary) {
    let model = random_model(TransformerConfig::new(3, 16, 2, 20, 16), 4);
    device().seed(9);
    let random =
        |shape: [usize; 2], scale: f64| Tensor::<2>::random(shape, Distribution::Normal(0.0, scale), &device());
    let weights = DictionaryWeights {
        encoder: random([16, 24], 1.0),
        encoder_bias: random([1, 24], 0.3).reshape([24]),
        decoder: random([24, 16], 0.5),
        decoder_bias: random([1, 16], 0.2).reshape([16]),
        skip: None,
    };
    let sae = Dictionary::new("random", weights).unwrap().with_metadata(Metadata::at("blocks.1.hook_resid_post"));
    (model, sae)
}

/// Folder of a random cross-layer transcoder.
pub(crate) fn cross_layer(layers: usize, width: usize, folder: &Path, reads: &str, writes: &str) -> Transcoders {
    use std::collections::HashMap;
    let latents = 12;
    std::fs::create_dir_all(folder).unwrap();
    device().seed(3);
    let random = |shape: [usize; 3], scale: f64| {
        Activation::from(Tensor::<3>::random(shape, burn::tensor::Distribution::Normal(0.0, scale), &device()))
    };
    for layer in 0..layers {
        let save = |name: &str, tensors: Vec<(String, Activation)>| {
            let path = folder.join(format!("{name}_{layer}.safetensors"));
            let tensors = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
            hooklens::write_safetensors(&path, tensors, HashMap::new()).unwrap();
        };
        let encoder = vec![
            (format!("W_enc_{layer}"), random([1, latents, width], 1.0).reshape(&[latents, width])),
            (format!("b_enc_{layer}"), random([1, 1, latents], 0.2).reshape(&[latents])),
            (format!("b_dec_{layer}"), random([1, 1, width], 0.2).reshape(&[width])),
        ];
        save("W_enc", encoder);
        save("W_dec", vec![(format!("W_dec_{layer}"), random([latents, layers - layer, width], 0.3))]);
    }
    let yaml =
        format!("model_kind: cross_layer_transcoder\nfeature_input_hook: {reads}\nfeature_output_hook: {writes}\n");
    std::fs::write(folder.join("config.yaml"), yaml).unwrap();
    Transcoders::open(folder).unwrap()
}

/// A randomly initialized model. Biases and norm weights are random too, so that no error hides behind a zero.
pub(crate) fn random_model(config: TransformerConfig, seed: u64) -> HookedTransformer {
    use burn::module::{ModuleMapper, Param};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    /// Adds noise with its own seed, so that failures are reproducible.
    struct Shake(StdRng);
    impl ModuleMapper for Shake {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let std = if D == 1 { 0.2 } else { 0.15 };
            param.map(|t| {
                // The sum of twelve uniform numbers minus six is close enough to normal here.
                let mut normal = || (0..12).map(|_| self.0.random::<f32>()).sum::<f32>() - 6.0;
                let noise: Vec<f32> = (0..t.shape().num_elements()).map(|_| normal() * std).collect();
                t.clone() + Tensor::from_data(burn::tensor::TensorData::new(noise, t.dims()), &t.device())
            })
        }
    }
    // Generated on the CPU, because devices have their own random number generators.
    let model = HookedTransformer::random(config, seed, &Device::flex()).unwrap();
    let model =
        model.map_weights(|weights| burn::module::Module::map(weights, &mut Shake(StdRng::seed_from_u64(seed))));
    model.to_devices(&[device()])
}

/// Casts every weight.
pub(crate) struct Cast(pub(crate) burn::tensor::FloatDType);

impl burn::module::ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: burn::module::Param<Tensor<D>>) -> burn::module::Param<Tensor<D>> {
        param.map(|t| t.cast(self.0))
    }
}

/// Casts `weights` to f64.
pub(crate) fn widened<M: burn::module::Module>(weights: M) -> M {
    weights.map(&mut Cast(burn::tensor::FloatDType::F64))
}

/// A randomly initialized model that computes in f64.
pub(crate) fn precise(config: TransformerConfig, seed: u64) -> HookedTransformer {
    random_model(config, seed).map_weights(widened)
}

/// Whether a function jumps within a step, judged by its difference quotients over the step and half the step. They
/// differ by more than `tolerance` if the step changes which experts a token is routed to; there, the function has no
/// slope.
pub(crate) fn jumps(wide: f64, near: f64, tolerance: f64) -> bool {
    (wide - near).abs() > tolerance
}

/// Avoids kinks, near which finite differences are meaningless: smooth activation functions, no clipped gates, and
/// attention by all experts. MLPs still choose experts; see [`jumps`].
pub(crate) fn smooth(config: TransformerConfig) -> TransformerConfig {
    let activation =
        if config.activation() == ActivationFn::Relu { ActivationFn::GeluNew } else { config.activation() };
    let soft = |router| if matches!(router, RouterFn::SparseMixer { .. }) { RouterFn::Softmax } else { router };
    let experts = config.experts().map(|own| Experts { clipped: None, router: soft(own.router), ..own });
    let attn_experts = config.attn_experts().map(|own| AttnExperts { per_token: own.count, ..own });
    config.with_mixture(experts).with_activation(activation).with_attn_experts(attn_experts).with_qkv_clip(None)
}

/// Any small configuration.
pub(crate) fn any_config() -> impl Strategy<Value = TransformerConfig> {
    (any_without_latents(), 0..8usize, 0..12usize).prop_map(|(config, kind, more)| {
        let experts = config.experts().map(|plain| match kind {
            0 => Experts {
                router: RouterFn::Sigmoid,
                choice_bias: true,
                groups: Some(ExpertGroups { count: 3, kept: 2, best: 2 }),
                scale: 1.5,
                shared: Some(SharedExpert { d_mlp: 12, gated: false }),
                count: 6,
                ..plain
            },
            1 => Experts { renormalize: false, shared: Some(SharedExpert { d_mlp: 20, gated: true }), ..plain },
            2 => Experts { renormalize: false, router: RouterFn::SparseMixer { jitter: 0.1 }, ..plain },
            3 => Experts {
                router: RouterFn::Sigmoid,
                renormalize: false,
                clipped: None,
                scales_inputs: true,
                shared: Some(SharedExpert { d_mlp: 20, gated: false }),
                ..plain
            },
            _ => plain,
        });
        let dense = experts.is_some() && kind % 2 == 1;
        let rotary = matches!(config.positional(), Positional::Rotary(rotary) if rotary.dim == 4);
        let apart = config.rotary(0) == config.rotary(1)
            && config.qk_norm().is_none()
            && config.n_heads() == config.n_kv_heads();
        let d_value = if kind < 6 { 6 } else { 8 };
        let latent = Latent { q_rank: (kind % 2 == 0).then_some(7), kv_rank: 5, d_rope: 4, d_value, eps: 1e-6 };
        let latent = (rotary && apart && kind > 2).then_some(latent);
        // Layers with different heads: the second layer's are wider, and all share one key-value head.
        let mut config = config.with_mixture(experts).with_latent(latent);
        if latent.is_none() && kind % 3 == 2 {
            let second = config.layers_mut()[1].mixer.attention_mut().unwrap();
            (second.n_kv_heads, second.d_head) = (1, second.d_head + 4);
        }
        if dense {
            let mlp = plain_mlp(&config, 0, 18);
            config.layers_mut()[0].mlp = mlp;
        }
        with_more(config, more)
    })
}

/// Any small configuration with a gated delta net, Mamba 2 or a short convolution in one or both layers, and with or
/// without gated attention. A layer may also have only a mixer or only an MLP.
pub(crate) fn any_hybrid() -> impl Strategy<Value = TransformerConfig> {
    let heads = prop_oneof![Just((1, 1)), Just((1, 2)), Just((2, 4)), Just((3, 3))];
    (any_config(), heads, 2..5usize, 0..3usize, 0..8usize, any::<bool>()).prop_map(
        |(config, (keys, values), width, kind, which, attn_gates)| {
            let net = MixerConfig::GatedDeltaNet(GatedDelta {
                n_key_heads: keys,
                n_value_heads: values,
                d_key: 5,
                d_value: 6,
                width,
            });
            let (norm_groups, least_step) = if attn_gates { (keys, 0.5) } else { (1, 0.0) };
            let space = StateSpace { n_groups: keys, width, norm_groups, least_step, ..StateSpace::new(values, 6, 5) };
            let space = MixerConfig::Mamba2(space);
            let attention = |layer: usize| config.layers()[layer].mixer.clone();
            let conv = MixerConfig::ShortConvolution(ShortConv { width });
            let (one, other) = [(net.clone(), space.clone()), (space, conv.clone()), (conv, net)][kind].clone();
            let both = |layer: usize| match (attention(layer), &one) {
                (MixerConfig::Attention(own), MixerConfig::Mamba2(space)) => {
                    MixerConfig::AttentionAndMamba2(own, *space)
                }
                _ => one.clone(),
            };
            let all =
                [[one.clone(), attention(1)], [attention(0), both(1)], [both(0), one.clone()], [one.clone(), other]];
            let whole = config.attn_only() || config.residual() == ResidualScheme::Parallel || config.post_norms();
            // Layers with only one part, like Nemotron-H's.
            let (mixers, without_mlp) = match which {
                _ if whole || which < 4 => (all[which % 4].clone(), None),
                4 | 5 => ([one, MixerConfig::None], Some(0)),
                6 => ([MixerConfig::None, attention(1)], Some(1)),
                _ => ([attention(0), one], Some(0)),
            };
            let parts = without_mlp.is_some();
            let shortformer = *config.positional() == Positional::Shortformer;
            let positional = if shortformer { Positional::None } else { config.positional().clone() };
            let (per_layer_inputs, attn_experts) = (config.per_layer_inputs(), config.attn_experts());
            let residual = residual_of_sums(&config);
            let layer_scalars = config.layer_scalars() && !parts;
            let mut config = config
                .with_mixers(mixers)
                .unwrap()
                .with_positional(positional)
                .with_residual(residual)
                .with_per_layer_inputs(per_layer_inputs.filter(|_| !parts))
                .with_layer_scalars(layer_scalars)
                .with_attn_gates(attn_gates)
                .with_attn_experts(attn_experts.filter(|_| !attn_gates))
                .with_latent(None)
                .with_shared_keys([])
                .unwrap();
            if let Some(layer) = without_mlp {
                config.layers_mut()[layer].mlp = MlpConfig::None;
            }
            config
        },
    )
}

/// LibTorch's panic message when a device is out of memory.
pub(crate) const DEVICE_IS_FULL: &str =
    "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA out of memory. Tried to allocate 2.00 GiB.\")";

/// Any small configuration, with or without recurrent states.
pub(crate) fn any_decoder() -> impl Strategy<Value = TransformerConfig> {
    prop_oneof![3 => any_config(), 1 => any_hybrid()]
}

/// The residual scheme, or a sequential one if `config` normalizes the residual stream.
fn residual_of_sums(config: &TransformerConfig) -> ResidualScheme {
    if config.stream_is_normalized() { ResidualScheme::Sequential } else { config.residual() }
}

/// An MLP without experts of width `d_mlp`, gated if the MLP of `layer` is.
fn plain_mlp(config: &TransformerConfig, layer: usize, d_mlp: usize) -> MlpConfig {
    if config.is_gated(layer) { MlpConfig::Gated { d_mlp } } else { MlpConfig::Dense { d_mlp } }
}

/// Adds the features of Gemma 4 that `kind` selects, unless they conflict with the rest of the configuration.
fn with_more(mut config: TransformerConfig, kind: usize) -> TransformerConfig {
    let has = |own: usize| kind == own || kind == 5;
    let stream_is_normalized = config.stream_is_normalized();
    let serial = !config.attn_only() && config.residual() == ResidualScheme::Sequential;
    let alike = config.layers()[0].mixer == config.layers()[1].mixer;
    if has(0) && alike && config.latent().is_none() && config.window(0).is_none() {
        config = config.with_shared_keys([None, Some(0)]).unwrap();
    }
    let slopes = matches!(config.activation(), ActivationFn::Xielu | ActivationFn::SoluLn);
    if has(1) && serial && !config.post_embedding_norm() && !slopes {
        config = config.with_per_layer_inputs(PerLayerInputs { width: 6 });
    }
    config = config.with_layer_scalars(has(2) && serial);
    if (5..8).contains(&kind) && config.latent().is_none() && *config.positional() != Positional::Shortformer {
        let count = config.n_heads() / config.n_kv_heads();
        let experts = AttnExperts { count, per_token: count.div_ceil(2) };
        config = config.with_attn_experts(experts).with_final_eps(1e-3);
    }
    if has(3) && config.latent().is_none() {
        let qk_norm = config.qk_norm().map(|norm| QkNorm { values: true, ..norm });
        config = config.with_qk_norm(qk_norm);
    }
    if has(4) {
        let normed = config.norm() != NormKind::None;
        let shared = |own: SharedExpert| normed && own.d_mlp > 0;
        let own_norms = |own: &Experts| !stream_is_normalized && own.shared.is_some_and(shared);
        for layer in config.layers_mut() {
            if let MlpConfig::Experts { experts, .. } = &mut layer.mlp {
                *experts = Experts { own_norms: own_norms(experts), own_scales: true, ..*experts };
            }
        }
        if config.experts().is_none() && !config.attn_only() {
            let mlp = plain_mlp(&config, 0, 30);
            config.layers_mut()[0].mlp = mlp;
        }
    }
    config
}

fn any_without_latents() -> impl Strategy<Value = TransformerConfig> {
    let positional = prop_oneof![
        Just(Positional::Learned),
        Just(Positional::LearnedNormalized),
        Just(Positional::Alibi),
        Just(Positional::Shortformer),
        Just(Positional::None),
        (any::<bool>(), any::<bool>(), any_scaling()).prop_map(|(partial, adjacent_pairs, scaling)| {
            Positional::Rotary(Rotary { dim: if partial { 4 } else { 8 }, base: 1000.0, adjacent_pairs, scaling })
        }),
    ];
    let norm = prop_oneof![
        Just(NormKind::LayerNorm),
        Just(NormKind::LayerNormPre),
        Just(NormKind::Rms),
        Just(NormKind::RmsPre),
    ];
    let function = prop_oneof![
        Just(ActivationFn::Relu),
        Just(ActivationFn::Gelu),
        Just(ActivationFn::GeluNew),
        Just(ActivationFn::Silu),
        Just(ActivationFn::Mish),
        Just(ActivationFn::QuickGelu),
        Just(ActivationFn::Tanh),
        Just(ActivationFn::Xielu),
        Just(ActivationFn::Solu),
        Just(ActivationFn::SoluLn),
    ];
    let mlp = (function, any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let rarer = (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
        0..6usize,
        prop::bool::weighted(0.2),
        (0..4usize, 0..12usize),
    );
    let caps = (prop::bool::weighted(0.3), prop::bool::weighted(0.3), 0..5usize);
    let heads = prop_oneof![Just((4, 4)), Just((4, 2)), Just((4, 1)), Just((3, 3))];
    (positional, norm, mlp, flags, caps, heads, rarer).prop_map(
        |(
            positional,
            norm,
            (activation, gated, moe, attn_only),
            (parallel, post_norms, qk_norm, final_rms, embed_norm),
            (score_cap, logit_cap, window),
            (n_heads, n_kv_heads),
            (scaled, outputs_only, whole, layers, sinks, (heads_norm, variant)),
        )| {
            let layer_rotary = match (&positional, layers) {
                (Positional::Rotary(_), 0) => {
                    vec![Some(Rotary { dim: 8, base: 50.0, adjacent_pairs: false, scaling: RopeScaling::None }), None]
                }
                (Positional::Rotary(own), 1) => vec![None, Some(own.clone())],
                _ => vec![],
            };
            let moe = moe && !attn_only;
            let serial = !post_norms && !parallel && !attn_only;
            let gated_mlp = (gated || moe) && !attn_only;
            let activation =
                if gated_mlp && activation == ActivationFn::SoluLn { ActivationFn::Solu } else { activation };
            let activation = if moe && activation == ActivationFn::Xielu { ActivationFn::Silu } else { activation };
            let embed_norm = embed_norm || positional == Positional::LearnedNormalized;
            TransformerConfig::new(2, 16, n_heads, 20, 32)
                .with_kv_heads(n_kv_heads)
                .with_d_head(8)
                .with_d_mlp(24)
                .with_gated_mlp(gated_mlp)
                .with_mixture(moe.then_some(Experts {
                    clipped: whole.then_some(ClippedGate { alpha: 1.702, limit: 0.5 }),
                    ..Experts::new(3, 2)
                }))
                .with_attn_only(attn_only)
                .with_positional(positional)
                .with_attn_scale(8f64.sqrt())
                .with_embed_scale(scaled.then_some(3.0))
                .with_pre_norms(!(post_norms && outputs_only))
                .with_residual(match variant {
                    0 if serial => ResidualScheme::NormalizedSums,
                    1 if serial => ResidualScheme::NormalizedInputs,
                    _ if parallel && !attn_only => ResidualScheme::Parallel,
                    _ => ResidualScheme::Sequential,
                })
                .with_no_final_norm(variant < 2 && whole)
                .with_query_growth((variant == 3).then_some(QueryGrowth {
                    rate: 0.7,
                    context: 3,
                    ahead: u32::from(outputs_only),
                    still_layers: outputs_only,
                }))
                .with_alibi_bias_max(if variant == 2 { 8.0 } else { 12.0 })
                .with_qkv_clip((variant == 2).then_some(0.5))
                .with_norm(norm)
                .with_activation(activation)
                .with_post_norms(post_norms)
                .with_qk_norm(qk_norm.then_some(match (whole, heads_norm) {
                    (true, _) => QkNorm { after_rotation: heads_norm == 0, ..QkNorm::WHOLE },
                    (false, 0) => QkNorm { rotating_layers: sinks, ..QkNorm::HEADS },
                    (false, 1) => QkNorm { kind: NormKind::LayerNorm, after_rotation: true, ..QkNorm::HEADS },
                    (false, 2) => QkNorm { weights: QkNormWeights::EachHead, ..QkNorm::HEADS },
                    _ => QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS },
                }))
                .with_final_rms(final_rms)
                .with_post_embedding_norm(embed_norm)
                .with_attn_scores_soft_cap(score_cap.then_some(5.0))
                .with_output_logits_soft_cap(logit_cap.then_some(4.0))
                .with_attn_sinks(sinks)
                .with_layer_rotary(layer_rotary)
                .unwrap()
                .with_windows(match window {
                    0 => vec![Some(Window::Sliding(3)), None],
                    1 => vec![Some(Window::Chunked(3)), Some(Window::Sliding(4))],
                    _ => vec![],
                })
                .unwrap()
        },
    )
}

/// Any small configuration in which the residual stream is a plain sum of component outputs.
pub(crate) fn any_sum() -> impl Strategy<Value = TransformerConfig> {
    let plain = |config: TransformerConfig| {
        let qk_norm = config.qk_norm().map(|norm| QkNorm { kind: NormKind::Rms, ..norm });
        let residual = residual_of_sums(&config);
        config.with_qkv_clip(None).with_latent(None).with_qk_norm(qk_norm).with_residual(residual)
    };
    any_config().prop_map(plain)
}

/// Like [`any_sum`], without features that graphs, edges and paths reject.
pub(crate) fn any_plain() -> impl Strategy<Value = TransformerConfig> {
    let plain = |config: TransformerConfig| {
        let qk_norm = config.qk_norm().map(|norm| QkNorm { values: false, ..norm });
        let mut config = config
            .with_per_layer_inputs(None)
            .with_layer_scalars(false)
            .with_attn_experts(None)
            .with_qk_norm(qk_norm)
            .with_shared_keys([])
            .unwrap();
        for layer in config.layers_mut() {
            if let MlpConfig::Experts { experts, .. } = &mut layer.mlp {
                experts.own_norms = false;
            }
        }
        config
    };
    any_sum().prop_map(plain)
}

fn any_scaling() -> impl Strategy<Value = RopeScaling> {
    prop_oneof![
        Just(RopeScaling::None),
        Just(RopeScaling::Linear { factor: 2.0 }),
        Just(RopeScaling::Proportional { pairs: 1, factor: 2.0 }),
        Just(RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 16 }),
        Just(RopeScaling::Yarn {
            factor: 4.0,
            attention_factor: 1.1,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 16,
            truncate: true,
        }),
    ]
}

/// A row of token ids within the vocabulary of [`any_config`].
pub(crate) fn any_row(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..20u32, len)
}
