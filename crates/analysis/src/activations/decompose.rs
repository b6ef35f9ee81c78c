//! Decomposition of the residual stream by layer.

use burn::tensor::Tensor;

use super::analysis::Analysis;
use super::components::Components;
use super::edits::Apart;
use super::post_norm::plus;
use super::stage::{Neurons, Per, ResolvedStage, Stage};
use hooklens_model::config::{Layers, Positional, ResidualScheme, Settings};
use hooklens_model::error::Result;
use hooklens_model::hook;

impl Analysis<'_> {
    /// The residual stream before each layer up to a stage, and at the stage itself. Labels are `0_pre`, `1_pre`, ...;
    /// the last one is, for example, `final_post`, `2_pre` or `2_mid`. With [`Per::Sublayer`], also includes the input
    /// of each MLP: `0_mid`, ...
    ///
    /// Each component is the whole stream so far, so components do not sum to the stream. [`Analysis::apply_ln`]
    /// divides all of them by the scale recorded at the stage; [`Analysis::normalize_each`] computes a separate scale
    /// for each, as in the logit lens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*hook_resid_{pre,mid,post}")?;
    /// let analysis = model.analyze(&cache)?;
    /// let stages = analysis.accumulated_resid(hooklens::activations::Stage::Before(1), Per::Sublayer)?;
    /// assert_eq!(stages.labels(), ["0_pre", "0_mid", "1_pre"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded) unless `*hook_resid_pre`, `*hook_resid_post`
    /// and, with [`Per::Sublayer`], `*hook_resid_mid` were recorded.
    pub fn accumulated_resid(&self, stage: Stage, per: Per) -> Result<Components> {
        let place = self.place(stage)?;
        let config = self.model.config();
        let mids = per == Per::Sublayer && config.residual() != ResidualScheme::Parallel;
        let mut stack = self.no_components(place);
        for layer in 0..place.attn_layers() {
            stack.push(format!("{layer}_pre"), self.stream_at(ResolvedStage { layers: layer, attn: false, ..place })?);
            if mids && layer < place.layers && config.mixes(layer) && config.has_mlp(layer) {
                stack.push(
                    format!("{layer}_mid"),
                    self.stream_at(ResolvedStage { layers: layer, attn: true, ..place })?,
                );
            }
        }
        let last = match stage {
            Stage::Final => "final_post".to_string(),
            _ if place.attn => format!("{}_mid", place.layers),
            _ => format!("{}_pre", place.layers),
        };
        stack.push(last, self.stream_at(place)?);
        Ok(stack)
    }

    /// The summands of the residual stream at a stage: `embed`, `pos_embed` if the model adds it to the stream, and the
    /// outputs of each layer: `0_attn_out`, `0_mlp_out`, ...
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let parts = model.analyze(&cache)?.decompose_resid(hooklens::activations::Stage::BeforeMlp(1))?;
    /// assert_eq!(parts.labels(), ["embed", "pos_embed", "0_attn_out", "0_mlp_out", "1_attn_out"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded) unless `hook_embed`, `hook_pos_embed`,
    /// `*hook_attn_out` and `*hook_mlp_out` were recorded.
    pub fn decompose_resid(&self, stage: Stage) -> Result<Components> {
        let place = self.place(stage)?;
        let config = self.model.config();
        let mut parts = self.no_components(place);
        self.push_embeddings(&mut parts)?;
        for layer in 0..place.attn_layers() {
            if config.mixes(layer) {
                parts.push(
                    format!("{layer}_attn_out"),
                    self.arrived(layer, place, self.recorded(hook::attn_out(layer))?),
                );
            }
            if layer < place.layers && config.has_mlp(layer) {
                parts
                    .push(format!("{layer}_mlp_out"), self.arrived(layer, place, self.recorded(hook::mlp_out(layer))?));
            }
            self.push_per_layer(layer, &mut parts)?;
        }
        self.push_added(Apart::Layers, &mut parts)?;
        Ok(parts)
    }

    /// The finest decomposition of the residual stream at a stage, in TransformerLens's order. The heads (`L0H0`) come
    /// first. With [`Neurons::Apart`], the neurons follow (`L0N0`, or `L0E1N0` in a mixture of experts); with
    /// [`Neurons::Summed`], the MLPs (`0_mlp_out`). The last components are `embed`, `pos_embed` and `bias`.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let analysis = model.analyze(&cache)?;
    /// let parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Apart)?;
    /// assert_eq!(parts.labels().len(), 4 * 4 + 4 * 256 + 3); // heads, neurons, embed, pos_embed, bias
    /// let gap = parts.sum() - analysis.stream(Stage::Final)?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Analysis::decompose_resid`], [`Analysis::stack_head_results`] and [`Analysis::stack_neuron_results`].
    pub fn full_resid_decomposition(&self, stage: Stage, neurons: Neurons) -> Result<Components> {
        let mut parts = self.written_to(stage, neurons)?;
        let apart = if neurons == Neurons::Apart { Apart::HeadsAndNeurons } else { Apart::Heads };
        self.push_added(apart, &mut parts)?;
        Ok(parts)
    }

    /// What the model's own components wrote to the stream, excluding what hooks added to it.
    pub(crate) fn written_to(&self, stage: Stage, neurons: Neurons) -> Result<Components> {
        let place = self.place(stage)?;
        let mut parts = self.no_components(place);
        let mut bias: Option<Tensor<3>> = None;
        for layer in 0..place.attn_layers() {
            let own = self.push_heads(layer, &mut parts)?;
            bias = plus(bias, own.map(|own| self.arrived(layer, place, own)));
        }
        for layer in self.model.config().mlp_layers().take_while(|layer| *layer < place.layers) {
            if neurons == Neurons::Apart {
                let own = self.push_neurons(layer, None, &mut parts)?;
                bias = plus(bias, own.map(|own| self.arrived(layer, place, own)));
            } else {
                parts
                    .push(format!("{layer}_mlp_out"), self.arrived(layer, place, self.recorded(hook::mlp_out(layer))?));
            }
            self.push_per_layer(layer, &mut parts)?;
        }
        self.push_embeddings(&mut parts)?;
        // The bias is expanded to the shape of the other components, although it is usually constant. It is zero if
        // no part has a bias.
        let [batch, pos, d_model] = parts.shape();
        let bias = match bias {
            Some(bias) => bias.expand([batch, pos, d_model]),
            None => self.recorded(hook::embed())?.zeros_like(),
        };
        parts.push("bias", bias);
        Ok(parts)
    }

    /// Adds what layer `layer` computes from its per-layer input, if the model has per-layer inputs and the layer comes
    /// before the components' stage.
    fn push_per_layer(&self, layer: usize, parts: &mut Components) -> Result<()> {
        let place = parts.place;
        if self.model.config().per_layer_inputs().is_some() && layer < place.layers {
            let out = self.recorded(hook::per_layer_out(layer))?;
            parts.push(format!("{layer}_per_layer_out"), self.arrived(layer, place, out));
        }
        Ok(())
    }

    fn push_embeddings(&self, parts: &mut Components) -> Result<()> {
        let place = parts.place;
        parts.push("embed", self.arrived(0, place, self.recorded(hook::embed())?));
        // Shortformer position embeddings are added to queries and keys, never to the stream.
        if *self.model.config().positional() == Positional::Learned {
            parts.push("pos_embed", self.arrived(0, place, self.recorded(hook::pos_embed())?));
        }
        Ok(())
    }
}
