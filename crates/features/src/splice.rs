//! Dictionaries spliced into a model, whose latents become hook points.

use burn::tensor::{DType, Tensor, TensorData};
use hooklens_hooks::{Activation, Axis, Catalog, Halt, HookError, Inside, Part, PartPoint, PointInfo};

use super::architecture::Architecture;
use super::compatibility_warnings::check_processing;
use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::normalization::{Denormalize, Normalization};
use super::transcoders::{Transcoders, combined};
use crate::error::FeatureError;
use hooklens_model::driver::{HookedModel, length, private};
use hooklens_model::error::{Error, Result};

/// Axes of points where a dictionary can be spliced in, each with the corresponding axes after flattening heads.
const HOSTS: [(&[Axis], &[Axis]); 6] = [
    (&[Axis::Batch, Axis::Pos, Axis::DModel], &[Axis::Batch, Axis::Pos, Axis::DModel]),
    (&[Axis::Batch, Axis::Pos, Axis::DMlp], &[Axis::Batch, Axis::Pos, Axis::DMlp]),
    (&[Axis::Batch, Axis::Pos, Axis::DShared], &[Axis::Batch, Axis::Pos, Axis::DShared]),
    (&[Axis::Batch, Axis::Pos, Axis::DPerLayer], &[Axis::Batch, Axis::Pos, Axis::DPerLayer]),
    (&[Axis::Batch, Axis::Pos, Axis::HeadDHead], &[Axis::Batch, Axis::Pos, Axis::HeadDHead]),
    (&[Axis::Batch, Axis::Pos, Axis::Head, Axis::DHead], &[Axis::Batch, Axis::Pos, Axis::HeadDHead]),
];
const LATENTS: &[Axis] = &[Axis::Batch, Axis::Pos, Axis::Feature];

/// Models into which dictionaries can be spliced.
pub trait SpliceDictionary: HookedModel + private::Spliceable {
    /// Splices a dictionary into the model at the point it was trained on. Its latents become hook points that can be
    /// listed, recorded, edited, differentiated, patched and dumped. The reconstruction error is added, so that without
    /// edits the model computes the same as before; [`Dictionary::with_error_term`] turns this off. The dictionary is
    /// not applied to excluded tokens ([`Dictionary::exclude_tokens`]): their activations stay unchanged and have no
    /// latents.
    ///
    /// Adds points with the name of the replaced point (for a transcoder, the point it writes) as prefix, in firing
    /// order:
    /// - `hook_sae_input`: the input, with heads flattened
    /// - `hook_sae_acts_pre`: pre-activations, `[batch, pos, d_sae]`; magnitudes for gated dictionaries; absent for
    ///   matching pursuit
    /// - `hook_sae_acts_post`: activations, `[batch, pos, d_sae]`
    /// - `hook_sae_recons`: the reconstruction, including a skip connection, before the normalization is undone
    /// - `hook_sae_error`: the reconstruction error, which gradients treat as a constant
    /// - `hook_sae_output`: the value that replaces the point's activation
    ///
    /// ```
    /// use hooklens::features::{Dictionary, SpliceDictionary};
    /// use hooklens::prelude::*;
    /// # use hooklens::features::DictionaryWeights;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::random([64, 128], burn::tensor::Distribution::Default, &Device::flex()),
    /// #     encoder_bias: Tensor::zeros([128], &Device::flex()),
    /// #     decoder: Tensor::random([128, 64], burn::tensor::Distribution::Default, &Device::flex()),
    /// #     decoder_bias: Tensor::zeros([64], &Device::flex()), skip: None,
    /// # };
    /// # let sae = Dictionary::new("random", weights)?.at("blocks.2.hook_resid_post");
    /// let spliced = model.splice_dictionary(&sae)?;
    /// let acts = hook::resid_post(2).inner::<3>("hook_sae_acts_post");
    /// let cache = spliced.record("When Mary and John", &acts)?;
    /// assert_eq!(cache.get(&acts)?.dims(), [1, 5, sae.latents()]);
    /// let without_7 = spliced.run_with_hooks("When Mary and John", [acts.unit(7).zero()])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::NoPoint`] if the dictionary's files do not name its hook point, [`FeatureError::NoScale`] if
    /// they omit the scale of inputs, [`FeatureError::Place`] or [`FeatureError::Width`] if the dictionary does not fit
    /// the point, [`FeatureError::Processing`] if it was trained on a model with different weight processing; otherwise
    /// the same as [`HookedModel::splice`].
    fn splice_dictionary(&self, dictionary: &Dictionary) -> Result<Self> {
        put(self, dictionary, Vec::new(), false)
    }

    /// Replaces every layer's MLP with a transcoder, each as in [`SpliceDictionary::splice_dictionary`]. Latents of a
    /// cross-layer transcoder also write to later layers, with any edits by hooks applied. Its layers have an
    /// additional point, `hook_sae_acts_unedited`, with the activations before edits.
    ///
    /// # Errors
    /// Same as [`SpliceDictionary::splice_dictionary`]; [`FeatureError::Place`] for a model with a different number of
    /// layers.
    fn splice_transcoders(&self, transcoders: &Transcoders) -> Result<Self> {
        let (layers, count) = (transcoders.layers(), self.catalog().n_layers());
        if layers.len() != count {
            let (dictionary, point) = (transcoders.name().to_string(), "blocks".to_string());
            let reason = format!("it has {} layers, but the model has {count}", layers.len());
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
            spliced = Some(put(model, own, earlier, transcoders.is_cross_layer())?);
        }
        spliced.ok_or_else(|| FeatureError::NoPoint { dictionary: transcoders.name().to_string() }.into())
    }
}

impl<M: HookedModel + private::Spliceable> SpliceDictionary for M {}

/// Fails if the model lacks a dictionary's points or has different widths there.
pub(super) fn check_place<M: HookedModel + private::Spliceable>(model: &M, dictionary: &Dictionary) -> Result<()> {
    let [read, write] = dictionary.points()?;
    check_processing(model, dictionary)?;
    places(model, dictionary, read, write).map(drop)
}

/// Finds a point where a dictionary can be spliced in. Returns its axes, and its axes with heads flattened.
///
/// # Errors
/// [`FeatureError::Place`] for a point that does not exist, or does not have one vector of fixed width per token.
pub(super) fn splice_point<'c>(
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
        let such = info.layer.map_or(String::new(), |layer| format!(", such as blocks.{layer}.hook_resid_post"));
        refused(format!(
            "the axes of the point are {}; expected a point with [batch, pos, width]{such}",
            info.axes_label()
        ))
    })?;
    Ok((info, [*host, *flat]))
}

/// Returns the input's axes with heads flattened, and the axes of the replaced point, both original and flattened.
fn places<M: HookedModel + private::Spliceable>(
    model: &M,
    dictionary: &Dictionary,
    read: &str,
    at: &str,
) -> Result<[&'static [Axis]; 3]> {
    let axes_of = |point: &str| splice_point(model.catalog(), dictionary.name(), point);
    let ((reading, [_, reads]), (writing, [writes, written])) = (axes_of(read)?, axes_of(at)?);
    let both = [(read, reading, reads, dictionary.d_in()), (at, writing, written, dictionary.d_out())];
    for (point, info, axes, wanted) in both {
        let shape = model.shape_at(info);
        let given = axes.last().map_or(0, |axis| length(shape, info.layer, *axis));
        dictionary.check_width(&format!("`{point}`"), given, wanted)?;
    }
    Ok([reads, writes, written])
}

/// Splices a dictionary into a model.
fn put<M: HookedModel + private::Spliceable>(
    model: &M,
    dictionary: &Dictionary,
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
        return Err(refused(at, format!("it applies to head {head} only, which is not supported")));
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
    let left_out = metadata.exclude_special_tokens.ids(model)?;
    let nothing_left_out = left_out.is_empty();
    let part = SplicedDictionary { dictionary: device, left_out, reads, writes, earlier, cross_layer };
    if !nothing_left_out && catalog.find(TOKENS).is_err() {
        return Err(refused(at, "it excludes tokens, but the model has no token input".into()));
    }
    match dictionary.is_transcoder() {
        false => model.splice(read, part),
        true => model.splice_between(read, at, part),
    }
}

/// A dictionary as a part of a model.
struct SplicedDictionary {
    dictionary: Dictionary,
    /// Token ids at which the point is left unchanged.
    left_out: Vec<u32>,
    /// Axes of the input, with heads flattened.
    reads: &'static [Axis],
    /// Axes of the replaced point.
    writes: &'static [Axis],
    /// Decoders of earlier layers' latents for this layer.
    earlier: Vec<Earlier>,
    /// Whether later layers may read the latents.
    cross_layer: bool,
}

/// The decoder of an earlier layer's latents for this layer.
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

    /// A mask with 0 for rows of excluded tokens and 1 for others, `[batch * pos, 1]`; `None` if no row is excluded.
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

    /// Whether a hook may edit one of these points.
    fn edits(&self, inside: &Inside<'_, '_, '_>, points: &[&str]) -> Result<bool, Halt> {
        let there = points.iter().filter(|point| self.has_pre() || **point != ACTS_PRE);
        let there = there.filter(|point| self.dictionary.error_term || **point != ERROR);
        there.map(|point| inside.edits(point)).try_fold(false, |any, edits| Ok(any | edits?))
    }

    /// Contributions of earlier layers' latents to this layer, with and without edits by hooks; `None` if there are
    /// none.
    fn written_before(&self, inside: &Inside<'_, '_, '_>) -> Result<Option<[Tensor<2>; 2]>, Halt> {
        let first = usize::from(!self.left_out.is_empty());
        let mut sums: Option<[Tensor<2>; 2]> = None;
        for (one, acts) in self.earlier.iter().zip(inside.also()[first..].chunks_exact(2)) {
            let written = |acts: &Activation| -> Result<Tensor<2>, Halt> {
                let latents = one.decoder.shape()[0];
                Ok(combined(rows(acts, latents)?, &one.decoder)?)
            };
            let [edited, unedited] = [written(&acts[0])?, written(&acts[1])?];
            sums = Some(match sums {
                Some([first, second]) => [first + edited, second + unedited],
                None => [edited, unedited],
            });
        }
        Ok(sums)
    }

    /// Reconstructs the replaced activation from latents.
    fn restored(&self, acts: Tensor<2>, input: &Tensor<2>, undo: Denormalize) -> Result<Tensor<2>> {
        Ok(undo.apply(self.dictionary.with_skip(self.dictionary.decoded(acts)?, input)?))
    }
}

/// Passes rows `[batch * pos, width]` through a point's hooks as `[batch, pos, width]`.
fn shown(inside: &mut Inside<'_, '_, '_>, point: &str, rows: Tensor<2>, batch: usize) -> Result<Tensor<2>, Halt> {
    if !inside.wants(point)? {
        return Ok(rows);
    }
    let [count, width] = rows.dims();
    let seen = inside.fire(point, rows.reshape([batch, count / batch.max(1), width]))?;
    Ok(seen.reshape([count, width]))
}

/// All values of a tensor as rows of this width.
fn rows(tensor: &Activation, width: usize) -> Result<Tensor<2>, HookError> {
    let count: usize = tensor.shape().iter().product();
    tensor.reshape(&[count / width.max(1), width]).to_tensor()
}

/// Passes a tensor with three or four axes through a point's hooks.
fn shown_whole(inside: &mut Inside<'_, '_, '_>, point: &str, tensor: Activation) -> Result<Activation, Halt> {
    if !inside.wants(point)? {
        return Ok(tensor);
    }
    Ok(match tensor.shape().len() {
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
        let error = self.dictionary.error_term.then(|| PartPoint::new(ERROR, self.writes));
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
        let settings = format!("{} {:?} {earlier:?}", self.dictionary.error_term, self.left_out);
        let decoders = self.earlier.iter().map(|one| &one.decoder);
        Ok(Some(self.dictionary.hash_with(&settings, decoders)?))
    }

    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
        let (dictionary, replaced) = (&self.dictionary, inside.replaced().clone());
        let (shape, dtype) = (replaced.shape().to_vec(), replaced.dtype());
        let batch = shape[0];
        let raw = dictionary.rows(rows(&x, dictionary.d_in())?)?;
        let original = rows(&replaced, dictionary.d_out())?.cast(raw.dtype());
        let tracked = raw.is_tracked() || original.is_tracked();
        let edited = !self.earlier.is_empty() || self.edits(inside, &[INPUT, ACTS_PRE, ACTS_POST, RECONS, ERROR])?;
        let watched = self.points().iter().map(|point| inside.wants(&point.suffix)).collect::<Result<Vec<_>, _>>()?;
        // If nothing records or edits the dictionary's points, adding the error would restore the original activation,
        // so nothing is computed.
        if self.dictionary.error_term && !tracked && self.earlier.is_empty() && !watched.contains(&true) {
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
        // Unedited latents are saved before hooks run, so that the error does not include edits.
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
            // At excluded tokens, the activation is unchanged.
            Some(kept) => recons * kept.clone() + original.clone() * (kept.clone() * -1.0 + 1.0),
            None => recons,
        };
        if self.dictionary.error_term {
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
                // The sum would equal the original up to rounding.
                false => original,
            };
        }
        let output = Activation::from(output.cast(dtype)).reshape(&shape);
        shown_whole(inside, OUTPUT, output)
    }
}
