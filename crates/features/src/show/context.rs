//! Comparison of the contexts of examples.

/// Whether two contexts are near-identical around their active tokens: at least nine tenths of the tokens are the same.
/// A context is given by its tokens and the index of the active one.
pub(super) fn is_repeat((one, at): (&[u32], usize), (other, other_at): (&[u32], usize)) -> bool {
    let before = at.max(other_at);
    let after = (one.len() - at).max(other.len() - other_at);
    let token = |tokens: &[u32], at: usize, place: usize| {
        (at + place).checked_sub(before).and_then(|at| tokens.get(at).copied())
    };
    let same = |place: &usize| {
        let token_of_one = token(one, at, *place);
        token_of_one.is_some() && token_of_one == token(other, other_at, *place)
    };
    (0..before + after).filter(same).count() * 10 >= (before + after) * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_compared_around_their_active_tokens() {
        let one: Vec<u32> = (0..20).collect();
        assert!(is_repeat((&one, 12), (&one, 12)));
        assert!(!is_repeat((&one, 12), (&one, 13)), "other tokens are at the same distance");
        let mut other = one.clone();
        other[3] = 99;
        assert!(is_repeat((&one, 12), (&other, 12)));
        (other[5], other[7]) = (99, 99);
        assert!(!is_repeat((&one, 12), (&other, 12)));
        // One token less at the start, as in a prompt that begins within the window.
        assert!(is_repeat((&one, 12), (&one[1..], 11)));
        assert!(!is_repeat((&one, 12), (&one[5..], 7)));
        assert!(is_repeat((&[7], 0), (&[7], 0)) && !is_repeat((&[7], 0), (&[8], 0)));
    }
}
