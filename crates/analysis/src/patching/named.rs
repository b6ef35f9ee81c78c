//! Common sweeps, with TransformerLens's names.

use hooklens_hooks::Axis;
use ndarray::{Axis as Along, concatenate};

use super::model::Patchable;
use super::result::PatchingResult;
use super::sites::Sites;
use super::sweep::Patching;
use crate::labeled::{LabeledAxis, matching};
use hooklens_model::error::Result;

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident $points:literal [$($axis:ident),*];)*) => { $(
        $(#[$doc])*
        ///
        /// ```
        /// # use hooklens::{hook::Axis, patching::{Metric, Patching, Sites}, prelude::*};
        /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
        /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
        /// # let patching = Patching::new(&model, "When Mary and", "When John and", metric)?;
        #[doc = concat!("let named = patching.", stringify!($name), "()?;")]
        #[doc = concat!("let sites = Sites::new(\"", $points, "\");")]
        #[doc = concat!("let sites = sites.per([", $("Axis::", stringify!($axis), ", ",)* "]);")]
        #[doc = "assert_eq!(named, patching.sweep(&sites)?);"]
        /// # Ok::<(), hooklens::Error>(())
        /// ```
        ///
        /// # Errors
        /// Same as [`Patching::sweep`].
        pub fn $name(&self) -> Result<PatchingResult> {
            self.sweep(&Sites::new($points).per([$(Axis::$axis),*]))
        }
    )* };
}

impl<M: Patchable> Patching<'_, M> {
    named! {
        /// Patches the residual stream before each layer, `[layer, pos]`.
        resid_pre "blocks.*.hook_resid_pre" [Pos];
        /// Patches the residual stream between attention and MLP, `[layer, pos]`.
        resid_mid "blocks.*.hook_resid_mid" [Pos];
        /// Patches each layer's attention output, `[layer, pos]`.
        attn_out "blocks.*.hook_attn_out" [Pos];
        /// Patches each layer's MLP output, `[layer, pos]`.
        mlp_out "blocks.*.hook_mlp_out" [Pos];
        /// Patches each head's output at each position, `[layer, pos, head]`.
        attn_head_out_by_pos "blocks.*.attn.hook_z" [Pos, Head];
        /// Patches each head's query at each position, `[layer, pos, head]`.
        attn_head_q_by_pos "blocks.*.attn.hook_q" [Pos, Head];
        /// Patches each key/value head's key at each position, `[layer, pos, kv_head]`.
        attn_head_k_by_pos "blocks.*.attn.hook_k" [Pos, Head];
        /// Patches each key/value head's value at each position, `[layer, pos, kv_head]`.
        attn_head_v_by_pos "blocks.*.attn.hook_v" [Pos, Head];
        /// Patches each head's attention pattern at each query position, `[layer, head, dest_pos]`.
        attn_head_pattern_by_pos "blocks.*.attn.hook_pattern" [Head, Query];
        /// Patches each entry of each head's attention pattern, `[layer, head, dest_pos, src_pos]`.
        attn_head_pattern_dest_src_pos "blocks.*.attn.hook_pattern" [Head, Query, Key];
        /// Patches each head's output at all positions, `[layer, head]`.
        attn_head_out_all_pos "blocks.*.attn.hook_z" [Head];
        /// Patches each head's queries at all positions, `[layer, head]`.
        attn_head_q_all_pos "blocks.*.attn.hook_q" [Head];
        /// Patches each key/value head's keys at all positions, `[layer, kv_head]`.
        attn_head_k_all_pos "blocks.*.attn.hook_k" [Head];
        /// Patches each key/value head's values at all positions, `[layer, kv_head]`.
        attn_head_v_all_pos "blocks.*.attn.hook_v" [Head];
        /// Patches each head's whole attention pattern, `[layer, head]`.
        attn_head_pattern_all_pos "blocks.*.attn.hook_pattern" [Head];
        /// Patches each neuron's activation at all positions, `[layer, d_mlp]`.
        neurons_all_pos "blocks.*.mlp.hook_post" [DMlp];
    }

    /// Patches the output, queries, keys, values and pattern of each head at all positions,
    /// `[activation, layer, head]`. Requires a model without grouped-query attention.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let every = Patching::new(&model, "When Mary", "When John", metric)?.attn_head_all_pos_every()?.mean();
    /// assert_eq!(every.axes()[0].labels, ["out", "q", "k", "v", "pattern"]);
    /// assert_eq!(every.values().shape(), [5, 4, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::sweep`]; [`PatchError::Shapes`](super::PatchError::Shapes) for grouped-query attention.
    pub fn attn_head_all_pos_every(&self) -> Result<PatchingResult> {
        stacked(vec![
            ("out", self.attn_head_out_all_pos()?),
            ("q", self.attn_head_q_all_pos()?),
            ("k", self.attn_head_k_all_pos()?),
            ("v", self.attn_head_v_all_pos()?),
            ("pattern", self.attn_head_pattern_all_pos()?),
        ])
    }

    /// Patches the output, queries, keys, values and pattern of each head at each position,
    /// `[activation, layer, pos, head]`.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let every = Patching::new(&model, "When Mary", "When John", metric)?.attn_head_by_pos_every()?.mean();
    /// assert_eq!(every.values().shape(), [5, 4, 3, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::attn_head_all_pos_every`].
    pub fn attn_head_by_pos_every(&self) -> Result<PatchingResult> {
        let mut pattern = self.attn_head_pattern_by_pos()?;
        let out = self.attn_head_out_by_pos()?;
        // Patterns have the head axis before the position axis; the other sweeps have it after.
        let turned = pattern.values.values().clone().permuted_axes(ndarray::IxDyn(&[0, 2, 1, 3]));
        pattern.values = matching(out.values.axes().to_vec(), turned);
        stacked(vec![
            ("out", out),
            ("q", self.attn_head_q_by_pos()?),
            ("k", self.attn_head_k_by_pos()?),
            ("v", self.attn_head_v_by_pos()?),
            ("pattern", pattern),
        ])
    }

    /// Patches the residual stream before each layer, the attention output and the MLP output, at each position,
    /// `[activation, layer, pos]`.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let every = Patching::new(&model, "When Mary", "When John", metric)?.block_every()?.mean();
    /// assert_eq!(every.axes()[0].labels, ["resid_pre", "attn_out", "mlp_out"]);
    /// assert_eq!(every.values().shape(), [3, 4, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::sweep`].
    pub fn block_every(&self) -> Result<PatchingResult> {
        stacked(vec![("resid_pre", self.resid_pre()?), ("attn_out", self.attn_out()?), ("mlp_out", self.mlp_out()?)])
    }
}

/// Stacks sweeps of the same shape along a new first axis.
fn stacked(sweeps: Vec<(&str, PatchingResult)>) -> Result<PatchingResult> {
    let first = &sweeps[0].1;
    let names = LabeledAxis::new("activation", sweeps.iter().map(|(name, _)| *name));
    let views: Vec<_> = sweeps.iter().map(|(_, sweep)| sweep.values.values().view().insert_axis(Along(0))).collect();
    let values = concatenate(Along(0), &views).map_err(|_| {
        let differs = sweeps.iter().find(|(_, sweep)| sweep.values.values().shape() != first.values.values().shape());
        let sites = |sweep: &PatchingResult| sweep.values.values().len();
        let (point, given) = differs.map_or((String::new(), 0), |(name, sweep)| (name.to_string(), sites(sweep)));
        super::PatchError::Shapes { first: sweeps[0].0.into(), expected: sites(first), point, given }
    })?;
    let axes = [&[names], first.values.axes()].concat();
    let (baseline, source) = (first.baseline.clone(), first.source.clone());
    Ok(PatchingResult { values: matching(axes, values), baseline, source })
}
