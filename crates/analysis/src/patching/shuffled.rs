//! Patches from the prompts of other examples, for a null distribution of effects.

use std::collections::BTreeMap;

use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::model::Patchable;
use super::source::Source;
use super::sweep::Patching;
use crate::error::PatchError;

impl<M: Patchable> Patching<'_, M> {
    /// Takes each example's patches from the prompt of a different example of the same length, chosen at random from a
    /// seed. The prompts that are patched and their metrics stay the same, so the effects of shuffled pairs are effects
    /// of patches that are unrelated to the example. Repeat the sweep with several seeds to get this null distribution.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::prompt_sets::PromptSet;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let pairs = PromptSet::Ioi.template().pairs(model.tokenizer()?, 12, 0)?.pairs;
    /// let [clean, corrupted]: [Vec<&str>; 2] = [
    ///     pairs.iter().map(|pair| &*pair.clean).collect(),
    ///     pairs.iter().map(|pair| &*pair.corrupted).collect(),
    /// ];
    /// let (answers, wrong): (Vec<u32>, Vec<u32>) = pairs.iter().map(|pair| (pair.answer_id, pair.wrong_id)).unzip();
    /// let patching = || model.patching(clean.clone(), corrupted.clone()).logit_diff(answers.clone(), wrong.clone());
    /// let effect = patching()?.attn_head_out_all_pos()?.effect(); // [layer, head]
    /// let (head, largest) = effect.largest(1).remove(0);
    /// let at = [head[0].parse::<usize>()?, head[1].parse()?];
    /// let mut null = Vec::new();
    /// for seed in 0..5 {
    ///     null.push(patching()?.shuffled(seed)?.attn_head_out_all_pos()?.effect().values()[at]);
    /// }
    /// println!("layer {} head {}: {largest:+.2}, with shuffled pairs {null:+.2?}", head[0], head[1]);
    /// assert!(null.iter().all(|effect| effect.abs() < largest.abs()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::Shuffled`] if an example is the only one of its length, or if the patches are zeros or means.
    pub fn shuffled(mut self, seed: u64) -> Result<Self, PatchError> {
        let Source::Run(source) = &mut self.source else {
            return Err(PatchError::Shuffled { reason: "zero and mean patches do not come from other prompts".into() });
        };
        let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (example, prompt) in source.iter().enumerate() {
            groups.entry(M::lengths(prompt)).or_default().push(example);
        }
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut shuffled = source.clone();
        for (lengths, mut group) in groups {
            if let [example] = group[..] {
                let tokens = lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
                let reason =
                    format!("example {example} is the only one with {tokens} tokens; add others of that length");
                return Err(PatchError::Shuffled { reason });
            }
            group.shuffle(random);
            // Each example takes the next example's prompt, so no example keeps its own prompt.
            for (place, example) in group.iter().enumerate() {
                shuffled[*example] = source[group[(place + 1) % group.len()]].clone();
            }
        }
        *source = shuffled;
        Ok(self)
    }
}
