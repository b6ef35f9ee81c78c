//! Keys and values as attention reads them: in parts that need not be contiguous.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData};

/// Keys and values of some columns, `[rows, columns, kv_head, d_head]`.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) keys: Tensor<4>,
    pub(crate) values: Tensor<4>,
    /// For each row of the batch the row of the part it reads; `None` if each reads its own.
    pub(crate) rows: Option<Arc<[usize]>>,
}

impl Part {
    /// Columns.
    pub(crate) fn len(&self) -> usize {
        self.keys.dims()[1]
    }

    /// The number of consecutive batch rows that read each row of the part, if it is the same for all.
    pub(crate) fn readers(&self) -> Option<usize> {
        let Some(rows) = &self.rows else { return Some(1) };
        let each = rows.len() / self.keys.dims()[0].max(1);
        let even = each > 0 && rows.iter().enumerate().all(|(row, reads)| *reads == row / each);
        (even && each * self.keys.dims()[0] == rows.len()).then_some(each)
    }

    /// The part with a row of its own for each row of the batch.
    pub(crate) fn spread(&self) -> Part {
        let Some(rows) = &self.rows else { return self.clone() };
        let of = |tensor: &Tensor<4>| select_rows(tensor.clone(), rows);
        Part { keys: of(&self.keys), values: of(&self.values), rows: None }
    }
}

/// These rows of a tensor.
pub(super) fn select_rows(tensor: Tensor<4>, rows: &[usize]) -> Tensor<4> {
    let ids: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [rows.len()]), &tensor.device());
    tensor.select(0, ids)
}

/// All keys and values that a run attends to, first to last.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) parts: Vec<Part>,
    /// Columns before the first part, which no query sees any more.
    pub(crate) dropped: usize,
}

impl Keys {
    /// Keys and values in one place, `[batch, columns, kv_head, d_head]`.
    pub(crate) fn whole(keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { parts: vec![Part { keys, values, rows: None }], dropped: 0 }
    }

    /// Columns of the parts.
    pub(crate) fn held(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    /// Columns, dropped ones included.
    pub(crate) fn columns(&self) -> usize {
        self.dropped + self.held()
    }

    /// Keys and values of all parts concatenated, one row for each row of the batch.
    pub(crate) fn joined(&self) -> (Tensor<4>, Tensor<4>) {
        if let [part] = &self.parts[..] {
            let part = part.spread();
            return (part.keys, part.values);
        }
        let (keys, values) = self.parts.iter().map(Part::spread).map(|part| (part.keys, part.values)).unzip();
        (Tensor::cat(keys, 1), Tensor::cat(values, 1))
    }
}
