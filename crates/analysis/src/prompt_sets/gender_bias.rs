//! Pronouns after professions with a gender stereotype (Vig et al. 2020).

use super::Template;

const FEMALE: [&str; 14] = [
    "nurse",
    "secretary",
    "librarian",
    "teacher",
    "dancer",
    "maid",
    "housekeeper",
    "receptionist",
    "hairdresser",
    "nanny",
    "singer",
    "designer",
    "cleaner",
    "assistant",
];
const MALE: [&str; 22] = [
    "carpenter",
    "engineer",
    "mechanic",
    "soldier",
    "captain",
    "boss",
    "lawyer",
    "doctor",
    "farmer",
    "guard",
    "driver",
    "pilot",
    "scientist",
    "philosopher",
    "architect",
    "banker",
    "sheriff",
    "surgeon",
    "programmer",
    "detective",
    "manager",
    "president",
];

/// The corrupted prompt has a noun of the other gender instead of the profession.
pub(super) fn template() -> Template {
    let female = FEMALE.iter().map(|profession| [*profession, "man", "she", "he"]);
    let male = MALE.iter().map(|profession| [*profession, "woman", "he", "she"]);
    Template::new("The {profession} {verb} that", "The {person} {verb} that", " {answer}", " {wrong}")
        .rows(["profession", "person", "answer", "wrong"], female.chain(male))
        .phrases("verb", ["said", "thought", "knew", "believed", "hoped", "felt", "claimed", "wrote"])
}
