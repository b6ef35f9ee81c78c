//! Arranges each batch's positions in the output.
//!
//! A batch is computed at the length of its own longest prompt, and the requested positions may be anywhere in it. In
//! the output, every row has as many positions as the longest row needs, and padding does not depend on how rows were
//! batched.

use std::ops::Range;

use burn::tensor::Bytes;
use hooklens_hooks::{Activation, Axis, Positions, file_dtype};
use safetensors::{Dtype, View};

use hooklens_model::tokens::PaddingSide;

/// One row of a batch.
#[derive(Debug, Clone)]
pub(super) struct PromptRow {
    /// Number of tokens in the row.
    pub(super) len: usize,
    /// Range of tokens that are kept.
    pub(super) kept: Range<usize>,
}

/// Sizes of the output, which are the same for all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    /// Length of the longest row.
    pub(super) len: usize,
    /// Maximum number of positions kept per row.
    pub(super) kept: usize,
}

impl Widths {
    /// Sizes needed for these rows.
    pub(super) fn of<'r>(rows: impl Iterator<Item = &'r PromptRow>) -> Self {
        let wider = |a: Self, row: &PromptRow| Self { len: a.len.max(row.len), kept: a.kept.max(row.kept.len()) };
        rows.fold(Self { len: 0, kept: 0 }, wider)
    }
}

/// Layout of the rows of one batch.
#[derive(Debug)]
pub(super) struct Placing {
    rows: Vec<PromptRow>,
    /// Padding side of the output.
    side: PaddingSide,
    /// Padding side of the batch.
    source: PaddingSide,
    /// Number of prefix keys before the batch's own.
    prefix: usize,
    /// Number of columns in the batch.
    columns: usize,
    /// Whether recordings contain every column rather than only the columns that each row keeps.
    whole: bool,
}

/// A tensor in the form stored in a file.
#[derive(Debug)]
pub(super) struct FileTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
}

/// A tensor of a batch without padding: the values of its rows, one row after the other.
#[derive(Debug)]
pub(super) struct PackedTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) form: Form,
    pub(super) bytes: Bytes,
}

/// The entries of a packed tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// One entry of this shape per token.
    Tokens(Vec<usize>),
    /// One entry of this shape per row.
    Rows(Vec<usize>),
    /// The shape of each row.
    Ragged(Vec<Vec<usize>>),
}

/// Whether a point's tensors can be packed, that is, whether their first axis is the batch or combines the batch with
/// positions.
pub(super) fn is_packable(axes: &[Axis]) -> bool {
    axes.first() == Some(&Axis::Batch) || is_flattened(axes)
}

/// A named tensor of a batch, with its axes.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) activation: Activation,
    pub(super) axes: &'static [Axis],
    /// Whether the tensor contains every column, regardless of which positions are kept.
    pub(super) whole: bool,
    /// Padding value, encoded as an element of the file; empty for zero.
    pub(super) filler: Vec<u8>,
}

/// Ranges to copy along one axis: source start, length, destination start.
type Segments = Vec<(usize, usize, usize)>;

impl Placing {
    pub(super) fn new(rows: Vec<PromptRow>, side: PaddingSide, prefix: usize, positions: &Positions) -> Self {
        let columns = rows.iter().map(|row| row.len).max().unwrap_or(0);
        Self { rows, side, source: side, prefix, columns, whole: *positions == Positions::All }
    }

    /// Marks the batch as padded on the right.
    pub(super) fn padded_right(&mut self) {
        self.source = PaddingSide::Right;
    }

    /// Number of rows in the batch.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Sizes needed for a file with only this batch.
    pub(super) fn widths(&self) -> Widths {
        Widths::of(self.rows.iter())
    }

    /// Range of kept tokens of each row.
    pub(super) fn kept(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows.iter().map(|row| row.kept.clone())
    }

    /// The rows of a batch's tensor, one after another, without padding.
    pub(super) fn pack(&self, named: &Named, bytes: &[u8]) -> PackedTensor {
        let dtype = file_dtype(&named.activation);
        let (axes, dims, _) = self.split(named);
        let size = dtype.bitsize() / 8;
        let in_row = dims[1..].iter().product::<usize>();
        let (mut packed, mut shapes) = (Vec::new(), Vec::new());
        for (number, row) in self.rows.iter().enumerate() {
            let own = Widths { len: row.len, kept: row.kept.len() };
            let widths: Vec<Option<usize>> =
                axes.iter().zip(&dims).map(|(axis, len)| self.width(*axis, *len, named, own)).collect();
            let out: Vec<usize> = widths.iter().zip(&dims).skip(1).map(|(width, len)| width.unwrap_or(*len)).collect();
            let segments = self.segments_in_row(row, &axes, &dims, &widths, named);
            let at = packed.len();
            packed.resize(at + out.iter().product::<usize>() * size, 0);
            let copy = Copy { dims: &dims[1..], out: &out, segments: &segments, size };
            copy.run(bytes, number * in_row, &mut packed[at..], 0);
            shapes.push(out);
        }
        let varies = |axis: &Axis| matches!(axis, Axis::Pos | Axis::Query | Axis::Key);
        let by_token = matches!(axes.get(1), Some(Axis::Pos | Axis::Query))
            && !axes[2..].iter().any(varies)
            && shapes.iter().zip(&self.rows).all(|(shape, row)| shape[0] == row.kept.len());
        let form = if by_token {
            Form::Tokens(dims[2..].to_vec())
        } else if axes[1..].iter().any(varies) {
            Form::Ragged(shapes)
        } else {
            let single = usize::from(axes.get(1) == Some(&Axis::One));
            Form::Rows(dims[1 + single..].to_vec())
        };
        // Drop the head axis that was only added to split the first axis.
        let form = match form {
            Form::Tokens(entry) if named.axes.first() == Some(&Axis::BatchPos) => Form::Tokens(entry[1..].to_vec()),
            form => form,
        };
        PackedTensor { name: named.name.clone(), dtype, form, bytes: Bytes::from_bytes_vec(packed) }
    }

    /// Splits an axis that combines batch and position. Returns the resulting axes and their lengths, and whether there
    /// was such an axis.
    fn split(&self, named: &Named) -> (Vec<Axis>, Vec<usize>, bool) {
        let (mut axes, mut dims) = (named.axes.to_vec(), named.activation.shape().to_vec());
        let together = is_flattened(&axes);
        if together {
            let columns = if self.whole || named.whole { self.columns } else { self.widths().kept };
            let inner = dims[0] / (self.rows() * columns).max(1);
            axes.splice(0..1, [Axis::Batch, Axis::Pos, Axis::Head]);
            dims.splice(0..1, [self.rows(), columns, inner]);
        }
        (axes, dims, together)
    }

    /// First column of a row's tokens.
    fn begin(&self, row: &PromptRow) -> usize {
        if self.source == PaddingSide::Left { self.columns - row.len } else { 0 }
    }

    /// Columns to record: each row's kept columns, padded to the widest row's count by repeating the row's first
    /// column.
    pub(super) fn recorded(&self) -> Positions {
        if self.whole {
            return Positions::All;
        }
        let width = self.widths().kept;
        let of_row = |row: &PromptRow| {
            let begin = self.begin(row);
            let kept = row.kept.clone().map(|at| begin + at);
            kept.chain(std::iter::repeat(begin)).take(width).collect()
        };
        Positions::Columns(self.rows.iter().map(of_row).collect())
    }

    /// Arranges a tensor with these bytes for the output.
    pub(super) fn place(&self, named: &Named, bytes: Bytes, widths: Widths) -> FileTensor {
        let dtype = file_dtype(&named.activation);
        let shape = named.activation.shape().to_vec();
        let asis = |bytes| FileTensor { name: named.name.clone(), dtype, shape: shape.clone(), bytes };
        // The split axes are merged again at the end.
        let (axes, dims, together) = self.split(named);
        let placed: Vec<Option<usize>> =
            axes.iter().zip(&dims).map(|(axis, len)| self.width(*axis, *len, named, widths)).collect();
        let out: Vec<usize> = placed.iter().zip(&dims).map(|(width, len)| width.unwrap_or(*len)).collect();
        let uniform = self.rows.iter().all(|row| {
            let full = Widths { len: row.len, kept: row.kept.len() };
            full == widths
        });
        let moved = self.source != self.side && !uniform;
        if axes.first() != Some(&Axis::Batch) || (uniform && out == dims && !moved) {
            return asis(bytes);
        }
        let size = dtype.bitsize() / 8;
        let mut filled = named.filler.repeat(if named.filler.is_empty() { 0 } else { out.iter().product() });
        filled.resize(out.iter().product::<usize>() * size, 0);
        let (in_row, out_row) = (dims[1..].iter().product::<usize>(), out[1..].iter().product::<usize>());
        for (number, row) in self.rows.iter().enumerate() {
            let segments = self.segments_in_row(row, &axes, &dims, &placed, named);
            let copy = Copy { dims: &dims[1..], out: &out[1..], segments: &segments, size };
            copy.run(&bytes, number * in_row, &mut filled, number * out_row);
        }
        let mut shape = out;
        if together {
            let first = shape[..3].iter().product();
            shape.splice(0..3, [first]);
        }
        FileTensor { name: named.name.clone(), dtype, shape, bytes: Bytes::from_bytes_vec(filled) }
    }

    /// Shape of a tensor in an output of `rows` rows of these widths; `None` for an axis whose length depends on how
    /// the rows are split into batches.
    pub(super) fn shape_of_all(&self, named: &Named, rows: usize, widths: Widths) -> Vec<Option<usize>> {
        let flattened = is_flattened(named.axes);
        let length = |(number, (axis, len)): (usize, (&Axis, usize))| match axis {
            Axis::Batch => Some(rows),
            Axis::Routed => None,
            _ if flattened && number == 0 => None,
            _ => Some(self.width(*axis, len, named, widths).unwrap_or(len)),
        };
        named.axes.iter().zip(named.activation.shape().iter().copied()).enumerate().map(length).collect()
    }

    /// Shape that a tensor of a packed dump would have with padded rows; `None` for lengths that the prompts determine.
    pub(super) fn shape_of_any(&self, named: &Named) -> Vec<Option<usize>> {
        let flattened = is_flattened(named.axes);
        let length = |(number, (axis, len)): (usize, (&Axis, usize))| match axis {
            Axis::Batch | Axis::Pos | Axis::Query | Axis::Key => None,
            _ if flattened && number == 0 => None,
            _ => Some(len),
        };
        named.axes.iter().zip(named.activation.shape().iter().copied()).enumerate().map(length).collect()
    }

    /// Output width of an axis that runs over positions; `None` for any other axis.
    fn width(&self, axis: Axis, len: usize, named: &Named, widths: Widths) -> Option<usize> {
        match axis {
            Axis::Key => Some(self.prefix + widths.len),
            Axis::Pos | Axis::Query if named.whole || !self.whole => Some(widths.kept),
            // Rotated keys start with the prefix's keys.
            Axis::Pos | Axis::Query => Some(widths.len + len - self.columns),
            _ => None,
        }
    }

    /// Ranges to copy along each axis of a row, that is, each axis after the first.
    fn segments_in_row(
        &self,
        row: &PromptRow,
        axes: &[Axis],
        dims: &[usize],
        widths: &[Option<usize>],
        named: &Named,
    ) -> Vec<Segments> {
        let of_axis = |axis: usize| match widths[axis] {
            Some(width) => self.segments(row, axes[axis], dims[axis], width, named),
            None => vec![(0, dims[axis], 0)],
        };
        (1..dims.len()).map(of_axis).collect()
    }

    /// Ranges to copy from an axis of length `len` to one of length `width`.
    fn segments(&self, row: &PromptRow, axis: Axis, len: usize, width: usize, named: &Named) -> Segments {
        let kept = row.kept.len();
        let begin = self.begin(row);
        let to = |count: usize| if self.side == PaddingSide::Left { width - count } else { 0 };
        if axis == Axis::Key || (self.whole && !named.whole) {
            let before = len - self.columns;
            let to = if self.side == PaddingSide::Left { width - row.len } else { before };
            return vec![(0, before, 0), (before + begin, row.len, to)];
        }
        match named.whole {
            true => vec![(begin + row.kept.start, kept, to(kept))],
            false => vec![(0, kept, to(kept))],
        }
    }
}

/// Whether the first axis combines batch and position.
fn is_flattened(axes: &[Axis]) -> bool {
    matches!(axes.first(), Some(Axis::BatchPos | Axis::BatchPosHead))
}

/// Copies the contents of one row.
struct Copy<'c> {
    dims: &'c [usize],
    out: &'c [usize],
    segments: &'c [Segments],
    /// Bytes per element.
    size: usize,
}

impl Copy<'_> {
    fn run(&self, from: &[u8], at: usize, to: &mut [u8], place: usize) {
        self.axis(0, from, at, to, place);
    }

    /// Copies `axis` and all inner axes, starting at element `at`.
    fn axis(&self, axis: usize, from: &[u8], at: usize, to: &mut [u8], place: usize) {
        let (inner, out_inner): (usize, usize) =
            (self.dims[axis + 1..].iter().product(), self.out[axis + 1..].iter().product());
        // If no inner axis is rearranged, the rest is contiguous.
        let whole = (axis + 1..self.dims.len())
            .all(|a| self.segments[a][..] == [(0, self.dims[a], 0)] && self.dims[a] == self.out[a]);
        for (start, count, goal) in &self.segments[axis] {
            if whole {
                let (at, place) = (at + start * inner, place + goal * out_inner);
                let bytes = count * inner * self.size;
                let (at, place) = (at * self.size, place * self.size);
                to[place..place + bytes].copy_from_slice(&from[at..at + bytes]);
                continue;
            }
            for i in 0..*count {
                self.axis(axis + 1, from, at + (start + i) * inner, to, place + (goal + i) * out_inner);
            }
        }
    }
}

impl View for &FileTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        std::borrow::Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
