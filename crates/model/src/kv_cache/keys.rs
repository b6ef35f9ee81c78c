//! Keys and values as attention reads them: in blocks that need not be contiguous.

use std::sync::Arc;

use burn::tensor::kind::Basic;
use burn::tensor::{Int, Tensor, TensorData};
use hooklens_hooks::upload;

/// Keys and values of some columns, `[rows, columns, kv_head, d_head]`.
#[derive(Debug, Clone)]
pub(crate) struct KeyBlock {
    pub(crate) keys: Tensor<4>,
    pub(crate) values: Tensor<4>,
    /// For each row of the batch the row of the block it reads; `None` if each reads its own.
    pub(crate) rows: Option<Arc<[usize]>>,
}

impl KeyBlock {
    /// Columns.
    pub(crate) fn len(&self) -> usize {
        self.keys.dims()[1]
    }

    /// The number of consecutive batch rows that read each row of the block, if it is the same for all.
    pub(crate) fn readers(&self) -> Option<usize> {
        let Some(rows) = &self.rows else { return Some(1) };
        let each = rows.len() / self.keys.dims()[0].max(1);
        let even = each > 0 && rows.iter().enumerate().all(|(row, reads)| *reads == row / each);
        (even && each * self.keys.dims()[0] == rows.len()).then_some(each)
    }

    /// The block with a row of its own for each row of the batch.
    pub(crate) fn spread(&self) -> KeyBlock {
        let Some(rows) = &self.rows else { return self.clone() };
        let of = |tensor: &Tensor<4>| select_rows(tensor.clone(), rows);
        KeyBlock { keys: of(&self.keys), values: of(&self.values), rows: None }
    }
}

/// Exchanges position and head of what was just computed, `[batch, pos, head, d_head]` to `[batch, head, pos, d_head]`
/// or back.
pub(crate) fn heads_first<K: Basic>(x: Tensor<4, K>) -> Tensor<4, K> {
    let [batch, first, second, width] = x.dims();
    // A view of one position has strides that no kernel of a device takes as they are.
    match first == 1 || second == 1 {
        true => x.reshape([batch, second, first, width]),
        false => x.swap_dims(1, 2),
    }
}

/// These rows of a tensor.
pub(super) fn select_rows<K: Basic>(tensor: Tensor<4, K>, rows: &[usize]) -> Tensor<4, K> {
    let ids: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
    let ids = upload::<1, Int>(TensorData::new(ids, [rows.len()]), &tensor.device());
    tensor.select(0, ids)
}

/// All keys and values that a run attends to, first to last.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) blocks: Vec<KeyBlock>,
    /// Columns before the first block, which no query sees any more.
    pub(crate) dropped: usize,
}

impl Keys {
    /// Keys and values in one place, `[batch, columns, kv_head, d_head]`.
    pub(crate) fn whole(keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { blocks: vec![KeyBlock { keys, values, rows: None }], dropped: 0 }
    }

    /// Columns of the blocks.
    pub(crate) fn held(&self) -> usize {
        self.blocks.iter().map(KeyBlock::len).sum()
    }

    /// Columns, dropped ones included.
    pub(crate) fn columns(&self) -> usize {
        self.dropped + self.held()
    }

    /// Keys and values of all blocks concatenated, one row for each row of the batch.
    pub(crate) fn joined(&self) -> (Tensor<4>, Tensor<4>) {
        if let [block] = &self.blocks[..] {
            let block = block.spread();
            return (block.keys, block.values);
        }
        let (keys, values) = self.blocks.iter().map(KeyBlock::spread).map(|block| (block.keys, block.values)).unzip();
        (Tensor::cat(keys, 1), Tensor::cat(values, 1))
    }
}
