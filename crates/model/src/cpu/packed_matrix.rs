//! Block-quantized weight matrices, kept as stored in a quantized file.

use std::fmt;

use burn::tensor::{DType, Device, Tensor, TensorData};
use bytes::Bytes;
use hooklens_kernels::packed::{Format, Order, Packed};

/// Rows of a quantized matrix, borrowed from the file if it is mapped into memory.
#[derive(Clone)]
pub struct PackedMatrix {
    bytes: Bytes,
    format: Format,
    width: usize,
    order: Order,
    rounds_inputs: bool,
}

impl PackedMatrix {
    /// Creates a matrix with rows of `width` values. `bytes` must consist of whole rows, and `order` must match their
    /// number.
    pub fn new(bytes: Bytes, format: Format, width: usize, order: Order) -> Self {
        Self { bytes, format, width, order, rounds_inputs: false }
    }

    /// Makes products with this matrix round their inputs to 8 bits, as llama.cpp does.
    #[must_use]
    pub fn rounding_inputs(self) -> Self {
        Self { rounds_inputs: true, ..self }
    }

    /// Whether products round their inputs.
    pub(crate) fn rounds_inputs(&self) -> bool {
        self.rounds_inputs
    }

    /// View for multiplication: a matrix `[width, rows]`.
    pub(crate) fn view(&self) -> Packed<'_> {
        let view = Packed::new(&self.bytes, self.format, self.width, self.order);
        if self.rounds_inputs { view.rounding_inputs() } else { view }
    }

    /// An input `[row, width]`, rounded to 8 bits.
    pub(super) fn rounded(&self, input: &Tensor<2>) -> Tensor<2> {
        let numbers = input.clone().into_data().iter::<f32>().collect::<Vec<_>>();
        let mut rounded = vec![0.0; numbers.len()];
        self.view().round(&numbers, &mut rounded);
        made(rounded, input.dims(), &input.device(), input.dtype())
    }

    /// Total size in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Description of format and order that is included in fingerprints. Fingerprints are stored, so this text must not
    /// change when names in the code change.
    pub(crate) fn described(&self) -> String {
        let order = match self.order {
            Order::AsIs => "AsIs".into(),
            Order::Paired(rows) => format!("Paired({rows})"),
            Order::Every { start, step } => format!("Every {{ start: {start}, step: {step} }}"),
        };
        let rounding = if self.rounds_inputs { " rounding inputs" } else { "" };
        format!("{} {} {order}{rounding}", hashed_format(self.format), self.width)
    }

    /// Bytes of all rows, in file order.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Dequantizes the whole matrix, `[rows, width]`.
    pub(crate) fn widened(&self, device: &Device, dtype: DType) -> Tensor<2> {
        let view = self.view();
        let mut numbers = vec![0.0; view.rows() * view.cols()];
        view.decode(&mut numbers);
        made(numbers, [view.cols(), view.rows()], device, dtype)
    }

    /// Dequantizes the rows with these ids, `[id, width]`.
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

/// Format name that is hashed into fingerprints.
fn hashed_format(format: Format) -> &'static str {
    match format {
        Format::Q4_0 => "Q4_0",
        Format::Q4_1 => "Q4_1",
        Format::Q5_0 => "Q5_0",
        Format::Q5_1 => "Q5_1",
        Format::Q8_0 => "Q8_0",
        Format::Q2K => "Q2K",
        Format::Q3K => "Q3K",
        Format::Q4K => "Q4K",
        Format::Q5K => "Q5K",
        Format::Q6K => "Q6K",
        Format::Iq4Nl => "Iq4Nl",
        Format::Iq4Xs => "Iq4Xs",
        Format::Mxfp4 => "Mxfp4",
        Format::Zeroed4 => "Zeroed4",
        Format::Zeroed8 => "Zeroed8",
        Format::Nf4 => "Nf4",
        Format::Fp4 => "Fp4",
        Format::E4m3 => "E4m3",
    }
}
