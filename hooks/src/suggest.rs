//! Name suggestions for error messages.

/// The candidates most similar to `wanted`, best first, at most three.
///
/// ```
/// let names = ["blocks.0.hook_resid_pre", "blocks.0.attn.hook_q", "hook_embed"];
/// assert_eq!(hooklens_hooks::nearest("hook_embd", names)[0], "hook_embed");
/// assert!(hooklens_hooks::nearest("zzzzzz", names).is_empty());
/// ```
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    const CLOSE_ENOUGH: f64 = 0.6;
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .map(|name| (similarity(wanted, name), name))
        .filter(|(score, _)| *score >= CLOSE_ENOUGH)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(3);
    scored.into_iter().map(|(_, name)| name.to_string()).collect()
}

/// Similarity to the whole name or to its last component, whichever is higher, so that `hook_patern` finds
/// `blocks.0.attn.hook_pattern`.
fn similarity(wanted: &str, name: &str) -> f64 {
    let whole = strsim::normalized_damerau_levenshtein(wanted, name);
    let last = name.rsplit('.').next().unwrap_or(name);
    // Slightly lower, so that an equally good match of the whole name comes first.
    whole.max(0.98 * strsim::normalized_damerau_levenshtein(wanted, last))
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_typo_in_the_last_part_is_found_without_its_prefix() {
        let names = ["blocks.0.attn.hook_pattern", "blocks.0.attn.hook_z"];
        assert_eq!(nearest("hook_patern", names), ["blocks.0.attn.hook_pattern"]);
    }
}
