//! Records one run of the model and builds the frozen linear model of its prompt.

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor};
use hooklens_hooks::{ActivationCache, Record, Selection};
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::active::Active;
use super::frozen::{Frozen, Layer, MlpPart};
use super::frozen_attention::{FrozenAttention, HeldPattern};
use super::frozen_mlp::FrozenMlp;
use super::held_norm::HeldNorm;
use super::host;
use super::mlp_run::{self, Maps, MlpRun};
use super::neurons::Neurons;
use super::place::{Decoder, Place, Skip};
use super::replacement::{Kind, Replacement};
use super::secant_slopes::SecantSlopes;
use super::site::{ATTENTION, Coder, FeatureSite, MID, MLP, POST, PRE, STEPS, Sort, lengths};
use super::stacked::Stacked;
use crate::error::GraphError;
use crate::{Dictionary, check_processing};
use hooklens_model::config::{Layers, NormKind, Positional, ResidualScheme, Settings, keeps_zero};
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::model::{Block, DecoderChecks, HookedTransformer, ModelParts, Norm};

/// Number of rows encoded at a time.
const TOGETHER: usize = 256;

/// Everything that a graph needs from one run on a prompt.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) frozen: Frozen,
    pub(super) sites: Vec<FeatureSite>,
    pub(super) active: Active,
    /// The final norm, with its scale frozen.
    pub(super) last: HeldNorm,
    /// Logits after the last token, before and after the soft cap.
    pub(super) logits: [Vec<f32>; 2],
    /// The residual stream at the last token, before the final norm.
    pub(super) stream: Vec<f32>,
    /// The layer of each place that has error nodes.
    pub(super) places: Vec<usize>,
    /// The norm before each layer's attention.
    pub(super) before_attention: Vec<HeldNorm>,
    /// Position embeddings added to queries and keys only (Shortformer), `[pos, d_model]`.
    pub(super) beside_attention: Option<Vec<f32>>,
}

/// A dictionary, with its layer and the points of the model that it reads and writes.
struct Placed<'d> {
    dictionary: &'d Dictionary,
    layer: usize,
    reads: String,
    writes: String,
    at: At,
}

/// The part of the model that a dictionary replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Mlp,
    /// The residual stream before attention (0), between attention and MLP (1), or after the MLP (2).
    Stream(usize),
}

fn refused(what: &str, reason: impl Into<String>) -> hooklens_model::error::Error {
    GraphError::Replacement { what: what.into(), reason: reason.into() }.into()
}

/// Finds a dictionary's layer and points.
fn placed<'d>(model: &HookedTransformer, dictionary: &'d Dictionary) -> Result<Placed<'d>> {
    check_processing(model, dictionary)?;
    let metadata = dictionary.metadata();
    let name = dictionary.name();
    let reads =
        metadata.reads.clone().ok_or_else(|| refused(name, "its files do not name the hook point that it reads"))?;
    if metadata.head.is_some() {
        return Err(refused(name, "it applies to a single head"));
    }
    let writes = metadata.writes.clone().unwrap_or_else(|| reads.clone());
    let catalog = model.catalog();
    let mut layers = Vec::new();
    for point in [&reads, &writes] {
        let info = catalog.info(catalog.find(point)?);
        layers.push(info.layer.ok_or_else(|| refused(name, format!("`{point}` is not in a layer")))?);
    }
    let layer = layers[1];
    let suffix =
        |point: &str| point.split_once('.').and_then(|(_, rest)| rest.split_once('.')).map(|(_, s)| s.to_string());
    let (read, write) = (suffix(&reads).unwrap_or_default(), suffix(&writes).unwrap_or_default());
    let known = ["hook_resid_mid", "hook_resid_pre", "hook_mlp_in", "ln2.hook_normalized", "mlp.hook_in"];
    let at = match &*write {
        "hook_mlp_out" | "mlp.hook_out" if layers[0] == layer && known.contains(&&*read) => At::Mlp,
        "hook_resid_pre" if read == write => At::Stream(0),
        "hook_resid_mid" if read == write => At::Stream(1),
        "hook_resid_post" if read == write => At::Stream(2),
        _ => {
            let reason = format!(
                "it reads `{reads}` and writes `{writes}`; graphs support transcoders from an MLP's input to its \
                 output, and autoencoders of the residual stream"
            );
            return Err(refused(name, reason));
        }
    };
    let width = model.config().d_model();
    for (what, given) in [(&reads, dictionary.d_in()), (&writes, dictionary.d_out())] {
        dictionary.check_width(&format!("`{what}`"), given, width)?;
    }
    Ok(Placed { dictionary, layer, reads: read, writes: write, at })
}

/// The names of the points to record.
fn recorded(model: &HookedTransformer, placed: &[Placed<'_>], linear: &[bool], neurons: bool) -> Vec<String> {
    let mut names: Vec<String> = vec!["hook_embed".into()];
    if matches!(model.config().positional(), Positional::Learned | Positional::Shortformer) {
        names.push("hook_pos_embed".into());
    }
    if model.parts().ln_final.is_norm() {
        names.push("ln_final.hook_scale".into());
    }
    for (layer, block) in model.parts().blocks.iter().enumerate() {
        let mut add = |suffix: &str| names.push(format!("blocks.{layer}.{suffix}"));
        let norms = [
            (Some(&block.ln1), "ln1.hook_scale"),
            (block.ln1_post.as_ref(), "ln1_post.hook_scale"),
            (block.ln2.as_ref(), "ln2.hook_scale"),
            (block.ln2_post.as_ref(), "ln2_post.hook_scale"),
        ];
        for (norm, point) in norms {
            if norm.is_some_and(Norm::is_norm) {
                add(point);
            }
        }
        if block.attn().is_some_and(|attn| attn.latent.is_some()) {
            add("attn.kv_latent_norm.hook_scale");
        }
        if block.moe().is_some() && (linear[layer] || neurons) {
            add("mlp.hook_in");
            add("mlp.hook_expert_weights");
            if neurons {
                add("mlp.hook_out");
            }
        }
        if let (Some(mlp), true) = (block.dense_mlp(), linear[layer] || neurons) {
            add("mlp.hook_pre");
            add(if mlp.norm.is_some() { "mlp.hook_mid" } else { "mlp.hook_post" });
            if mlp.gate.is_some() {
                add("mlp.hook_pre_linear");
            }
            if mlp.norm.is_some() {
                add("mlp.ln.hook_scale");
                add("mlp.hook_post");
            }
            if neurons {
                add("mlp.hook_in");
                add("mlp.hook_out");
            }
        }
    }
    names.push(format!("blocks.{}.hook_resid_post", model.config().n_layers() - 1));
    for one in placed {
        names.push(format!("blocks.{}.{}", one.layer, one.reads));
        names.push(format!("blocks.{}.{}", one.layer, one.writes));
    }
    names.sort();
    names.dedup();
    names
}

/// Runs the model on a prompt and prepares everything that graphs need.
pub(super) fn capture(
    model: &HookedTransformer,
    tokens: &[u32],
    replacement: &Replacement,
    left_out: usize,
) -> Result<Captured> {
    model.check_one_place("an attribution graph")?;
    model.check_head()?;
    model.check_sums("an attribution graph")?;
    model.check_unclipped("an attribution graph")?;
    model.check_plain_layers("an attribution graph")?;
    let config = model.config();
    let held = !matches!(replacement.kind, Kind::Transcoders(_));
    if held && !keeps_zero(config.activation()) {
        let reason = format!(
            "the activation function {} is nonzero at 0, so it can't be linearized by freezing the ratio of activation \
             to pre-activation",
            config.activation()
        );
        return Err(refused("the model's neurons", reason));
    }
    if config.bidirectional() {
        return Err(refused("the model", "its attention is bidirectional"));
    }
    let biased = |block: &Block| {
        let latent = block.attn().and_then(|attn| attn.latent.as_ref());
        latent.is_some_and(|latent| latent.kv_down.bias.is_some())
    };
    if let Some(layer) = model.parts().blocks.iter().position(biased) {
        let reason = format!("layer {layer} adds a bias to the latent that its values are computed from");
        return Err(refused("the model", reason));
    }
    let dictionaries: Vec<&Dictionary> = match &replacement.kind {
        Kind::Transcoders(all) => all.layers().iter().collect(),
        Kind::Dictionaries(some) => some.iter().collect(),
        Kind::Neurons(_) => Vec::new(),
    };
    let placed: Vec<Placed<'_>> = dictionaries.into_iter().map(|one| placed(model, one)).collect::<Result<_>>()?;
    check_replacement(model, replacement, &placed)?;
    let neurons = matches!(replacement.kind, Kind::Neurons(_));
    let stands = |layer: usize| neurons || placed.iter().any(|one| one.at == At::Mlp && one.layer == layer);
    let linear: Vec<bool> = (0..config.n_layers()).map(|layer| !stands(layer)).collect();

    let mut patterns: BTreeMap<usize, HeldPattern> = BTreeMap::new();
    let names = recorded(model, &placed, &linear, neurons);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (cache, logits) = {
        let hook = hook::at("*.attn.hook_pattern").read(|pattern: Tensor<4>, at| {
            patterns.insert(at.layer().unwrap_or(0), HeldPattern::new(pattern));
        });
        let options = ForwardOptions::new().logits(Logits::Last).record(Record::new(Selection::from(names.as_slice())));
        let output = model.run(vec![tokens.to_vec()], options.hooks([hook]))?;
        let logits = output.logits.map(host).unwrap_or_default();
        (output.cache, logits)
    };
    let run = Run { model, cache, tokens, len: tokens.len(), left_out };
    let blocks = &model.parts().blocks;
    let (mut layers, mut before_attention) = (Vec::new(), Vec::new());
    for (layer, block) in blocks.iter().enumerate() {
        let mut pattern = patterns.remove(&layer).unwrap_or_default();
        let Some(attn) = block.attn() else { continue };
        if attn.latent.is_some() {
            pattern = pattern.over_keys(&run.rows(&format!("blocks.{layer}.attn.kv_latent_norm.hook_scale"))?);
        }
        let before = run.norm(&block.ln1, &format!("blocks.{layer}.ln1.hook_scale"))?;
        let behind = run.optional_norm(block.ln1_post.as_ref(), &format!("blocks.{layer}.ln1_post.hook_scale"))?;
        let sizes = [config.n_heads(), config.n_kv_heads_of(layer), config.d_value_of(layer)];
        let attention = FrozenAttention::new(attn, sizes, pattern, &before, behind.as_ref());
        let mlp = if linear[layer] && (block.dense_mlp().is_some() || block.moe().is_some()) {
            let norms = [
                run.optional_norm(block.ln2.as_ref(), &format!("blocks.{layer}.ln2.hook_scale"))?,
                run.optional_norm(block.ln2_post.as_ref(), &format!("blocks.{layer}.ln2_post.hook_scale"))?,
            ];
            let mlp = FrozenMlp::new(run.mlp(block, layer, false)?, tokens.len(), block.dense_mlp().is_none());
            MlpPart::Linear(Box::new(mlp), norms)
        } else {
            MlpPart::None
        };
        before_attention.push(before);
        layers.push(Layer {
            attention,
            parallel: config.residual() == ResidualScheme::Parallel,
            mlp,
            streams: [None, None, None],
        });
    }
    let width = config.d_model();
    let embed = run.rows("hook_embed")?;
    let positions = (*config.positional() == Positional::Learned).then(|| run.rows("hook_pos_embed")).transpose()?;
    let shortformer = *config.positional() == Positional::Shortformer;
    let beside_attention = shortformer.then(|| run.rows("hook_pos_embed")).transpose()?;
    let mut frozen = Frozen { layers, width, tokens: embed, positions, places: 0 };
    let (sites, active, places) = match &replacement.kind {
        Kind::Neurons(most) => run.neuron_sites(&mut frozen, *most)?,
        _ => run.dictionary_sites(&mut frozen, replacement, &placed)?,
    };
    let last = run.norm(&model.parts().ln_final, "ln_final.hook_scale")?;
    let stream = run.cache.get::<3>(&*format!("blocks.{}.hook_resid_post", config.n_layers() - 1))?;
    let stream = stream.narrow(1, tokens.len() - 1, 1);
    let uncapped = host(model.parts().unembed.forward(model.parts().ln_final.without_hooks(stream.clone())));
    let (logits, stream) = ([uncapped, logits], host(stream));
    Ok(Captured { frozen, sites, active, last, logits, stream, places, before_attention, beside_attention })
}

/// Checks that the dictionaries fit the model and each other.
fn check_replacement(model: &HookedTransformer, replacement: &Replacement, placed: &[Placed<'_>]) -> Result<()> {
    let n_layers = model.config().n_layers();
    if let Kind::Transcoders(all) = &replacement.kind {
        if all.layers().len() != n_layers {
            let reason = format!("it has {} layers, but the model has {n_layers}", all.layers().len());
            return Err(refused(all.name(), reason));
        }
        for (layer, one) in placed.iter().enumerate() {
            if one.layer != layer || one.at != At::Mlp {
                return Err(refused(one.dictionary.name(), format!("it does not replace the MLP of layer {layer}")));
            }
        }
    }
    if placed.is_empty() && !matches!(replacement.kind, Kind::Neurons(_)) {
        return Err(refused("an empty list of dictionaries", "no dictionary was given"));
    }
    for (place, one) in placed.iter().enumerate() {
        if placed[..place].iter().any(|other| (other.layer, other.at) == (one.layer, one.at)) {
            return Err(refused(one.dictionary.name(), "another dictionary replaces the same part of the model"));
        }
        let before_attention = one.reads == "hook_resid_pre" && model.config().residual() != ResidualScheme::Parallel;
        if one.dictionary.has_skip() && before_attention {
            return Err(refused(one.dictionary.name(), "its skip connection bypasses attention"));
        }
    }
    Ok(())
}

/// Sites, active features, and the layer of each place.
type Found = (Vec<FeatureSite>, Active, Vec<usize>);

/// A recorded run.
struct Run<'m> {
    model: &'m HookedTransformer,
    cache: ActivationCache,
    tokens: &'m [u32],
    len: usize,
    left_out: usize,
}

impl Run<'_> {
    /// The recording of a point, one row per position.
    fn rows(&self, name: &str) -> Result<Vec<f32>> {
        Ok(host(self.tensor(name)?))
    }

    fn tensor(&self, name: &str) -> Result<Tensor<2>> {
        let held = self.cache.get::<3>(name)?;
        let [_, len, width] = held.dims();
        Ok(held.reshape([len, width]).cast(DType::F32))
    }

    fn norm(&self, norm: &Norm, scale: &str) -> Result<HeldNorm> {
        match norm.is_norm() {
            true => Ok(HeldNorm::new(norm, self.rows(scale)?, true)),
            false => Ok(HeldNorm::default()),
        }
    }

    fn optional_norm(&self, norm: Option<&Norm>, scale: &str) -> Result<Option<HeldNorm>> {
        norm.filter(|norm| norm.is_norm()).map(|norm| self.norm(norm, scale)).transpose()
    }

    /// The activations of a layer's MLP, used as features or as part of a linear map.
    fn mlp<'b>(&self, block: &'b Block, layer: usize, features: bool) -> Result<Vec<MlpRun<'b>>> {
        let of = |suffix: &str| self.rows(&format!("blocks.{layer}.mlp.{suffix}"));
        let config = self.model.config();
        if let (Some(moe), Some(mixture)) = (block.moe(), config.experts_of(layer)) {
            let x = self.tensor(&format!("blocks.{layer}.mlp.hook_in"))?;
            let weights = self.cache.get::<2>(&*format!("blocks.{layer}.mlp.hook_expert_weights"))?;
            return mlp_run::experts(moe, &x, weights, mixture, config);
        }
        let Some(mlp) = block.dense_mlp() else { return Ok(Vec::new()) };
        let (pre, maps, shares) = (of("hook_pre")?, Maps::from(mlp), vec![1.0; self.len]);
        let (neurons, mut inner) = (maps.input.shape()[1], None);
        let behind = if mlp.norm.is_some() && !features { "hook_mid" } else { "hook_post" };
        let post = of(behind)?;
        let linear = mlp.gate.as_ref().map(|_| of("hook_pre_linear")).transpose()?;
        if let Some(norm) = mlp.norm.as_ref().filter(|_| !features) {
            inner = Some(self.norm(norm, &format!("blocks.{layer}.mlp.ln.hook_scale"))?);
        }
        let slopes = SecantSlopes::new(&pre, &post, linear.as_deref(), neurons);
        let pre = if linear.is_some() { post.clone() } else { pre };
        Ok(vec![MlpRun { maps, slopes, post, pre, shares, inner }])
    }

    /// The norm between the stream and a point before an MLP, and the step at which the stream is read.
    fn reading(&self, layer: usize, point: &str) -> Result<(Option<HeldNorm>, usize)> {
        let block = &self.model.parts().blocks[layer];
        let parallel = self.model.config().residual() == ResidualScheme::Parallel;
        let before_mlp = layer * STEPS + if parallel { PRE } else { MID };
        let scale = format!("blocks.{layer}.ln2.hook_scale");
        let norm = |weights: bool| -> Result<Option<HeldNorm>> {
            let Some(norm) = block.ln2.as_ref().filter(|norm| norm.is_norm()) else { return Ok(None) };
            Ok(Some(HeldNorm::new(norm, self.rows(&scale)?, weights)))
        };
        Ok(match point {
            "mlp.hook_in" => (norm(true)?, before_mlp),
            // For LayerNorm, the hook point comes after multiplication by the weights; for other norms, before it.
            "ln2.hook_normalized" => {
                let layer_norm = block.ln2.as_ref().is_some_and(|norm| norm.kind == NormKind::LayerNorm);
                (norm(layer_norm)?, before_mlp)
            }
            "hook_resid_pre" => (None, layer * STEPS + PRE),
            _ => (None, before_mlp),
        })
    }

    /// Places each dictionary in the frozen model.
    fn dictionary_sites(&self, frozen: &mut Frozen, replacement: &Replacement, placed: &[Placed<'_>]) -> Result<Found> {
        let device = self.model.device();
        let mut order: Vec<&Placed<'_>> = placed.iter().collect();
        let step_of = |one: &Placed<'_>| match one.at {
            At::Mlp => one.layer * STEPS + MLP,
            At::Stream(number) => one.layer * STEPS + [PRE, MID, POST][number],
        };
        order.sort_by_key(|one| step_of(one));
        let (mut sites, mut active, mut undone) = (Vec::new(), Active::new(self.len), Vec::new());
        for one in &order {
            let input = self.tensor(&format!("blocks.{}.{}", one.layer, one.reads))?;
            let lengths = lengths(&host(input.clone()), one.dictionary.d_in());
            let left_out = one.dictionary.metadata().exclude_special_tokens.ids(self.model)?;
            let (scaling, factors) = self.encode(one.dictionary, input, &left_out, &mut active)?;
            undone.push(factors);
            let (before, start) = match one.at {
                At::Mlp => {
                    let (norm, start) = self.reading(one.layer, &one.reads)?;
                    (norm, Some(start))
                }
                At::Stream(_) => (None, step_of(one).checked_sub(1)),
            };
            let sort = if one.at == At::Mlp { Sort::Transcoder } else { Sort::Latent };
            let coder = Coder::Dictionary(Box::new(one.dictionary.to_device(&device)));
            sites.push(FeatureSite { layer: one.layer, sort, coder, scaling, before, start, lengths, left_out });
        }
        let mut places = Vec::new();
        for (number, one) in order.iter().enumerate() {
            let mut decoders = Vec::new();
            let mut add = |site: usize, rows: Tensor<2>, dictionary: &Dictionary, undone: Vec<f32>| -> Result<()> {
                decoders.push(Decoder { site, rows: rows.into(), factors: dictionary.write_factors()?, undone });
                Ok(())
            };
            match &replacement.kind {
                Kind::Transcoders(all) => {
                    for (from, writer) in order[..=number].iter().enumerate() {
                        if let Some(rows) = all.writes(from, number)? {
                            add(from, rows, writer.dictionary, Vec::new())?;
                        }
                    }
                }
                _ => add(number, one.dictionary.decoder()?, one.dictionary, undone[number].clone())?,
            }
            let bias = host(one.dictionary.decoder_bias());
            let written = self.rows(&format!("blocks.{}.{}", one.layer, one.writes))?;
            let (mut constant, mut skip, mut skipped) = (Vec::new(), None, None);
            for pos in 0..self.len {
                let factor = undone[number].get(pos).copied().unwrap_or(1.0);
                constant.extend(bias.iter().map(|x| x * factor));
            }
            if let Some(matrix) = one.dictionary.skip()? {
                let input = self.tensor(&format!("blocks.{}.{}", one.layer, one.reads))?;
                skipped = Some(host(input.matmul(matrix.clone().to_device(&device).cast(DType::F32))));
                let before = sites[number].before.clone().unwrap_or_default();
                skip = Some(Skip { matrix: host(matrix), before });
            }
            let behind = match (one.at, &*one.writes) {
                (At::Mlp, "mlp.hook_out") => {
                    let norm = self.model.parts().blocks[one.layer].ln2_post.as_ref();
                    self.optional_norm(norm, &format!("blocks.{}.ln2_post.hook_scale", one.layer))?
                }
                _ => None,
            };
            let used = self.tokens.iter().map(|token| sites[number].is_used_at(*token)).collect();
            let mut place = Place { behind, decoders, errors: written, constant, number, skip, used };
            self.leave_errors(&mut place, &active, skipped.as_deref(), frozen.width);
            match one.at {
                At::Mlp => frozen.layers[one.layer].mlp = MlpPart::Features(Box::new(place)),
                At::Stream(stream) => frozen.layers[one.layer].streams[stream] = Some(place),
            }
            places.push(one.layer);
        }
        frozen.places = places.len();
        Ok((sites, active, places))
    }

    /// Computes the errors: subtracts the outputs of features, constants and a skip connection from the model's output.
    /// At left-out positions, the whole output counts as constant; at tokens that the dictionary excludes, as error.
    fn leave_errors(&self, place: &mut Place, active: &Active, skipped: Option<&[f32]>, width: usize) {
        let Place { decoders, errors, constant, used, .. } = place;
        let left_out = self.left_out;
        each_item(
            errors.chunks_exact_mut(width).zip(constant.chunks_exact_mut(width)).enumerate(),
            |(pos, (error, constant))| {
                if !used[pos] && pos >= left_out {
                    constant.fill(0.0);
                    return;
                }
                if let Some(skipped) = skipped.filter(|_| used[pos]) {
                    error.iter_mut().zip(&skipped[pos * width..]).for_each(|(x, y)| *x -= y);
                }
                if pos < left_out {
                    constant.copy_from_slice(error);
                    error.fill(0.0);
                    return;
                }
                error.iter_mut().zip(&*constant).for_each(|(x, y)| *x -= y);
                for decoder in &*decoders {
                    let latents = active.latents(decoder.site, pos);
                    let acts: Vec<f32> = active
                        .range(decoder.site, pos)
                        .map(|feature| active.acts[feature] * decoder.factor(active.latent(feature), pos))
                        .collect();
                    if latents.is_empty() {
                        continue;
                    }
                    let (vectors, mut sum) = (decoder.vectors(latents), vec![0.0; width]);
                    let vectors = View2::row_major(&vectors, latents.len(), width);
                    gemm(View2::row_major(&acts, 1, latents.len()), vectors, None, &mut sum, width);
                    error.iter_mut().zip(&sum).for_each(|(x, y)| *x -= y);
                }
            },
        );
    }

    /// Adds the features that a dictionary finds in its input, `[pos, d_in]`. Returns the input normalization, and the
    /// factors that undo it.
    fn encode(
        &self,
        dictionary: &Dictionary,
        input: Tensor<2>,
        left_out: &[u32],
        active: &mut Active,
    ) -> Result<(Option<HeldNorm>, Vec<f32>)> {
        let (mut factors, mut undone, mut centers) = (Vec::new(), Vec::new(), false);
        for first in (0..self.len).step_by(TOGETHER) {
            let count = TOGETHER.min(self.len - first);
            let applied = dictionary.applied(input.clone().narrow(0, first, count))?;
            factors.extend(applied.factors);
            undone.extend(applied.undone);
            centers |= applied.centers;
            let latents = dictionary.latents();
            let (pre, acts) = (host(applied.pre), host(applied.acts));
            if let Some(at) = acts.iter().position(|x| !x.is_finite()) {
                let what =
                    format!("latent {} of {} at position {}", at % latents, dictionary.name(), first + at / latents);
                return Err(hooklens_model::error::Error::NotANumber { what });
            }
            for row in 0..count {
                let (pre, acts) = (&pre[row * latents..][..latents], &acts[row * latents..][..latents]);
                let pos = first + row;
                let kept = pos >= self.left_out && !left_out.contains(&self.tokens[pos]);
                let own = acts.iter().zip(pre).enumerate().filter(|(_, (act, _))| kept && **act != 0.0);
                active.add(own.map(|(latent, (act, pre))| (latent as u32, *act, *pre)));
            }
        }
        let plain = !centers && factors.iter().all(|factor| *factor == 1.0);
        Ok(((!plain).then(|| HeldNorm::scaling(factors, centers)), undone))
    }

    /// Makes neurons the features of every MLP. At each position, keeps the neurons with the largest outputs.
    fn neuron_sites(&self, frozen: &mut Frozen, most: usize) -> Result<Found> {
        let (mut sites, mut active, mut places) = (Vec::new(), Active::new(self.len), Vec::new());
        for (layer, block) in self.model.parts().blocks.iter().enumerate() {
            let runs = self.mlp(block, layer, true)?;
            if runs.is_empty() {
                continue;
            }
            let of = |suffix: &str| self.rows(&format!("blocks.{layer}.mlp.{suffix}"));
            let rows = Stacked::new(runs.iter().map(|run| run.maps.output.matrix()).collect());
            let norm = |run: &MlpRun<'_>| host(run.maps.output.matrix().cast(DType::F32).square().sum_dim(1).sqrt());
            let norms: Vec<Vec<f32>> = runs.iter().map(norm).collect();
            let biases: Vec<Option<Vec<f32>>> =
                runs.iter().map(|run| run.maps.output.bias.as_ref().map(|bias| host(bias.val()))).collect();
            let mut constant = vec![0.0; self.len * frozen.width];
            for (pos, constant) in constant.chunks_exact_mut(frozen.width).enumerate() {
                let (mut own, mut first) = (Vec::new(), 0);
                for ((run, norms), bias) in runs.iter().zip(&norms).zip(&biases) {
                    if let Some([post, pre]) = run.at(pos) {
                        let each = post.iter().zip(pre).zip(norms).enumerate();
                        own.extend(each.filter(|(_, ((post, _), _))| **post != 0.0).map(
                            |(neuron, ((post, pre), norm))| ((first + neuron) as u32, *post, *pre, post.abs() * norm),
                        ));
                    }
                    if let (Some(bias), Some(row)) = (bias, run.slopes.row(pos)) {
                        constant.iter_mut().zip(bias).for_each(|(x, bias)| *x += run.shares[row] * bias);
                    }
                    first += run.neurons();
                }
                if own.len() > most {
                    own.select_nth_unstable_by(most, |a, b| b.3.total_cmp(&a.3));
                    own.truncate(most);
                    own.sort_unstable_by_key(|neuron| neuron.0);
                }
                own.retain(|_| pos >= self.left_out);
                active.add(own.iter().map(|(neuron, post, pre, _)| (*neuron, *post, *pre)));
            }
            let (before, start) = self.reading(layer, "mlp.hook_in")?;
            let number = places.len();
            let coder = Coder::Neurons(Box::new(Neurons::new(&runs, block.dense_mlp().is_none())));
            let (start, lengths) = (Some(start), lengths(&of("hook_in")?, frozen.width));
            let left_out = Vec::new();
            sites.push(FeatureSite {
                layer,
                sort: Sort::Neuron,
                coder,
                scaling: None,
                before,
                start,
                lengths,
                left_out,
            });
            let decoder = Decoder { site: number, rows, factors: None, undone: Vec::new() };
            let behind = self.optional_norm(block.ln2_post.as_ref(), &format!("blocks.{layer}.ln2_post.hook_scale"))?;
            let errors = of("hook_out")?;
            let used = vec![true; self.len];
            let mut place = Place { behind, decoders: vec![decoder], errors, constant, number, skip: None, used };
            self.leave_errors(&mut place, &active, None, frozen.width);
            frozen.layers[layer].mlp = MlpPart::Features(Box::new(place));
            places.push(layer);
        }
        frozen.places = places.len();
        Ok((sites, active, places))
    }
}

const _: () = assert!(ATTENTION == PRE + 1 && MID == ATTENTION + 1 && MLP == MID + 1 && POST == MLP + 1);

impl Captured {
    /// The dot product of a direction with the input of the unembedding at the last token.
    pub(super) fn read_last(&self, direction: &[f32]) -> f64 {
        let mut last = self.stream.clone();
        self.last.forward(&mut last, self.active.len - 1);
        last.iter().zip(direction).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }
}
