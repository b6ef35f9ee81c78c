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

/// The corrupted prompt has the subject in the other number. The noun before the verb has the wrong number in the clean
/// prompt.
pub(super) fn template() -> Template {
    let subjects = NOUNS.iter().flat_map(|[one, many]| [[*one, *many, "is", "are"], [*many, *one, "are", "is"]]);
    Template::new("The {subject} {place} the {noun}", "The {other} {place} the {noun}", " {verb}", " {wrong}")
        .rows(["subject", "other", "verb", "wrong"], subjects)
        .phrases("place", ["near", "behind", "beside", "next to", "in front of", "close to"])
        .words(
            ["noun"],
            ["cabinet", "cabinets", "window", "windows", "door", "doors", "garden", "gardens", "wall", "walls"],
        )
}
