//! Interventions on features: what the model says with some of them changed.

use std::cell::RefCell;

use burn::tensor::{DType, Tensor, TensorData};
use hooklens_hooks::{ActivationCache, Hook, Record, Selection};

use super::capture::{Captured, capture};
use super::frozen::MlpPart;
use super::frozen_mlp::Ratios;
use super::host;
use super::place::Place;
use super::replacement::Replacement;
use super::site::{Coder, Site};
use super::trace::special;
use crate::driver::{ForwardOptions, HookedModel, Input};
use crate::error::{GraphError, Result};
use crate::features::Normalization;
use crate::hook;
use crate::model::HookedTransformer;

/// A change of one feature's activation.
///
/// ```
/// use hooklens::attribution::graph::FeatureEdit;
/// let off = FeatureEdit::times(2, 14, 77, 0.0); // layer 2, position 14, latent 77
/// let on = FeatureEdit::set(2, 14, 78, 5.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeatureEdit {
    layer: usize,
    position: usize,
    latent: usize,
    to: To,
    /// The site, where it is known: a layer may have several.
    site: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum To {
    Value(f32),
    Times(f32),
}

impl FeatureEdit {
    /// Its activation becomes this.
    pub fn set(layer: usize, position: usize, latent: usize, value: f32) -> Self {
        Self { layer, position, latent, to: To::Value(value), site: None }
    }

    /// Its activation becomes this many times what it is in the unedited run.
    pub fn times(layer: usize, position: usize, latent: usize, factor: f32) -> Self {
        Self { layer, position, latent, to: To::Times(factor), site: None }
    }
}

impl FeatureEdit {
    pub(super) fn of_site(self, site: Option<usize>) -> Self {
        Self { site, ..self }
    }
}

/// What keeps its value of the unedited run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Attention patterns, the scales of norms, and what MLPs write but for the edits: direct effects alone are seen, those
    /// of the graph.
    Everything,
    /// Attention patterns.
    Patterns,
    /// Nothing: all later features answer.
    Nothing,
}

/// What an intervention led to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Intervened {
    /// `[1, pos, d_vocab_out]`.
    pub logits: Tensor<3>,
    /// Pre-activations of each site's features, `[pos, latent]`, by layers.
    pub pre_activations: Vec<Tensor<2>>,
}

/// What a run's hooks share.
struct Running {
    /// How much each edit changes its latent, in this run.
    deltas: RefCell<Vec<f32>>,
    wanted: Vec<f32>,
    /// What each site read, `[batch * pos, d_model]`.
    seen: RefCell<Vec<Option<Tensor<2>>>>,
}

/// What is added to a write point at a position.
struct Addition {
    edit: usize,
    pos: usize,
    vector: Vec<f32>,
}

/// Runs the model with features changed: at every place a feature writes to, what it writes is replaced by what it would
/// write; errors stay.
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
/// assert_eq!(without.logits.dims()[..2], [1, 15]);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// [`GraphError::Node`] for a layer, position or latent that is not there; those of
/// [`AttributionGraph::new`](super::AttributionGraph::new).
pub fn intervene(
    model: &HookedTransformer,
    prompt: impl Into<Input>,
    replacement: &Replacement,
    edits: &[FeatureEdit],
    hold: Hold,
) -> Result<Intervened> {
    let tokens = model.token_input(prompt.into())?;
    let tokens = tokens.row(0);
    let captured = capture(model, tokens, replacement, special(model, tokens))?;
    Intervention::new(model, tokens, &captured)?.run(edits, hold)
}

/// A prompt in which features are changed.
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
        for layer in 0..model.config().n_layers {
            let held = [
                "attn.hook_pattern",
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

    fn site(&self, edit: &FeatureEdit) -> Result<usize> {
        let missing = |reason: String| GraphError::Node {
            node: format!("layer {} position {} latent {}", edit.layer, edit.position, edit.latent),
            near: vec![reason],
        };
        let sites = &self.captured.sites;
        let of_layer = || sites.iter().position(|site| site.layer == edit.layer);
        let layers = || missing(format!("layers {:?}", sites.iter().map(|site| site.layer).collect::<Vec<_>>()));
        let site = edit.site.or_else(of_layer).ok_or_else(layers)?;
        if edit.position >= self.tokens.len() {
            return Err(missing(format!("positions 0 to {}", self.tokens.len() - 1)).into());
        }
        let count = sites[site].count();
        if edit.latent >= count {
            return Err(missing(format!("latents 0 to {}", count - 1)).into());
        }
        Ok(site)
    }

    /// The model with these edits.
    pub(super) fn run(&self, edits: &[FeatureEdit], hold: Hold) -> Result<Intervened> {
        let (model, active) = (self.model, &self.captured.active);
        let sites: Vec<usize> = edits.iter().map(|edit| self.site(edit)).collect::<Result<_>>()?;
        let clean: Vec<f32> =
            edits.iter().zip(&sites).map(|(edit, site)| active.act(*site, edit.position, edit.latent as u32)).collect();
        let wanted: Vec<f32> = edits
            .iter()
            .zip(&clean)
            .map(|(edit, clean)| match edit.to {
                To::Value(value) => value,
                To::Times(factor) => factor * clean,
            })
            .collect();
        let running = Running {
            deltas: RefCell::new(wanted.iter().zip(&clean).map(|(to, from)| to - from).collect()),
            seen: RefCell::new(vec![None; self.captured.sites.len()]),
            wanted,
        };
        let mut hooks: Vec<Hook<'_>> = Vec::new();
        if hold == Hold::Everything {
            self.hold(|name| name.ends_with("hook_scale"), &mut hooks)?;
        }
        if hold != Hold::Nothing {
            self.hold(|name| name.ends_with("hook_pattern"), &mut hooks)?;
        }
        // What features have in this run, where it is not held.
        for (number, site) in self.captured.sites.iter().enumerate() {
            let own: Vec<usize> = (0..edits.len()).filter(|edit| sites[*edit] == number).collect();
            let Coder::Dictionary(dictionary) = &site.coder else { continue };
            let Some(reads) = dictionary.metadata().reads.clone() else { continue };
            let Running { deltas, wanted, seen } = &running;
            hooks.push(hook::at(reads).read(move |x: Tensor<3>, _| -> std::result::Result<(), crate::error::Error> {
                let [_, len, width] = x.dims();
                let x = x.reshape([len, width]).cast(DType::F32);
                seen.borrow_mut()[number] = Some(x.clone());
                if hold == Hold::Everything || own.is_empty() {
                    return Ok(());
                }
                let acts = dictionary.applied(x)?.acts;
                for edit in &own {
                    let FeatureEdit { position, latent, .. } = edits[*edit];
                    let now = acts.clone().slice([position..position + 1, latent..latent + 1]).into_scalar::<f32>();
                    deltas.borrow_mut()[*edit] = wanted[*edit] - now;
                }
                Ok(())
            }));
        }
        for (number, site) in self.captured.sites.iter().enumerate() {
            self.write(number, site, edits, &sites, hold, &running, &mut hooks);
        }
        if hold == Hold::Everything {
            self.hold_mlps(&mut hooks);
        }
        let names: Vec<String> = self.captured.sites.iter().flat_map(Site::read_points).collect();
        let record = Record::new(Selection::from(names));
        let output = model.run(vec![self.tokens.to_vec()], ForwardOptions::new().hooks(hooks).record(record))?;
        let pre = |(site, seen): (&Site, &Option<Tensor<2>>)| {
            site.pre_activations(seen.clone(), &output.cache, hold == Hold::Everything)
        };
        let pre_activations =
            self.captured.sites.iter().zip(&*running.seen.borrow()).map(pre).collect::<Result<_>>()?;
        let logits = output.logits.unwrap_or_else(|| Tensor::zeros([1, 0, 0], &model.device()));
        Ok(Intervened { logits, pre_activations })
    }

    /// What stands where a site's features write first.
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

    /// Keeps points as they were.
    fn hold<'h>(&'h self, which: impl Fn(&str) -> bool, hooks: &mut Vec<Hook<'h>>) -> Result<()> {
        let names: Vec<String> =
            self.clean.iter().map(|(name, _)| name.to_string()).filter(|name| which(name)).collect();
        for name in names {
            let held = self.clean.activation(&*name)?.clone();
            hooks.push(hook::at(name).edit_any(move |_, _| Ok(Some(held.clone()))));
        }
        Ok(())
    }

    /// Puts what the edits write at a place where its features do.
    #[allow(clippy::too_many_arguments)]
    fn write<'h>(
        &'h self,
        number: usize,
        site: &'h Site,
        edits: &'h [FeatureEdit],
        sites: &[usize],
        hold: Hold,
        Running { deltas, wanted, seen }: &'h Running,
        hooks: &mut Vec<Hook<'h>>,
    ) {
        let Some(place) = self.place(number) else { return };
        let additions: Vec<Addition> = edits
            .iter()
            .enumerate()
            .filter_map(|(edit, FeatureEdit { position, latent, .. })| {
                let decoder = place.decoders.iter().find(|decoder| decoder.site == sites[edit])?;
                let latent = *latent as u32;
                let mut vector = decoder.vectors(&[latent]);
                let factor = decoder.factor(latent, *position);
                vector.iter_mut().for_each(|x| *x *= factor);
                Some(Addition { edit, pos: *position, vector })
            })
            .collect();
        let held = hold == Hold::Everything;
        if let (Coder::Neurons(_), false) = (&site.coder, held) {
            let own: Vec<usize> = (0..edits.len()).filter(|edit| sites[*edit] == number).collect();
            if !own.is_empty() {
                hooks.push(hook::at(format!("blocks.{}.mlp.hook_post", site.layer)).edit(move |x: Tensor<3>, _| {
                    own.iter().fold(x, |x, edit| {
                        let FeatureEdit { position, latent, .. } = edits[*edit];
                        let value = Tensor::<3>::full([1, 1, 1], wanted[*edit], (&x.device(), x.dtype()));
                        x.slice_assign([0..1, position..position + 1, latent..latent + 1], value)
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
        hooks.push(hook::at(point).edit(move |x: Tensor<3>, _| {
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
                let change = (now.clone() - before).matmul(matrix).reshape([1, len, width]);
                out = out.clone() + change.cast(out.dtype());
            }
            let mut added = vec![0f32; len * width];
            for Addition { edit, pos, vector } in &additions {
                let delta = deltas.borrow()[*edit];
                added[pos * width..][..width].iter_mut().zip(vector).for_each(|(x, v)| *x += delta * v);
            }
            let added = Tensor::<3>::from_data(TensorData::new(added, [1, len, width]), (&out.device(), DType::F32));
            out.clone() + added.cast(out.dtype())
        }));
    }

    /// Keeps the ratios of neurons that no feature stands for.
    fn hold_mlps<'h>(&'h self, hooks: &mut Vec<Hook<'h>>) {
        for (layer, own) in self.captured.frozen.layers.iter().enumerate() {
            let MlpPart::Linear(mlp, _) = &own.mlp else { continue };
            let name = |suffix: &str| format!("blocks.{layer}.mlp.{suffix}");
            let behind = if self.clean.activation(&*name("hook_mid")).is_ok() { "hook_mid" } else { "hook_post" };
            let inputs: std::rc::Rc<RefCell<[Option<Vec<f32>>; 2]>> = std::rc::Rc::default();
            let gated = mlp.ratios().gate.is_some();
            for (place, suffix) in ["hook_pre", "hook_pre_linear"].into_iter().enumerate().take(1 + usize::from(gated))
            {
                let inputs = inputs.clone();
                hooks.push(hook::at(name(suffix)).read(move |x: Tensor<3>, _| {
                    inputs.borrow_mut()[place] = Some(host(x));
                }));
            }
            hooks.push(hook::at(name(behind)).edit(move |x: Tensor<3>, _| {
                let inputs = inputs.borrow();
                let values = mlp.ratios().applied([inputs[0].as_deref(), inputs[1].as_deref()]);
                Tensor::<3>::from_data(TensorData::new(values, x.dims()), (&x.device(), DType::F32)).cast(x.dtype())
            }));
        }
    }
}

impl Ratios {
    /// Activations of pre-activations and, of a gated MLP, its other factor.
    pub(super) fn applied(&self, [pre, linear]: [Option<&[f32]>; 2]) -> Vec<f32> {
        let times = |ratios: &[f32], x: Option<&[f32]>| -> Vec<f32> {
            ratios.iter().zip(x.unwrap_or_default()).map(|(ratio, x)| ratio * x).collect()
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

impl Site {
    /// How many features there are.
    fn count(&self) -> usize {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.latents(),
            Coder::Neurons(neurons) => neurons.count(),
        }
    }

    /// The points of which pre-activations are functions.
    fn read_points(&self) -> Vec<String> {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.metadata().reads.iter().cloned().collect(),
            Coder::Neurons(neurons) => {
                let names =
                    ["hook_pre", "hook_pre_linear"].into_iter().take(1 + usize::from(neurons.ratios().is_some()));
                names.map(|suffix| format!("blocks.{}.mlp.{suffix}", self.layer)).collect()
            }
        }
    }

    /// Where features write first.
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
            // An autoencoder of the stream reads what was there before its own features are edited.
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
            Coder::Neurons(neurons) => match neurons.ratios() {
                None => flat(&points[0]),
                Some(ratios) => {
                    let (pre, linear) = (flat(&points[0])?, flat(&points[1])?);
                    let (shape, device) = (pre.dims(), pre.device());
                    let values = ratios.applied([Some(&host(pre)), Some(&host(linear))]);
                    Ok(Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32)))
                }
            },
        }
    }
}
