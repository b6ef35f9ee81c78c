//! Gathering rows of a matrix into host memory.

use burn::tensor::{DType, Int, Tensor, TensorData};

use super::HostMatrix;

/// Copies the given rows to host memory, `[row, column]`. If the matrix is on another device, the rows are read back
/// from it.
pub fn gather(matrix: &Tensor<2>, rows: &[u32]) -> Vec<f32> {
    let [count, columns] = matrix.dims();
    debug_assert!(rows.iter().all(|row| (*row as usize) < count));
    let Some(held) = HostMatrix::of(matrix) else {
        let places: Vec<i64> = rows.iter().map(|row| i64::from(*row)).collect();
        let places = Tensor::<1, Int>::from_data(TensorData::new(places, [rows.len()]), &matrix.device());
        return matrix.clone().select(0, places).cast(DType::F32).into_data().iter().collect();
    };
    let (view, mut gathered) = (held.matrix(), vec![0.0; rows.len() * columns]);
    gathered.chunks_exact_mut(columns.max(1)).zip(rows).for_each(|(to, row)| view.widen_row(*row as usize, to));
    gathered
}
