//! Attribution patching (Nanda 2023) of activations.

use std::collections::BTreeMap;

use hooklens_hooks::{HookError, PointId, Selection};
use ndarray::ArrayD;

use crate::patching::{Backward, Example, Found, Layout, Patchable, Patching, PatchingResult, Sites, points_of};
use hooklens_model::driver::{ForwardOptions, RunOutput};
use hooklens_model::error::Result;
use hooklens_model::hook::Axis;
use hooklens_model::model::HookedTransformer;

/// Name of the point after the embedding.
const EMBED: &str = "hook_embed";

/// Estimates the results of any number of sweeps from the activations of both runs and the gradients in the unpatched
/// run (attribution patching, Nanda 2023).
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
/// let attribution = patching.attribution(["*hook_z", "*hook_mlp_out"])?; // three passes, any number of sweeps
/// let guess = attribution.attn_head_out_all_pos()?.effect();
/// let real = patching.attn_head_out_all_pos()?.effect();
/// assert_eq!(guess.largest(1)[0].0, real.largest(1)[0].0); // the same head matters most
/// # Ok::<(), hooklens::Error>(())
/// ```
pub struct Attribution<'m, M: Patchable = HookedTransformer> {
    model: &'m M,
    backward: Backward,
    examples: Vec<Slopes<M::Prompt>>,
}

/// Elementwise estimates of one example, before they are summed per site.
struct Slopes<P> {
    prompt: P,
    /// Activation difference times gradient, per point and backward pass.
    shares: BTreeMap<PointId, Vec<ArrayD<f64>>>,
    baseline: f64,
    source: Option<f64>,
}

impl<'m, M: Patchable> Patching<'m, M> {
    /// Estimates the effects of all patches at these points. Takes one source run, one unpatched run and one backward
    /// pass per example, for any number of points.
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
    /// let attribution = patching.attribution("*hook_resid_pre")?;
    /// assert_eq!(attribution.resid_pre()?.mean().values().shape(), [4, 15]);
    /// assert!(attribution.mlp_out().is_err()); // not among the selected points
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for unknown points, for points or prompts that cannot be patched
    /// ([`PatchError`](crate::patching::PatchError)), and if a run fails.
    pub fn attribution(&self, points: impl Into<Selection>) -> Result<Attribution<'m, M>> {
        let points = points.into();
        let catalog = self.model().catalog();
        let ids: Vec<PointId> = points_of(&Sites::new(points.clone()), catalog)?;
        self.backward.check_points(catalog, &ids)?;
        let backward = self.backward;
        let slopes = |example: Example<'_, M>| {
            let mut names: Vec<&str> = ids.iter().map(|id| &*catalog.info(*id).name).collect();
            if backward != Backward::Gradient && !names.contains(&EMBED) {
                // If some gradients are cut, the metric may depend on none of the points, but it always depends on the
                // embedding.
                names.push(EMBED);
            }
            let mut shares: BTreeMap<PointId, Vec<ArrayD<f64>>> = BTreeMap::new();
            let (mut baseline, mut source) = (f64::NAN, None);
            for pass in backward.passes(catalog) {
                let options = ForwardOptions::new().record(names.as_slice()).hooks(pass.hooks(catalog));
                let (mut output, metric) = example.with_gradients(options)?;
                let cache = output.cache();
                let patched = match source.take() {
                    Some(known) => known,
                    None => example.source(cache, &ids)?,
                };
                for id in &ids {
                    let name = &*catalog.info(*id).name;
                    let held = cache.activation(name)?.to_ndarray()?;
                    let gradient = match pass.is_cut_at(name) {
                        true => ArrayD::zeros(held.raw_dim()),
                        false => cache.activation(format!("{name}_grad"))?.to_ndarray()?,
                    };
                    shares.entry(*id).or_default().push(products(&held, &patched.values[id].to_ndarray()?, &gradient));
                }
                (baseline, source) = (metric, Some(patched));
            }
            let source = source.and_then(|known| known.metric);
            Ok(Slopes { prompt: example.prompt.clone(), shares, baseline, source })
        };
        Ok(Attribution { model: self.model(), backward, examples: self.each_example(&ids, slopes)? })
    }
}

impl<M: Patchable> std::fmt::Debug for Attribution<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attribution({} examples)", self.examples.len())
    }
}

/// Elementwise `(patched - base) * gradient`; 0 where the activations are equal, so that `-inf - -inf` does not give
/// NaN.
fn products(held: &ArrayD<f32>, patched: &ArrayD<f32>, gradient: &ArrayD<f32>) -> ArrayD<f64> {
    let share = |held: &f32, patched: &f32, gradient: &f32| {
        if held == patched { 0.0 } else { (f64::from(*patched) - f64::from(*held)) * f64::from(*gradient) }
    };
    ndarray::Zip::from(held).and(patched).and(gradient).map_collect(share)
}

/// Sums over all axes but the swept ones.
fn summed(shares: &ArrayD<f64>, swept: &[usize]) -> Vec<f64> {
    let rest = (0..shares.ndim()).rev().filter(|axis| !swept.contains(axis));
    rest.fold(shares.clone(), |sum, axis| sum.sum_axis(ndarray::Axis(axis))).iter().copied().collect()
}

impl<M: Patchable> Attribution<'_, M> {
    /// Estimates the metric with each of these sites patched, one at a time. The result has the same shape and labels
    /// as a result of [`Patching::sweep`], so their [`PatchingResult::effect`] and [`PatchingResult::normalized`]
    /// values can be compared.
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
    /// let attribution = patching.attribution("*hook_q")?;
    /// let queries = attribution.sweep(&Sites::new("*hook_q").per([Axis::Pos, Axis::Head]))?;
    /// assert_eq!(queries.mean().values().shape(), [4, 15, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotRecorded`](hooklens_hooks::HookError::NotRecorded) for a point that the attribution was not
    /// computed for; otherwise, same as [`Patching::sweep`].
    pub fn sweep(&self, sites: &Sites) -> Result<PatchingResult> {
        let catalog = self.model.catalog();
        let points = sites.resolve(catalog)?;
        let prompts: Vec<&M::Prompt> = self.examples.iter().map(|slopes| &slopes.prompt).collect();
        let mut layout: Option<Layout> = None;
        let mut found = Vec::new();
        for (number, slopes) in self.examples.iter().enumerate() {
            let of = |id: PointId| {
                let name = || catalog.info(id).name.to_string();
                let missing = || HookError::NotRecorded { name: name(), held: slopes.shares.len(), nearest: vec![] };
                slopes.shares.get(&id).ok_or_else(missing)
            };
            let shape_of = |id: PointId| Ok(of(id)?.first().map(|own| own.shape().to_vec()).unwrap_or_default());
            match &layout {
                Some(layout) => layout.check(number, &points, &shape_of)?,
                None => layout = Some(Layout::new(self.model, &points, &prompts, &shape_of)?),
            }
            let mut values = Vec::new();
            for (id, swept) in &points {
                let by_pass: Vec<Vec<f64>> = of(*id)?.iter().map(|shares| summed(shares, swept)).collect();
                values.extend(self.backward.combined(&by_pass).iter().map(|effect| slopes.baseline + effect));
            }
            found.push(Found { baseline: slopes.baseline, source: slopes.source, values });
        }
        Ok(PatchingResult::new(layout.map(|layout| layout.axes).unwrap_or_default(), &found))
    }
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident $points:literal [$($axis:ident),*];)*) => { $(
        $(#[$doc])*
        ///
        /// ```
        /// # use hooklens::{hook::Axis, patching::{Metric, Patching, Sites}, prelude::*};
        /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
        /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
        /// # let patching = Patching::new(&model, "When Mary and", "When John and", metric)?;
        #[doc = concat!("let attribution = patching.attribution(\"", $points, "\")?;")]
        #[doc = concat!("let named = attribution.", stringify!($name), "()?;")]
        #[doc = concat!("let sites = Sites::new(\"", $points, "\");")]
        #[doc = concat!("let sites = sites.per([", $("Axis::", stringify!($axis), ", ",)* "]);")]
        #[doc = "assert_eq!(named, attribution.sweep(&sites)?);"]
        /// # Ok::<(), hooklens::Error>(())
        /// ```
        ///
        /// # Errors
        /// Same as [`Attribution::sweep`].
        pub fn $name(&self) -> Result<PatchingResult> {
            self.sweep(&Sites::new($points).per([$(Axis::$axis),*]))
        }
    )* };
}

impl<M: Patchable> Attribution<'_, M> {
    named! {
        /// The residual stream before each layer, `[layer, pos]`.
        resid_pre "blocks.*.hook_resid_pre" [Pos];
        /// Attention output, `[layer, pos]`.
        attn_out "blocks.*.hook_attn_out" [Pos];
        /// MLP output, `[layer, pos]`.
        mlp_out "blocks.*.hook_mlp_out" [Pos];
        /// Each head's output at all positions, `[layer, head]`.
        attn_head_out_all_pos "blocks.*.attn.hook_z" [Head];
        /// Each head's output at each position, `[layer, pos, head]`.
        attn_head_out_by_pos "blocks.*.attn.hook_z" [Pos, Head];
        /// Each neuron's activation at all positions, `[layer, d_mlp]`.
        neurons_all_pos "blocks.*.mlp.hook_post" [DMlp];
    }
}
