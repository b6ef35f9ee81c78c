//! Names of weights, derived from the fields that hold them. Weights that TransformerLens lacks have names in
//! TransformerLens's style.

/// Name of a decoder's weight.
pub(super) fn in_decoder(fields: &[&str]) -> String {
    match fields {
        ["embed", "tokens"] => "embed.W_E".into(),
        ["embed", "positions"] => "pos_embed.W_pos".into(),
        ["embed", "norm", own] => format!("embed.ln.{own}"),
        ["per_layer_embed", "vectors", "tokens"] => "per_layer_embed.W_E".into(),
        ["per_layer_embed", "projection", kind] => in_map("per_layer_embed", "proj", kind),
        ["unembed", kind] => in_map("unembed", "U", kind),
        ["blocks", layer, own @ ..] => in_block(&format!("blocks.{layer}"), own),
        _ => fields.join("."),
    }
}

/// Name of a weight in the block named `block`.
pub(crate) fn in_block(block: &str, fields: &[&str]) -> String {
    let part = |name: &str| format!("{block}.{name}");
    match fields {
        ["mixer", "Attention", own @ ..]
        | ["mixer", "AttentionAndMamba2", "attention", own @ ..]
        | ["attn", own @ ..] => in_mixer(&part("attn"), own),
        ["cross_attn", own @ ..] => in_mixer(&part("cross_attn"), own),
        ["mixer", "GatedDeltaNet", own @ ..] => in_mixer(&part("linear_attn"), own),
        ["mixer", "Mamba2", own @ ..] | ["mixer", "AttentionAndMamba2", "mamba2", own @ ..] => {
            in_mixer(&part("ssm"), own)
        }
        ["mixer", "ShortConvolution", own @ ..] => in_mixer(&part("conv"), own),
        ["relative_q", kind] => in_map(&part("attn"), "rel_Q", kind),
        ["relative_k", kind] => in_map(&part("attn"), "rel_K", kind),
        ["relative_bias"] => part("attn.rel_pos_bias.weight"),
        ["mlp", "Experts", own @ ..] => in_experts(&part("mlp"), own),
        ["mlp", "Dense", own @ ..] | ["mlp", own @ ..] => in_mlp(&part("mlp"), own),
        ["per_layer", "post", own] => format!("{block}.per_layer_post.{own}"),
        ["per_layer", map, kind] => in_map(&part("per_layer"), map, kind),
        _ => part(&fields.join(".")),
    }
}

fn in_mixer(mixer: &str, fields: &[&str]) -> String {
    match fields {
        ["latent", "q_norm", own] => format!("{mixer}.q_latent_norm.{own}"),
        ["latent", "kv_norm", own] => format!("{mixer}.kv_latent_norm.{own}"),
        ["latent", map, kind] => in_map(mixer, map, kind),
        [map, kind @ ("weight" | "bias")] => in_map(mixer, map, kind),
        ["a_log"] => format!("{mixer}.A_log"),
        ["d"] => format!("{mixer}.D"),
        _ => format!("{mixer}.{}", fields.join(".")),
    }
}

fn in_mlp(mlp: &str, fields: &[&str]) -> String {
    match fields {
        ["norm", own] => format!("{mlp}.ln.{own}"),
        ["slopes", own] => format!("{mlp}.{own}"),
        [map, kind] => in_map(mlp, map, kind),
        _ => format!("{mlp}.{}", fields.join(".")),
    }
}

fn in_experts(mlp: &str, fields: &[&str]) -> String {
    match fields {
        ["router", kind] => in_map(mlp, "gate", kind),
        ["experts", number, map, kind] => in_map(&format!("{mlp}.experts.{number}"), map, kind),
        ["shared", map, kind] => in_map(&format!("{mlp}.shared"), map, kind),
        ["scales"] => format!("{mlp}.expert_scales"),
        ["norms", "router", own] => format!("{mlp}.router_ln.{own}"),
        ["norms", "experts", own] => format!("{mlp}.experts_ln.{own}"),
        ["norms", "shared_post", own] => format!("{mlp}.shared_ln_post.{own}"),
        ["norms", "experts_post", own] => format!("{mlp}.experts_ln_post.{own}"),
        _ => format!("{mlp}.{}", fields.join(".")),
    }
}

/// Name of a linear map's weight, `attn.W_Q`, or of its bias, `attn.b_Q`.
pub(crate) fn in_map(part: &str, map: &str, kind: &str) -> String {
    let letter = match map {
        "q" => "Q",
        "k" => "K",
        "v" => "V",
        "o" => "O",
        "b" => "B",
        "c" => "C",
        "q_down" => "Q_down",
        "kv_down" => "KV_down",
        "k_rope" => "K_rope",
        "input" => "in",
        "output" => "out",
        other => other,
    };
    format!("{part}.{}_{letter}", if kind == "bias" { "b" } else { "W" })
}
