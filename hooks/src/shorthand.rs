//! TransformerLens shorthands: `k6`, `("q", 3)`, `scale4ln1`.

/// Expands a shorthand to a full point name, like TransformerLens's `get_act_name`.
///
/// `layer` and `part` may be given separately (`("q", 3)`) or inside the name (`"q3"`, `"scale4ln1"`). A full name is
/// returned unchanged.
///
/// ```
/// use hooklens_hooks::expand_shorthand;
/// assert_eq!(expand_shorthand("k6", None, None), "blocks.6.attn.hook_k");
/// assert_eq!(expand_shorthand("pre", Some(2), None), "blocks.2.mlp.hook_pre");
/// assert_eq!(expand_shorthand("scale4ln1", None, None), "blocks.4.ln1.hook_scale");
/// assert_eq!(expand_shorthand("resid_pre", Some(-1), None), "blocks.-1.hook_resid_pre");
/// assert_eq!(expand_shorthand("embed", None, None), "hook_embed");
/// assert_eq!(expand_shorthand("normalized", None, None), "ln_final.hook_normalized");
/// assert_eq!(expand_shorthand("blocks.0.hook_mlp_out", None, None), "blocks.0.hook_mlp_out");
/// ```
pub fn expand_shorthand(name: &str, layer: Option<isize>, part: Option<&str>) -> String {
    if layer.is_none() && part.is_none() && (name.contains('.') || name.starts_with("hook_")) {
        return name.to_string();
    }
    let (name, layer, part) = match (layer, split_short(name)) {
        (None, Some((name, layer, rest))) => (name, Some(layer), if rest.is_empty() { part } else { Some(rest) }),
        _ => (name, layer, part),
    };
    let name = name.strip_prefix("hook_").unwrap_or(name);
    let name = match name {
        "attn" => "pattern",
        "attn_logits" => "attn_scores",
        "key" => "k",
        "query" => "q",
        "value" => "v",
        "mlp_pre" => "pre",
        "mlp_mid" => "mid",
        "mlp_post" => "post",
        other => other,
    };
    let part = match part {
        Some("a" | "attention") => Some("attn"),
        Some("m") => Some("mlp"),
        Some("b" | "block" | "blocks") => None,
        other => other,
    };
    let part = match name {
        "k" | "v" | "q" | "z" | "rot_k" | "rot_q" | "result" | "pattern" | "attn_scores" => Some("attn"),
        "pre" | "post" | "mid" | "pre_linear" | "expert_weights" | "expert_indices" => Some("mlp"),
        _ => part,
    };
    let mut full = String::new();
    match (layer, name) {
        (None, "scale" | "normalized") => return format!("ln_final.hook_{name}"),
        (Some(layer), _) => full.push_str(&format!("blocks.{layer}.")),
        (None, _) => {}
    }
    if let Some(part) = part {
        full.push_str(part);
        full.push('.');
    }
    full.push_str("hook_");
    full.push_str(name);
    full
}

/// Splits `scale4ln1` into (`scale`, 4, `ln1`): letters, digits, and the rest.
fn split_short(name: &str) -> Option<(&str, isize, &str)> {
    let digits = name.find(|c: char| !(c.is_ascii_lowercase() || c == '_'))?;
    let (word, tail) = name.split_at(digits);
    let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    let (number, rest) = tail.split_at(end);
    if word.is_empty() {
        return None;
    }
    Some((word, number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::expand_shorthand;

    #[test]
    fn aliases_and_parts_follow_transformer_lens() {
        let cases = [
            (("attn0", None, None), "blocks.0.attn.hook_pattern"),
            (("attn", Some(3), None), "blocks.3.attn.hook_pattern"),
            (("q", Some(3), Some("attn")), "blocks.3.attn.hook_q"),
            (("mlp_pre", Some(1), None), "blocks.1.mlp.hook_pre"),
            (("scale", Some(4), Some("ln1")), "blocks.4.ln1.hook_scale"),
            (("mlp_out", Some(0), None), "blocks.0.hook_mlp_out"),
            (("attn_logits2", None, None), "blocks.2.attn.hook_attn_scores"),
            (("pos_embed", None, None), "hook_pos_embed"),
            (("resid_pre0", None, None), "blocks.0.hook_resid_pre"),
        ];
        for ((name, layer, part), full) in cases {
            assert_eq!(expand_shorthand(name, layer, part), full, "{name}");
        }
    }
}
