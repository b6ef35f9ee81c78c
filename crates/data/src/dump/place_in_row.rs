//! Positions of tokens in their prompts.

/// For each entry of a matrix `[row, column]`, its position among the real tokens of its row. `real` says which entries
/// are not padding. A padding entry gets the position of the next real token.
pub(super) fn places_in_rows(real: impl Iterator<Item = bool>, columns: usize) -> impl Iterator<Item = u32> {
    let mut next = 0;
    real.enumerate().map(move |(place, real)| {
        if place % columns == 0 {
            next = 0;
        }
        let own = next;
        next += u32::from(real);
        own
    })
}
