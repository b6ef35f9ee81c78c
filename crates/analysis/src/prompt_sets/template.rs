//! Templates of pairs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use hooklens_hooks::nearest;
use rayon::prelude::*;

use hooklens_model::tokens::Tokenizer;

use super::PromptPairs;
use super::choices::Choices;
use super::filler::{Filler, expanded, next_token};
use super::numbers::{LISTED, Numbers};
use super::text::{Piece, filled, parse, slots};
use crate::error::PromptSetError;

/// Number of pairs made in parallel.
const TOGETHER: usize = 1024;

/// Index of a list of words and, for each place in its rows, the texts that come before a word in that place.
type Prefixes = (usize, Vec<BTreeSet<String>>);

/// A pair of prompts with named slots, such as `{name}`, and the words to fill them with. `{{` and `}}` are literal
/// braces.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::prompt_sets::Template;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let template = Template::new(
///     "When {a} and {b} went to the {place}, {b} gave a ball to",
///     "When {a} and {b} went to the {place}, {a} gave a ball to",
///     " {a}",
///     " {b}",
/// )
/// .words(["a", "b"], ["Mary", "John", "Tom", "Beatrix"]) // two different names
/// .words(["place"], ["park", "store", "office"]);
/// let found = template.pairs(model.tokenizer()?, 6, 0)?;
/// assert_eq!((found.pairs.len(), &*found.dropped), (6, &["Beatrix".to_string()][..]));
/// // There are 3 * 2 pairs of names and 3 places.
/// let message = template.pairs(model.tokenizer()?, 19, 0).unwrap_err().to_string();
/// assert!(message.contains("19 pairs were requested, but there are only 18"), "{message}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Template {
    clean: String,
    corrupted: String,
    answer: String,
    wrong: String,
    choices: Vec<Choices>,
}

impl Template {
    /// Creates a template from a clean prompt, a corrupted prompt, the answer and the wrong answer. Write both answers
    /// as they continue the prompts, including a leading space if the text has one.
    pub fn new(
        clean: impl Into<String>,
        corrupted: impl Into<String>,
        answer: impl Into<String>,
        wrong: impl Into<String>,
    ) -> Self {
        let (clean, corrupted) = (clean.into(), corrupted.into());
        Self { clean, corrupted, answer: answer.into(), wrong: wrong.into(), choices: Vec::new() }
    }

    /// Fills each of these slots with a different word. Words that are not single tokens are dropped.
    pub fn words<W: Into<String>>(
        self,
        slots: impl IntoIterator<Item = impl Into<String>>,
        words: impl IntoIterator<Item = W>,
    ) -> Self {
        self.choose(slots, words.into_iter().map(|word| vec![word.into()]).collect(), false)
    }

    /// Fills slots with words that belong together, such as a country and its capital: each row has one word per slot.
    /// If the number of slots is a multiple of the row length, several different rows are drawn. Rows with a word
    /// that is not a single token are dropped.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::prompt_sets::Template;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let template = Template::new("Mary gave a {thing} to the", "Mary gave a {other} to the", " {place}", " {other_place}")
    ///     .rows(["thing", "place", "other", "other_place"], [["drink", "store"], ["book", "school"], ["ball", "park"]]);
    /// let found = template.pairs(model.tokenizer()?, 6, 0)?;
    /// assert!(found.pairs.iter().any(|pair| pair.clean.contains("ball") && pair.answer == "park"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows<W: Into<String>, R: IntoIterator<Item = W>>(
        self,
        slots: impl IntoIterator<Item = impl Into<String>>,
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        self.choose(slots, rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect(), false)
    }

    /// Fills a slot with phrases, which may have any number of tokens and contain slots for words. Phrases that the
    /// tokenizer cannot encode are dropped.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::prompt_sets::Template;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let template = Template::new("{people} met, {b} gave a ball to", "{people} met, {a} gave a ball to", " {a}", " {b}")
    ///     .phrases("people", ["When {a} and {b}", "After {b} and {a}"])
    ///     .words(["a", "b"], ["Mary", "John"]);
    /// assert_eq!(template.pairs(model.tokenizer()?, 4, 0)?.pairs.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn phrases<P: Into<String>>(self, slot: impl Into<String>, phrases: impl IntoIterator<Item = P>) -> Self {
        self.choose([slot.into()], phrases.into_iter().map(|phrase| vec![phrase.into()]).collect(), true)
    }

    fn choose(
        mut self,
        slots: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
        are_phrases: bool,
    ) -> Self {
        let width = rows.first().map_or(1, Vec::len);
        self.choices.push(Choices { slots: slots.into_iter().map(Into::into).collect(), width, rows, are_phrases });
        self
    }

    /// Generates different pairs from a seed. The same seed gives the same pairs with the same tokenizer, and a larger
    /// count only adds pairs. The clean and the corrupted prompt of a pair have the same number of tokens, and the answers
    /// are different single tokens after both.
    ///
    /// # Errors
    /// [`PromptSetError`] if the template is not valid, if too few words are single tokens, and if there are fewer
    /// different pairs than `count`.
    pub fn pairs(&self, tokenizer: &Tokenizer, count: usize, seed: u64) -> Result<PromptPairs, PromptSetError> {
        if count == 0 {
            return Err(PromptSetError::NoCount);
        }
        self.check()?;
        let words = self.choices.iter().map(|choices| choices.rows.len()).sum();
        let (choices, dropped) = self.usable(tokenizer)?;
        let filler = Filler { texts: self.texts(), choices: &choices, tokenizer };
        let all = choices.iter().map(Choices::draws).fold(1, u128::saturating_mul);
        let (mut found, mut seen, mut skipped, mut reason) = (Vec::new(), HashSet::new(), 0, None);
        let short = |found: usize, drawn, skipped, reason: Option<String>| PromptSetError::TooFewPairs {
            requested: count,
            found,
            drawn,
            skipped,
            reason: reason.unwrap_or_default(),
        };
        if all > LISTED && count as u128 > all {
            return Err(short(usize::try_from(all).unwrap_or(usize::MAX), None, 0, None));
        }
        let mut numbers = Numbers::new(all, count, seed);
        while found.len() < count {
            let some: Vec<u128> = numbers.by_ref().take((count - found.len()).min(TOGETHER)).collect();
            if some.is_empty() {
                let drawn = (all > LISTED).then_some(numbers.drawn);
                return Err(short(found.len(), drawn, skipped, reason));
            }
            let pairs: Vec<_> = some.par_iter().map(|number| filler.pair(*number)).collect();
            for pair in pairs {
                match pair? {
                    Ok(pair) => {
                        let key = (pair.clean.clone(), pair.corrupted.clone(), pair.answer_id, pair.wrong_id);
                        found.extend(seen.insert(key).then_some(pair));
                    }
                    Err(why) => {
                        skipped += 1;
                        reason.get_or_insert(why);
                    }
                }
            }
        }
        Ok(PromptPairs { pairs: found, dropped, words, skipped })
    }

    fn texts(&self) -> [&str; 4] {
        [&self.clean, &self.corrupted, &self.answer, &self.wrong]
    }

    /// Checks that every slot in the texts has exactly one list of words, and that every list is used.
    fn check(&self) -> Result<(), PromptSetError> {
        let mut known: BTreeMap<&str, bool> = BTreeMap::new();
        for choices in &self.choices {
            let (slots, width) = (choices.slots.len(), choices.width);
            let odd = choices.rows.iter().find(|row| row.len() != width);
            if slots == 0 || width == 0 || slots % width != 0 || odd.is_some() {
                let words = odd.map_or(width, Vec::len);
                return Err(PromptSetError::Row { slots: choices.slots.clone(), words });
            }
            for slot in &choices.slots {
                if known.insert(slot, choices.are_phrases).is_some() {
                    return Err(PromptSetError::Repeated { slot: slot.clone() });
                }
            }
        }
        let mut used = BTreeSet::new();
        let mut check = |text: &str, in_phrase: bool| {
            for slot in slots(&parse(text)?) {
                match known.get_key_value(slot) {
                    Some((slot, are_phrases)) if !(in_phrase && *are_phrases) => used.insert(*slot),
                    _ => {
                        let known = known.iter().filter(|(_, are_phrases)| !(in_phrase && **are_phrases));
                        let known: Vec<&str> = known.map(|(slot, _)| *slot).collect();
                        return Err(PromptSetError::Slot {
                            slot: slot.into(),
                            text: text.into(),
                            nearest: nearest(slot, known.iter().copied()),
                            known: known.into_iter().map(String::from).collect(),
                        });
                    }
                };
            }
            Ok(())
        };
        self.texts().into_iter().try_for_each(|text| check(text, false))?;
        let phrases = self.choices.iter().filter(|choices| choices.are_phrases);
        phrases.flat_map(|choices| choices.rows.iter().flatten()).try_for_each(|phrase| check(phrase, true))?;
        match known.keys().find(|slot| !used.contains(*slot)) {
            Some(unused) => Err(PromptSetError::Unused { slot: (*unused).into() }),
            None => Ok(()),
        }
    }

    /// Returns the choices without the words that the tokenizer cannot use, and the removed words.
    fn usable(&self, tokenizer: &Tokenizer) -> Result<(Vec<Choices>, Vec<String>), PromptSetError> {
        let (mut choices, mut dropped) = (self.choices.clone(), Vec::new());
        // First remove words that cannot be encoded at all, so that the texts are filled only with usable words.
        for own in &mut choices {
            let can_encode = |word: &String| match own.are_phrases {
                true => tokenizer.encode(&filled(&parse(word).unwrap_or_default(), |_| "")).is_ok(),
                false => tokenizer.encode(word).is_ok(),
            };
            own.rows.retain(|row| {
                let keep = row.iter().all(can_encode);
                if !keep {
                    dropped.push(Choices::name(row));
                }
                keep
            });
        }
        self.check_enough(&choices, &dropped)?;
        let prefixes = self.prefixes(&choices)?;
        for prefix in prefixes.iter().flat_map(|(_, slots)| slots.iter().flatten()) {
            tokenizer.encode(prefix).map_err(|source| PromptSetError::Text { text: prefix.clone(), source })?;
        }
        for (number, slots) in prefixes {
            let own = &mut choices[number];
            own.rows.retain(|row| {
                let fits = |(place, word): (usize, &String)| {
                    slots[place].iter().all(|prefix| next_token(tokenizer, prefix, word).is_some())
                };
                let keep = row.iter().enumerate().all(fits);
                if !keep {
                    dropped.push(Choices::name(row));
                }
                keep
            });
        }
        self.check_enough(&choices, &dropped)?;
        Ok((choices, dropped))
    }

    fn check_enough(&self, choices: &[Choices], dropped: &[String]) -> Result<(), PromptSetError> {
        let short = choices.iter().zip(&self.choices).find(|(own, _)| own.rows.len() < own.drawn());
        let Some((own, whole)) = short else { return Ok(()) };
        let names: Vec<String> = whole.rows.iter().map(|row| Choices::name(row)).collect();
        Err(PromptSetError::TooFewWords {
            slots: own.slots.clone(),
            needed: own.drawn(),
            kept: own.rows.len(),
            given: whole.rows.len(),
            dropped: dropped.iter().filter(|name| names.contains(name)).cloned().collect(),
        })
    }

    /// For each list of words, and for each place in its rows, the texts that come before a word in that place. The
    /// slots in these texts are filled with the first words of their lists.
    fn prefixes(&self, choices: &[Choices]) -> Result<Vec<Prefixes>, PromptSetError> {
        let first: BTreeMap<&str, &str> = choices.iter().flat_map(|own| own.draw(0)).collect();
        let word = |slot: &str| first.get(slot).copied().unwrap_or_default();
        let [clean, corrupted, answer, wrong] = self.texts().map(|text| expanded(text, choices, &first));
        let (clean, corrupted, answer, wrong) = (clean?, corrupted?, answer?, wrong?);
        let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let whole = [[&clean[..], &answer], [&clean, &wrong], [&corrupted, &answer], [&corrupted, &wrong]];
        let whole = whole.map(|parts| parts.concat());
        for pieces in &whole {
            for (at, piece) in pieces.iter().enumerate() {
                if let Piece::Slot(name) = piece {
                    found.entry(name).or_default().insert(filled(&pieces[..at], word));
                }
            }
        }
        let of_words = choices.iter().enumerate().filter(|(_, own)| !own.are_phrases);
        let of_place = |own: &Choices, place: usize| {
            let slots = own.slots.iter().skip(place).step_by(own.width);
            slots.flat_map(|slot| found.get(slot.as_str()).cloned().unwrap_or_default()).collect()
        };
        Ok(of_words.map(|(number, own)| (number, (0..own.width).map(|place| of_place(own, place)).collect())).collect())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
