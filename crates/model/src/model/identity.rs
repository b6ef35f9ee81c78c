//! The identity of a model's weights, found without reading them all. Caches and recordings are compared by it.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use hooklens_hooks::ModelIdentity;
use xxhash_rust::xxh3::Xxh3;

use super::hashed::{Extent, Hashed};
use crate::cpu::{self, Depth};
use crate::error::Result;

/// Weights with at most this many elements are hashed whole.
const SMALL: usize = 1 << 20;
/// Number of identities remembered, for weights that are exchanged back and forth.
const REMEMBERED: usize = 8;

/// What a model and its clones remember of their identity.
#[derive(Debug)]
pub(crate) struct Identities {
    /// The weights that the model was made with, by their addresses.
    made_with: u64,
    known: Mutex<Vec<(u64, Arc<ModelIdentity>)>>,
}

impl Identities {
    /// For a model that is made with these weights.
    pub(crate) fn of(weights: &impl Module) -> Arc<Self> {
        Arc::new(Self { made_with: Glance::at(weights, Depth::Address).hash, known: Mutex::new(Vec::new()) })
    }

    /// Whether the weights have the addresses that they had when the model was made.
    pub(crate) fn are_as_made(&self, weights: &impl Module) -> bool {
        Glance::at(weights, Depth::Address).hash == self.made_with
    }

    /// For a model whose weights hooklens itself converted; `as_made` says whether nobody had edited them before.
    pub(crate) fn converted(&self, as_made: bool, after: &impl Module) -> Arc<Self> {
        let made_with = if as_made { Glance::at(after, Depth::Address).hash } else { self.made_with };
        Arc::new(Self { made_with, known: Mutex::new(Vec::new()) })
    }

    /// The identity of the weights as they are now.
    ///
    /// Memory addresses and a few values tell whether they are still the same; on a GPU, where looking would take a read,
    /// the parameters' numbers alone. The contents are hashed once: whole if
    /// there are few, and in samples if the model was made with them. Large weights that were edited since are the same
    /// as themselves only.
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
        // Not under the lock: hashing is shared by threads, which may have runs of this model to make.
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

/// A look at every weight: its address and some of its values.
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
        // What stays in blocks is made of them when somebody asks for it.
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
