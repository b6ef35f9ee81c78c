//! Random samples of a corpus's prompts.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::DumpError;

/// Draws `count` items uniformly at random and returns them in their original order. Only drawn items are kept in
/// memory (Vitter's algorithm R).
pub(super) fn drawn<P>(
    all: impl Iterator<Item = Result<P, DumpError>>,
    count: usize,
    seed: u64,
) -> Result<Vec<P>, DumpError> {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut held: Vec<(usize, P)> = Vec::new();
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
            let ids: Vec<u32> = drawn((0..20).map(Ok), 5, seed).unwrap();
            assert!(ids.len() == 5 && ids.is_sorted());
            ids.iter().for_each(|id| counts[*id as usize] += 1);
        }
        // The expected count is 1,000, with a standard deviation of 27.
        assert!(counts.iter().all(|count| (870..1130).contains(count)), "{counts:?}");
    }
}
