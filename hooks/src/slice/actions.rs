//! Actions on a slice, each of which makes a hook.

use burn::tensor::Tensor;

use super::Slice;
use super::mean::MeanOfRecording;
use super::pieces::sliced;
use super::replace::Replacement;
use crate::activation::Activation;
use crate::cache::ActivationCache;
use crate::hook::{At, Hook, HookDetails, IntoEdit, IntoRead, failed};
use crate::point::Point;

macro_rules! acts {
    ($($(#[$doc:meta])* fn $name:ident<$l:lifetime>($($arg:ident: $type:ty),*) => $body:expr;)*) => {
        impl<const D: usize> Point<D> {
            $($(#[$doc])*
            #[allow(clippy::should_implement_trait, reason = "`add` returns a hook, not a sum")]
            pub fn $name<$l>(&self $(, $arg: $type)*) -> Hook<$l> {
                Slice::from(self).$name($($arg),*)
            })*
        }

        impl<const D: usize> Slice<D> {
            $($(#[$doc])*
            #[allow(clippy::should_implement_trait, reason = "`add` returns a hook, not a sum")]
            pub fn $name<$l>(self $(, $arg: $type)*) -> Hook<$l> {
                #[allow(clippy::redundant_closure_call, reason = "the body is written as a closure")]
                ($body)(self $(, $arg)*)
            })*
        }
    };
}

acts! {
    /// Sets the values to zero (zero ablation).
    fn zero<'a>() => |slice: Self| slice.with(|piece, _, _| Ok(piece.zeros_like())).described("zero");
    /// Multiplies the values by a factor.
    fn scale<'a>(factor: f64) => |slice: Self, factor: f64| slice.with(move |piece, at, _| {
        Ok((piece.into_tensor::<D>(at.name())? * factor).into())
    }).described(format!("scale {factor:?}"));
    /// Adds a vector `[d]` along the last axis (steering).
    fn add<'a>(vector: Tensor<1>) => |slice: Self, vector: Tensor<1>| {
        let added = vector.clone();
        let hook = slice.with(move |piece, at, _| {
            let width = vector.dims()[0];
            if piece.shape().last() != Some(&width) {
                return Err(sliced(at.point, piece.shape(), format!("last axis of {width}, the added vector's length")));
            }
            let x = piece.into_tensor::<D>(at.name())?;
            let mut shape = [1; D];
            shape[D - 1] = width;
            Ok((x.clone() + vector.clone().reshape(shape).cast(x.dtype()).to_device(&x.device())).into())
        });
        hook.that_uses("add", &added)
    };
    /// Replaces the values with a recording's values at the same point, row, and position (activation patching).
    ///
    /// The recording must come from the same model ([`ActivationCache::for_any_model`] lifts this restriction) and have
    /// the same number of rows as the run. Positions are matched by their place in each row's text, so padding and
    /// key-value caches may differ. Texts of different lengths can be matched only at positions counted from the
    /// start. In generation, and in a run with a growing cache, positions that the recording does not hold are left
    /// unchanged; elsewhere they are an error.
    fn replace<'a>(recording: &'a ActivationCache) => Replacement::hook;
    /// Replaces the values with the mean of a recording at the same point, over the tokens of all rows and positions
    /// (mean ablation). Not defined for scores and patterns, whose entries have a different meaning at each position.
    fn mean<'a>(recording: &'a ActivationCache) => MeanOfRecording::hook;
}

impl<const D: usize> Slice<D> {
    /// Replaces the slice with the closure's return value. If the slice is not contiguous, the closure is called once
    /// for each contiguous piece.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut first = Point::<3>::new("hook_embed").positions(0).edit(|x, _| x * 5.0);
    /// let seen = first.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 2, 1], &Device::flex()).into())?.to_ndarray()?;
    /// assert_eq!((seen[[0, 0, 0]], seen[[0, 1, 0]]), (5.0, 1.0));
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn edit<'a, F, R>(self, mut edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        self.with(move |piece, at, _| {
            let edited = edit(piece.clone().into_tensor(at.name())?, at).into_edit();
            Ok(edited.map_err(|source| failed(at, source))?.map_or(piece, Activation::from))
        })
    }

    /// Passes the slice to the closure. If the slice is not contiguous, the closure is called once for each contiguous
    /// piece.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut shapes = vec![];
    /// let mut look = Point::<3>::new("hook_embed").units([0, 1, 3]).read(|x, _| shapes.push(x.dims()));
    /// look.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 2, 4], &Device::flex()).into())?;
    /// drop(look);
    /// assert_eq!(shapes, [[1, 2, 2], [1, 2, 1]]);
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn read<'a, F, R>(self, mut read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        let mut hook = self.with(move |piece, at, _| {
            read(piece.clone().into_tensor(at.name())?, at).into_read().map_err(|source| failed(at, source))?;
            Ok(piece)
        });
        hook.edits = false;
        hook
    }
}
