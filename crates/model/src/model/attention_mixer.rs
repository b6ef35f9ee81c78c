//! Attention as a token mixer.

use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs};
use super::each_weight::{Weight, linear, norm};
use super::linear::Linear;
use super::mixer::TokenMixer;
use super::pass::Pass;
use crate::config::Layers;
use crate::points::Site;

impl Attention {
    /// Whether the layer computes its own keys and values instead of reusing an earlier layer's.
    fn has_own_keys(&self) -> bool {
        self.k.shape()[1] > 0
    }
}

impl TokenMixer for Attention {
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        match pass.config.reads_keys_of(layer) {
            Some(from) => self.forward_reading(layer, from, inputs, pass, run),
            None => self.forward_owning(layer, inputs, pass, run),
        }
    }

    fn maps(&self) -> Vec<&Linear> {
        let latent = self.latent.iter().flat_map(|latent| latent.maps());
        [&self.q, &self.k, &self.v, &self.o].into_iter().chain(&self.gate).chain(&self.router).chain(latent).collect()
    }

    fn maps_mut(&mut self) -> Vec<&mut Linear> {
        let Self { q, k, v, o, gate, router, latent, .. } = self;
        let latent = latent.iter_mut().flat_map(|latent| latent.maps_mut());
        [q, k, v, o].into_iter().chain(gate).chain(router).chain(latent).collect()
    }

    fn readers_mut(&mut self) -> Vec<&mut Linear> {
        let own_keys = self.has_own_keys();
        let Self { q, k, v, gate, router, latent, .. } = self;
        let mut readers = match latent {
            None if own_keys => vec![q, k, v],
            None => vec![q],
            Some(latent) => vec![&mut latent.kv_down, &mut latent.k_rope, latent.q_down.as_mut().unwrap_or(q)],
        };
        readers.extend(gate.iter_mut().chain(router));
        readers
    }

    fn outputs(&self) -> Vec<(Site, &Linear)> {
        vec![(Site::Z, &self.o)]
    }

    fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.o]
    }

    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
        let name = format!("{block}.attn");
        for (letter, map) in [("Q", &self.q), ("K", &self.k), ("V", &self.v), ("O", &self.o)] {
            if self.has_own_keys() || matches!(letter, "Q" | "O") {
                linear(&name, letter, map, dtype, see);
            }
        }
        self.gate.iter().for_each(|gate| linear(&name, "gate", gate, dtype, see));
        self.router.iter().for_each(|router| linear(&name, "router", router, dtype, see));
        norm(&format!("{name}.q_norm"), self.q_norm.as_ref(), see);
        norm(&format!("{name}.k_norm"), self.k_norm.as_ref(), see);
        if let Some(latent) = &self.latent {
            linear(&name, "KV_down", &latent.kv_down, dtype, see);
            linear(&name, "K_rope", &latent.k_rope, dtype, see);
            latent.q_down.iter().for_each(|down| linear(&name, "Q_down", down, dtype, see));
            norm(&format!("{name}.q_latent_norm"), latent.q_norm.as_ref(), see);
            norm(&format!("{name}.kv_latent_norm"), Some(&latent.kv_norm), see);
        }
        if let Some(sinks) = &self.sinks {
            see(format!("{name}.sinks"), Weight::Vector(sinks.val()));
        }
    }
}
