//! Indirect object identification (Wang et al. 2022) with a small grammar, the task of the embedded model `ioi`.

use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

const NAMES: [&str; 20] = [
    "Mary", "John", "Tom", "Anna", "James", "Lucy", "Paul", "Kate", "Mark", "Alice", "Peter", "Emma", "David", "Sarah",
    "Simon", "Laura", "Henry", "Julia", "Frank", "Clara",
];
const OPENINGS: [&str; 3] = ["When", "After", "While"];
const MEETINGS: [&str; 5] = ["went to", "met at", "walked to", "worked at", "stayed at"];
const PLACES: [&str; 8] = ["store", "park", "school", "garden", "station", "office", "river", "market"];
const TIMES: [&str; 3] = ["in the morning", "at night", "after lunch"];
const GIFTS: [&str; 4] = ["gave", "handed", "passed", "sold"];
const THINGS: [&str; 8] = ["drink", "ball", "book", "ring", "apple", "letter", "hat", "coin"];

/// A sentence that ends right before its indirect object (Wang et al. 2022), with a corrupted version for patching.
///
/// ```
/// let prompt = &hooklens::experiments::ioi_prompts(1, 7)[0];
/// assert_eq!(prompt.text.split_whitespace().count(), prompt.corrupted.split_whitespace().count());
/// assert_eq!((prompt.text.matches(prompt.answer).count(), prompt.text.matches(prompt.wrong).count()), (1, 2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoiPrompt {
    /// The sentence: `When Mary and John went to the store, John gave a drink to`.
    pub text: String,
    /// The sentence with the other name as subject, with the same number of tokens: `..., Mary gave a drink to`.
    pub corrupted: String,
    /// The indirect object, which is the right answer: the name that occurs once in `text`.
    pub answer: &'static str,
    /// The subject, which is the wrong answer: the name that occurs twice in `text`.
    pub wrong: &'static str,
}

/// Generates random prompts from a seed, all with the same structure and length.
///
/// ```
/// let prompts = hooklens::experiments::ioi_prompts(3, 0);
/// assert!(prompts.iter().all(|p| p.text.matches(p.wrong).count() == 2));
/// assert!(prompts.iter().all(|p| p.corrupted.matches(p.answer).count() == 2));
/// ```
pub fn ioi_prompts(count: usize, seed: u64) -> Vec<IoiPrompt> {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| prompt(rng)).collect()
}

fn prompt(rng: &mut dyn RngCore) -> IoiPrompt {
    let [answer, wrong, _] = three_names(rng);
    let sentence = Sentence::draw(rng, [answer, wrong], "");
    IoiPrompt { text: sentence.until_given(wrong), corrupted: sentence.until_given(answer), answer, wrong }
}

/// A random training text for the embedded model `ioi`: two sentences. In most, one of the two names is the giver; in
/// some, the giver is a third name, so the receiver cannot be predicted.
///
/// ```
/// use rand_chacha::ChaCha8Rng;
/// use rand::SeedableRng;
/// let text = hooklens::experiments::ioi_text(&mut ChaCha8Rng::seed_from_u64(0));
/// assert_eq!(text.matches('.').count(), 2); // two sentences
/// ```
pub fn ioi_text(rng: &mut dyn RngCore) -> String {
    let sentence = |rng: &mut dyn RngCore| {
        let [one, other, third] = three_names(rng);
        let time = if rng.random_bool(0.4) { TIMES[rng.random_range(0..TIMES.len())] } else { "" };
        let giver = if rng.random_bool(0.15) { third } else { other };
        format!("{} {one}.", Sentence::draw(rng, [one, other], time).until_given(giver))
    };
    [sentence(&mut *rng), sentence(rng)].join(" ")
}

fn three_names(rng: &mut dyn RngCore) -> [&'static str; 3] {
    let mut names = NAMES.choose_multiple(rng, 3).copied();
    std::array::from_fn(|_| names.next().unwrap_or(NAMES[0]))
}

/// The parts of a sentence that do not depend on the giver.
struct Sentence {
    scene: String,
    gift: String,
}

impl Sentence {
    /// Draws a sentence in which two people, named in random order, meet somewhere.
    fn draw(rng: &mut dyn RngCore, mut people: [&str; 2], time: &str) -> Self {
        let pick = |rng: &mut dyn RngCore, from: &[&'static str]| from.choose(rng).copied().unwrap_or_default();
        people.shuffle(rng);
        let (opening, meeting, place) = (pick(rng, &OPENINGS), pick(rng, &MEETINGS), pick(rng, &PLACES));
        let time = if time.is_empty() { String::new() } else { format!(" {time}") };
        let scene = format!("{opening} {} and {} {meeting} the {place}{time}", people[0], people[1]);
        Self { scene, gift: format!("{} a {} to", pick(rng, &GIFTS), pick(rng, &THINGS)) }
    }

    fn until_given(&self, giver: &str) -> String {
        format!("{}, {giver} {}", self.scene, self.gift)
    }
}
