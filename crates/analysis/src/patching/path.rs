//! Path patching: effects of heads on chosen receivers, and through them on the logits.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, Axis, Hook, PointId, Selection, at};

use super::base_run::BaseRun;
use super::growing_batch::{GrowingBatch, Patch};
use super::layout::Found;
use super::metric::read_values;
use super::receiver::Receiver;
use super::result::PatchingResult;
use super::sweep::{Patching, judge};
use crate::labeled::LabeledAxis;
use hooklens_model::config::{Layers, Settings};
use hooklens_model::driver::HookedModel;
use hooklens_model::driver::private::Spliceable;
use hooklens_model::error::{InputError, Result};

/// Which activations are frozen at their unpatched values along the path from a sender to a receiver.
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// # let patching = Patching::new(&model, clean, corrupted, metric)?;
/// let through = |frozen| patching.path_from_heads(&[Receiver::Logits], frozen);
/// let (direct, by_mlps) = (through(Freeze::AttentionAndMlps)?, through(Freeze::Attention)?);
/// // One MLP comes after the last layer's heads, so it matters whether paths may pass through it.
/// assert_ne!(direct.effect(), by_mlps.effect());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Freeze {
    /// All attention and all MLPs, leaving only the direct path.
    #[default]
    AttentionAndMlps,
    /// All attention. Paths through MLPs count as direct, as in Wang et al. 2022.
    Attention,
}

/// A receiver resolved for one model: its layer, the point it reads at, and its head. The logits have none of these.
struct Reader {
    layer: Option<usize>,
    point: Option<PointId>,
    head: Option<usize>,
}

impl Patching<'_> {
    /// Path patching (Goldowsky-Dill et al. 2023): for each head, `[layer, head]`, computes the metric when only the
    /// receivers see this head's output from the source run.
    ///
    /// First, each head's output is patched while the `frozen` activations keep their unpatched values, and the
    /// receivers' inputs are recorded. Then the receivers get those inputs in a run in which nothing is frozen. A head
    /// that writes after all receivers have read has no effect.
    ///
    /// ```
    /// use hooklens::patching::{Freeze, Metric, Patching, Receiver};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let patching = Patching::new(&model, clean, corrupted, Metric::logit_diff(&model, "Mary", "John")?)?;
    /// let direct = patching.path_from_heads(&[Receiver::Logits], Freeze::AttentionAndMlps)?.normalized()?;
    /// assert_eq!(direct.values().shape(), [4, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the model lacks a receiver; otherwise, same as [`Patching::sweep`].
    pub fn path_from_heads(&self, receivers: &[Receiver], frozen: Freeze) -> Result<PatchingResult> {
        let config = self.model().config();
        if config.per_layer_inputs().is_some() || config.shares_keys() {
            let with = "layers that read more than the preceding residual stream (`per_layer_inputs`, `shared_keys`)";
            return Err(InputError::NotDefined { what: "path patching", with }.into());
        }
        let (attending, heads): (Vec<usize>, _) = (config.attending().collect(), config.n_heads());
        let layers = attending.len();
        let readers = receivers.iter().map(|receiver| self.reader(*receiver)).collect::<Result<Vec<_>>>()?;
        if readers.is_empty() {
            return Err(InputError::Empty { what: "the list of receivers".into() }.into());
        }
        let catalog = self.model().catalog();
        if self.model().points().splices.reach_back(catalog) {
            let with = "spliced parts that write to later layers";
            return Err(InputError::NotDefined { what: "path patching", with }.into());
        }
        let senders: Vec<PointId> = attending
            .iter()
            .map(|layer| catalog.find(&format!("blocks.{layer}.attn.hook_z")))
            .collect::<Result<_, _>>()?;
        let mut points = Selection::from("blocks.*.attn.hook_z").and("blocks.*.hook_attn_out");
        if config.mlp_layers().next().is_some() {
            points = points.and("blocks.*.hook_mlp_out");
        }
        let found = self.each_example(&senders, |example| {
            let mut base = example.base_run(points.clone())?;
            let baseline = example.read(base.logits.clone(), "without a patch")?;
            let from = example.source(&base.recorded, &senders)?;
            let patch = |number: usize| {
                let (place, head) = (number / heads, number % heads);
                let block = vec![0..1, 0..base.len(), head..head + 1, 0..config.d_value_of(attending[place])];
                Patch { number, point: senders[place], block, first: 0 }
            };
            let patches: Vec<Patch> = (0..layers * heads).map(patch).collect();
            let mut values = vec![baseline; patches.len()];
            for patches in patches.chunks(self.copies_at_once(base.len(), base.len())) {
                let judged = self.paths(&mut base, patches, &from.values, &readers, frozen, example.number)?;
                let site = |row: usize| {
                    let number = patches[row].number;
                    format!("with paths from L{}H{} patched", attending[number / heads], number % heads)
                };
                let judged = read_values(judged, example.number, site)?;
                patches.iter().zip(judged).for_each(|(patch, value)| values[patch.number] = value);
                let done = patches.last().map_or(0, |patch| patch.number + 1);
                self.tell(example.number * layers * heads + done, layers * heads * self.examples());
            }
            Ok(Found { baseline, source: from.metric, values })
        })?;
        Ok(PatchingResult::new(
            vec![
                LabeledAxis::new("layer", attending.iter().map(usize::to_string)),
                LabeledAxis::numbered("head", heads),
            ],
            &found,
        ))
    }

    /// The metric of each patch when its change reaches only the readers.
    fn paths(
        &self,
        base: &mut BaseRun,
        patches: &[Patch],
        values: &BTreeMap<PointId, Activation>,
        readers: &[Reader],
        frozen: Freeze,
        example: usize,
    ) -> Result<Tensor<1>> {
        let n_layers = self.model().config().n_layers();
        let layer_of = |patch: &Patch| self.model().catalog().info(patch.point).layer.unwrap_or(0);
        // An MLP reads after its layer's attention has written, so its input is not the stream at the start of a layer.
        let mlps: Vec<(usize, PointId)> = readers
            .iter()
            .filter(|reader| reader.head.is_none())
            .filter_map(|reader| Some((reader.layer?, reader.point?)))
            .collect();
        let frozen: &[(&'static str, bool)] = match frozen {
            Freeze::AttentionAndMlps => &[("hook_attn_out", false), ("hook_mlp_out", true)],
            Freeze::Attention => &[("hook_attn_out", false)],
        };
        let mut streams: BTreeMap<usize, Tensor<3>> = BTreeMap::new();
        let mut batch = GrowingBatch { model: self.model(), base, values, frozen, watch: &mlps };
        let (arrived, at_mlps) = batch.run(patches, &mut |layer, rows| {
            streams.insert(layer, rows.clone());
        })?;
        if readers.iter().all(|reader| reader.layer.is_none()) {
            return judge(&self.metric, self.model(), arrived, base, 0, example);
        }
        let first = readers.iter().filter_map(|reader| reader.layer).min().unwrap_or(0);
        // Rows whose sender has not written yet have the unpatched stream.
        let whole = |rows: Option<&Tensor<3>>, base: &BaseRun, layer: usize| match rows {
            Some(rows) if rows.dims()[0] == patches.len() => rows.clone(),
            Some(rows) => {
                let unpatched = base.stream(layer, 0, patches.len() - rows.dims()[0]);
                Tensor::cat(vec![rows.clone().to_device(&unpatched.device()), unpatched], 0)
            }
            None => base.stream(layer, 0, patches.len()),
        };
        debug_assert!(patches.is_sorted_by_key(layer_of));
        let mut hooks: Vec<Hook<'_>> = Vec::new();
        for reader in readers {
            let (Some(layer), Some(point)) = (reader.layer, reader.point) else { continue };
            let name = self.model().catalog().info(point).name.clone();
            match reader.head {
                Some(head) => {
                    let given = whole(streams.get(&layer), base, layer);
                    hooks.push(at(&*name).edit(move |input: Tensor<4>, _| {
                        let [rows, len, _, d_model] = input.dims();
                        let own: [Range<usize>; 4] = [0..rows, 0..len, head..head + 1, 0..d_model];
                        let given = given.clone().to_device(&input.device());
                        input.slice_assign(own, given.unsqueeze_dim(2))
                    }));
                }
                None => {
                    let Some(rows) = at_mlps.get(&point) else { continue };
                    let rows = rows.clone();
                    hooks.push(at(&*name).edit(move |input: Tensor<3>, _| {
                        let [_, len, d_model] = input.dims();
                        let own: [Range<usize>; 3] = [0..rows.dims()[0], 0..len, 0..d_model];
                        input.slice_assign(own, rows.clone())
                    }));
                }
            }
        }
        // The direct path to the logits is added to the paths through the other receivers.
        let beside = readers.iter().any(|reader| reader.layer.is_none());
        let options = base.options(first..n_layers, 0, patches.len())?;
        let mut last = self.model().forward_with(base.stream(first, 0, patches.len()), options.hooks(hooks))?;
        if beside {
            last = last + (arrived - base.stream_after(patches.len())?);
        }
        judge(&self.metric, self.model(), last, base, 0, example)
    }

    fn reader(&self, receiver: Receiver) -> Result<Reader> {
        let catalog = self.model().catalog();
        let (layer, suffix, head) = match receiver {
            Receiver::Logits => return Ok(Reader { layer: None, point: None, head: None }),
            Receiver::Query(layer, head) => (layer, "hook_q_input", Some(head)),
            Receiver::Key(layer, head) => (layer, "hook_k_input", Some(head)),
            Receiver::Value(layer, head) => (layer, "hook_v_input", Some(head)),
            Receiver::Mlp(layer) => (layer, "hook_mlp_in", None),
        };
        let point = catalog.find(&format!("blocks.{layer}.{suffix}"))?;
        let info = catalog.info(point);
        if let Some(head) = head {
            let config = self.model().config();
            let heads = if info.axes.contains(&Axis::KvHead) {
                config.n_kv_heads_of(info.layer.unwrap_or(0))
            } else {
                config.n_heads()
            };
            if head >= heads {
                let allowed = format!("one of the {heads} heads of `{}`", info.name);
                return Err(InputError::Setting { name: "head", given: head.to_string(), allowed }.into());
            }
        }
        Ok(Reader { layer: info.layer, point: Some(point), head })
    }
}
