//! Years that are later than a given year (Hanna et al. 2023).

use super::Template;

const NOUNS: [&str; 24] = [
    "war",
    "siege",
    "famine",
    "voyage",
    "expedition",
    "reign",
    "rebellion",
    "drought",
    "truce",
    "trial",
    "dispute",
    "revolt",
    "epidemic",
    "alliance",
    "conflict",
    "campaign",
    "investigation",
    "journey",
    "construction",
    "occupation",
    "negotiation",
    "blockade",
    "feud",
    "dynasty",
];

/// Largest distance between years.
const MOST: u32 = 8;

/// The corrupted prompt begins in the year 01, so both the answer and the wrong answer are later years.
pub(super) fn template() -> Template {
    let years = (2 + MOST..=98 - MOST).flat_map(|year| (1..=MOST).map(move |gap| [year, year + gap, year - gap]));
    Template::new(
        "The {noun} lasted from the year {century}{year} to the year {century}",
        "The {noun} lasted from the year {century}01 to the year {century}",
        "{later}",
        "{earlier}",
    )
    .phrases("noun", NOUNS)
    .words(["century"], ["11", "12", "13", "14", "15", "16", "17", "18"])
    .rows(["year", "later", "earlier"], years.map(|row| row.map(|year| format!("{year:02}"))))
}
