//! Matrices of weights in blocks of a few bits a number, kept as a quantized file holds them.

use std::fmt;

use burn::tensor::{DType, Device, Tensor, TensorData};
use bytes::Bytes;
use hooklens_kernels::packed::{Format, Order, Packed};

/// Rows of packed numbers, where the file has them in memory.
#[derive(Clone)]
pub(crate) struct PackedMatrix {
    bytes: Bytes,
    format: Format,
    width: usize,
    order: Order,
}

impl PackedMatrix {
    /// Rows of `width` numbers each. The bytes are whole rows, and the order fits their number.
    pub(crate) fn new(bytes: Bytes, format: Format, width: usize, order: Order) -> Self {
        Self { bytes, format, width, order }
    }

    /// As products read it: a matrix `[width, rows]`.
    pub(crate) fn view(&self) -> Packed<'_> {
        Packed::new(&self.bytes, self.format, self.width, self.order)
    }

    /// Bytes of all rows.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// How it is held.
    pub(crate) fn described(&self) -> String {
        format!("{:?} {} {:?}", self.format, self.width, self.order)
    }

    /// All rows, as the file orders them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Every number, `[rows, width]`.
    pub(crate) fn widened(&self, device: &Device, dtype: DType) -> Tensor<2> {
        let view = self.view();
        let mut numbers = vec![0.0; view.rows() * view.cols()];
        view.decode(&mut numbers);
        made(numbers, [view.cols(), view.rows()], device, dtype)
    }

    /// The rows these ids name, `[id, width]`.
    pub(crate) fn rows(&self, ids: &[u32], device: &Device, dtype: DType) -> Tensor<2> {
        let view = self.view();
        let mut numbers = vec![0.0; ids.len() * self.width];
        for (id, row) in ids.iter().zip(numbers.chunks_exact_mut(self.width)) {
            view.decode_column(*id as usize, row);
        }
        made(numbers, [ids.len(), self.width], device, dtype)
    }
}

fn made(numbers: Vec<f32>, shape: [usize; 2], device: &Device, dtype: DType) -> Tensor<2> {
    let made: Tensor<2> = Tensor::from_data(TensorData::new(numbers, shape), (device, DType::F32));
    if dtype == DType::F32 { made } else { made.cast(dtype) }
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.view();
        write!(f, "PackedMatrix({:?}, {}x{})", self.format, view.cols(), view.rows())
    }
}
