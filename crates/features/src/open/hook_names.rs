//! Hook points for Hugging Face module names.

use crate::metadata::Metadata;

/// The point of a dictionary on a Hugging Face module: the module's output, or both its input and output for a
/// transcoder. Paths may include or omit the prefix before the layers: `model.layers.5`, `h.5.mlp`,
/// `gpt_neox.layers.5.attention`.
pub(super) fn of_module(path: &str, transcoder: bool) -> Metadata {
    let Some((layer, rest)) = layer_of(path) else { return Metadata::default() };
    let block = |point: &str| format!("blocks.{layer}.{point}");
    match (rest, transcoder) {
        ("mlp", true) => Metadata::between(block("mlp.hook_in"), block("hook_mlp_out")),
        (_, true) => Metadata::default(),
        ("" | "output", _) => Metadata::at(block("hook_resid_post")),
        ("mlp" | "mlp.output", _) => Metadata::at(block("hook_mlp_out")),
        ("attn" | "attention" | "self_attn" | "attn.output" | "self_attn.output", _) => {
            Metadata::at(block("hook_attn_out"))
        }
        _ => tensor_of(path).map(Metadata::at).unwrap_or_default(),
    }
}

/// The hook point of a tensor given by module path and side, as named in Gemma Scope 2.
pub(super) fn tensor_of(path: &str) -> Option<String> {
    let (layer, rest) = layer_of(path)?;
    let point = match rest {
        "output" => "hook_resid_post",
        "input" => "hook_resid_pre",
        "self_attn.o_proj.input" => "attn.hook_z",
        "pre_feedforward_layernorm.output" | "mlp.input" => "mlp.hook_in",
        "post_feedforward_layernorm.output" | "mlp.output" => "hook_mlp_out",
        "post_attention_layernorm.output" | "self_attn.output" => "hook_attn_out",
        _ => return None,
    };
    Some(format!("blocks.{layer}.{point}"))
}

/// The number after `layers.`, `h.` or `blocks.`, and the rest of the path.
fn layer_of(path: &str) -> Option<(usize, &str)> {
    let mut rest = path;
    loop {
        let (first, after) = rest.split_once('.').unwrap_or((rest, ""));
        if matches!(first, "layers" | "h" | "blocks") {
            let (number, tail) = after.split_once('.').unwrap_or((after, ""));
            return Some((number.parse().ok()?, tail));
        }
        if after.is_empty() {
            return None;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_points() {
        let reads = |path: &str| of_module(path, false).reads;
        assert_eq!(reads("layers.10").as_deref(), Some("blocks.10.hook_resid_post"));
        assert_eq!(reads("h.3.mlp").as_deref(), Some("blocks.3.hook_mlp_out"));
        assert_eq!(reads("gpt_neox.layers.2.attention").as_deref(), Some("blocks.2.hook_attn_out"));
        assert_eq!(reads("embed_tokens"), None);
        let both = of_module("model.layers.4.mlp", true);
        assert_eq!(both.reads.as_deref(), Some("blocks.4.mlp.hook_in"));
        assert_eq!(both.writes.as_deref(), Some("blocks.4.hook_mlp_out"));
        assert_eq!(tensor_of("model.layers.7.self_attn.o_proj.input").as_deref(), Some("blocks.7.attn.hook_z"));
    }
}
