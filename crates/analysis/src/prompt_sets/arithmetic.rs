//! Sums of small numbers.

use super::Template;

/// Largest addend.
const MOST: u32 = 20;

/// The corrupted prompt has a different first addend. The solved example shows the format; without spaces, numbers are
/// single tokens in most tokenizers.
pub(super) fn template() -> Template {
    let pairs = (1..=MOST).flat_map(|a| (1..=MOST).map(move |b| (a, b)));
    let rows = pairs.flat_map(|(a, b)| {
        (1..=MOST).filter(move |c| *c != a).map(move |c| [a, b, a + b, c, c + b].map(|number| number.to_string()))
    });
    Template::new("2+2=4\n{a}+{b}=", "2+2=4\n{c}+{b}=", "{sum}", "{wrong}").rows(["a", "b", "sum", "c", "wrong"], rows)
}
