//! Recorded activations, by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::activation::Activation;
use crate::catalog::{Catalog, PointId};
use crate::convert::write_safetensors;
use crate::error::HookError;
use crate::point::{Axis, Point};
use crate::selection::Selection;
use crate::suggest::nearest;

/// What a run recorded, in firing order.
///
/// Look activations up by typed point (`hook::pattern(5)`), full name
/// (`"blocks.6.attn.hook_k"`) or shorthand (`"k6"`, `("resid_post", -1)`): see [`Lookup`].
#[derive(Clone)]
pub struct ActivationCache {
    catalog: Arc<Catalog>,
    held: BTreeMap<PointId, Activation>,
    has_batch: bool,
}

/// Names one point, for a look-up of rank `D`.
pub trait Lookup<const D: usize> {
    /// The request, before a catalogue resolves it.
    fn selection(self) -> Selection;
}

impl<const D: usize> Lookup<D> for Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl<const D: usize> Lookup<D> for &Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

macro_rules! lookup_by_text {
    ($($text:ty),*) => { $(
        impl<const D: usize> Lookup<D> for $text {
            fn selection(self) -> Selection {
                self.into()
            }
        }
    )* };
}
lookup_by_text!(&str, String, &String, (&str, isize), (&str, isize, &str));

impl ActivationCache {
    pub(crate) fn new(catalog: Arc<Catalog>, batch_removed: bool) -> Self {
        Self { catalog, held: BTreeMap::new(), has_batch: !batch_removed }
    }

    pub(crate) fn insert(&mut self, id: PointId, activation: Activation) {
        self.held.insert(id, activation);
    }

    /// The activation at a point, as a tensor of rank `D`. A typed point has its rank with the
    /// batch axis: where that was dropped it comes back with length one.
    ///
    /// # Errors
    /// [`HookError::NotRecorded`] with the nearest recorded names, an error of the name itself,
    /// or [`HookError::Rank`].
    pub fn get<const D: usize>(&self, point: impl Lookup<D>) -> Result<Tensor<D>, HookError> {
        let id = self.find(point.selection())?;
        let (point, held) = (self.catalog.info(id), &self.held[&id]);
        let dropped = !self.has_batch && point.axes.first() == Some(&Axis::Batch);
        if dropped && D == point.rank() {
            return held.reshape(&[&[1], held.shape()].concat()).into_tensor(&point.name);
        }
        held.clone().into_tensor(&point.name)
    }

    /// The activation at a point, whatever its rank and kind.
    ///
    /// # Errors
    /// As [`ActivationCache::get`].
    pub fn activation(&self, point: impl Into<Selection>) -> Result<&Activation, HookError> {
        let id = self.find(point.into())?;
        Ok(&self.held[&id])
    }

    /// Whether the point was recorded.
    pub fn contains(&self, point: impl Into<Selection>) -> bool {
        self.find(point.into()).is_ok()
    }

    fn find(&self, selection: Selection) -> Result<PointId, HookError> {
        let ids = selection.resolve(&self.catalog)?;
        let not_recorded = |name: String| {
            let nearest = nearest(&name, self.names());
            HookError::NotRecorded { name, held: self.held.len(), nearest }
        };
        match ids[..] {
            [id] if self.held.contains_key(&id) => Ok(id),
            [id] => Err(not_recorded(self.catalog.info(id).name.to_string())),
            _ => Err(HookError::BadPattern {
                pattern: format!("{selection:?}"),
                reason: format!("it names {} points where one is wanted", ids.len()),
            }),
        }
    }

    /// Names of the recorded points, in firing order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.held.keys().map(|id| &*self.catalog.info(*id).name)
    }

    /// Names and activations, in firing order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Activation)> {
        self.held.iter().map(|(id, activation)| (&*self.catalog.info(*id).name, activation))
    }

    /// Number of recorded points.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether activations still have their batch axis.
    pub fn has_batch_dim(&self) -> bool {
        self.has_batch
    }

    /// The points of the model the recording was made with.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Meaning of each axis of a recorded point.
    ///
    /// # Errors
    /// As [`ActivationCache::get`].
    pub fn axes(&self, point: impl Into<Selection>) -> Result<&'static [Axis], HookError> {
        let axes = self.catalog.info(self.find(point.into())?).axes;
        let batch_gone = !self.has_batch && axes.first() == Some(&Axis::Batch);
        Ok(if batch_gone { &axes[1..] } else { axes })
    }

    /// Drops the batch axis of every activation. A second call does nothing.
    ///
    /// # Errors
    /// [`HookError::Batch`] if the batch has more than one row.
    pub fn remove_batch_dim(mut self) -> Result<Self, HookError> {
        if !self.has_batch {
            return Ok(self);
        }
        for (id, activation) in &mut self.held {
            if self.catalog.info(*id).axes.first() == Some(&Axis::Batch) {
                match activation.shape() {
                    [1, rest @ ..] => *activation = activation.reshape(rest),
                    [batch, ..] => return Err(HookError::Batch { batch: *batch }),
                    [] => {}
                }
            }
        }
        self.has_batch = false;
        Ok(self)
    }

    /// Copies every activation to a device.
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        for activation in self.held.values_mut() {
            *activation = activation.to_device(device);
        }
        self
    }

    /// Writes one safetensors file with a tensor a point, named by it.
    ///
    /// # Errors
    /// [`HookError::Io`] naming the file or the point.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), HookError> {
        let named = self.iter().map(|(name, activation)| (name.to_string(), activation));
        write_safetensors(path.as_ref(), named, HashMap::new())
    }
}

impl fmt::Debug for ActivationCache {
    /// Names and shapes, never values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ActivationCache of {} points:", self.len())?;
        for (name, activation) in self.iter() {
            writeln!(f, "  {name} {:?}", activation.shape())?;
        }
        Ok(())
    }
}
