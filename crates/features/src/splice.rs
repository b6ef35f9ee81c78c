//! Dictionaries put into a model: their latents become points like any other.

use burn::tensor::{DType, Tensor, TensorData};
use hooklens_hooks::{Activation, Axis, Catalog, Halt, Inside, Part, PartPoint, PointInfo};

use super::architecture::Architecture;
use super::concerns::check_processing;
use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::normalization::{Normalization, Undo};
use super::transcoders::{Transcoders, combined};
use crate::error::FeatureError;
use hooklens_model::driver::{HookedModel, length, private};
use hooklens_model::error::{Error, Result};

/// The axes of a point that a dictionary may be at, flattened where it is of heads.
const HOSTS: [(&[Axis], &[Axis]); 6] = [
    (&[Axis::Batch, Axis::Pos, Axis::DModel], &[Axis::Batch, Axis::Pos, Axis::DModel]),
    (&[Axis::Batch, Axis::Pos, Axis::DMlp], &[Axis::Batch, Axis::Pos, Axis::DMlp]),
    (&[Axis::Batch, Axis::Pos, Axis::DShared], &[Axis::Batch, Axis::Pos, Axis::DShared]),
    (&[Axis::Batch, Axis::Pos, Axis::DPerLayer], &[Axis::Batch, Axis::Pos, Axis::DPerLayer]),
    (&[Axis::Batch, Axis::Pos, Axis::HeadDHead], &[Axis::Batch, Axis::Pos, Axis::HeadDHead]),
    (&[Axis::Batch, Axis::Pos, Axis::Head, Axis::DHead], &[Axis::Batch, Axis::Pos, Axis::HeadDHead]),
];
const LATENTS: &[Axis] = &[Axis::Batch, Axis::Pos, Axis::Feature];

/// How a dictionary is put into a model.
///
/// ```
/// use hooklens::features::Splicing;
/// let plain = Splicing::new(); // what the reconstruction misses is added to it
/// let without = Splicing::new().error_term(false).leaving_out([0]); // and nothing is done to tokens 0
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Splicing {
    error_term: bool,
    /// What the dictionary says, unless given.
    left_out: Option<Vec<u32>>,
}

impl Default for Splicing {
    fn default() -> Self {
        Self { error_term: true, left_out: None }
    }
}

impl Splicing {
    /// With the error term, at all tokens but those that the dictionary says it was trained without.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether what the reconstruction misses is added to it, so that a run without edits is that of the model alone.
    pub fn error_term(mut self, error_term: bool) -> Self {
        self.error_term = error_term;
        self
    }

    /// Passes activations at these tokens on as they are, without latents, instead of those that the dictionary's files
    /// say ([`Metadata::exclude_special_tokens`](super::Metadata::exclude_special_tokens)): `[]` for none.
    pub fn leaving_out(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = Some(tokens.into_iter().collect());
        self
    }
}

/// Models into which dictionaries can be put.
pub trait SpliceDictionary: HookedModel + private::Spliceable {
    /// The model with a dictionary at the point it was trained on: its latents are points of the model, listed, recorded,
    /// edited, differentiated, patched and dumped as any other. With what the reconstruction misses added, so that without
    /// edits the model computes what it did.
    ///
    /// Behind the point's name (of a transcoder, that of the point it writes) stand, in firing order,
    /// - `hook_sae_input`: what is read, heads flattened
    /// - `hook_sae_acts_pre`: pre-activations, `[batch, pos, d_sae]`; of a gated dictionary its magnitudes; matching
    ///   pursuit has none
    /// - `hook_sae_acts_post`: activations, `[batch, pos, d_sae]`
    /// - `hook_sae_recons`: the reconstruction before its normalization is undone, a skip connection included
    /// - `hook_sae_error`: what it misses of the point, a constant to gradients
    /// - `hook_sae_output`: what goes on
    ///
    /// ```
    /// use hooklens::features::{Dictionary, SpliceDictionary};
    /// use hooklens::prelude::*;
    /// # use hooklens::features::{DictionaryWeights, Metadata};
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::random([64, 128], burn::tensor::Distribution::Default, &Device::flex()),
    /// #     encoder_bias: Tensor::zeros([128], &Device::flex()),
    /// #     decoder: Tensor::random([128, 64], burn::tensor::Distribution::Default, &Device::flex()),
    /// #     decoder_bias: Tensor::zeros([64], &Device::flex()), skip: None,
    /// # };
    /// # let sae = Dictionary::new("random", weights)?.with_metadata(Metadata::at("blocks.2.hook_resid_post"));
    /// let spliced = model.splice_dictionary(&sae)?;
    /// let acts = hook::resid_post(2).inner::<3>("hook_sae_acts_post");
    /// let cache = spliced.record("When Mary and John", &acts)?;
    /// assert_eq!(cache.get(&acts)?.dims(), [1, 5, sae.latents()]);
    /// let without_7 = spliced.run_with_hooks("When Mary and John", [acts.unit(7).zero()])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::NoPoint`], [`FeatureError::Place`] and [`FeatureError::NoScale`]; those of
    /// [`HookedModel::splice`].
    fn splice_dictionary(&self, dictionary: &Dictionary) -> Result<Self> {
        self.splice_dictionary_with(dictionary, &Splicing::new())
    }

    /// [`SpliceDictionary::splice_dictionary`], with a say in how.
    ///
    /// # Errors
    /// As there.
    fn splice_dictionary_with(&self, dictionary: &Dictionary, splicing: &Splicing) -> Result<Self> {
        put(self, dictionary, splicing, Vec::new(), false)
    }

    /// The model with a transcoder in the place of every layer's MLP, each as [`SpliceDictionary::splice_dictionary`] has
    /// it. Latents of a cross-layer transcoder write to the layers behind their own too, as their hooks left them; its
    /// points have one more, `hook_sae_acts_unedited`, with what their hooks were given.
    ///
    /// # Errors
    /// As there; [`FeatureError::Place`] for a model of another number of layers.
    fn splice_transcoders(&self, transcoders: &Transcoders) -> Result<Self> {
        self.splice_transcoders_with(transcoders, &Splicing::new())
    }

    /// [`SpliceDictionary::splice_transcoders`], with a say in how.
    ///
    /// # Errors
    /// As there.
    fn splice_transcoders_with(&self, transcoders: &Transcoders, splicing: &Splicing) -> Result<Self> {
        let (layers, count) = (transcoders.layers(), self.catalog().n_layers());
        if layers.len() != count {
            let (dictionary, point) = (transcoders.name().to_string(), "blocks".to_string());
            let reason = format!("it has {} layers, the model {count}", layers.len());
            return Err(FeatureError::Place { dictionary, point, reason }.into());
        }
        let mut spliced: Option<Self> = None;
        for (layer, own) in layers.iter().enumerate() {
            let mut earlier = Vec::new();
            for (from, other) in layers.iter().enumerate().take(layer) {
                if let (Some(decoder), Some(point)) = (transcoders.across(from, layer), other.metadata().writes.clone())
                {
                    earlier.push(Earlier { decoder: decoder.clone(), point });
                }
            }
            let model = spliced.as_ref().unwrap_or(self);
            spliced = Some(put(model, own, splicing, earlier, transcoders.is_cross_layer())?);
        }
        spliced.ok_or_else(|| FeatureError::NoPoint { dictionary: transcoders.name().to_string() }.into())
    }
}

impl<M: HookedModel + private::Spliceable> SpliceDictionary for M {}

/// An error where a dictionary can't be at its points in a model: a point that is not there, or of another width.
pub(super) fn check_place<M: HookedModel + private::Spliceable>(model: &M, dictionary: &Dictionary) -> Result<()> {
    let [read, write] = dictionary.points()?;
    check_processing(model, dictionary)?;
    places(model, dictionary, read, write).map(drop)
}

/// A point that a dictionary can be at, with its axes as they are and flattened.
///
/// # Errors
/// [`FeatureError::Place`] for a point that is not there, or that is no vector of one width per token.
pub(super) fn host<'c>(
    catalog: &'c Catalog,
    dictionary: &str,
    point: &str,
) -> Result<(&'c PointInfo, [&'static [Axis]; 2])> {
    let refused = |reason: String| {
        let dictionary = dictionary.to_string();
        Error::from(FeatureError::Place { dictionary, point: point.into(), reason })
    };
    let found = catalog.find(point).map_err(|error| refused(error.to_string()))?;
    let info = catalog.info(found);
    let known = HOSTS.iter().find(|(host, _)| *host == info.axes);
    let (host, flat) = known.ok_or_else(|| {
        refused(format!("its axes are {}, and a dictionary's [batch, pos, width]", info.axes_label()))
    })?;
    Ok((info, [*host, *flat]))
}

/// The axes of what a dictionary reads, heads flattened, and of what it replaces, as they are and flattened.
fn places<M: HookedModel + private::Spliceable>(
    model: &M,
    dictionary: &Dictionary,
    read: &str,
    at: &str,
) -> Result<[&'static [Axis]; 3]> {
    let axes_of = |point: &str| host(model.catalog(), dictionary.name(), point);
    let ((reading, [_, reads]), (writing, [writes, written])) = (axes_of(read)?, axes_of(at)?);
    let both = [(read, reading, reads, dictionary.d_in()), (at, writing, written, dictionary.d_out())];
    for (point, info, axes, wanted) in both {
        let shape = model.shape_at(info);
        let given = axes.last().map_or(0, |axis| length(shape, info.layer, *axis));
        dictionary.check_width(&format!("`{point}`"), given, wanted)?;
    }
    Ok([reads, writes, written])
}

/// The model with a dictionary in it.
fn put<M: HookedModel + private::Spliceable>(
    model: &M,
    dictionary: &Dictionary,
    splicing: &Splicing,
    earlier: Vec<Earlier>,
    cross_layer: bool,
) -> Result<M> {
    let name = || dictionary.name().to_string();
    let metadata = dictionary.metadata();
    let [read, at] = dictionary.points()?;
    let refused = |point: &str, reason: String| {
        hooklens_model::error::Error::from(FeatureError::Place { dictionary: name(), point: point.into(), reason })
    };
    if let Some(head) = metadata.head {
        return Err(refused(at, format!("it is about head {head} alone, which is not supported")));
    }
    if dictionary.normalization == Normalization::Scale(None) {
        return Err(FeatureError::NoScale { dictionary: name() }.into());
    }
    check_processing(model, dictionary)?;
    let catalog = model.catalog();
    let device = match model.devices().first() {
        Some(device) => dictionary.to_device(device),
        None => dictionary.clone(),
    };
    let [reads, writes, _] = places(model, dictionary, read, at)?;
    let earlier = earlier.into_iter().map(|one| match model.devices().first() {
        Some(device) => Earlier { decoder: one.decoder.to_device(device), ..one },
        None => one,
    });
    let earlier = earlier.collect();
    let left_out = match &splicing.left_out {
        Some(ids) => ids.clone(),
        None => metadata.exclude_special_tokens.ids(model)?,
    };
    let nothing_left_out = left_out.is_empty();
    let error_term = splicing.error_term;
    let part = SplicedDictionary { dictionary: device, error_term, left_out, reads, writes, earlier, cross_layer };
    if !nothing_left_out && catalog.find(TOKENS).is_err() {
        return Err(refused(at, "the model has no tokens to leave out".into()));
    }
    match dictionary.is_transcoder() {
        false => model.splice(read, part),
        true => model.splice_between(read, at, part),
    }
}

/// A dictionary as a part of a model.
struct SplicedDictionary {
    dictionary: Dictionary,
    /// Whether what the reconstruction misses is added.
    error_term: bool,
    /// Tokens at which the point stays as it is.
    left_out: Vec<u32>,
    /// Axes of what is read, heads flattened.
    reads: &'static [Axis],
    /// Axes of the point that is replaced.
    writes: &'static [Axis],
    /// What latents of earlier layers write here.
    earlier: Vec<Earlier>,
    /// Whether later layers may read its latents.
    cross_layer: bool,
}

/// What the latents of an earlier layer write to a layer.
struct Earlier {
    decoder: Matrix,
    /// The point that the earlier layer's transcoder writes.
    point: String,
}

const TOKENS: &str = "hook_tokens";
const INPUT: &str = "hook_sae_input";
const ACTS_PRE: &str = "hook_sae_acts_pre";
const ACTS_POST: &str = "hook_sae_acts_post";
const ACTS_UNEDITED: &str = "hook_sae_acts_unedited";
const RECONS: &str = "hook_sae_recons";
const ERROR: &str = "hook_sae_error";
const OUTPUT: &str = "hook_sae_output";

impl SplicedDictionary {
    fn has_pre(&self) -> bool {
        !matches!(self.dictionary.architecture, Architecture::MatchingPursuit { .. })
    }

    /// 0 for rows of tokens that are left out, 1 for others, `[batch * pos, 1]`; nothing where none is.
    fn kept(&self, inside: &Inside<'_, '_, '_>, dtype: DType) -> Result<Option<Tensor<2>>, Halt> {
        if self.left_out.is_empty() {
            return Ok(None);
        }
        let Some(tokens) = inside.also().first() else { return Ok(None) };
        let ids: Vec<i64> = tokens.to_data()?.iter().collect();
        let is_kept = |id: &i64| !self.left_out.iter().any(|left| i64::from(*left) == *id);
        if ids.iter().all(is_kept) {
            return Ok(None);
        }
        let kept: Vec<f32> = ids.iter().map(|id| f32::from(u8::from(is_kept(id)))).collect();
        let data = TensorData::new(kept, [ids.len(), 1]);
        let kept = Tensor::<2>::from_data(data, (&inside.replaced().device(), DType::F32));
        Ok(Some(kept.cast(dtype)))
    }

    /// Whether a hook may change one of these points.
    fn edits(&self, inside: &Inside<'_, '_, '_>, points: &[&str]) -> Result<bool, Halt> {
        let there = points.iter().filter(|point| self.has_pre() || **point != ACTS_PRE);
        let there = there.filter(|point| self.error_term || **point != ERROR);
        there.map(|point| inside.edits(point)).try_fold(false, |any, edits| Ok(any | edits?))
    }

    /// What latents of earlier layers write here, as their hooks left them and as these were given them; nothing where none
    /// do.
    fn written_before(&self, inside: &Inside<'_, '_, '_>) -> Result<Option<[Tensor<2>; 2]>, Halt> {
        let first = usize::from(!self.left_out.is_empty());
        let mut sums: Option<[Tensor<2>; 2]> = None;
        for (one, acts) in self.earlier.iter().zip(inside.also()[first..].chunks_exact(2)) {
            let written = |acts: &Activation| -> Result<Tensor<2>, Halt> {
                let latents = one.decoder.shape()[0];
                Ok(combined(acts.reshape(&[acts.len() / latents.max(1), latents]).to_tensor()?, &one.decoder)?)
            };
            let [edited, unedited] = [written(&acts[0])?, written(&acts[1])?];
            sums = Some(match sums {
                Some([first, second]) => [first + edited, second + unedited],
                None => [edited, unedited],
            });
        }
        Ok(sums)
    }

    /// A reconstruction of latents in the space of what is replaced.
    fn restored(&self, acts: Tensor<2>, input: &Tensor<2>, undo: Undo) -> Result<Tensor<2>> {
        Ok(undo.apply(self.dictionary.with_skip(self.dictionary.decoded(acts)?, input)?))
    }
}

/// Shows rows `[batch * pos, width]` to a point's hooks as `[batch, pos, width]`.
fn shown(inside: &mut Inside<'_, '_, '_>, point: &str, rows: Tensor<2>, batch: usize) -> Result<Tensor<2>, Halt> {
    if !inside.wants(point)? {
        return Ok(rows);
    }
    let [count, width] = rows.dims();
    let seen = inside.fire(point, rows.reshape([batch, count / batch.max(1), width]))?;
    Ok(seen.reshape([count, width]))
}

/// Shows a tensor to the hooks of a point of three or four axes.
fn shown_whole(inside: &mut Inside<'_, '_, '_>, point: &str, tensor: Activation) -> Result<Activation, Halt> {
    if !inside.wants(point)? {
        return Ok(tensor);
    }
    Ok(match tensor.rank() {
        4 => inside.fire(point, tensor.to_tensor::<4>()?)?.into(),
        _ => inside.fire(point, tensor.to_tensor::<3>()?)?.into(),
    })
}

impl Part for SplicedDictionary {
    fn name(&self) -> String {
        format!("dictionary {}", self.dictionary.name())
    }

    fn points(&self) -> Vec<PartPoint> {
        let latents = |name: &str| PartPoint::new(name, LATENTS).features(self.dictionary.latents());
        let flat = HOSTS.iter().find(|(host, _)| *host == self.writes).map_or(self.writes, |(_, flat)| *flat);
        let pre = self.has_pre().then(|| latents(ACTS_PRE));
        let error = self.error_term.then(|| PartPoint::new(ERROR, self.writes));
        let unedited = self.cross_layer.then(|| latents(ACTS_UNEDITED).on_request());
        let first = [PartPoint::new(INPUT, self.reads)].into_iter().chain(pre).chain(unedited);
        let then = [latents(ACTS_POST), PartPoint::new(RECONS, flat)].into_iter().chain(error);
        first.chain(then).chain([PartPoint::new(OUTPUT, self.writes)]).collect()
    }

    fn also_reads(&self) -> Vec<String> {
        let tokens = (!self.left_out.is_empty()).then(|| TOKENS.to_string());
        let of = |one: &Earlier| [ACTS_POST, ACTS_UNEDITED].map(|acts| format!("{}.{acts}", one.point));
        tokens.into_iter().chain(self.earlier.iter().flat_map(of)).collect()
    }

    fn fingerprint(&self) -> Result<Option<String>, Halt> {
        let earlier: Vec<_> = self.earlier.iter().map(|one| (&one.point, one.decoder.shape())).collect();
        let told = format!("{} {:?} {earlier:?}", self.error_term, self.left_out);
        let decoders = self.earlier.iter().map(|one| &one.decoder);
        Ok(Some(self.dictionary.hash_with(&told, decoders)?))
    }

    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
        let (dictionary, replaced) = (&self.dictionary, inside.replaced().clone());
        let (shape, dtype) = (replaced.shape().to_vec(), replaced.dtype());
        let batch = shape[0];
        let rows = |of: &Activation, width: usize| of.reshape(&[of.len() / width.max(1), width]).to_tensor::<2>();
        let raw = dictionary.rows(rows(&x, dictionary.d_in())?)?;
        let original = rows(&replaced, dictionary.d_out())?.cast(raw.dtype());
        let tracked = raw.is_tracked() || original.is_tracked();
        let edited = !self.earlier.is_empty() || self.edits(inside, &[INPUT, ACTS_PRE, ACTS_POST, RECONS, ERROR])?;
        let watched = self.points().iter().map(|point| inside.wants(&point.suffix)).collect::<Result<Vec<_>, _>>()?;
        // Nobody looks, and what is missed would be added again: the point stays what it was.
        if self.error_term && !tracked && self.earlier.is_empty() && !watched.contains(&true) {
            return Ok(replaced);
        }

        let kept = self.kept(inside, raw.dtype())?;
        let input = shown(inside, INPUT, raw.clone(), batch)?;
        let (normalized, undo) = dictionary.normalized(input.clone())?;
        let mut encoded = dictionary.encoded(normalized)?;
        encoded.pre = encoded.pre.map(|pre| shown(inside, ACTS_PRE, pre, batch)).transpose()?;
        let found = dictionary.activate(encoded)?;
        let found = match &kept {
            Some(kept) => found * kept.clone(),
            None => found,
        };
        // Read before the hooks see it: what is missed is missed by the dictionary, not by its edits.
        let latents_edited = self.edits(inside, &[ACTS_POST])?;
        let clean_acts = latents_edited.then(|| found.clone().detach());
        let found = if self.cross_layer { shown(inside, ACTS_UNEDITED, found, batch)? } else { found };
        let acts = shown(inside, ACTS_POST, found, batch)?;
        let recons = dictionary.with_skip(dictionary.decoded(acts)?, &input)?;
        let clean_recons = recons.clone().detach();
        let (recons, from_earlier) = match self.written_before(inside)? {
            Some([edited, unedited]) => (recons + edited, Some(unedited)),
            None => (recons, None),
        };
        let recons = undo.clone().apply(shown(inside, RECONS, recons, batch)?);

        let mut output = match &kept {
            // At tokens that are left out the point stays.
            Some(kept) => recons * kept.clone() + original.clone() * (kept.clone() * -1.0 + 1.0),
            None => recons,
        };
        if self.error_term {
            let clean = match clean_acts {
                _ if self.edits(inside, &[INPUT, ACTS_PRE])? => dictionary.forward(raw.detach())?,
                Some(acts) => self.restored(acts, &input.detach(), undo)?,
                None => undo.apply(clean_recons),
            };
            let clean = match from_earlier {
                Some(written) => clean + written,
                None => clean,
            };
            let missed = (original.clone() - clean).detach();
            let missed = match &kept {
                Some(kept) => missed * kept.clone(),
                None => missed,
            };
            let missed = Activation::from(missed.cast(dtype)).reshape(&shape);
            let missed = shown_whole(inside, ERROR, missed)?;
            output = match edited || tracked {
                true => output + rows(&missed, dictionary.d_out())?.cast(original.dtype()),
                // The sum would be what it was, rounded once more.
                false => original,
            };
        }
        let output = Activation::from(output.cast(dtype)).reshape(&shape);
        shown_whole(inside, OUTPUT, output)
    }
}
