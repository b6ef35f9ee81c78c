//! Interventions on features: runs of the model with some feature activations changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use burn::tensor::{DType, Tensor, TensorData};
use hooklens_hooks::{ActivationCache, Hook, Record, Selection};

use super::capture::{Captured, capture};
use super::frozen::MlpPart;
use super::host;
use super::mlp_run;
use super::neurons::Neurons;
use super::place::Place;
use super::replacement::Replacement;
use super::secant_slopes::SecantSlopes;
use super::site::{Coder, FeatureSite, Sort};
use crate::Normalization;
use crate::error::GraphError;
use hooklens_model::config::Layers;
use hooklens_model::driver::{ForwardOptions, HookedModel, Input};
use hooklens_model::error::Result;
use hooklens_model::generation::{Generate, GenerateOptions, Generation};
use hooklens_model::hook;
use hooklens_model::model::{DecoderInput, HookedTransformer, ModelParts};
use hooklens_model::tokens::Tokens;

/// An edit of one feature's activation.
///
/// ```
/// use hooklens::attribution::graph::FeatureEdit;
/// let off = FeatureEdit::times(2, 14, 77, 0.0); // layer 2, position 14, latent 77
/// let on = FeatureEdit::set(2, 14, 78, 5.0);
/// let on_from_here = on.onward(); // at position 14 and all later ones, including new tokens
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeatureEdit {
    layer: usize,
    position: usize,
    latent: usize,
    /// Whether later positions are changed as well.
    onward: bool,
    to: To,
    /// Index and kind of the site, if known. A layer may have several.
    site: Option<(usize, Sort)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum To {
    Value(f32),
    Times(f32),
}

impl FeatureEdit {
    /// Sets the activation to `value`.
    pub fn set(layer: usize, position: usize, latent: usize, value: f32) -> Self {
        Self { layer, position, latent, onward: false, to: To::Value(value), site: None }
    }

    /// Sets the activation to `factor` times its value in the unedited run. For generated tokens, multiplies the
    /// activation in the current run.
    pub fn times(layer: usize, position: usize, latent: usize, factor: f32) -> Self {
        Self { layer, position, latent, onward: false, to: To::Times(factor), site: None }
    }

    /// Applies the edit at this position and all later ones.
    #[must_use]
    pub fn onward(self) -> Self {
        Self { onward: true, ..self }
    }

    /// The new activation, given the unedited one.
    fn of(&self, clean: f32) -> f32 {
        match self.to {
            To::Value(value) => value,
            To::Times(factor) => factor * clean,
        }
    }

    /// Whether the edit applies at this position.
    fn is_at(&self, pos: usize) -> bool {
        pos == self.position || (self.onward && pos > self.position)
    }

    /// The positions in this range where the edit applies.
    fn positions(&self, of: Range<usize>) -> Range<usize> {
        let end = if self.onward { usize::MAX } else { self.position + 1 };
        let (first, end) = (self.position.max(of.start), end.min(of.end));
        first..end.max(first)
    }
}

impl FeatureEdit {
    pub(super) fn of_site(self, site: usize, sort: Sort) -> Self {
        Self { site: Some((site, sort)), ..self }
    }
}

/// Parts of the model that keep their values from the unedited run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Attention patterns, norm scales, and MLP outputs except for the edits. Only direct effects remain, as in the
    /// graph.
    Everything,
    /// Attention patterns.
    Patterns,
    /// Nothing: all later features respond.
    Nothing,
}

/// A feature's activation before and after an edit, at one position of the prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct EditedFeature {
    /// Index of the edit.
    pub edit: usize,
    /// Layer of the feature.
    pub layer: usize,
    /// Position in the prompt.
    pub position: usize,
    /// Index of the latent or neuron.
    pub latent: usize,
    /// Activation in the unedited run.
    pub before: f32,
    /// Activation that the edit sets.
    pub after: f32,
    /// Difference between `after` and the activation that the feature would have in this run without the edit. Differs
    /// from `after - before` if other edits change the feature's input.
    pub change: f32,
}

/// The result of an intervention.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Intervened {
    /// Logits, `[1, pos, d_vocab_out]`.
    pub logits: Tensor<3>,
    /// The edited features, by edit and position. Positions where the dictionary is not used, and positions where a
    /// later edit of the same feature applies, are omitted.
    pub edited: Vec<EditedFeature>,
    /// Pre-activations of each site's features, `[pos, latent]`, ordered by layer.
    pub pre_activations: Vec<Tensor<2>>,
    /// The residual stream at the last token, before the final norm.
    pub(super) stream: Vec<f32>,
}

/// Edits, and the site of each edit's feature. If several edits apply to the same feature and position, the last one
/// wins.
struct Edits<'e> {
    all: &'e [FeatureEdit],
    sites: Vec<usize>,
    /// For each edit, the later edits of the same feature.
    later: Vec<Vec<usize>>,
}

impl<'e> Edits<'e> {
    fn new(all: &'e [FeatureEdit], sites: Vec<usize>) -> Self {
        let mut of_feature: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        let mut later = vec![Vec::new(); all.len()];
        for edit in (0..all.len()).rev() {
            let same = of_feature.entry((sites[edit], all[edit].latent)).or_default();
            later[edit].clone_from(same);
            same.push(edit);
        }
        Self { all, sites, later }
    }

    /// Indices of the edits to a site's features.
    fn of_site(&self, site: usize) -> Vec<usize> {
        (0..self.all.len()).filter(|edit| self.sites[*edit] == site).collect()
    }

    /// The positions in this range where an edit applies and is not overridden by a later one.
    fn positions(&self, edit: usize, of: Range<usize>) -> impl Iterator<Item = usize> {
        let replaced = move |pos: &usize| self.later[edit].iter().any(|later| self.all[*later].is_at(*pos));
        self.all[edit].positions(of).filter(move |pos| !replaced(pos))
    }
}

/// State shared by the hooks of a run.
struct Running {
    /// The tokens of the run by position, including generated ones.
    tokens: RefCell<Vec<u32>>,
    /// For each edit and position, the change of the latent's activation in this run, and the factor that undoes the
    /// dictionary's normalization.
    deltas: RefCell<Vec<BTreeMap<usize, [f32; 2]>>>,
    /// For each edit and prompt position, the new activation of the latent.
    wanted: Vec<BTreeMap<usize, f32>>,
    /// The edited features of the prompt, as known before the run.
    edited: Vec<EditedFeature>,
    /// The input of each site, `[batch * pos, d_model]`.
    seen: RefCell<Vec<Option<Tensor<2>>>>,
}

impl Running {
    /// The edited features of the prompt, after a run.
    fn edited(&self) -> Vec<EditedFeature> {
        let deltas = self.deltas.borrow();
        let update = |own: &EditedFeature| {
            let change = deltas[own.edit].get(&own.position).map_or(own.change, |[delta, _]| *delta);
            EditedFeature { change, ..*own }
        };
        self.edited.iter().map(update).collect()
    }

    /// Whether a site's dictionary is used at a position of the run.
    fn is_used(&self, site: &FeatureSite, pos: usize) -> bool {
        site.left_out.is_empty() || self.tokens.borrow().get(pos).is_none_or(|token| site.is_used_at(*token))
    }
}

/// The vector that an edit adds at a write point, per unit of change of its latent.
struct Addition {
    edit: usize,
    /// Scale factor of the dictionary for the latent.
    factor: f32,
    /// Whether the dictionary's normalization has to be undone.
    undone: bool,
    vector: Vec<f32>,
}

/// Runs the model with edited features and returns the logits, `[1, pos, d_vocab_out]`. Wherever an edited feature
/// writes, its output is replaced by the output for the edited activation. Error terms are kept. With
/// [`Hold::Nothing`], this is equivalent to a hook on the feature in a model with the dictionary spliced in.
///
/// If several edits apply to the same feature and position, the last one wins. Edits at tokens that were excluded from
/// the dictionary's training ([`Metadata::exclude_special_tokens`](crate::Metadata::exclude_special_tokens)) have no
/// effect, because it has no features there.
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, FeatureEdit, GraphOptions, Hold, Replacement, intervene};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
/// let node = graph.nodes().iter().filter(|node| node.is_feature()).min_by(|a, b| a.influence.total_cmp(&b.influence));
/// let edit = node.and_then(|node| node.edit(0.0));
/// let without = intervene(&model, prompt, &replacement, edit.as_slice(), Hold::Nothing)?;
/// assert_eq!(without.dims()[..2], [1, 15]);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// [`GraphError::Node`] for a layer, position or latent that does not exist; otherwise the same as
/// [`AttributionGraph::new`](super::AttributionGraph::new).
pub fn intervene(
    model: &HookedTransformer,
    prompt: impl Into<Input>,
    replacement: &Replacement,
    edits: &[FeatureEdit],
    hold: Hold,
) -> Result<Tensor<3>> {
    Ok(intervened(model, prompt, replacement, edits, hold)?.logits)
}

/// Runs the model with edited features like [`intervene`], and also returns the pre-activations, and the activations of
/// the edited features before and after the edits.
///
/// # Errors
/// Same as [`intervene`].
pub fn intervened(
    model: &HookedTransformer,
    prompt: impl Into<Input>,
    replacement: &Replacement,
    edits: &[FeatureEdit],
    hold: Hold,
) -> Result<Intervened> {
    let tokens = one_prompt(model, prompt.into())?;
    let tokens = tokens.row(0);
    // Features can be edited at positions that a graph would leave out.
    let captured = capture(model, tokens, replacement, 0)?;
    Intervention::new(model, tokens, &captured)?.run(edits, hold)
}

/// Generates text with edited features. Edits apply within the prompt; an edit made with [`FeatureEdit::onward`] or at
/// a position after the prompt also applies during generation. Nothing is held, as with [`Hold::Nothing`].
///
/// ```
/// use hooklens::attribution::graph::{FeatureEdit, Replacement, generate_edited};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let off = FeatureEdit::set(3, 14, 12, 0.0).onward();
/// let options = GenerateOptions::new().max_new_tokens(3);
/// let made = generate_edited(&model, prompt, &replacement, &[off], options)?;
/// assert_eq!(made.rows[0].new.len(), 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`intervene`] and [`Generate::generate_with`], except that positions after the prompt are allowed:
/// they refer to tokens to be generated.
pub fn generate_edited(
    model: &HookedTransformer,
    prompt: impl Into<Input>,
    replacement: &Replacement,
    edits: &[FeatureEdit],
    options: GenerateOptions<'_>,
) -> Result<Generation> {
    let tokens = one_prompt(model, prompt.into())?;
    let captured = capture(model, tokens.row(0), replacement, 0)?;
    let intervention = Intervention::new(model, tokens.row(0), &captured)?;
    let edits = intervention.edits(edits, usize::MAX)?;
    let running = intervention.running(&edits)?;
    let hooks = intervention.hooks(&edits, Hold::Nothing, &running)?;
    model.generate_with(&tokens, options.hooks(hooks))
}

/// The tokens of an input, which must be a single prompt without padding.
pub(super) fn one_prompt(model: &HookedTransformer, prompt: Input) -> Result<Tokens> {
    let tokens = model.token_input(prompt)?;
    let [batch, _] = tokens.shape();
    if batch != 1 || tokens.mask().is_some_and(|mask| mask.contains(&false)) {
        let given = if batch == 1 { "a padded prompt".into() } else { format!("{batch} prompts") };
        return Err(GraphError::Setting { what: "the input", given, wanted: "one prompt without padding" }.into());
    }
    Ok(tokens)
}

/// A prompt whose features can be edited.
pub(super) struct Intervention<'m> {
    model: &'m HookedTransformer,
    tokens: &'m [u32],
    captured: &'m Captured,
    /// The unedited run.
    clean: ActivationCache,
}

impl<'m> Intervention<'m> {
    pub(super) fn new(model: &'m HookedTransformer, tokens: &'m [u32], captured: &'m Captured) -> Result<Self> {
        let mut names: Vec<String> = vec!["ln_final.hook_scale".into()];
        for layer in 0..model.config().n_layers() {
            let held = [
                "attn.hook_pattern",
                "attn.kv_latent_norm.hook_scale",
                "ln1.hook_scale",
                "ln1_post.hook_scale",
                "ln2.hook_scale",
                "ln2_post.hook_scale",
                "mlp.ln.hook_scale",
                "mlp.hook_pre",
                "mlp.hook_pre_linear",
                "mlp.hook_mid",
                "mlp.hook_post",
                "mlp.hook_out",
                "mlp.hook_in",
                "hook_mlp_out",
                "hook_mlp_in",
                "hook_resid_pre",
                "hook_resid_mid",
                "hook_resid_post",
                "ln2.hook_normalized",
            ];
            names.extend(held.iter().map(|suffix| format!("blocks.{layer}.{suffix}")));
        }
        names.retain(|name| model.catalog().find(name).is_ok());
        let clean = model.record(vec![tokens.to_vec()], Record::new(Selection::from(names)))?;
        Ok(Self { model, tokens, captured, clean })
    }

    /// Resolves the site of an edit. The edit's position must be less than `positions`.
    fn site(&self, edit: &FeatureEdit, positions: usize) -> Result<usize> {
        let missing = |reason: String| GraphError::Node {
            node: format!("at layer {}, position {}, latent {}", edit.layer, edit.position, edit.latent),
            near: vec![reason],
        };
        let sites = &self.captured.sites;
        // The edit may come from a graph of another replacement.
        let fits = |site: &FeatureSite| site.layer == edit.layer && edit.site.is_none_or(|(_, sort)| site.sort == sort);
        let numbers = || sites.iter().map(|site| site.layer.to_string()).collect::<Vec<_>>().join(", ");
        let layers = || {
            let of = edit.site.map_or("", |(_, sort)| sort.of());
            missing(format!("{of}one of the layers {}", numbers()))
        };
        let own = edit.site.map(|(site, _)| site).filter(|site| sites.get(*site).is_some_and(fits));
        let site = own.or_else(|| sites.iter().position(fits)).ok_or_else(layers)?;
        if edit.position >= positions {
            return Err(missing(format!("a position from 0 to {}", positions - 1)).into());
        }
        let count = sites[site].count();
        if edit.latent >= count {
            return Err(missing(format!("a latent from 0 to {}", count - 1)).into());
        }
        Ok(site)
    }

    /// Resolves the sites of edits. Their positions must be less than `positions`.
    fn edits<'e>(&self, edits: &'e [FeatureEdit], positions: usize) -> Result<Edits<'e>> {
        let sites = edits.iter().map(|edit| self.site(edit, positions)).collect::<Result<_>>()?;
        Ok(Edits::new(edits, sites))
    }

    /// A latent's activation in the unedited run.
    fn clean(&self, site: usize, pos: usize, latent: usize) -> Result<f32> {
        let own = &self.captured.sites[site];
        match own.coder {
            Coder::Dictionary(_) => Ok(self.captured.active.act(site, pos, latent as u32)),
            // Neurons whose outputs are too small to be features are included. Expert activations are computed from the
            // frozen slopes.
            Coder::Neurons(ref neurons) if neurons.experts() => {
                let x = host(self.clean.get::<3>(&*own.read_points()[0])?.narrow(1, pos, 1));
                let (row, constant) = neurons.reads(&[latent as u32], &[pos]);
                let dot: f64 = row.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                Ok((dot + constant[0]) as f32)
            }
            Coder::Neurons(_) => {
                let post = self.clean.get::<3>(&*format!("blocks.{}.mlp.hook_post", own.layer))?;
                Ok(post.slice([0..1, pos..pos + 1, latent..latent + 1]).into_scalar::<f32>())
            }
        }
    }

    /// Computes the values that the edits set, and their differences from the unedited run.
    fn running(&self, edits: &Edits<'_>) -> Result<Running> {
        let (mut wanted, mut deltas, mut edited) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (edit, site)) in edits.all.iter().zip(&edits.sites).enumerate() {
            let (mut to, mut by) = (BTreeMap::new(), BTreeMap::new());
            let undone = self.place(*site).and_then(|place| place.decoders.iter().find(|one| one.site == *site));
            for pos in edits.positions(number, 0..self.tokens.len()) {
                if !self.captured.sites[*site].is_used_at(self.tokens[pos]) {
                    continue;
                }
                let clean = self.clean(*site, pos, edit.latent)?;
                let value = edit.of(clean);
                to.insert(pos, value);
                by.insert(pos, [value - clean, undone.map_or(1.0, |decoder| decoder.undone_at(pos))]);
                edited.push(EditedFeature {
                    edit: number,
                    layer: self.captured.sites[*site].layer,
                    position: pos,
                    latent: edit.latent,
                    before: clean,
                    after: value,
                    change: value - clean,
                });
            }
            wanted.push(to);
            deltas.push(by);
        }
        Ok(Running {
            tokens: RefCell::new(self.tokens.to_vec()),
            deltas: RefCell::new(deltas),
            seen: RefCell::new(vec![None; self.captured.sites.len()]),
            wanted,
            edited,
        })
    }

    /// Runs the prompt with these edits.
    pub(super) fn run(&self, edits: &[FeatureEdit], hold: Hold) -> Result<Intervened> {
        let edits = self.edits(edits, self.tokens.len())?;
        let running = self.running(&edits)?;
        let hooks = self.hooks(&edits, hold, &running)?;
        self.run_hooked(hooks, &running, hold)
    }

    /// Runs the prompt with everything held fixed, and with the token embedding at a position multiplied by `factor`.
    pub(super) fn run_with_token(&self, pos: usize, factor: f32) -> Result<Intervened> {
        let edits = self.edits(&[], self.tokens.len())?;
        let running = self.running(&edits)?;
        let mut hooks = self.hooks(&edits, Hold::Everything, &running)?;
        hooks.push(hook::at("hook_embed").edit(move |x: Tensor<3>, _| {
            let at = [0..1, pos..pos + 1, 0..x.dims()[2]];
            let changed = x.clone().slice(at.clone()) * factor;
            x.slice_assign(at, changed)
        }));
        self.run_hooked(hooks, &running, Hold::Everything)
    }

    /// Runs the prompt with the hooks of an intervention.
    fn run_hooked(&self, hooks: Vec<Hook<'_>>, running: &Running, hold: Hold) -> Result<Intervened> {
        let model = self.model;
        let mut names: Vec<String> = self.captured.sites.iter().flat_map(FeatureSite::read_points).collect();
        names.push(self.last_point());
        let record = Record::new(Selection::from(names));
        let output = model.run(vec![self.tokens.to_vec()], ForwardOptions::new().hooks(hooks).record(record))?;
        let pre = |(site, seen): (&FeatureSite, &Option<Tensor<2>>)| {
            site.pre_activations(seen.clone(), &output.cache, hold == Hold::Everything)
        };
        let pre_activations =
            self.captured.sites.iter().zip(&*running.seen.borrow()).map(pre).collect::<Result<_>>()?;
        let stream = output.cache.get::<3>(&*self.last_point())?.narrow(1, self.tokens.len() - 1, 1);
        let logits = output.logits.unwrap_or_else(|| Tensor::zeros([1, 0, 0], &model.device()));
        Ok(Intervened { logits, edited: running.edited(), pre_activations, stream: host(stream) })
    }

    /// The hook point of the stream before the final norm.
    fn last_point(&self) -> String {
        format!("blocks.{}.hook_resid_post", self.model.config().n_layers() - 1)
    }

    /// The hooks that apply the edits and that hold the parts of the model selected by `hold`.
    fn hooks<'h>(&'h self, edits: &'h Edits<'h>, hold: Hold, running: &'h Running) -> Result<Vec<Hook<'h>>> {
        let mut hooks: Vec<Hook<'h>> = Vec::new();
        if self.captured.sites.iter().any(|site| !site.left_out.is_empty()) {
            hooks.push(hook::at("hook_tokens").read_any(|ids, at| -> Result<()> {
                let mut tokens = running.tokens.borrow_mut();
                tokens.truncate(at.offset());
                tokens.extend(ids.to_data()?.iter::<i64>().map(|id| u32::try_from(id).unwrap_or(u32::MAX)));
                Ok(())
            }));
        }
        if hold == Hold::Everything {
            self.hold(|name| name.ends_with("hook_scale"), &mut hooks)?;
        }
        if hold != Hold::Nothing {
            self.hold(|name| name.ends_with("hook_pattern"), &mut hooks)?;
        }
        // If nothing is held, edits depend on the features' activations in this run.
        for (number, site) in self.captured.sites.iter().enumerate() {
            let own = edits.of_site(number);
            let dictionary = match &site.coder {
                Coder::Dictionary(dictionary) => dictionary,
                Coder::Neurons(neurons) => {
                    if neurons.experts() && hold != Hold::Everything && !own.is_empty() {
                        self.watch_experts(site.layer, neurons, own, edits, running, &mut hooks);
                    }
                    continue;
                }
            };
            let Some(reads) = dictionary.metadata().reads.clone() else { continue };
            let Running { deltas, wanted, seen, .. } = running;
            hooks.push(hook::at(reads).read(
                move |x: Tensor<3>, at| -> std::result::Result<(), hooklens_model::error::Error> {
                    let ([_, len, width], offset) = (x.dims(), at.offset());
                    let x = x.reshape([len, width]).cast(DType::F32);
                    seen.borrow_mut()[number] = Some(x.clone());
                    if hold == Hold::Everything || own.is_empty() {
                        return Ok(());
                    }
                    let applied = dictionary.applied(x)?;
                    for edit in own.iter().copied() {
                        let latent = edits.all[edit].latent;
                        for pos in edits.positions(edit, offset..offset + len) {
                            if !running.is_used(site, pos) {
                                continue;
                            }
                            let row = pos - offset;
                            let now =
                                applied.acts.clone().slice([row..row + 1, latent..latent + 1]).into_scalar::<f32>();
                            let to = wanted[edit].get(&pos).copied().unwrap_or_else(|| edits.all[edit].of(now));
                            let undone = applied.undone.get(row).copied().unwrap_or(1.0);
                            deltas.borrow_mut()[edit].insert(pos, [to - now, undone]);
                        }
                    }
                    Ok(())
                },
            ));
        }
        for (number, site) in self.captured.sites.iter().enumerate() {
            self.write(number, site, edits, hold, running, &mut hooks);
        }
        if hold == Hold::Everything {
            self.hold_mlps(&mut hooks);
        }
        Ok(hooks)
    }

    /// Adds hooks that read the activations of edited expert neurons in this run, with the routing of this run.
    fn watch_experts<'h>(
        &'h self,
        layer: usize,
        neurons: &'h Neurons,
        own: Vec<usize>,
        edits: &'h Edits<'h>,
        Running { deltas, wanted, .. }: &'h Running,
        hooks: &mut Vec<Hook<'h>>,
    ) {
        let (config, block) = (self.model.config(), &self.model.parts().blocks[layer]);
        let (Some(moe), Some(mixture)) = (block.moe(), config.experts_of(layer)) else { return };
        let input: Rc<RefCell<Option<Tensor<2>>>> = Rc::default();
        let read = input.clone();
        hooks.push(hook::at(format!("blocks.{layer}.mlp.hook_in")).read(move |x: Tensor<3>, _| {
            let [_, len, width] = x.dims();
            *read.borrow_mut() = Some(x.reshape([len, width]));
        }));
        let point = format!("blocks.{layer}.mlp.hook_expert_weights");
        hooks.push(hook::at(point).read(move |weights: Tensor<2>, at| -> Result<()> {
            let Some(x) = input.borrow_mut().take() else { return Ok(()) };
            let (len, offset) = (x.dims()[0], at.offset());
            let runs = mlp_run::experts(moe, &x, weights, mixture, config)?;
            for edit in own.iter().copied() {
                let (expert, neuron) = neurons.expert(edits.all[edit].latent);
                for pos in edits.positions(edit, offset..offset + len) {
                    let now = runs[expert].at(pos - offset).map_or(0.0, |[post, _]| post[neuron]);
                    let to = wanted[edit].get(&pos).copied().unwrap_or_else(|| edits.all[edit].of(now));
                    deltas.borrow_mut()[edit].insert(pos, [to - now, 1.0]);
                }
            }
            Ok(())
        }));
    }

    /// The place that a site's features write to first.
    fn place(&self, site: usize) -> Option<&Place> {
        let layers = &self.captured.frozen.layers;
        let places = layers.iter().flat_map(|layer| {
            let mlp = match &layer.mlp {
                MlpPart::Features(place) => Some(&**place),
                _ => None,
            };
            layer.streams.iter().flatten().chain(mlp)
        });
        places.into_iter().find(|place| place.number == site)
    }

    /// Adds hooks that keep the selected points at their values from the unedited run.
    fn hold<'h>(&'h self, which: impl Fn(&str) -> bool, hooks: &mut Vec<Hook<'h>>) -> Result<()> {
        let names: Vec<String> =
            self.clean.iter().map(|(name, _)| name.to_string()).filter(|name| which(name)).collect();
        for name in names {
            let held = self.clean.activation(&*name)?.clone();
            hooks.push(hook::at(name).edit_any(move |_, _| Ok(Some(held.clone()))));
        }
        Ok(())
    }

    /// Adds the hook that applies edits at the place where a site writes.
    fn write<'h>(
        &'h self,
        number: usize,
        site: &'h FeatureSite,
        edits: &'h Edits<'h>,
        hold: Hold,
        running: &'h Running,
        hooks: &mut Vec<Hook<'h>>,
    ) {
        let Running { deltas, wanted, seen, .. } = running;
        let Some(place) = self.place(number) else { return };
        let addition = |edit: usize| {
            let decoder = place.decoders.iter().find(|decoder| decoder.site == edits.sites[edit])?;
            let latent = edits.all[edit].latent as u32;
            let (vector, factor) = (decoder.vectors(&[latent]), decoder.own_factor(latent));
            Some(Addition { edit, factor, undone: !decoder.undone.is_empty(), vector })
        };
        let additions: Vec<Addition> = (0..edits.all.len()).filter_map(addition).collect();
        let held = hold == Hold::Everything;
        if let (Coder::Neurons(neurons), false) = (&site.coder, held)
            && !neurons.experts()
        {
            let own = edits.of_site(number);
            if !own.is_empty() {
                hooks.push(hook::at(format!("blocks.{}.mlp.hook_post", site.layer)).edit(move |x: Tensor<3>, at| {
                    let ([_, len, _], offset) = (x.dims(), at.offset());
                    own.iter().fold(x, |x, edit| {
                        let latent = edits.all[*edit].latent;
                        edits.positions(*edit, offset..offset + len).fold(x, |x, pos| {
                            let at = [0..1, pos - offset..pos - offset + 1, latent..latent + 1];
                            let now = x.clone().slice(at.clone()).into_scalar::<f32>();
                            let to = wanted[*edit].get(&pos).copied().unwrap_or_else(|| edits.all[*edit].of(now));
                            deltas.borrow_mut()[*edit].insert(pos, [to - now, 1.0]);
                            let value = Tensor::<3>::full([1, 1, 1], to, (&x.device(), x.dtype()));
                            x.slice_assign(at, value)
                        })
                    })
                }));
            }
            return;
        }
        if additions.is_empty() && !held {
            return;
        }
        let point = site.write_point();
        let clean = self.clean.get::<3>(&*point).ok();
        let clean_input = site.read_points().first().and_then(|name| self.clean.get::<3>(&**name).ok());
        let width = self.captured.frozen.width;
        hooks.push(hook::at(point).edit(move |x: Tensor<3>, at| {
            let offset = at.offset();
            let mut out = match (&clean, held) {
                (Some(clean), true) => clean.clone(),
                _ => x,
            };
            let [_, len, _] = out.dims();
            if let (true, Some(skip), Some(before)) = (held, &place.skip, &clean_input)
                && let Some(now) = &seen.borrow()[number]
            {
                let before = before.clone().reshape([len, width]).cast(DType::F32);
                let data = TensorData::new(skip.matrix.clone(), [width, width]);
                let matrix = Tensor::<2>::from_data(data, (&out.device(), DType::F32));
                let used = place.used.iter().map(|used| f32::from(u8::from(*used))).collect();
                let used = Tensor::<2>::from_data(TensorData::new(used, [len, 1]), (&out.device(), DType::F32));
                let change = ((now.clone() - before) * used).matmul(matrix).reshape([1, len, width]);
                out = out.clone() + change.cast(out.dtype());
            }
            let mut added = vec![0f32; len * width];
            let deltas = deltas.borrow();
            for Addition { edit, factor, undone, vector } in &additions {
                for pos in edits.positions(*edit, offset..offset + len) {
                    if !running.is_used(site, pos) {
                        continue;
                    }
                    let Some([delta, by]) = deltas[*edit].get(&pos) else { continue };
                    let delta = delta * factor * if *undone { *by } else { 1.0 };
                    added[(pos - offset) * width..][..width].iter_mut().zip(vector).for_each(|(x, v)| *x += delta * v);
                }
            }
            let added = Tensor::<3>::from_data(TensorData::new(added, [1, len, width]), (&out.device(), DType::F32));
            out.clone() + added.cast(out.dtype())
        }));
    }

    /// Adds hooks that freeze the slopes of MLPs without features.
    fn hold_mlps<'h>(&'h self, hooks: &mut Vec<Hook<'h>>) {
        for (layer, own) in self.captured.frozen.layers.iter().enumerate() {
            let MlpPart::Linear(mlp, _) = &own.mlp else { continue };
            let name = |suffix: &str| format!("blocks.{layer}.mlp.{suffix}");
            let Some(slopes) = mlp.slopes() else {
                let input: Rc<RefCell<Vec<f32>>> = Rc::default();
                let read = input.clone();
                hooks.push(hook::at(name("hook_in")).read(move |x: Tensor<3>, _| *read.borrow_mut() = host(x)));
                hooks.push(hook::at(name("hook_out")).edit(move |x: Tensor<3>, _| {
                    let values = mlp.forward(&input.borrow());
                    Tensor::<3>::from_data(TensorData::new(values, x.dims()), (&x.device(), DType::F32)).cast(x.dtype())
                }));
                continue;
            };
            let behind = if self.clean.activation(&*name("hook_mid")).is_ok() { "hook_mid" } else { "hook_post" };
            let inputs: Rc<RefCell<[Option<Vec<f32>>; 2]>> = Rc::default();
            let gated = slopes.gate.is_some();
            for (place, suffix) in ["hook_pre", "hook_pre_linear"].into_iter().enumerate().take(1 + usize::from(gated))
            {
                let inputs = inputs.clone();
                hooks.push(hook::at(name(suffix)).read(move |x: Tensor<3>, _| {
                    inputs.borrow_mut()[place] = Some(host(x));
                }));
            }
            hooks.push(hook::at(name(behind)).edit(move |x: Tensor<3>, _| {
                let inputs = inputs.borrow();
                let values = slopes.applied([inputs[0].as_deref(), inputs[1].as_deref()]);
                Tensor::<3>::from_data(TensorData::new(values, x.dims()), (&x.device(), DType::F32)).cast(x.dtype())
            }));
        }
    }
}

impl SecantSlopes {
    /// Computes activations from pre-activations and, for a gated MLP, the linear factor.
    pub(super) fn applied(&self, [pre, linear]: [Option<&[f32]>; 2]) -> Vec<f32> {
        let times = |slopes: &[f32], x: Option<&[f32]>| -> Vec<f32> {
            slopes.iter().zip(x.unwrap_or_default()).map(|(slope, x)| slope * x).collect()
        };
        match &self.gate {
            None => times(&self.input, pre),
            Some(gate) => {
                let (one, other) = (times(&self.input, linear), times(gate, pre));
                one.iter().zip(other).map(|(a, b)| a + b).collect()
            }
        }
    }
}

impl FeatureSite {
    /// Number of features.
    fn count(&self) -> usize {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.latents(),
            Coder::Neurons(neurons) => neurons.count(),
        }
    }

    /// The points that pre-activations are computed from.
    fn read_points(&self) -> Vec<String> {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.metadata().reads.iter().cloned().collect(),
            Coder::Neurons(neurons) if neurons.experts() => vec![format!("blocks.{}.mlp.hook_in", self.layer)],
            Coder::Neurons(neurons) => {
                let names =
                    ["hook_pre", "hook_pre_linear"].into_iter().take(1 + usize::from(neurons.slopes().is_some()));
                names.map(|suffix| format!("blocks.{}.mlp.{suffix}", self.layer)).collect()
            }
        }
    }

    /// The first point that features write to.
    fn write_point(&self) -> String {
        match &self.coder {
            Coder::Dictionary(dictionary) => {
                let metadata = dictionary.metadata();
                metadata.writes.clone().or_else(|| metadata.reads.clone()).unwrap_or_default()
            }
            Coder::Neurons(_) => format!("blocks.{}.mlp.hook_out", self.layer),
        }
    }

    /// Pre-activations in a run, `[pos, feature]`.
    fn pre_activations(&self, seen: Option<Tensor<2>>, cache: &ActivationCache, held: bool) -> Result<Tensor<2>> {
        let points = self.read_points();
        let flat = |name: &str| -> Result<Tensor<2>> {
            let held = cache.get::<3>(name)?;
            let [_, len, width] = held.dims();
            Ok(held.reshape([len, width]).cast(DType::F32))
        };
        match &self.coder {
            // An autoencoder on the stream reads the stream before its own features are edited.
            Coder::Dictionary(dictionary) => {
                let x = seen.map_or_else(|| flat(&points[0]), Ok)?;
                let Some(scaling) = self.scaling.as_ref().filter(|_| held) else {
                    return Ok(dictionary.applied(x)?.pre);
                };
                let (shape, device) = (x.dims(), x.device());
                let mut values = host(x);
                values.chunks_exact_mut(shape[1]).enumerate().for_each(|(pos, row)| scaling.forward(row, pos));
                let x = Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32));
                Ok((**dictionary).clone().with_normalization(Normalization::None).applied(x)?.pre)
            }
            Coder::Neurons(neurons) if neurons.experts() => {
                let x = flat(&points[0])?;
                let ([len, _], device) = (x.dims(), x.device());
                let values = TensorData::new(neurons.held(&host(x), len), [len, neurons.count()]);
                Ok(Tensor::from_data(values, (&device, DType::F32)))
            }
            Coder::Neurons(neurons) => match neurons.slopes() {
                None => flat(&points[0]),
                Some(slopes) => {
                    let (pre, linear) = (flat(&points[0])?, flat(&points[1])?);
                    let (shape, device) = (pre.dims(), pre.device());
                    let values = slopes.applied([Some(&host(pre)), Some(&host(linear))]);
                    Ok(Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32)))
                }
            },
        }
    }
}
