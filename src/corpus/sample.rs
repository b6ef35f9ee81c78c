//! Some of a corpus's prompts, by lot.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Prompt;
use crate::error::DumpError;

/// So many of all, each set of as many as likely, in their order (Vitter's algorithm R: no more than these are held).
pub(super) fn drawn(
    all: impl Iterator<Item = Result<Prompt, DumpError>>,
    count: usize,
    seed: u64,
) -> Result<Vec<Prompt>, DumpError> {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut held: Vec<(usize, Prompt)> = Vec::new();
    for (number, prompt) in all.enumerate() {
        let prompt = prompt?;
        if held.len() < count {
            held.push((number, prompt));
        } else if let Some(place) = held.get_mut(chance.random_range(0..=number as u64) as usize) {
            *place = (number, prompt);
        }
    }
    held.sort_by_key(|(number, _)| *number);
    Ok(held.into_iter().map(|(_, prompt)| prompt).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_is_as_likely() {
        let mut counts = [0u32; 20];
        for seed in 0..4000 {
            let all = (0..20).map(|id| Ok(Prompt::Tokens(vec![id])));
            let drawn = drawn(all, 5, seed).unwrap();
            let ids: Vec<u32> = drawn
                .into_iter()
                .map(|prompt| match prompt {
                    Prompt::Tokens(ids) => ids[0],
                    Prompt::Text(_) => unreachable!(),
                })
                .collect();
            assert!(ids.len() == 5 && ids.is_sorted());
            ids.iter().for_each(|id| counts[*id as usize] += 1);
        }
        // 1,000 each, and 27 is the standard deviation.
        assert!(counts.iter().all(|count| (870..1130).contains(count)), "{counts:?}");
    }
}
