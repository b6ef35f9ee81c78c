//! Rows of several matrices, stacked as one.

use std::ops::Range;

use burn::tensor::Tensor;

use hooklens_model::cpu;

/// Matrices of the same width, treated as one without copying. Rows are read when used.
#[derive(Debug)]
pub(super) struct Stacked {
    parts: Vec<Tensor<2>>,
    /// Index of the first row of each matrix, followed by the total number of rows.
    first: Vec<usize>,
}

impl Stacked {
    pub(super) fn new(parts: Vec<Tensor<2>>) -> Self {
        let mut first = vec![0];
        parts.iter().for_each(|part| first.push(first[first.len() - 1] + part.dims()[0]));
        Self { parts, first }
    }

    pub(super) fn rows(&self) -> usize {
        self.first[self.parts.len()]
    }

    /// The row range of each matrix.
    pub(super) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        self.first.windows(2).map(|ends| ends[0]..ends[1])
    }

    /// The matrix that contains a row, and the row's index in it.
    pub(super) fn place(&self, row: usize) -> (usize, usize) {
        let part = self.first.partition_point(|first| *first <= row) - 1;
        (part, row - self.first[part])
    }

    /// Gathers rows into one contiguous buffer.
    pub(super) fn gather(&self, rows: &[u32]) -> Vec<f32> {
        if let [only] = &self.parts[..] {
            return cpu::gather(only, rows);
        }
        let mut all = Vec::new();
        for own in rows.chunk_by(|a, b| self.place(*a as usize).0 == self.place(*b as usize).0) {
            let (part, _) = self.place(own[0] as usize);
            let own: Vec<u32> = own.iter().map(|row| row - self.first[part] as u32).collect();
            all.extend(cpu::gather(&self.parts[part], &own));
        }
        all
    }
}

impl From<Tensor<2>> for Stacked {
    fn from(matrix: Tensor<2>) -> Self {
        Self::new(vec![matrix])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_joined_matrix() {
        let device = burn::tensor::Device::flex();
        let whole = Tensor::<2>::from_data([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]], &device);
        let parts = [(0, 2), (2, 1), (3, 2)].map(|(first, count)| whole.clone().narrow(0, first, count));
        let stacked = Stacked::new(parts.to_vec());
        assert_eq!((stacked.rows(), stacked.place(2), stacked.place(4)), (5, (1, 0), (2, 1)));
        let rows = [4, 3, 0, 2, 1, 1];
        assert_eq!(stacked.gather(&rows), cpu::gather(&whole, &rows));
    }
}
