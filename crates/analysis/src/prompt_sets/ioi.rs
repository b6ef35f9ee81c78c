//! Indirect object identification (Wang et al. 2022).

use super::Template;

/// Names that are single tokens in many tokenizers. The first 20 are the names of `embedded:ioi`.
const NAMES: [&str; 48] = [
    "Mary", "John", "Tom", "Anna", "James", "Lucy", "Paul", "Kate", "Mark", "Alice", "Peter", "Emma", "David", "Sarah",
    "Simon", "Laura", "Henry", "Julia", "Frank", "Clara", "Michael", "Jessica", "Robert", "Jennifer", "Daniel", "Amy",
    "Andrew", "Rachel", "Brian", "Lisa", "Kevin", "Susan", "Jason", "Karen", "Scott", "Megan", "Eric", "Rebecca",
    "Adam", "Nicole", "Ryan", "Linda", "Steven", "Emily", "Jack", "Jane", "George", "Martin",
];

pub(super) fn template() -> Template {
    let prompt =
        |giver: &str| format!("{{opening}} {{people}} {{meeting}} the {{place}}, {giver} {{gift}} a {{thing}} to");
    Template::new(prompt("{s}"), prompt("{io}"), " {io}", " {s}")
        .words(["io", "s"], NAMES)
        .phrases("opening", ["When", "After", "While"])
        .phrases("people", ["{io} and {s}", "{s} and {io}"])
        .phrases("meeting", ["went to", "met at", "walked to", "worked at", "stayed at"])
        .phrases(
            "place",
            ["store", "park", "school", "garden", "station", "office", "river", "market", "library", "beach"],
        )
        .phrases("gift", ["gave", "handed", "passed", "sold"])
        .phrases("thing", ["drink", "ball", "book", "ring", "letter", "hat", "coin", "basket", "flower"])
}
