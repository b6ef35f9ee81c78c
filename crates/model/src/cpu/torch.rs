//! Access to the memory of LibTorch tensors on the CPU.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, Ordering};

use burn::tensor::{DType, Tensor};
use burn_tch::{LibTorch, TchTensor};
use hooklens_kernels::element::Element;
use tch::{Device, Kind};

/// A floating-point tensor on the CPU, and the number of elements from its first to its last in memory.
pub(super) struct TorchMemory {
    tensor: TchTensor,
    len: usize,
}

impl TorchMemory {
    /// The tensor's memory, if it is a dense `f32` or 16-bit tensor on the CPU that LibTorch's autograd does not track.
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        Self::plain(tensor.clone().try_into_primitive::<LibTorch>().ok()?)
    }

    fn plain(tensor: TchTensor) -> Option<Self> {
        let held = &tensor.tensor;
        let dense = !held.is_sparse() && !held.is_mkldnn();
        if !matches!(held.kind(), Kind::Float | Kind::BFloat16 | Kind::Half)
            || held.device() != Device::Cpu
            || !dense
            || held.requires_grad()
        {
            return None;
        }
        let (shape, strides) = (held.size(), held.stride());
        let last: i64 = shape.iter().zip(&strides).map(|(len, stride)| (len - 1) * stride).sum();
        let len = if shape.contains(&0) { 0 } else { usize::try_from(last).ok()? + 1 };
        Some(Self { tensor, len })
    }

    /// Allocates uninitialized memory for `len` elements.
    pub(super) fn new(len: usize) -> Self {
        let tensor = TchTensor::new(tch::Tensor::empty([len as i64], (Kind::Float, Device::Cpu)));
        Self { tensor, len }
    }

    /// Lengths and strides of the axes.
    pub(super) fn layout(&self) -> (Vec<usize>, Vec<isize>) {
        let shape = self.tensor.tensor.size().into_iter().map(|len| len as usize).collect();
        (shape, self.tensor.tensor.stride().into_iter().map(|stride| stride as isize).collect())
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.tensor.tensor.is_contiguous()
    }

    pub(super) fn contiguous(self) -> Self {
        let copy = TchTensor::new(self.tensor.tensor.contiguous());
        Self { len: copy.tensor.numel(), tensor: copy }
    }

    /// Whether the tensor is contiguous and this is the only handle to its storage.
    pub(super) fn is_own(&self) -> bool {
        self.tensor.storage.can_mut() && self.is_contiguous()
    }

    pub(super) fn elements(&self) -> &[f32] {
        self.elements_of()
    }

    /// The elements, of type `E`.
    pub(super) fn elements_of<E: Element>(&self) -> &[E] {
        assert_eq!(self.tensor.tensor.kind().elt_size_in_bytes(), size_of::<E>(), "wrong element type");
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the tensor is dense, on the CPU, and of floats of this size (checked above and in `plain`), so
        // `data_ptr` points to its first element and the last of the `len` elements is within the same allocation,
        // which this handle keeps alive. Every bit pattern is a valid float. Burn writes to a storage only while it has
        // a single handle, and the slice ends before ours is given away. Measured: benches/RESULTS.md.
        unsafe { std::slice::from_raw_parts(self.tensor.tensor.data_ptr().cast::<E>(), self.len) }
    }

    /// The elements, mutably. The memory must be exclusively owned: it was allocated by [`TorchMemory::new`], or
    /// [`TorchMemory::is_own`] returned true.
    pub(super) fn elements_mut(&mut self) -> &mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `elements_of`; in addition, callers ensure that no other handle reads this storage, and `&mut
        // self` that there is no other slice of this one.
        unsafe { std::slice::from_raw_parts_mut(self.tensor.tensor.data_ptr().cast::<f32>(), self.len) }
    }

    /// Turns contiguous memory into a tensor of the given shape.
    pub(super) fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<D> {
        let shape = shape.map(|len| len as i64);
        Tensor::from_primitive::<LibTorch>(TchTensor::new(self.tensor.tensor.reshape(shape)))
    }
}

/// Guard that limits LibTorch's own operations on the current thread to one thread while it lives. LibTorch's worker
/// threads spin while they wait for work, and would take cores from the kernels.
///
/// The setting is per thread; a thread that never set it inherits the value that any thread set last.
#[derive(Debug)]
pub struct OneThread {
    /// Keeps the guard on its thread.
    _here: PhantomData<*const ()>,
}

/// Highest thread count observed in LibTorch. Restored on threads that inherited another thread's limit of one.
static MOST: AtomicI32 = AtomicI32::new(1);

thread_local! {
    /// Number of guards on this thread, and the thread count to restore after the last of them.
    static HERE: Cell<(usize, i32)> = const { Cell::new((0, 1)) };
}

impl OneThread {
    /// Creates a guard, if the kernels work on tensors of this device and element type.
    pub fn for_kernels_on(device: &burn::tensor::Device, dtype: DType) -> Option<Self> {
        TorchMemory::of(&Tensor::<1>::zeros([1], (device, dtype)))?;
        let (mut here, mut threads) = HERE.get();
        if here == 0 {
            let own = tch::get_num_threads();
            let most = MOST.fetch_max(own, Ordering::Relaxed).max(own);
            threads = if own > 1 { own } else { most };
            tch::set_num_threads(1);
        }
        here += 1;
        HERE.set((here, threads));
        Some(Self { _here: PhantomData })
    }
}

impl Drop for OneThread {
    fn drop(&mut self) {
        let (mut here, threads) = HERE.get();
        here -= 1;
        HERE.set((here, threads));
        if here == 0 {
            tch::set_num_threads(threads);
        }
    }
}
