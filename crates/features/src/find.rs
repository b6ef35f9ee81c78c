//! Search for latents that matter to a text: by activation, by attribution, and by difference between texts.

use hooklens_hooks::Record;

use super::dictionary::Dictionary;
use super::show::{Units, activations, logit_effects};
use super::splice::{SpliceDictionary, check_place};
use crate::error::FeatureError;
use crate::host::host;
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// A latent found by a search.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct FoundLatent {
    /// Index of the latent.
    pub latent: usize,
    /// The score that the search ranks by: activation, attribution or difference.
    pub score: f32,
    /// The position in the text that the score refers to, if any.
    pub position: Option<usize>,
}

/// Sorts by magnitude in descending order, and drops zeros.
fn sorted(mut found: Vec<FoundLatent>) -> Vec<FoundLatent> {
    found.retain(|one| one.score != 0.0);
    found.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()).then(a.latent.cmp(&b.latent)));
    found
}

/// Finds the latents that are active in a prompt, in descending order of activation. The score is the latent's
/// activation at `position`, or its largest activation in the prompt if `position` is `None`. Tokens that were excluded
/// from the dictionary's training are skipped unless [`Dictionary::exclude_tokens`] allows them.
///
/// ```
/// use hooklens::features::{Dictionary, latents_by_activation};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let sae = Dictionary::open("embedded:ioi-sae")?;
/// let prompt = model.to_tokens("When Mary and John went to the store")?.row(0).to_vec();
/// let found = latents_by_activation(&model, &sae, &prompt, Some(2))?;
/// assert!(found[0].score >= found[1].score && found[0].position == Some(2));
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Fails if the model lacks the dictionary's point or has a different width there, or if the position is outside the
/// prompt.
pub fn latents_by_activation(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    prompt: &[u32],
    position: Option<usize>,
) -> Result<Vec<FoundLatent>> {
    check_position(dictionary, prompt, position)?;
    check_place(model, dictionary)?;
    let left_out = dictionary.metadata().exclude_special_tokens.ids(model)?;
    let (acts, _, _) = activations(model, &Units::latents(dictionary)?.on(model), &[prompt.to_vec()])?;
    let count = acts.dims()[1];
    let values = host(acts);
    let best = |latent: usize| {
        let at = |pos: usize| if left_out.contains(&prompt[pos]) { 0.0 } else { values[pos * count + latent] };
        let places = position.map_or(0..prompt.len(), |pos| pos..pos + 1);
        let pos = places.max_by(|a, b| at(*a).abs().total_cmp(&at(*b).abs())).unwrap_or(0);
        FoundLatent { latent, score: at(pos), position: Some(pos) }
    };
    Ok(sorted((0..count).map(best).collect()))
}

fn check_position(dictionary: &Dictionary, prompt: &[u32], position: Option<usize>) -> Result<()> {
    match position.filter(|pos| *pos >= prompt.len()) {
        Some(pos) => {
            let reason = format!("position {pos} is outside the prompt of {} tokens", prompt.len());
            Err(FeatureError::Kind { dictionary: dictionary.name().into(), reason }.into())
        }
        None => Ok(()),
    }
}

/// Finds latents by their effect on the logit of `answer` as the next token or, with `wrong`, on the logit difference
/// between `answer` and `wrong`. The score of a latent at a position is activation times gradient; the largest
/// magnitudes come first.
///
/// ```
/// use hooklens::features::{Dictionary, latents_by_attribution};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let sae = Dictionary::open("embedded:ioi-sae")?;
/// let text = "When Mary and John went to the store, John gave a drink to";
/// let prompt = model.to_tokens(text)?.row(0).to_vec();
/// let (mary, john) = (model.to_single_token("Mary")?, model.to_single_token("John")?);
/// let found = latents_by_attribution(&model, &sae, &prompt, mary, Some(john))?;
/// assert_eq!(found[0].position, Some(14)); // the last position, where the answer is predicted
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`SpliceDictionary::splice_dictionary`]; also fails for a token that has no logit.
pub fn latents_by_attribution(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    prompt: &[u32],
    answer: u32,
    wrong: Option<u32>,
) -> Result<Vec<FoundLatent>> {
    let vocabulary = model.config().d_vocab_out();
    if let Some(id) = [Some(answer), wrong].into_iter().flatten().find(|id| *id as usize >= vocabulary) {
        let reason = format!("the model has no logit for token {id}");
        return Err(FeatureError::Kind { dictionary: dictionary.name().into(), reason }.into());
    }
    let spliced = model.splice_dictionary(dictionary)?;
    let [_, host] = dictionary.points()?;
    let name = format!("{host}.hook_sae_acts_post");
    let options = ForwardOptions::new().logits(Logits::Last).record(Record::new(&*name));
    let output = spliced.run_with_gradients(vec![prompt.to_vec()], options, |logits| {
        let of = |id: u32| logits.clone().narrow(2, id as usize, 1).sum();
        wrong.map_or_else(|| of(answer), |wrong| of(answer) - of(wrong))
    })?;
    let acts: Vec<f32> = output.cache.activation(&*name)?.to_data()?.iter().collect();
    let slopes: Vec<f32> = output.cache.activation(format!("{name}_grad"))?.to_data()?.iter().collect();
    let count = dictionary.latents();
    let all = acts.iter().zip(&slopes).enumerate().map(|(place, (act, slope))| FoundLatent {
        latent: place % count,
        score: act * slope,
        position: Some(place / count),
    });
    Ok(sorted(all.collect()))
}

/// Finds latents by the difference of their mean activations between two sets of prompts, in units of the standard
/// deviation over both sets. The largest magnitudes come first. A positive score means that the latent is more active
/// in the first set. Tokens in `left_out` are ignored, and so are those that the dictionary excludes
/// ([`Metadata::exclude_special_tokens`](super::Metadata::exclude_special_tokens)).
///
/// ```
/// use hooklens::features::{Dictionary, latents_by_difference};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let sae = Dictionary::open("embedded:ioi-sae")?;
/// let row = |text: &str| -> Result<Vec<u32>, hooklens::Error> { Ok(model.to_tokens(text)?.row(0).to_vec()) };
/// let with = [row("When Mary and John went to the store")?, row("When Mary and Anna went to the park")?];
/// let without = [row("When James and John went to the store")?, row("When James and Anna went to the park")?];
/// assert!(latents_by_difference(&model, &sae, &with, &without, &[0])?[0].score.abs() > 0.1);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`latents_by_activation`]; also fails if all tokens of a set are ignored.
pub fn latents_by_difference(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    first: &[Vec<u32>],
    second: &[Vec<u32>],
    left_out: &[u32],
) -> Result<Vec<FoundLatent>> {
    const TOGETHER: usize = 16;
    check_place(model, dictionary)?;
    let excluded = dictionary.metadata().exclude_special_tokens.ids(model)?;
    let ignored = |id: u32| left_out.contains(&id) || excluded.contains(&id);
    let units = Units::latents(dictionary)?.on(model);
    let count = dictionary.latents();
    let sums = |prompts: &[Vec<u32>]| -> Result<(Vec<f64>, Vec<f64>, f64)> {
        let (mut sum, mut square, mut tokens) = (vec![0f64; count], vec![0f64; count], 0.0);
        for batch in prompts.chunks(TOGETHER) {
            let (acts, real, _) = activations(model, &units, batch)?;
            let values = host(acts);
            let rows = values.chunks_exact(count.max(1)).zip(&real);
            for (row, _) in rows.filter(|(_, id)| id.is_some_and(|id| !ignored(id))) {
                tokens += 1.0;
                for ((sum, square), x) in sum.iter_mut().zip(&mut square).zip(row) {
                    *sum += f64::from(*x);
                    *square += f64::from(*x) * f64::from(*x);
                }
            }
        }
        match tokens > 0.0 {
            true => Ok((sum, square, tokens)),
            false => {
                let reason = "a set of prompts has no tokens besides excluded ones; expected at least one".to_string();
                Err(FeatureError::Kind { dictionary: dictionary.name().into(), reason }.into())
            }
        }
    };
    let ((a, aa, m), (b, bb, n)) = (sums(first)?, sums(second)?);
    let difference = |latent: usize| {
        let mean = (a[latent] + b[latent]) / (m + n);
        let spread = ((aa[latent] + bb[latent]) / (m + n) - mean * mean).max(0.0).sqrt();
        let apart = a[latent] / m - b[latent] / n;
        let score = if spread > 0.0 { apart / spread } else { 0.0 };
        FoundLatent { latent, score: score as f32, position: None }
    };
    Ok(sorted((0..count).map(difference).collect()))
}

/// The tokens whose logits a latent's direction raises most, through the final norm's weights and the unembedding:
/// token ids, and the increase per unit of activation. Empty if the dictionary does not write to the residual stream.
///
/// # Errors
/// [`FeatureError::Latent`] if there is no such latent.
pub fn promoted_tokens(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    latent: usize,
    count: usize,
) -> Result<Vec<(u32, f32)>> {
    dictionary.check_latent(latent)?;
    let effects = most_moved(model, &Units::latents(dictionary)?, &[latent], count)?;
    Ok(effects.into_iter().next().map(|[promoted, _]| promoted).unwrap_or_default())
}

/// Tokens and the changes of their logits.
pub(crate) type Moved = Vec<(u32, f32)>;

/// The tokens whose logits each unit raises most, and the tokens whose logits it lowers most.
pub(crate) fn most_moved(
    model: &HookedTransformer,
    units: &Units,
    which: &[usize],
    count: usize,
) -> Result<Vec<[Moved; 2]>> {
    let mut all = Vec::new();
    // Work in chunks, because each row has one element per token of the vocabulary.
    for some in which.chunks(64) {
        let Some(effects) = logit_effects(model, units, some)? else {
            return Ok(vec![Default::default(); which.len()]);
        };
        let [_, vocabulary] = effects.dims();
        let effects = host(effects);
        for row in effects.chunks_exact(vocabulary.max(1)) {
            let mut order: Vec<u32> = (0..vocabulary as u32).collect();
            let mut first = |sign: f32| -> Moved {
                let by =
                    |a: &u32, b: &u32| (sign * row[*b as usize]).total_cmp(&(sign * row[*a as usize])).then(a.cmp(b));
                let count = count.min(order.len());
                if count < order.len() {
                    order.select_nth_unstable_by(count, by);
                }
                let mut first = order[..count].to_vec();
                first.sort_by(by);
                first.into_iter().map(|id| (id, row[id as usize])).collect()
            };
            all.push([first(1.0), first(-1.0)]);
        }
    }
    Ok(all)
}
