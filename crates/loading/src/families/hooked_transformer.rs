//! TransformerLens's configuration fields and tensor names. hooklens saves models in this format.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::flat::FlatConfig;
use hooklens_model::config::{
    ActivationFn, Experts, Layers, NormDetails, NormKind, Positional, QkNorm, RopeScaling, Rotary, Settings,
    TransformerConfig, Window, native_name_of_norm, native_name_of_positional,
};
use hooklens_model::error::ConfigError;
use hooklens_model::model::{names_beside_attention, solu_norm};

pub(super) static FAMILY: Family = Family {
    name: "transformer_lens",
    architectures: &["HookedTransformer"],
    prefix: "",
    config,
    weights: |config, json| Ok(weights(config, json.flag(EXTRA_BIASES, false)?)),
};

/// Field for whether gates, routers and experts have biases, for which TransformerLens has no names.
pub(crate) const EXTRA_BIASES: &str = "hooklens_extra_biases";

/// Field for whether experts have no gate.
const PLAIN_EXPERTS: &str = "hooklens_plain_experts";

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let (n_layers, d_model, d_head) = (json.layers("n_layers")?, json.size("d_model")?, json.size("d_head")?);
    let n_heads = match json.number("n_heads", -1.0)? {
        n if n > 0.0 => n as usize,
        _ => json.share("d_head", d_model, d_head)?,
    };
    let d_vocab = json.size("d_vocab")?;
    let attn_only = json.flag("attn_only", false)?;
    let scale = json.number("attn_scale", -1.0)?;
    let root = (d_head as f64).sqrt();
    let cap = |field: &str| -> Result<Option<f64>, ConfigError> {
        Ok(Some(json.number(field, -1.0)?).filter(|cap| *cap > 0.0))
    };
    let known_norms = "LN, LNPre, RMS, RMSPre, null";
    // The first toy models use other names for two fields, and a few have a different layout.
    if json.is_null("gated_mlp") {
        return Err(json.unsupported("gated_mlp"));
    }
    if json.text("architecture", "neel")? != "neel" {
        return Err(json.unsupported("architecture"));
    }
    let norm = json.maybe_text("normalization_type")?.or(json.maybe_text("normalization")?);
    let norm = match norm.unwrap_or("none") {
        "LN" => NormKind::LayerNorm,
        "LNPre" => NormKind::LayerNormPre,
        "RMS" => NormKind::Rms,
        "RMSPre" => NormKind::RmsPre,
        "none" => NormKind::None,
        other => {
            return Err(ConfigError::UnknownValue {
                field: "normalization_type",
                given: other.into(),
                known: known_norms,
            });
        }
    };
    let experts = match (json.maybe_size("num_experts")?, json.maybe_size("experts_per_token")?) {
        (Some(count), Some(per_token)) => {
            let renormalize = json.flag("norm_topk_prob", true)?;
            let plain = Experts { renormalize, ..Experts::new(count, per_token) };
            match own(json, "hooklens_experts")? {
                // TransformerLens's own fields take precedence.
                Some(whole) => Some(Experts { count, per_token, renormalize, ..whole }),
                None => Some(Experts { clipped: own(json, "hooklens_clipped_gate")?, ..plain }),
            }
        }
        (None, None) => None,
        (None, Some(_)) => return Err(json.unsupported("num_experts")),
        (Some(_), None) => return Err(json.unsupported("experts_per_token")),
    };
    let bidirectional = match json.text("attention_dir", "causal")? {
        "causal" => false,
        "bidirectional" => true,
        _ => return Err(json.unsupported("attention_dir")),
    };
    let base = TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, json.size("n_ctx")?);
    let flat = FlatConfig {
        n_kv_heads: json.maybe_size("n_key_value_heads")?.unwrap_or(n_heads),
        d_head,
        d_mlp: json.maybe_size("d_mlp")?.unwrap_or(d_model.saturating_mul(4)),
        d_vocab_out: match json.flag("hooklens_no_unembedding", false)? {
            true => 0,
            false => Some(json.number("d_vocab_out", -1.0)?).filter(|n| *n > 0.0).map_or(d_vocab, |n| n as usize),
        },
        norm,
        eps: json.number("eps", 1e-5)?,
        final_eps: json.maybe_number("hooklens_final_eps")?,
        final_rms: json.flag("final_rms", false)?,
        post_embedding_norm: json.flag("post_embedding_ln", false)?,
        embed_scale: json.maybe_number("hooklens_embed_scale")?,
        pre_norms: json.flag("hooklens_pre_norms", true)?,
        post_norms: json.flag("use_normalization_before_and_after", false)?,
        residual_norms: json.flag("hooklens_residual_norms", false)?,
        normalized_residual: json.flag("hooklens_normalized_residual", false)?,
        no_final_norm: json.flag("hooklens_no_final_norm", false)?,
        qk_norm: qk_norm(json)?,
        alibi_bias_max: json.number("hooklens_alibi_bias_max", 8.0)?,
        qkv_clip: json.maybe_number("hooklens_qkv_clip")?,
        query_growth: own(json, "hooklens_query_growth")?,
        attn_sinks: json.flag("hooklens_attn_sinks", false)?,
        attn_gates: json.flag("hooklens_attn_gates", false)?,
        attn_experts: own(json, "hooklens_attn_experts")?,
        latent: own(json, "hooklens_latent")?,
        most_keys: json.maybe_size("hooklens_most_keys")?,
        shared_keys: own(json, "hooklens_shared_keys")?.unwrap_or_default(),
        per_layer_inputs: own(json, "hooklens_per_layer_inputs")?,
        layer_scalars: json.flag("hooklens_layer_scalars", false)?,
        mixers: own(json, "hooklens_mixers")?.unwrap_or_default(),
        layer_rotary: own(json, "hooklens_layer_rotary")?.unwrap_or_default(),
        positional: positional(json, d_head)?,
        activation: match (attn_only, json.get("act_fn")) {
            (true, None) => ActivationFn::Relu,
            _ => json.text("act_fn", "")?.parse::<ActivationFn>()?,
        },
        // TransformerLens's experts are always gated, regardless of the file.
        gated_mlp: match (experts, json.flag(PLAIN_EXPERTS, false)?) {
            (Some(_), plain) => !plain,
            (None, _) => json.flag("gated_mlp", false)?,
        },
        attn_only,
        parallel: json.flag("parallel_attn_mlp", false)?,
        attn_scale: match (json.flag("use_attn_scale", true)?, scale > 0.0) {
            (false, _) => 1.0,
            (true, true) => scale,
            (true, false) => root,
        },
        scale_attn_by_inverse_layer_idx: json.flag("scale_attn_by_inverse_layer_idx", false)?,
        attn_scores_soft_cap: cap("attn_scores_soft_cap")?,
        output_logits_soft_cap: cap("output_logits_soft_cap")?,
        bidirectional,
        windows: windows(json)?,
        experts,
        dense_mlps: own(json, "hooklens_dense_mlps")?.unwrap_or_default(),
        default_prepend_bos: json.flag("default_prepend_bos", true)?,
        layers: own(json, "hooklens_layers")?.unwrap_or_default(),
        ..FlatConfig::from(&base)
    };
    flat.try_into()
}

/// A value under a hooklens-specific name.
fn own<T: DeserializeOwned>(json: &HfConfig<'_>, field: &'static str) -> Result<Option<T>, ConfigError> {
    let value = json.get(field).map(|own| serde_json::from_value(own.clone()));
    value.transpose().map_err(|source| ConfigError::Field { field, source })
}

fn qk_norm(json: &HfConfig<'_>) -> Result<Option<QkNorm>, ConfigError> {
    if let Some(norm) = own(json, "hooklens_qk_norm")? {
        return Ok(Some(norm));
    }
    // Older hooklens files use this flag for norms over all heads at once, which TransformerLens lacks.
    let norm = if json.flag("hooklens_qk_norm_whole", false)? { QkNorm::WHOLE } else { QkNorm::HEADS };
    Ok(json.flag("use_qk_norm", false)?.then_some(norm))
}

fn windows(json: &HfConfig<'_>) -> Result<Vec<Option<Window>>, ConfigError> {
    if let Some(windows) = own(json, "hooklens_windows")? {
        return Ok(windows);
    }
    if !json.flag("use_local_attn", false)? {
        return Ok(Vec::new());
    }
    let window = json.size("window_size")?;
    let Some(kinds) = json.list("attn_types")? else { return Err(json.unsupported("attn_types")) };
    let of_kind = |kind: &Value| match kind.as_str() {
        Some("local") => Ok(Some(Window::Sliding(window))),
        Some("global") => Ok(None),
        _ => Err(json.unsupported("attn_types")),
    };
    kinds.iter().map(of_kind).collect()
}

fn positional(json: &HfConfig<'_>, d_head: usize) -> Result<Positional, ConfigError> {
    let older = if json.flag("shortformer_pos", false)? { "shortformer" } else { "standard" };
    match json.text("positional_embedding_type", older)? {
        "standard" => Ok(Positional::Learned),
        "shortformer" => Ok(Positional::Shortformer),
        "hooklens_normalized" => Ok(Positional::LearnedNormalized),
        "alibi" => Ok(Positional::Alibi),
        "hooklens_scaled_alibi" => Ok(Positional::ScaledAlibi),
        "none" => Ok(Positional::None),
        "rotary" => {
            let scaling = match (json.flag("use_NTK_by_parts_rope", false)?, json.get("hooklens_rope_scaling")) {
                (_, Some(own)) => serde_json::from_value(own.clone())
                    .map_err(|source| ConfigError::Field { field: "hooklens_rope_scaling", source })?,
                (true, None) => RopeScaling::Llama3 {
                    factor: json.number("NTK_by_parts_factor", 8.0)?,
                    low_freq_factor: json.number("NTK_by_parts_low_freq_factor", 1.0)?,
                    high_freq_factor: json.number("NTK_by_parts_high_freq_factor", 4.0)?,
                    original_context: json.size_or("NTK_original_ctx_len", 8192)?,
                },
                (false, None) => RopeScaling::None,
            };
            Ok(Positional::Rotary(Rotary {
                dim: json.maybe_size("rotary_dim")?.unwrap_or(d_head),
                base: json.number("rotary_base", 10_000.0)?,
                adjacent_pairs: json.flag("rotary_adjacent_pairs", false)?,
                scaling,
            }))
        }
        other => Err(ConfigError::UnknownValue {
            field: "positional_embedding_type",
            given: other.to_string(),
            known: "standard, rotary, alibi, shortformer, none",
        }),
    }
}

/// Converts a configuration to TransformerLens's format. Settings that it has no field for are stored under
/// hooklens-specific names.
pub(crate) fn to_json(config: &TransformerConfig, extra_biases: bool) -> Value {
    let c = FlatConfig::from(config);
    let (norm, kind) = (native_name_of_norm(c.norm), native_name_of_positional(&c.positional));
    // TransformerLens has a single window size for all windowed layers.
    let same =
        |window: &&Window| matches!(window, Window::Sliding(_)) && Some(*window) == c.windows.iter().flatten().next();
    let shared = c.windows.iter().flatten().all(|window| same(&window));
    let local = c.windows.iter().flatten().next().filter(|_| shared).map(|window| window.width());
    let kinds: Vec<_> = c.windows.iter().map(|w| if w.is_some() { "local" } else { "global" }).collect();
    let mut json = json!({
        "architectures": ["HookedTransformer"],
        "n_layers": c.n_layers, "d_model": c.d_model, "n_ctx": c.n_ctx, "d_head": c.d_head, "n_heads": c.n_heads,
        "n_key_value_heads": (c.n_kv_heads != c.n_heads).then_some(c.n_kv_heads),
        "d_mlp": c.d_mlp, "d_vocab": c.d_vocab, "d_vocab_out": c.d_vocab_out,
        "act_fn": c.activation.to_string(), "eps": c.eps, "normalization_type": norm,
        "final_rms": c.final_rms, "post_embedding_ln": c.post_embedding_norm,
        "use_normalization_before_and_after": c.post_norms, "use_qk_norm": c.qk_norm.is_some(),
        "use_attn_scale": true, "attn_scale": c.attn_scale,
        "scale_attn_by_inverse_layer_idx": c.scale_attn_by_inverse_layer_idx,
        "attn_scores_soft_cap": c.attn_scores_soft_cap.unwrap_or(-1.0),
        "output_logits_soft_cap": c.output_logits_soft_cap.unwrap_or(-1.0),
        "attention_dir": if c.bidirectional { "bidirectional" } else { "causal" },
        "use_local_attn": local.is_some(), "window_size": local, "attn_types": local.map(|_| kinds),
        "positional_embedding_type": kind, "parallel_attn_mlp": c.parallel, "gated_mlp": c.gated_mlp,
        "attn_only": c.attn_only, "default_prepend_bos": c.default_prepend_bos,
    });
    if let (Some(fields), Positional::Rotary(rotary)) = (json.as_object_mut(), &c.positional) {
        fields.insert("rotary_dim".into(), json!(rotary.dim));
        fields.insert("rotary_base".into(), json!(rotary.base));
        fields.insert("rotary_adjacent_pairs".into(), json!(rotary.adjacent_pairs));
        if rotary.scaling != RopeScaling::None {
            fields.insert("hooklens_rope_scaling".into(), json!(rotary.scaling));
        }
    }
    if let Some(fields) = json.as_object_mut() {
        let mut own = |name: &str, there: bool, value: Value| {
            if there {
                fields.insert(name.into(), value);
            }
        };
        own("hooklens_final_eps", c.final_eps.is_some(), json!(c.final_eps));
        own("hooklens_embed_scale", c.embed_scale.is_some(), json!(c.embed_scale));
        own("hooklens_pre_norms", !c.pre_norms, json!(false));
        own("hooklens_most_keys", c.most_keys.is_some(), json!(c.most_keys));
        own("hooklens_latent", c.latent.is_some(), json!(c.latent));
        own("hooklens_no_unembedding", c.d_vocab_out == 0, json!(true));
        own("hooklens_residual_norms", c.residual_norms, json!(true));
        own("hooklens_normalized_residual", c.normalized_residual, json!(true));
        own("hooklens_no_final_norm", c.no_final_norm, json!(true));
        own("hooklens_qk_norm", c.qk_norm.is_some_and(|norm| norm != QkNorm::HEADS), json!(c.qk_norm));
        own("hooklens_alibi_bias_max", c.alibi_bias_max != 8.0, json!(c.alibi_bias_max));
        own("hooklens_qkv_clip", c.qkv_clip.is_some(), json!(c.qkv_clip));
        own("hooklens_query_growth", c.query_growth.is_some(), json!(c.query_growth));
        own("hooklens_attn_sinks", c.attn_sinks, json!(true));
        own("hooklens_attn_gates", c.attn_gates, json!(true));
        own("hooklens_attn_experts", c.attn_experts.is_some(), json!(c.attn_experts));
        let clipped = c.experts.and_then(|experts| experts.clipped);
        own("hooklens_clipped_gate", clipped.is_some(), json!(clipped));
        let plain = |e: Experts| Experts {
            renormalize: e.renormalize,
            clipped: e.clipped,
            ..Experts::new(e.count, e.per_token)
        };
        own("hooklens_experts", c.experts.is_some_and(|experts| experts != plain(experts)), json!(c.experts));
        own(PLAIN_EXPERTS, c.experts.is_some() && !c.gated_mlp, json!(true));
        own("hooklens_dense_mlps", !c.dense_mlps.is_empty(), json!(c.dense_mlps));
        own("hooklens_shared_keys", !c.shared_keys.is_empty(), json!(c.shared_keys));
        own("hooklens_per_layer_inputs", c.per_layer_inputs.is_some(), json!(c.per_layer_inputs));
        own("hooklens_layer_scalars", c.layer_scalars, json!(true));
        own("hooklens_mixers", !c.mixers.is_empty(), json!(c.mixers));
        own("hooklens_layers", !c.layers.is_empty(), json!(c.layers));
        own("hooklens_layer_rotary", !c.layer_rotary.is_empty(), json!(c.layer_rotary));
    }
    if let (Some(fields), false) = (json.as_object_mut(), shared) {
        fields.insert("hooklens_windows".into(), json!(c.windows));
    }
    if let (Some(fields), true) = (json.as_object_mut(), extra_biases) {
        fields.insert(EXTRA_BIASES.into(), json!(true));
    }
    if let (Some(fields), Some(experts)) = (json.as_object_mut(), c.experts) {
        fields.insert("num_experts".into(), json!(experts.count));
        fields.insert("experts_per_token".into(), json!(experts.per_token));
        fields.insert("norm_topk_prob".into(), json!(experts.renormalize));
    }
    json
}

/// Weight table with TransformerLens's tensor names. All biases that TransformerLens supports are present, even if
/// zero; other biases are present only if `extra_biases`.
pub(crate) fn weights(c: &TransformerConfig, extra_biases: bool) -> WeightTable {
    // Buffers, and the position table that ALiBi models contain but do not use.
    let derived = &[".mask", ".IGNORE", ".rotary_sin", ".rotary_cos", ".alibi", "pos_embed.W_pos"];
    let mut table = WeightTable::new("", derived);
    let mut same = |name: String| table.add(name.clone(), name, Layout::AsIs);
    let mut norm = |name: String, kind: NormKind| {
        if kind.has_weight() {
            same(format!("{name}.w"));
        }
        if kind == NormKind::LayerNorm {
            same(format!("{name}.b"));
        }
    };
    norm("ln_final".into(), c.final_norm());
    if c.post_embedding_norm() {
        norm("embed.ln".into(), NormKind::LayerNorm);
    }
    for layer in 0..c.n_layers() {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        norm(name("ln1"), c.ln1_kind(layer));
        if c.post_norms() {
            norm(name("ln1_post"), c.post_norm());
        }
        if let Some(own) = c.qk_norm_of(layer).filter(|_| c.attends(layer)) {
            norm(name("attn.q_norm"), own.kind);
            if c.reads_keys_of(layer).is_none() {
                norm(name("attn.k_norm"), own.kind);
            }
        }
        if let Some(latent) = c.latent() {
            norm(name("attn.kv_latent_norm"), NormKind::Rms);
            latent.q_rank.iter().for_each(|_| norm(name("attn.q_latent_norm"), NormKind::Rms));
        }
        if !c.has_mlp(layer) {
            continue;
        }
        norm(name("ln2"), c.pre_norm());
        if c.per_layer_inputs().is_some() {
            norm(name("per_layer_post"), NormKind::Rms);
        }
        if c.experts_of(layer).is_some_and(|experts| experts.own_norms) {
            for part in ["router_ln", "experts_ln", "shared_ln_post", "experts_ln_post"] {
                norm(name(&format!("mlp.{part}")), NormKind::Rms);
            }
        }
        if c.post_norms() {
            norm(name("ln2_post"), c.post_norm());
        }
        if c.activation() == ActivationFn::SoluLn {
            norm(name("mlp.ln"), solu_norm(c.norm()));
        }
    }
    if c.per_layer_inputs().is_some() {
        norm("per_layer_embed.norm".into(), NormKind::Rms);
    }
    same("embed.W_E".into());
    if c.per_layer_inputs().is_some() {
        for part in ["W_E", "W_proj", "b_proj"] {
            same(format!("per_layer_embed.{part}"));
        }
        for layer in 0..c.n_layers() {
            for part in ["W_gate", "b_gate", "W_out", "b_out"] {
                same(format!("blocks.{layer}.per_layer.{part}"));
            }
        }
    }
    if c.layer_scalars() {
        (0..c.n_layers()).for_each(|layer| same(format!("blocks.{layer}.scalar")));
    }
    if c.has_position_table() {
        same("pos_embed.W_pos".into());
    }
    if c.d_vocab_out() > 0 {
        same("unembed.W_U".into());
        same("unembed.b_U".into());
    }
    for layer in 0..c.n_layers() {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        if c.attends(layer) {
            attention(&mut table, &name("attn"), c, layer);
        }
        for own in names_beside_attention(&format!("blocks.{layer}"), c, layer) {
            table.add(own.clone(), own, Layout::AsIs);
        }
        if !c.has_mlp(layer) {
            continue;
        }
        if let Some(experts) = c.experts_of(layer) {
            mixture(&mut table, &name("mlp"), experts, [c.is_gated(layer), extra_biases]);
            continue;
        }
        if c.activation() == ActivationFn::Xielu {
            for part in ["mlp.alpha_p", "mlp.alpha_n"] {
                table.add(name(part), name(part), Layout::AsIs);
            }
        }
        for part in ["mlp.W_in", "mlp.W_out", "mlp.b_out"] {
            table.add(name(part), name(part), Layout::AsIs);
        }
        if !c.is_gated(layer) {
            table.add(name("mlp.b_in"), name("mlp.b_in"), Layout::AsIs);
            continue;
        }
        table.add(name("mlp.W_gate"), name("mlp.W_gate"), Layout::AsIs);
        // TransformerLens adds `b_in` after the product and has no name for a bias before it.
        table.add(name("mlp.b_after_product"), name("mlp.b_in"), Layout::AsIs);
        if extra_biases {
            table.add(name("mlp.b_in"), name("mlp.b_linear"), Layout::AsIs);
            table.add(name("mlp.b_gate"), name("mlp.b_gate"), Layout::AsIs);
        }
    }
    table
}

fn attention(table: &mut WeightTable, attn: &str, c: &TransformerConfig, layer: usize) {
    let name = |part: &str| format!("{attn}.{part}");
    let kv_heads = c.n_kv_heads_of(layer);
    let shared = if kv_heads == c.n_heads() { "" } else { "_" };
    let count = if c.reads_keys_of(layer).is_some() { 1 } else { 3 };
    let projected = [("Q", c.n_heads(), ""), ("K", kv_heads, shared), ("V", kv_heads, shared)];
    for (letter, heads, mark) in projected.into_iter().take(count) {
        for part in ["W", "b"] {
            let stored = name(&format!("{mark}{part}_{letter}"));
            table.add(name(&format!("{part}_{letter}")), stored, Layout::HeadsOut { heads });
        }
    }
    table.add(name("W_O"), name("W_O"), Layout::HeadsIn { heads: c.n_heads() });
    let latent = c.latent();
    let latent = latent.iter().flat_map(|own| ["KV_down", "K_rope"].into_iter().chain(own.q_rank.map(|_| "Q_down")));
    let gate = c.attn_gates().then_some("gate").into_iter().chain(c.attn_experts().map(|_| "router"));
    let maps = latent.chain(gate).flat_map(|part| ["W", "b"].map(|kind| format!("{kind}_{part}")));
    let sinks = c.attn_sinks().then(|| "sinks".to_string());
    for part in maps.chain(sinks).chain(["b_O".to_string()]) {
        table.add(name(&part), name(&part), Layout::AsIs);
    }
}

fn mixture(table: &mut WeightTable, mlp: &str, experts: Experts, [gated, extra_biases]: [bool; 2]) {
    let parts = ["in", "gate", "out"].into_iter().filter(|part| gated || *part != "gate");
    let mut linear = |weight: String, bias: String| {
        let stored = |part: &str| format!("{mlp}.{weight}.{part}");
        table.add(format!("{mlp}.{weight}"), stored("weight"), Layout::Transposed);
        if extra_biases {
            table.add(format!("{mlp}.{bias}"), stored("bias"), Layout::AsIs);
        }
    };
    linear("W_gate".into(), "b_gate".into());
    for expert in 0..experts.count {
        for part in parts.clone() {
            linear(format!("experts.{expert}.W_{part}"), format!("experts.{expert}.b_{part}"));
        }
    }
    if let Some(shared) = experts.shared {
        for part in parts.chain(shared.gated.then_some("share")) {
            linear(format!("shared.W_{part}"), format!("shared.b_{part}"));
        }
    }
    if experts.own_scales {
        table.add(format!("{mlp}.expert_scales"), format!("{mlp}.expert_scales"), Layout::AsIs);
    }
    if experts.choice_bias {
        table.add(format!("{mlp}.choice_bias"), format!("{mlp}.choice_bias"), Layout::AsIs);
    }
}
