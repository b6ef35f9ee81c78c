//! State shared by all layers of one forward pass.

use burn::tensor::{DType, Device, Tensor, TensorData};
use hooklens_hooks::upload;

use super::alibi::scaled_biases;
use super::disentangled::Disentangled;
use super::norm::{narrowed, widened};
use super::rotary::RotaryTable;
use super::sequence::{Masks, Sequence};
use crate::config::{Layers, Positional, Rotary, TransformerConfig};
use crate::error::InputError;
use crate::kv_cache::{KeyValueCache, Keys};
use crate::points::Stack;

/// Shared state of one forward pass: the layout of the batch and values derived from it.
#[derive(Debug)]
pub(crate) struct Pass<'p> {
    pub(crate) config: &'p TransformerConfig,
    pub(crate) points: &'p Stack,
    pub(crate) sequence: &'p Sequence,
    pub(crate) masks: Masks<'p>,
    device: Device,
    dtype: DType,
    /// Rotary tables of the run's queries and keys. Cached keys are already rotated.
    rotary: Vec<(&'p Rotary, RotaryTable)>,
    /// Position-dependent scale of the run's queries, `[batch or 1, pos, 1, 1]`; `None` if the scale is 1 everywhere.
    pub(crate) growth: Option<Tensor<4>>,
    /// Cached keys and values from earlier runs.
    pub(crate) kv_cache: Option<&'p mut KeyValueCache>,
    /// Bias added to every layer's scores, `[batch or 1, head, query or 1, key]` (T5, Falcon).
    pub(crate) score_bias: Option<Tensor<4>>,
    /// Relative positions from which a layer's score bias is computed (DeBERTa).
    pub(crate) disentangled: Option<Disentangled>,
    /// Position embeddings added to the input of queries and keys, `[batch or 1, pos, d_model]`.
    pub(crate) shortformer: Option<Tensor<3>>,
    /// Keys and values that later layers reuse, each with the layer they belong to.
    pub(super) shared_keys: Vec<(usize, Keys)>,
    /// Per-layer inputs, `[batch, pos, layer, width]`.
    pub(crate) per_layer_inputs: Option<Tensor<4>>,
}

impl<'p> Pass<'p> {
    pub(crate) fn new(
        config: &'p TransformerConfig,
        points: &'p Stack,
        sequence: &'p Sequence,
        kv_cache: Option<&'p mut KeyValueCache>,
        device: &Device,
        dtype: DType,
    ) -> Self {
        let masks = Masks::new(sequence, config.bidirectional, device);
        let mut pass = Self {
            config,
            points,
            sequence,
            masks,
            device: device.clone(),
            dtype,
            rotary: Vec::new(),
            growth: None,
            kv_cache,
            score_bias: None,
            disentangled: None,
            shortformer: None,
            shared_keys: Vec::new(),
            per_layer_inputs: None,
        };
        pass.make_rotary();
        if config.positional == Positional::ScaledAlibi {
            // All layers share one divisor: models with this bias don't scale by layer index.
            let (positions, rows) = (sequence.key_positions(), sequence.position_rows());
            let dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
            let biases = scaled_biases(config.n_heads, config.attn_scale, (&positions, rows), (device, dtype));
            pass.score_bias = Some(biases);
        }
        pass
    }

    fn make_rotary(&mut self) {
        self.rotary.clear();
        self.growth = self.config.query_growth.and_then(|growth| {
            let (positions, rows) = (self.sequence.query_positions(), self.sequence.position_rows());
            let factors: Vec<f64> = positions.iter().map(|position| growth.factor(*position)).collect();
            let dtype = if self.dtype == DType::F64 { self.dtype } else { DType::F32 };
            let shape = [rows, positions.len() / rows, 1, 1];
            let all_one = factors.iter().all(|factor| *factor == 1.0);
            (!all_one).then(|| upload(TensorData::new(factors, shape), (&self.device, dtype)))
        });
        for own in (0..self.config.n_layers()).filter_map(|layer| self.config.rotary(layer)) {
            if !self.rotary.iter().any(|(made, _)| *made == own) {
                let (positions, rows) = (self.sequence.query_positions(), self.sequence.position_rows());
                self.rotary.push((own, RotaryTable::new(own, &positions, rows, &self.device, self.dtype)));
            }
        }
    }

    /// Moves the residual stream and the state shared by all layers to the device of the next layers.
    pub(crate) fn enter(&mut self, device: &Device, resid: Tensor<3>) -> Tensor<3> {
        if self.device == *device {
            return resid;
        }
        self.device = device.clone();
        self.masks = Masks::new(self.sequence, self.config.bidirectional, device);
        self.make_rotary();
        self.score_bias = self.score_bias.take().map(|bias| bias.to_device(device));
        self.shortformer = self.shortformer.take().map(|positions| positions.to_device(device));
        self.per_layer_inputs = self.per_layer_inputs.take().map(|inputs| inputs.to_device(device));
        resid.to_device(device)
    }

    /// Device of the layers that are running now.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// A layer's per-layer input, `[batch, pos, width]`.
    pub(super) fn per_layer_input(&self, layer: usize) -> Result<Tensor<3>, InputError> {
        let what = "a run of a model with per-layer inputs";
        let all = self.per_layer_inputs.as_ref().ok_or(InputError::Needs { what, needs: "the tokens" })?;
        Ok(all.clone().narrow(2, layer, 1).squeeze_dim(2))
    }

    /// Applies a layer's position-dependent query scaling.
    pub(super) fn grown(&self, layer: usize, q: Tensor<4>) -> Tensor<4> {
        let Some(growth) = self.growth.as_ref().filter(|_| self.config.query_growth_of(layer).is_some()) else {
            return q;
        };
        let dtype = q.dtype();
        narrowed(widened(q) * growth.clone(), dtype)
    }

    /// Rotary table of a layer, if it has rotary embeddings.
    pub(crate) fn rotary(&self, layer: usize) -> Option<&RotaryTable> {
        let own = self.config.rotary(layer)?;
        self.rotary.iter().find(|(made, _)| *made == own).map(|(_, table)| table)
    }
}
