//! Capitals of countries.

use super::Template;

const CAPITALS: [[&str; 2]; 40] = [
    ["France", "Paris"],
    ["Germany", "Berlin"],
    ["Italy", "Rome"],
    ["Spain", "Madrid"],
    ["Portugal", "Lisbon"],
    ["Austria", "Vienna"],
    ["Greece", "Athens"],
    ["Poland", "Warsaw"],
    ["Hungary", "Budapest"],
    ["Ireland", "Dublin"],
    ["Norway", "Oslo"],
    ["Sweden", "Stockholm"],
    ["Denmark", "Copenhagen"],
    ["Finland", "Helsinki"],
    ["England", "London"],
    ["Scotland", "Edinburgh"],
    ["Belgium", "Brussels"],
    ["Russia", "Moscow"],
    ["Ukraine", "Kyiv"],
    ["Romania", "Bucharest"],
    ["Bulgaria", "Sofia"],
    ["Turkey", "Ankara"],
    ["Egypt", "Cairo"],
    ["Kenya", "Nairobi"],
    ["Iran", "Tehran"],
    ["Iraq", "Baghdad"],
    ["Syria", "Damascus"],
    ["Lebanon", "Beirut"],
    ["Afghanistan", "Kabul"],
    ["China", "Beijing"],
    ["Japan", "Tokyo"],
    ["Thailand", "Bangkok"],
    ["Vietnam", "Hanoi"],
    ["Indonesia", "Jakarta"],
    ["Canada", "Ottawa"],
    ["Cuba", "Havana"],
    ["Peru", "Lima"],
    ["Chile", "Santiago"],
    ["Venezuela", "Caracas"],
    ["Qatar", "Doha"],
];

/// The corrupted prompt names a different country.
pub(super) fn template() -> Template {
    let prompt = |country: &str| format!("{{of}} {country} is{{city}}");
    Template::new(prompt("{country}"), prompt("{other}"), " {capital}", " {other_capital}")
        .rows(["country", "capital", "other", "other_capital"], CAPITALS)
        .phrases("of", ["The capital of", "The capital city of", "As everyone knows, the capital of"])
        .phrases("city", ["", " the city of", " called"])
}
