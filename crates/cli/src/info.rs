//! `hooklens info`.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use hooklens_hooks::DType;
use serde_json::json;

use super::CliResult;
use super::args::MODEL_VARIABLE;
use super::json_result::{ModelId, print_result};
use super::terminal::stdout;
use hooklens_io::numerals::{bytes, grouped};
use hooklens_loading::embedded::{embedded_dictionaries, embedded_models};
use hooklens_loading::loading::{ModelConfig, StoredWeights, inspect};
use hooklens_loading::weight_files::RawTensors;
use hooklens_model::config::{
    ActivationFn, AttentionConfig, Layers, MixerConfig, Positional, RopeScaling, Settings, StateSpace,
    TransformerConfig, Window,
};
use hooklens_model::device::DeviceInfo;
use hooklens_model::encoder::{EncoderConfig, OutputHeads, RelativePositions};
use hooklens_model::encoder_decoder::{EncoderDecoderConfig, PositionTable, StackAttention, StackPositions};
use hooklens_model::processing::{Processing, skipped_steps};
use hooklens_model::tokens::Tokenizer;

#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    /// The model to describe (without a model: lists embedded models, dictionaries and devices)
    // Read from the environment below, because other options take precedence over the variable.
    #[arg(long, value_name = "MODEL", add = crate::completions::model())]
    model: Option<String>,
    /// List this machine's devices: names for --device, memory, and supported dtypes
    #[arg(long, conflicts_with = "model")]
    devices: bool,
    /// List the supported model families and the `architectures` in their config.json
    #[arg(long, conflicts_with_all = ["model", "devices"])]
    families: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &InfoArgs) -> CliResult {
    if args.families {
        return families(args.json);
    }
    if args.devices {
        return devices(args.json);
    }
    let model = args.model.clone().or_else(|| std::env::var(MODEL_VARIABLE).ok().filter(|model| !model.is_empty()));
    match model {
        Some(model) => about(&model, args.json),
        None => overview(args.json),
    }
}

/// Prints what can be used on this machine without any download.
fn overview(as_json: bool) -> CliResult {
    let embedded = |name: &str| format!("embedded:{name}");
    let models: Vec<String> = embedded_models().map(embedded).collect();
    let dictionaries: Vec<String> = embedded_dictionaries().map(embedded).collect();
    let devices = hooklens_model::device::devices();
    if as_json {
        let devices: Vec<_> = devices.iter().map(device_json).collect();
        let body = json!({"embedded_models": models, "embedded_dictionaries": dictionaries, "devices": devices});
        return print_result(None, body);
    }
    let mut out = stdout();
    writeln!(out, "hooklens {}\n", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "models (--model)              {}", models.join(", "))?;
    writeln!(out, "dictionaries (--dictionary)   {}", dictionaries.join(", "))?;
    let names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
    writeln!(out, "devices (--device)            {}\n", names.join(", "))?;
    writeln!(out, "`hooklens info --model MODEL` describes a model: an embedded one, a folder, a file or a hub id.")?;
    writeln!(out, "`--families` lists the supported model families, and `--devices` describes the devices.")?;
    Ok(())
}

/// Prints the supported model families.
fn families(as_json: bool) -> CliResult {
    let all = hooklens_loading::families::listed();
    if as_json {
        let each =
            all.map(|(kind, name, architectures)| json!({"kind": kind, "name": name, "architectures": architectures}));
        return print_result(None, json!({ "families": each.collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for (kind, name, architectures) in all {
        writeln!(out, "{name:20} {kind:16} {}", architectures.join(", "))?;
    }
    Ok(())
}

/// Names of the dtypes that a device supports.
pub(super) fn types(device: &DeviceInfo) -> Vec<String> {
    device.dtypes.iter().map(DType::to_string).collect()
}

/// A device as JSON.
pub(super) fn device_json(device: &DeviceInfo) -> serde_json::Value {
    json!({
        "name": device.name, "description": device.description, "memory": device.memory, "dtypes": types(device),
    })
}

/// Prints this machine's devices.
fn devices(as_json: bool) -> CliResult {
    let all = hooklens_model::device::devices();
    if as_json {
        return print_result(None, json!({ "devices": all.iter().map(device_json).collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for device in &all {
        let memory = device.memory.map_or(String::new(), |size| format!(", {}", bytes(size)));
        let types = types(device).join(", ");
        writeln!(out, "{:14} {}{memory}: {types}", device.name, device.description)?;
    }
    Ok(())
}

/// Prints a model's description.
fn about(model: &str, as_json: bool) -> CliResult {
    let info = inspect(model)?;
    let stored = info.weights.as_ref();
    let tokenizer_size = info.tokenizer.as_ref().map(Tokenizer::vocab_size);
    let mut by_dtype: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, tensor) in stored.iter().flat_map(|stored| stored.files.tensors()) {
        *by_dtype.entry(tensor.dtype.as_str()).or_default() += tensor.shape.iter().product::<usize>();
    }
    let tensors = stored.map(|stored| stored.files.tensors().count());
    let left_out = match &info.config {
        ModelConfig::Decoder(config) => skipped_steps(&Processing::standard(), config),
        _ => Vec::new(),
    };
    let mut out = stdout();
    if as_json {
        let (kind, config, heads) = match &info.config {
            ModelConfig::Decoder(config) => ("decoder", json!(config), None),
            ModelConfig::Encoder(config, heads) => ("encoder", json!(config), heads.map(named)),
            ModelConfig::EncoderDecoder(config) => ("encoder-decoder", json!(config), None),
        };
        let value = json!({
            "family": info.family, "architecture": info.architecture, "kind": kind,
            "config": config, "heads": heads, "parameters": stored.map(|s| s.parameters), "tensors": tensors,
            "elements": by_dtype, "stored_bytes": stored.map(|s| s.files.stored_bytes()),
            "text_part": info.text_part, "other_parts": stored.map(|s| &s.other_parts),
            "missing": stored.map(|s| &s.missing), "unused": stored.map(|s| &s.unused),
            "tokenizer": tokenizer_size.is_some(), "tokenizer_size": tokenizer_size,
            "processing_left_out": left_out.iter().map(|(step, why)| json!({"step": step, "reason": why})).collect::<Vec<_>>(),
        });
        return print_result(Some(&ModelId::named(model)), value);
    }
    let mut line = |name: &str, value: String| writeln!(out, "{name:14} {value}");
    line("model", model.to_string())?;
    line("family", format!("{} ({})", info.family, info.architecture))?;
    let reads_all = stored.is_none_or(|stored| stored.other_parts.is_empty());
    if info.text_part || !reads_all {
        let parts = stored.iter().flat_map(|stored| &stored.other_parts);
        let parts: Vec<String> = parts.map(|(part, count)| format!("{part} ({count} tensors)")).collect();
        let rest = if parts.is_empty() { String::new() } else { format!("; not read: {}", parts.join(", ")) };
        let part = if info.text_part { "the text model" } else { "the decoder" };
        line("part", format!("{part}{rest}"))?;
    }
    if let Some(stored) = stored {
        line("parameters", grouped(stored.parameters))?;
    }
    let lines = match &info.config {
        ModelConfig::Decoder(config) => decoder(config),
        ModelConfig::Encoder(config, heads) => encoder(config, *heads),
        ModelConfig::EncoderDecoder(config) => encoder_decoder(config),
    };
    for (name, value) in lines {
        line(name, value)?;
    }
    let d_vocab = match &info.config {
        ModelConfig::Decoder(config) => config.d_vocab(),
        ModelConfig::Encoder(config, _) => config.d_vocab,
        ModelConfig::EncoderDecoder(config) => config.d_decoder_vocab,
    };
    line("vocabulary", format!("{} tokens", grouped(d_vocab)))?;
    match stored {
        None if std::path::Path::new(model).is_dir() => line("weights", "none in the folder".into())?,
        None => line("weights", "not downloaded".into())?,
        Some(stored) => {
            let types: Vec<_> = by_dtype.iter().map(|(dtype, count)| format!("{} {dtype}", grouped(*count))).collect();
            let size = bytes(stored.files.stored_bytes() as u64);
            line("weights", format!("{} tensors, {size} ({})", tensors.unwrap_or(0), types.join(", ")))?;
            if let ModelConfig::Decoder(config) = &info.config {
                line("memory", memory(config, stored))?;
            }
            for name in &stored.missing {
                line("missing", name.clone())?;
            }
            for name in &stored.unused {
                line("not used", name.clone())?;
            }
        }
    }
    let tokenizer = match tokenizer_size {
        None => "none; pass token ids".into(),
        Some(size) if size > d_vocab => {
            format!("{} tokens; the model's vocabulary has only the first {}", grouped(size), grouped(d_vocab))
        }
        Some(size) => format!("{} tokens", grouped(size)),
    };
    line("tokenizer", tokenizer)?;
    for (step, why) in left_out {
        line("not processed", format!("{step}: {why}"))?;
    }
    Ok(())
}

/// Memory that a decoder needs on the CPU.
fn memory(c: &TransformerConfig, stored: &StoredWeights) -> String {
    let (mapped, wide) = (stored.files.stored_bytes(), 4 * stored.parameters);
    let [mapped, wide, cached] = [mapped, wide, 1000 * cached_token(c)].map(|size| bytes(size as u64));
    format!("{mapped} of weights as stored, {wide} in f32; {cached} of KV cache for 1,000 tokens")
}

/// KV-cache size per token, in bytes.
pub(super) fn cached_token(c: &TransformerConfig) -> usize {
    4 * c.cached_elements()
}

type Lines = Vec<(&'static str, String)>;

fn decoder(c: &TransformerConfig) -> Lines {
    let shared =
        if c.n_kv_heads() == c.n_heads() { String::new() } else { format!(", {} for keys and values", c.n_kv_heads()) };
    let router =
        c.attn_experts().map_or(String::new(), |e| format!(", from {} of {} experts per token", e.per_token, e.count));
    let mut lines = vec![("layers", format!("{} of width {}", c.n_layers(), c.d_model()))];
    if c.attending().next().is_some() {
        lines.push(("heads", format!("{} of width {}{shared}{router}{}", c.n_heads(), c.d_head(), latents(c))));
    }
    let mixers = mixers(c);
    if mixers.len() > 1 || c.has_states() {
        lines.push(("mixers", mixers.join("; ")));
    }
    if !c.attn_only() {
        let experts = c.experts().map_or(String::new(), |e| {
            let shared =
                e.shared.map_or(String::new(), |own| format!(" and a shared one of {} neurons", grouped(own.d_mlp)));
            format!(", {} of {} experts per token{shared}", e.per_token, e.count)
        });
        lines.push(("mlp", mlp(c.d_mlp(), c.mlp_layers().any(|layer| c.is_gated(layer)), c.activation()) + &experts));
        lines.extend(dense(c).map(|text| ("dense", text)));
    }
    if let Some(own) = c.per_layer_inputs() {
        lines.push(("per-layer inputs", format!("{} dimensions per layer", own.width)));
    }
    let reading = (0..c.n_layers()).filter(|layer| c.reads_keys_of(*layer).is_some()).count();
    if reading > 0 {
        lines.push((
            "shared keys",
            format!("{reading} of {} layers reuse keys and values of earlier layers", c.n_layers()),
        ));
    }
    let last = c.final_eps().map_or(String::new(), |eps| format!(", final norm {eps:e}"));
    lines.push(("norm", format!("{:?}, eps {:e}{last}", c.norm(), c.eps())));
    let bias_max =
        if c.alibi_bias_max() == 8.0 { String::new() } else { format!(", alibi_bias_max {}", c.alibi_bias_max()) };
    lines.push(("positions", positions(c.positional()) + &bias_max));
    let windows: Vec<Window> = (0..c.n_layers()).filter_map(|layer| c.window(layer)).collect();
    if let Some(window) = windows.first() {
        let layers = windows.len();
        let kind = if matches!(window, Window::Chunked(_)) { "chunks of " } else { "" };
        lines.push(("windows", format!("{kind}{} positions in {layers} of {} layers", window.width(), c.n_layers())));
    }
    lines.push(("context", format!("{} tokens", grouped(c.n_ctx()))));
    lines
}

/// Counts equal values, in order of first appearance.
fn counted<T: PartialEq>(layers: impl IntoIterator<Item = T>) -> Vec<(T, usize)> {
    let mut kinds: Vec<(T, usize)> = Vec::new();
    for own in layers {
        match kinds.iter_mut().find(|(kind, _)| *kind == own) {
            Some((_, layers)) => *layers += 1,
            None => kinds.push((own, 1)),
        }
    }
    kinds
}

/// Dense MLPs of layers that differ from the rest: each width, and the number of layers that have it.
fn dense(c: &TransformerConfig) -> Option<String> {
    let mixture = c.experts().is_some();
    let differs = |layer: &usize| match mixture {
        true => c.experts_of(*layer).is_none(),
        false => c.d_mlp_of(*layer) != c.d_mlp(),
    };
    let widths = counted((0..c.n_layers()).filter(differs).map(|layer| c.d_mlp_of(layer)));
    let described = |(width, layers): &(usize, usize)| match width {
        0 => format!("no MLP in {layers} of {} layers", c.n_layers()),
        _ => format!("{} neurons in {layers} of {} layers", grouped(*width), c.n_layers()),
    };
    (!widths.is_empty()).then(|| widths.iter().map(described).collect::<Vec<_>>().join("; "))
}

/// Kinds of mixers, each with the number of layers that use it.
fn mixers(c: &TransformerConfig) -> Vec<String> {
    let attention = |own: &AttentionConfig| {
        format!("attention ({} heads for keys and values, of width {})", own.n_kv_heads, own.d_head)
    };
    let mamba = |space: &StateSpace| {
        format!(
            "Mamba-2 ({} heads of width {}, state size {}, {} groups)",
            space.n_heads, space.d_head, space.d_state, space.n_groups
        )
    };
    let kind = |mixer: &MixerConfig| match mixer {
        MixerConfig::Attention(own) => attention(own),
        MixerConfig::GatedDeltaNet(net) => format!(
            "Gated DeltaNet ({} value heads of width {}, {} key heads of width {})",
            net.n_value_heads, net.d_value, net.n_key_heads, net.d_key
        ),
        MixerConfig::Mamba2(space) => mamba(space),
        MixerConfig::ShortConvolution(conv) => format!("short convolution (over {} positions)", conv.width),
        MixerConfig::AttentionAndMamba2(own, space) => format!("{} in parallel with {}", attention(own), mamba(space)),
        MixerConfig::None => "MLP only".into(),
        other => format!("{other:?}"),
    };
    let kinds = counted(c.layers().iter().map(|layer| kind(&layer.mixer)));
    kinds.into_iter().map(|(kind, layers)| format!("{layers} {kind}")).collect()
}

/// Dimensions of multi-head latent attention.
fn latents(c: &TransformerConfig) -> String {
    c.latent().map_or(String::new(), |own| {
        let queries = own.q_rank.map_or(String::new(), |rank| format!(", query latent of width {rank}"));
        format!(", values of width {}, key-value latent of width {}{queries}", own.d_value, own.kv_rank)
    })
}

fn encoder(c: &EncoderConfig, heads: Option<OutputHeads>) -> Lines {
    let mut lines = vec![
        ("kind", "encoder; load it with `encoder::HookedEncoder`".into()),
        ("layers", format!("{} of width {}", c.n_layers, c.d_model)),
        ("heads", format!("{} of width {}", c.n_heads, c.d_head)),
        ("mlp", mlp(c.d_mlp, c.gated_mlp, c.activation)),
        (
            "norm",
            format!(
                "{:?} {}, eps {:e}",
                c.norm,
                if c.pre_norms { "before each sublayer" } else { "after each sublayer" },
                c.eps
            ),
        ),
        ("positions", positions(&c.positional)),
        ("token types", c.token_types.to_string()),
        ("context", format!("{} tokens", grouped(c.n_ctx))),
    ];
    if let Some(relative) = c.relative {
        let described = match relative {
            RelativePositions::Buckets { count, max_distance, .. } => {
                format!("{count} buckets of distances up to {max_distance}, as biases of attention scores")
            }
            other => format!(
                "{} relative position embeddings, used to compute attention scores (disentangled attention)",
                other.count()
            ),
        };
        lines.push(("relative positions", described));
    }
    if let Some(width) = c.d_embed {
        lines.push(("embedding", format!("of width {width}")));
    }
    if let Some(blocks) = c.shared_blocks.iter().max() {
        lines.push(("shared weights", format!("{} blocks, shared by {} layers", blocks + 1, c.n_layers)));
    }
    if let Some(Window::Around(side)) = c.windows.iter().flatten().next() {
        let layers = c.windows.iter().flatten().count();
        lines.push(("windows", format!("{side} positions on either side in {layers} of {} layers", c.n_layers)));
    }
    if let Some(heads) = heads {
        let named = named(heads);
        lines.push(("output heads", if named.is_empty() { "none".into() } else { named.join(", ") }));
    }
    lines
}

fn named(heads: OutputHeads) -> Vec<&'static str> {
    let all = [(heads.mlm, "masked tokens"), (heads.pooler, "pooler"), (heads.nsp, "next sentence")];
    all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect()
}

fn encoder_decoder(c: &EncoderDecoderConfig) -> Lines {
    // Values that are equal in both stacks are printed once.
    let both = |encoder: String, decoder: String| match encoder == decoder {
        true => encoder,
        false => format!("{encoder} in the encoder, {decoder} in the decoder"),
    };
    let heads = |count, own: &StackAttention, width| match own.n_kv_heads == count {
        true => format!("{count} of width {width}"),
        false => format!("{count} of width {width}, {} for keys and values", own.n_kv_heads),
    };
    let widths = match c.d_model == c.d_decoder_model {
        true => c.d_model.to_string(),
        false => format!("{} and {}", c.d_model, c.d_decoder_model),
    };
    let neurons = |d_mlp| mlp(d_mlp, c.gated_mlp, c.activation);
    let place = if c.norm_after { " after each sublayer" } else { "" };
    let positions = match &c.positions {
        StackPositions::Rotary { encoder, .. } => positions(&Positional::Rotary(encoder.clone())),
        StackPositions::Distances { buckets, max_distance, each_layer } => {
            let own = if *each_layer { ", separate in each layer" } else { "" };
            format!("{buckets} buckets of distances up to {max_distance}{own}")
        }
        StackPositions::Table { source: PositionTable::Learned, .. } => "learned".into(),
        StackPositions::Table { .. } => "sines and cosines".into(),
        other => format!("{other:?}"),
    };
    let (encoder, decoder) = (c.n_encoder_layers, c.n_decoder_layers);
    let mut lines = vec![
        ("kind", "encoder-decoder; load it with `encoder_decoder::HookedEncoderDecoder`".into()),
        ("layers", format!("{encoder} in the encoder, {decoder} in the decoder, of width {widths}")),
        (
            "heads",
            both(
                heads(c.n_heads, &c.attention, c.d_head),
                heads(c.n_decoder_heads, &c.decoder_attention, c.d_decoder_head),
            ),
        ),
        ("mlp", both(neurons(c.d_mlp), neurons(c.d_decoder_mlp))),
        ("norm", format!("{:?}{place}, eps {:e}", c.norm, c.eps)),
        ("positions", positions),
    ];
    if let StackPositions::Table { n_ctx, .. } = c.positions {
        lines.push(("context", format!("{} tokens", grouped(n_ctx))));
    }
    lines
}

fn mlp(d_mlp: usize, gated: bool, activation: ActivationFn) -> String {
    let gated = if gated { "gated " } else { "" };
    format!("{} neurons, {gated}{activation}", grouped(d_mlp))
}

fn positions(positional: &Positional) -> String {
    match positional {
        Positional::Learned => "learned".into(),
        Positional::LearnedNormalized => "learned, normalized together with the token embeddings".into(),
        Positional::Alibi => "ALiBi".into(),
        Positional::ScaledAlibi => "ALiBi, scaled with the scores".into(),
        Positional::Shortformer => "learned, read by queries and keys only (shortformer)".into(),
        Positional::None => "none".into(),
        Positional::Rotary(rotary) => {
            let pairs = if rotary.adjacent_pairs { "in adjacent pairs" } else { "in halves" };
            let scaling = match &rotary.scaling {
                RopeScaling::None => String::new(),
                other => format!(", {other:?}"),
            };
            format!("rotary over {} dimensions {pairs}, base {}{scaling}", rotary.dim, rotary.base)
        }
        other => format!("{other:?}"),
    }
}
