//! Positions of tokens in their prompts.

/// Position of each place of `[row, column]` among the real tokens of its row, given which places are real. At padding,
/// it is the position of the next real token.
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
