//! The memory of LibTorch's tensors on the CPU.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, Ordering};

use burn::tensor::{DType, Tensor};
use burn_tch::{LibTorch, TchTensor};
use hooklens_kernels::element::Element;
use tch::{Device, Kind};

/// A tensor of floats on the CPU, and how many elements lie between its first and its last.
pub(super) struct TorchMemory {
    tensor: TchTensor,
    len: usize,
}

impl TorchMemory {
    /// The tensor's memory, if LibTorch keeps it on the CPU, densely, and outside its own autograd. Of `f32` or 16 bits.
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

    /// New uninitialized memory for this many elements.
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

    /// Whether this is the only handle on one whole run of elements.
    pub(super) fn is_own(&self) -> bool {
        self.tensor.storage.can_mut() && self.is_contiguous()
    }

    pub(super) fn elements(&self) -> &[f32] {
        self.elements_of()
    }

    /// The elements of a tensor of this type.
    pub(super) fn elements_of<E: Element>(&self) -> &[E] {
        assert_eq!(self.tensor.tensor.kind().elt_size_in_bytes(), size_of::<E>(), "another element type");
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the tensor is dense, of floats of this size (checked above and in `plain`) and on the CPU, so
        // `data_ptr` is its first element and `len` elements on is its last, all within one allocation that this
        // handle keeps alive; every pattern of bits is a float. Burn writes into a storage only while it has one
        // handle, and the slice ends before ours is given away. Measured: benches/RESULTS.md.
        unsafe { std::slice::from_raw_parts(self.tensor.tensor.data_ptr().cast::<E>(), self.len) }
    }

    /// The elements of memory that is one's own: [`TorchMemory::new`], or [`TorchMemory::is_own`].
    pub(super) fn elements_mut(&mut self) -> &mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `elements`; the callers have made sure that no other handle reads this storage, and `&mut
        // self` that no other slice of this one is there.
        unsafe { std::slice::from_raw_parts_mut(self.tensor.tensor.data_ptr().cast::<f32>(), self.len) }
    }

    /// The tensor of a whole run of elements.
    pub(super) fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<D> {
        let shape = shape.map(|len| len as i64);
        Tensor::from_primitive::<LibTorch>(TchTensor::new(self.tensor.tensor.reshape(shape)))
    }
}

/// A guard: while it lives, LibTorch's own operations on the thread that made it use that thread only. LibTorch's
/// worker threads spin while they wait for work, and would take the cores from the kernels.
///
/// The setting is per thread; a thread that has none yet inherits the last one made.
#[derive(Debug)]
pub(crate) struct OneThread {
    /// It ends on its thread.
    _here: PhantomData<*const ()>,
}

/// The most threads LibTorch was seen with: what a thread gets back that began with another's one.
static MOST: AtomicI32 = AtomicI32::new(1);

thread_local! {
    /// How many there are on this thread, and how many threads LibTorch gets back after the last.
    static HERE: Cell<(usize, i32)> = const { Cell::new((0, 1)) };
}

impl OneThread {
    /// If the kernels work on tensors of this device and element type.
    pub(crate) fn for_kernels_on(device: &burn::tensor::Device, dtype: DType) -> Option<Self> {
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
