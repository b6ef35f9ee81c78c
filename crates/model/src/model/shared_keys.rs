//! Attention layers that reuse the keys and values of an earlier layer.

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs, ProjectionInput, by_head};
use super::pass::Pass;
use crate::config::Layers;
use crate::error::InputError;
use crate::kv_cache::{KeyBlock, Keys};
use crate::points::Site;

impl Pass<'_> {
    /// Keeps a layer's keys and values if a later layer reuses them.
    pub(crate) fn keep_keys(&mut self, layer: usize, keys: &Keys) {
        if self.config.attending().any(|later| self.config.reads_keys_of(later) == Some(layer)) {
            self.shared_keys.push((layer, keys.clone()));
        }
    }

    /// Keys and values of layer `from`, moved to the current device.
    fn keys_of(&self, from: usize, layer: usize) -> Result<Keys, InputError> {
        let kept = self.shared_keys.iter().find(|(of, _)| *of == from);
        let keys = kept.map(|(_, keys)| keys).ok_or(InputError::KeysOfEarlierLayer { layer, from })?;
        Ok(on_device(keys, self.device()))
    }
}

impl Attention {
    /// Computes the attention output of a layer that has only queries and reads the keys and values of layer `from`.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_model]`
    pub(super) fn forward_reading(
        &self,
        layer: usize,
        from: usize,
        reads: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let config = pass.config;
        let at = |site| pass.points.at(layer, site);
        let heads = config.n_heads;
        let gate = self.gated_by(layer, &reads, pass, run)?;
        let mut q = match reads {
            AttentionInputs::One(stream) => by_head(self.q.forward(*stream), heads),
            AttentionInputs::Each { streams, .. } => {
                let [q, ..]: [ProjectionInput; 3] = *streams;
                q.project(&self.q, heads)
            }
        };
        let norm_first = config.qk_norm.is_some_and(|norm| !norm.after_rotation);
        let clipped = |q: Tensor<4>| match config.qkv_clip {
            Some(clip) => q.clamp(-clip, clip),
            None => q,
        };
        if !norm_first {
            q = clipped(q);
        }
        q = run.fire(at(Site::Q), q)?;
        if norm_first {
            q = clipped(self.normed_queries(layer, q, pass, run)?);
        }
        let rotation = pass.rotary(layer);
        if let Some(table) = rotation {
            q = table.rotate(q);
        }
        let rotates = rotation.is_some();
        if !norm_first {
            q = self.normed_queries(layer, q, pass, run)?;
        }
        q = pass.grown(layer, q);
        if rotates {
            q = run.fire(at(Site::RotQ), q)?;
        }
        let keys = pass.keys_of(from, layer)?;
        if let Some(cache) = &mut pass.kv_cache {
            let [batch, count, ..] = q.dims();
            cache.pass_over(layer, [batch, count])?;
        }
        self.attend(layer, (q, gate), keys, pass, run)
    }
}

fn on_device(keys: &Keys, device: &Device) -> Keys {
    let here = |tensor: &Tensor<4>| match tensor.device() == *device {
        true => tensor.clone(),
        false => tensor.clone().to_device(device),
    };
    let block =
        |block: &KeyBlock| KeyBlock { keys: here(&block.keys), values: here(&block.values), rows: block.rows.clone() };
    Keys { blocks: keys.blocks.iter().map(block).collect(), dropped: keys.dropped }
}
