//! An activation whose rank is known only at run time.

use std::fmt;
use std::ops::{Add, Range};

use burn::tensor::{Device, DispatchTensor, Gradients, Int, Tensor, TensorData, Transaction};

use crate::device_label::unread;
use crate::dtype::{DType, device_supports};
use crate::error::HookError;
use crate::transfer;

/// A tensor of rank 1 to 6, of floats or integers, on any device.
///
/// Converting from and to [`Tensor`] costs nothing: both hold the same handle.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::Activation;
///
/// let tensor = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex());
/// let activation = Activation::from(tensor);
/// assert_eq!(activation.shape(), [2, 2]);
/// assert_eq!(activation.to_ndarray()?[[1, 0]], 3.0);
/// assert_eq!((&activation + &activation).to_ndarray()?[[1, 0]], 6.0);
/// let back: Tensor<2> = activation.to_tensor()?;
/// assert_eq!(back.dims(), [2, 2]);
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Clone)]
pub struct Activation {
    tensor: DispatchTensor,
    shape: Vec<usize>,
    integer: bool,
}

/// Runs `$body` with `$tensor` bound to the activation's tensor, typed with its actual rank.
macro_rules! at_rank {
    ($activation:expr, $kind:ty, |$tensor:ident| $body:expr) => {{
        let handle = $activation.tensor.clone();
        match $activation.shape.len() {
            1 => {
                let $tensor = Tensor::<1, $kind>::from_dispatch(handle);
                $body
            }
            2 => {
                let $tensor = Tensor::<2, $kind>::from_dispatch(handle);
                $body
            }
            3 => {
                let $tensor = Tensor::<3, $kind>::from_dispatch(handle);
                $body
            }
            4 => {
                let $tensor = Tensor::<4, $kind>::from_dispatch(handle);
                $body
            }
            5 => {
                let $tensor = Tensor::<5, $kind>::from_dispatch(handle);
                $body
            }
            _ => {
                let $tensor = Tensor::<6, $kind>::from_dispatch(handle);
                $body
            }
        }
    }};
}

/// Like [`at_rank`], but for both float and integer tensors.
macro_rules! at_any_rank {
    ($activation:expr, |$tensor:ident| $body:expr) => {
        if $activation.integer {
            at_rank!($activation, Int, |$tensor| $body)
        } else {
            at_rank!($activation, burn::tensor::Float, |$tensor| $body)
        }
    };
}

impl Activation {
    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Burn's element type.
    pub fn dtype(&self) -> burn::tensor::DType {
        at_any_rank!(self, |t| t.dtype())
    }

    /// The device that holds the tensor.
    pub fn device(&self) -> Device {
        at_any_rank!(self, |t| t.device())
    }

    /// The activation as a float tensor of rank `D`.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let ones = Activation::from(Tensor::<2>::ones([2, 3], &Device::flex()));
    /// assert_eq!(ones.to_tensor::<2>()?.dims(), [2, 3]);
    /// assert!(ones.to_tensor::<3>().is_err() && ones.to_int_tensor::<2>().is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Rank`] or [`HookError::Kind`] if the rank or the element kind differs.
    pub fn to_tensor<const D: usize>(&self) -> Result<Tensor<D>, HookError> {
        self.clone().into_tensor("activation")
    }

    /// The activation as an integer tensor of rank `D`.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use hooklens_hooks::Activation;
    /// let ids = Activation::from(Tensor::<1, Int>::from_ints([7, 8], &Device::flex()));
    /// assert_eq!(ids.to_int_tensor::<1>()?.max().into_scalar::<i64>(), 8);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Rank`] or [`HookError::Kind`] if the rank or the element kind differs.
    pub fn to_int_tensor<const D: usize>(&self) -> Result<Tensor<D, Int>, HookError> {
        self.check::<D>("activation", true)?;
        Ok(Tensor::from_dispatch(self.tensor.clone()))
    }

    /// Like [`Activation::to_tensor`], but names the point in errors and consumes the handle, so that a uniquely owned
    /// tensor can be modified in place.
    pub(crate) fn into_tensor<const D: usize>(self, point: &str) -> Result<Tensor<D>, HookError> {
        self.check::<D>(point, false)?;
        Ok(Tensor::from_dispatch(self.tensor))
    }

    fn check<const D: usize>(&self, point: &str, integer: bool) -> Result<(), HookError> {
        let kind = |integer| if integer { "integers" } else { "floats" };
        if self.integer != integer {
            return Err(HookError::Kind { point: point.into(), held: kind(self.integer), asked: kind(integer) });
        }
        if self.shape.len() != D {
            let axes = format!("{:?}", self.shape);
            return Err(HookError::Rank { point: point.into(), rank: self.shape.len(), axes, asked: D });
        }
        Ok(())
    }

    /// Copies the elements to the host as Burn [`TensorData`].
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let pair = Activation::from(Tensor::<1>::from_floats([0.5, 2.0], &Device::flex()));
    /// assert_eq!(pair.to_data()?.as_slice::<f32>().ok(), Some(&[0.5, 2.0][..]));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] if reading from the device fails.
    pub fn to_data(&self) -> Result<TensorData, HookError> {
        let read = at_any_rank!(self, |t| transfer::read(t));
        read.map_err(|e| unread("an activation", &self.device(), e.into()))
    }

    /// Copies positions `start..end` of `axis` into a tensor that does not keep the original alive.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let all = Activation::from(Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &Device::flex()));
    /// let last = all.narrow(1, 2, 3);
    /// assert_eq!((last.shape(), last.to_ndarray()?[[0, 0]]), (&[1, 1][..], 3.0));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Panics
    /// If `axis` or the range is out of bounds.
    #[must_use]
    pub fn narrow(&self, axis: usize, start: usize, end: usize) -> Activation {
        if start == 0 && end == self.shape[axis] {
            return self.clone();
        }
        // Multiplying by one makes a new buffer: a view would keep the whole tensor alive.
        if self.integer {
            at_rank!(self, Int, |t| t.narrow(axis, start, end - start).mul_scalar(1).into())
        } else {
            at_rank!(self, burn::tensor::Float, |t| t.narrow(axis, start, end - start).mul_scalar(1.0).into())
        }
    }

    /// For each row of the first axis, selects the entries of `axis` at that row's indices, after adding `before` to
    /// each index. Every row must have the same number of indices.
    pub(crate) fn select_by_row(&self, axis: usize, before: usize, rows: &[Vec<usize>]) -> Activation {
        let device = self.device();
        at_any_rank!(self, |t| {
            let parts = rows.iter().enumerate().map(|(row, places)| {
                let places: Vec<i32> = places.iter().map(|place| (before + place) as i32).collect();
                let count = places.len();
                let places = transfer::upload::<1, Int>(TensorData::new(places, [count]), &device);
                t.clone().narrow(0, row, 1).select(axis, places)
            });
            Tensor::cat(parts.collect(), 0).into()
        })
    }

    /// Concatenates activations along `axis`. All must have the same kind, rank, and shape on the other axes.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let all = Activation::from(Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &Device::flex()));
    /// let again = Activation::cat(&[all.narrow(1, 0, 1), all.narrow(1, 1, 3)], 1);
    /// assert_eq!(again.to_ndarray()?, all.to_ndarray()?);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Panics
    /// If `parts` is empty, or the parts differ in anything but the length of that axis.
    #[must_use]
    pub fn cat(parts: &[Activation], axis: usize) -> Activation {
        at_any_rank!(parts[0], |first| {
            let rest = parts[1..].iter().map(|part| Tensor::from_dispatch(part.tensor.clone()));
            let all: Vec<_> = std::iter::once(first).chain(rest).collect();
            Tensor::cat(all, axis).into()
        })
    }

    /// Repeats the only row of the first axis `count` times.
    pub(crate) fn repeat_row(&self, count: usize) -> Activation {
        at_any_rank!(self, |t| {
            let mut dims = t.dims();
            dims[0] = count;
            t.expand(dims).into()
        })
    }

    /// Mean over the given rows of a float matrix, `[1, columns]`.
    pub(crate) fn mean_of_rows(&self, rows: &[usize]) -> Activation {
        let places: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
        let all = places.len() == self.shape[0];
        at_rank!(self, burn::tensor::Float, |t| {
            let own = match all {
                true => t,
                false => {
                    let count = places.len();
                    let places = transfer::upload::<1, Int>(TensorData::new(places, [count]), &t.device());
                    t.select(0, places)
                }
            };
            own.mean_dim(0).into()
        })
    }

    /// Broadcasts axes of length one to `shape`.
    pub(crate) fn expanded(&self, shape: &[usize]) -> Activation {
        at_any_rank!(self, |t| {
            let mut dims = t.dims();
            dims.copy_from_slice(shape);
            t.expand(dims).into()
        })
    }

    /// Casts floats to another Burn element type; integers are unchanged.
    pub(crate) fn in_type(&self, dtype: burn::tensor::DType) -> Activation {
        if self.integer || self.dtype() == dtype {
            return self.clone();
        }
        at_rank!(self, burn::tensor::Float, |t| t.cast(dtype).into())
    }

    /// Pads the end of `axis` with `count` entries of `value`. Floats only.
    pub(crate) fn lengthened(&self, axis: usize, count: usize, value: f32) -> Activation {
        if count == 0 {
            return self.clone();
        }
        at_rank!(self, burn::tensor::Float, |t| {
            let mut dims = t.dims();
            dims[axis] = count;
            let more = t.clone().narrow(axis, 0, 1).zeros_like().add_scalar(value).expand(dims);
            Tensor::cat(vec![t, more], axis).into()
        })
    }

    /// The same elements in a different shape.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let heads = Activation::from(Tensor::<4>::ones([1, 5, 4, 16], &Device::flex()));
    /// assert_eq!(heads.reshape(&[5, 64]).shape(), [5, 64]);
    /// ```
    ///
    /// # Panics
    /// If the number of elements differs or the new rank is not within 1 to 6.
    #[must_use]
    pub fn reshape(&self, shape: &[usize]) -> Activation {
        assert_eq!(
            self.shape.iter().product::<usize>(),
            shape.iter().product::<usize>(),
            "cannot reshape {:?} to {shape:?}: the number of elements differs",
            self.shape
        );
        macro_rules! to {
            ($($rank:literal)*) => { match shape.len() {
                $($rank => at_any_rank!(self, |t| {
                    let mut dims = [0; $rank];
                    dims.copy_from_slice(shape);
                    t.reshape::<$rank, _>(dims).into()
                }),)*
                rank => panic!("rank {rank} is not supported; an activation has 1 to 6 axes"),
            } };
        }
        to!(1 2 3 4 5 6)
    }

    /// Casts to another element type; integers are unchanged. If the device does not support the type, the result is
    /// stored in main memory.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, DType};
    /// let ones = Activation::from(Tensor::<1>::ones([2], &Device::flex()));
    /// let half = ones.cast(DType::F16);
    /// assert_eq!(half.dtype(), DType::F16.burn());
    /// assert_eq!(half.to_ndarray()?, ones.to_ndarray()?); // ones are exact in any type
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn cast(&self, dtype: DType) -> Activation {
        if self.integer || self.dtype() == dtype.burn() {
            return self.clone();
        }
        if !device_supports(&self.device(), dtype) {
            return self.to_device(&Device::flex()).cast(dtype);
        }
        at_rank!(self, burn::tensor::Float, |t| t.cast(dtype.float_dtype()).into())
    }

    /// Registers the tensor with a transaction, which reads several tensors at once.
    pub(crate) fn register(&self, reads: Transaction) -> Transaction {
        at_any_rank!(self, |t| reads.register(t))
    }

    /// A tensor of zeros with the same shape and type.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let ones = Activation::from(Tensor::<2>::ones([2, 3], &Device::flex()));
    /// assert_eq!(ones.zeros_like().to_ndarray()?.sum(), 0.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn zeros_like(&self) -> Activation {
        at_any_rank!(self, |t| t.zeros_like().into())
    }

    /// Copies to another device.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let ones = Activation::from(Tensor::<1>::ones([2], &Device::flex()));
    /// assert_eq!(ones.to_device(&Device::flex()).device(), ones.device());
    /// ```
    #[must_use]
    pub fn to_device(&self, device: &Device) -> Activation {
        at_any_rank!(self, |t| t.to_device(device).into())
    }
}

/// Access to blocks of an activation of any rank, for sweeps that patch many sites in one run. A block is given by one
/// range per axis.
pub trait BlockAccess {
    /// The sub-block selected by one range per axis.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, BlockAccess};
    /// let square = Activation::from(Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex()));
    /// assert_eq!(square.block(&[1..2, 0..1]).to_ndarray()?[[0, 0]], 3.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Panics
    /// If there is not exactly one range per axis, or a range is out of bounds.
    #[must_use]
    fn block(&self, ranges: &[Range<usize>]) -> Activation;

    /// Overwrites blocks with new values; each block is given by one range per axis. The tensor is copied at most once,
    /// and not at all if it is uniquely owned. Floats only.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, BlockAccess};
    /// let zeros = Activation::from(Tensor::<2>::zeros([2, 2], &Device::flex()));
    /// let one = Activation::from(Tensor::<2>::ones([1, 1], &Device::flex()));
    /// let patched = zeros.with_blocks([(vec![0..1, 1..2], one)]);
    /// assert_eq!(patched.to_ndarray()?.sum(), 1.0);
    /// assert_eq!(patched.to_ndarray()?[[0, 1]], 1.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Panics
    /// If the tensor holds integers, there is not exactly one range per axis, a range is out of bounds, or a block's
    /// values do not have the shape of its ranges.
    #[must_use]
    fn with_blocks(self, blocks: impl IntoIterator<Item = (Vec<Range<usize>>, Activation)>) -> Activation;
}

impl BlockAccess for Activation {
    fn block(&self, ranges: &[Range<usize>]) -> Activation {
        assert_eq!(ranges.len(), self.shape.len(), "expected one range per axis");
        at_any_rank!(self, |t| {
            let cut = ranges.iter().enumerate().fold(t, |t, (axis, range)| t.narrow(axis, range.start, range.len()));
            cut.into()
        })
    }

    fn with_blocks(self, blocks: impl IntoIterator<Item = (Vec<Range<usize>>, Activation)>) -> Activation {
        assert!(!self.integer, "only blocks of floats can be overwritten");
        let Self { tensor, shape, .. } = self;
        macro_rules! fill {
            ($($rank:literal)*) => { match shape.len() {
                $($rank => {
                    let mut t = Tensor::<$rank>::from_dispatch(tensor);
                    for (ranges, values) in blocks {
                        assert_eq!(ranges.len(), $rank, "expected one range per axis");
                        let ranges: [Range<usize>; $rank] = std::array::from_fn(|axis| ranges[axis].clone());
                        t = t.slice_assign(ranges, Tensor::from_dispatch(values.tensor));
                    }
                    t.into()
                })*
                rank => panic!("rank {rank} is not supported; an activation has 1 to 6 axes"),
            } };
        }
        fill!(1 2 3 4 5 6)
    }
}

/// Autodiff leaves, their gradients and dot products, for activations of any rank.
pub trait AutodiffLeaf: Sized {
    /// An autodiff leaf that holds the activation's values and requires gradients.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, AutodiffLeaf};
    /// let device = Device::flex().autodiff();
    /// let x = Activation::from(Tensor::<1>::from_floats([3.0], &device)).leaf();
    /// let squared = x.dot(&x);
    /// let gradient = x.gradient(&squared.backward());
    /// assert_eq!(gradient.map(|gradient| gradient.to_ndarray()).transpose()?.map(|x| x[[0]]), Some(6.0));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    fn leaf(&self) -> Self;

    /// The gradient of this tensor, if it requires a gradient and received one.
    fn gradient(&self, gradients: &Gradients) -> Option<Self>;

    /// Dot product with a float activation of the same shape, summed over all elements.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, AutodiffLeaf};
    /// let pair = Activation::from(Tensor::<1>::from_floats([3.0, 4.0], &Device::flex()));
    /// assert_eq!(pair.dot(&pair).into_scalar::<f32>(), 25.0);
    /// ```
    ///
    /// # Panics
    /// If the shapes differ, or the activations hold integers.
    #[must_use]
    fn dot(&self, other: &Self) -> Tensor<1>;
}

impl AutodiffLeaf for Activation {
    fn leaf(&self) -> Activation {
        at_rank!(self, burn::tensor::Float, |t| {
            let strategy = t.gradient_checkpointing_strategy();
            let leaf = t.without_autodiff().autodiff();
            let leaf = match strategy {
                Some(strategy) => leaf.with_gradient_checkpointing_strategy(strategy),
                None => leaf,
            };
            leaf.require_grad().into()
        })
    }

    fn gradient(&self, gradients: &Gradients) -> Option<Activation> {
        at_rank!(self, burn::tensor::Float, |t| t.grad(gradients).map(Activation::from))
    }

    fn dot(&self, other: &Activation) -> Tensor<1> {
        assert_eq!(self.shape, other.shape, "shapes differ");
        at_rank!(self, burn::tensor::Float, |t| (t * Tensor::from_dispatch(other.tensor.clone())).sum())
    }
}

/// Values that can be detached from the autodiff graph.
pub trait Detach {
    /// Detaches the values from the graph that computed them.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::{Activation, AutodiffLeaf, Detach};
    /// let ones = Activation::from(Tensor::<1>::ones([2], &Device::flex().autodiff()));
    /// assert_eq!(ones.leaf().detached().to_ndarray()?, ones.to_ndarray()?);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    fn detached(self) -> Self;
}

impl Detach for Activation {
    fn detached(self) -> Self {
        at_any_rank!(self, |t| t.without_autodiff().into())
    }
}

impl Add for &Activation {
    type Output = Activation;

    /// Elementwise sum with an activation of the same shape and kind.
    ///
    /// # Panics
    /// If the shapes or kinds differ.
    fn add(self, other: &Activation) -> Activation {
        assert_eq!((&self.shape, self.integer), (&other.shape, other.integer), "shapes or kinds differ");
        at_any_rank!(self, |t| (t + Tensor::from_dispatch(other.tensor.clone())).into())
    }
}

impl<const D: usize> From<Tensor<D>> for Activation {
    fn from(tensor: Tensor<D>) -> Self {
        const { assert!(D >= 1 && D <= 6, "an activation has 1 to 6 axes") };
        let shape = tensor.dims().to_vec();
        Self { tensor: tensor.into_dispatch(), shape, integer: false }
    }
}

impl<const D: usize> From<Tensor<D, Int>> for Activation {
    fn from(tensor: Tensor<D, Int>) -> Self {
        const { assert!(D >= 1 && D <= 6, "an activation has 1 to 6 axes") };
        let shape = tensor.dims().to_vec();
        Self { tensor: tensor.into_dispatch(), shape, integer: true }
    }
}

impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Activation({:?}, {:?})", self.shape, self.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> Activation {
        let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let device = Device::flex();
        Tensor::<1>::from_floats(data.as_slice(), &device).reshape([2, 3, 4]).into()
    }

    #[test]
    fn narrowing_keeps_the_asked_rows_only() {
        let part = counting().narrow(1, 1, 3);
        assert_eq!(part.shape(), [2, 2, 4]);
        assert_eq!(part.to_ndarray().unwrap()[[1, 0, 2]], 18.0);
    }

    #[test]
    fn wrong_rank_and_kind_are_errors() {
        assert!(matches!(counting().to_tensor::<4>(), Err(HookError::Rank { rank: 3, asked: 4, .. })));
        assert!(matches!(counting().to_int_tensor::<3>(), Err(HookError::Kind { .. })));
    }

    #[test]
    fn casting_to_half_keeps_small_integers() {
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            let cast = counting().cast(dtype);
            assert_eq!(cast.dtype(), dtype.burn());
            assert_eq!(cast.to_ndarray().unwrap(), counting().to_ndarray().unwrap());
        }
    }
}
