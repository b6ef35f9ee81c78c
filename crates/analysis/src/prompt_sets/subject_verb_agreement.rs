//! Agreement of a verb with its subject, not with the nearest noun (Linzen et al. 2016).

use super::Template;

const NOUNS: [[&str; 2]; 24] = [
    ["key", "keys"],
    ["book", "books"],
    ["picture", "pictures"],
    ["teacher", "teachers"],
    ["student", "students"],
    ["doctor", "doctors"],
    ["car", "cars"],
    ["letter", "letters"],
    ["dog", "dogs"],
    ["cat", "cats"],
    ["bird", "birds"],
    ["child", "children"],
    ["woman", "women"],
    ["man", "men"],
    ["friend", "friends"],
    ["author", "authors"],
    ["farmer", "farmers"],
    ["driver", "drivers"],
    ["table", "tables"],
    ["chair", "chairs"],
    ["box", "boxes"],
    ["boat", "boats"],
    ["tree", "trees"],
    ["house", "houses"],
];

/// Nouns of a phrase between the subject and the verb (`near the cabinet`).
const PLACES: [[&str; 2]; 5] =
    [["cabinet", "cabinets"], ["window", "windows"], ["door", "doors"], ["garden", "gardens"], ["wall", "walls"]];

/// The corrupted prompt has the subject in the opposite grammatical number (singular or plural). In the clean prompt,
/// the noun before the verb differs from the subject in number.
pub(super) fn template() -> Template {
    let rows = NOUNS.iter().flat_map(|[one, many]| {
        PLACES.iter().flat_map(move |[single, plural]| {
            [[*one, *many, "is", "are", *plural], [*many, *one, "are", "is", *single]]
        })
    });
    Template::new("The {subject} {place} the {noun}", "The {other} {place} the {noun}", " {verb}", " {wrong}")
        .rows(["subject", "other", "verb", "wrong", "noun"], rows)
        .phrases("place", ["near", "behind", "beside", "next to", "in front of", "close to"])
}
