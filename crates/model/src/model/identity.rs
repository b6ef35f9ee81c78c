//! Identity of a model's weights, computed without reading all of them. Shows whether caches and recordings come from
//! the same weights.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use hooklens_hooks::ModelIdentity;
use xxhash_rust::xxh3::Xxh3;

use super::hashed::{Extent, Hashed};
use crate::cpu::{self, Depth};
use crate::error::Result;

/// Weights with at most this many elements are hashed completely.
const SMALL: usize = 1 << 20;
/// Number of identities to remember, for weights that are swapped back and forth.
const REMEMBERED: usize = 8;

/// Models with an identity, which shows whether caches and recordings come from the same weights.
pub trait Identified {
    /// Identity of the current weights, which is stored in caches and recordings.
    fn identity(&self) -> Arc<ModelIdentity>;
}

/// Identities known to a model and its clones.
#[derive(Debug)]
pub(crate) struct Identities {
    /// Hash of the addresses of the weights that the model was created with.
    made_with: u64,
    known: Mutex<Vec<(u64, Arc<ModelIdentity>)>>,
}

impl Identities {
    /// Creates the identities of a new model with these weights.
    pub(crate) fn of(weights: &impl Module) -> Arc<Self> {
        Arc::new(Self { made_with: Glance::at(weights, Depth::Address).hash, known: Mutex::new(Vec::new()) })
    }

    /// Whether the weights are still at the addresses they had when the model was created.
    pub(crate) fn are_as_made(&self, weights: &impl Module) -> bool {
        Glance::at(weights, Depth::Address).hash == self.made_with
    }

    /// Creates the identities of a model whose weights hooklens has converted to `after`. `as_made` states whether the
    /// weights were unedited before the conversion.
    pub(crate) fn converted(&self, as_made: bool, after: &impl Module) -> Arc<Self> {
        let made_with = if as_made { Glance::at(after, Depth::Address).hash } else { self.made_with };
        Arc::new(Self { made_with, known: Mutex::new(Vec::new()) })
    }

    /// The identity of the current weights.
    ///
    /// Memory addresses and a few values show whether the weights have changed; on a GPU, where reading values would
    /// block, only the parameter ids are used. The contents are hashed once: completely if they are small, or by
    /// sampling if they are unchanged since the model was created. A model whose large weights were edited later is
    /// identical only to itself.
    pub(crate) fn identity(
        &self,
        weights: &impl Module,
        label: &str,
        content: impl FnOnce(Hashed) -> Result<String>,
    ) -> Arc<ModelIdentity> {
        let glance = Glance::at(weights, Depth::Values);
        let find = |known: &Vec<(u64, Arc<ModelIdentity>)>| {
            known.iter().find(|(hash, _)| *hash == glance.hash).map(|(_, identity)| identity.clone())
        };
        if let Some(identity) = find(&self.known.lock().unwrap_or_else(PoisonError::into_inner)) {
            return identity;
        }
        let extent = match glance.elements {
            ..=SMALL => Some(Extent::Whole),
            _ => self.are_as_made(weights).then_some(Extent::Samples),
        };
        // Don't hold the lock: hashing runs on shared threads, which may run this model themselves.
        let content = extent.and_then(|extent| content(Hashed::new(extent)).ok());
        let described = match &content {
            Some(hash) => format!("{label}, fingerprint {}", &hash[..8.min(hash.len())]),
            None => format!("{label}, edited"),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = find(&known) {
            return identity;
        }
        let identity = Arc::new(ModelIdentity::new(described, content));
        if known.len() == REMEMBERED {
            known.remove(0);
        }
        known.push((glance.hash, identity.clone()));
        identity
    }
}

/// A quick look at every weight: its address and some of its values.
#[derive(Default)]
struct Glance {
    hash: u64,
    elements: usize,
}

impl Glance {
    fn at(weights: &impl Module, depth: Depth) -> Self {
        let mut look = Look { hash: Xxh3::new(), elements: 0, depth };
        weights.visit(&mut look);
        Self { hash: look.hash.digest(), elements: look.elements }
    }
}

struct Look {
    hash: Xxh3,
    elements: usize,
    depth: Depth,
}

impl ModuleVisitor for Look {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.elements += param.lazy_shape().iter().product::<usize>();
        self.hash.write_u64(param.id.val());
        // Don't dequantize weights that are still in blocks.
        if !param.is_initialized() {
            return;
        }
        let tensor = param.val().without_autodiff();
        self.hash.write_usize(tensor.dims().iter().product());
        cpu::glance(tensor, self.depth, &mut self.hash);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::linear::Linear;
    use super::*;

    #[test]
    fn edits_are_seen_wherever_they_are() {
        let weight = Tensor::<2>::ones([40, 50], &Device::flex());
        let map = Linear::new(weight.clone(), None);
        let ids = Identities::of(&map);
        let content = |hashed: Hashed| hashed.finish(b"");
        let first = ids.identity(&map, "a", content);
        assert!(Arc::ptr_eq(&first, &ids.identity(&map.clone(), "a", content)));
        let other = Linear { weight: Param::initialized(map.weight.id, weight.slice_fill([3..4, 4..5], 7.0)), ..map };
        assert!(!Arc::ptr_eq(&first, &ids.identity(&other, "a", content)));
    }
}
