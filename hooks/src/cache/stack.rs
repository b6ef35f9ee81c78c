//! Stacking one point across layers.

use burn::tensor::Tensor;

use super::ActivationCache;
use crate::error::HookError;
use crate::point::Point;

/// A point whose recordings across layers can be stacked into a tensor with one more axis.
pub trait Stackable: Sized {
    /// Tensor of shape `[layer, ...the point's axes]`.
    type Stacked;

    #[doc(hidden)]
    fn named(&self) -> String;

    #[doc(hidden)]
    fn stacked(points: Vec<Self>, cache: &ActivationCache) -> Result<Self::Stacked, HookError>;
}

macro_rules! stackable {
    ($($rank:literal $stacked:literal;)*) => { $(
        impl Stackable for Point<$rank> {
            type Stacked = Tensor<$stacked>;

            fn named(&self) -> String {
                self.name()
            }

            fn stacked(points: Vec<Self>, cache: &ActivationCache) -> Result<Tensor<$stacked>, HookError> {
                let mut of_layers: Vec<Tensor<$rank>> = Vec::new();
                for point in points {
                    let tensor = cache.get(&point)?;
                    let (given, first) = (tensor.dims(), of_layers.first().unwrap_or(&tensor).clone());
                    if given != first.dims() {
                        let (point, expected) = (point.name(), first.dims().to_vec());
                        return Err(HookError::Stack { point, expected, given: given.to_vec() });
                    }
                    of_layers.push(tensor.to_device(&first.device()));
                }
                Ok(Tensor::stack(of_layers, 0))
            }
        }
    )* };
}
stackable! {
    1 2;
    2 3;
    3 4;
    4 5;
}

impl ActivationCache {
    /// Stacks a point across all layers that fire it: `[layer, ...the point's axes]`.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let streams = cache.stack(|layer| Point::<3>::in_layer(layer, "hook_resid_post"))?;
    /// assert_eq!(streams.dims(), [2, 1, 3, 4]); // [layer, batch, pos, d_model]
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] if no layer fires it, [`HookError::NotRecorded`] naming the first missing layer's
    /// point, or [`HookError::Stack`] if the layers differ in shape.
    pub fn stack<P: Stackable>(&self, of: impl Fn(isize) -> P) -> Result<P::Stacked, HookError> {
        let of_layers = (0..self.catalog.n_layers() as isize).map(&of);
        let fired: Vec<P> = of_layers.filter(|point| self.catalog.has(&point.named())).collect();
        if fired.is_empty() {
            self.catalog.find(&of(0).named())?;
        }
        P::stacked(fired, self)
    }
}
