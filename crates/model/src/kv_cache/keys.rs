//! Keys and values as read by attention: in blocks that need not be contiguous.

use std::sync::Arc;

use burn::tensor::kind::Basic;
use burn::tensor::{Int, Tensor, TensorData};
use hooklens_hooks::upload;

/// Keys and values of a range of columns, `[rows, columns, kv_head, d_head]`.
#[derive(Debug, Clone)]
pub(crate) struct KeyBlock {
    pub(crate) keys: Tensor<4>,
    pub(crate) values: Tensor<4>,
    /// For each batch row, the row of the block that it reads; `None` if batch row `i` reads block row `i`.
    pub(crate) rows: Option<Arc<[usize]>>,
}

impl KeyBlock {
    /// Number of columns.
    pub(crate) fn len(&self) -> usize {
        self.keys.dims()[1]
    }

    /// Number of consecutive batch rows that read each block row; `None` if block rows are not read equally often and
    /// in order.
    pub(crate) fn readers(&self) -> Option<usize> {
        let Some(rows) = &self.rows else { return Some(1) };
        let each = rows.len() / self.keys.dims()[0].max(1);
        let even = each > 0 && rows.iter().enumerate().all(|(row, reads)| *reads == row / each);
        (even && each * self.keys.dims()[0] == rows.len()).then_some(each)
    }

    /// Expands the block to one row per batch row.
    pub(crate) fn spread(&self) -> KeyBlock {
        let Some(rows) = &self.rows else { return self.clone() };
        let of = |tensor: &Tensor<4>| select_rows(tensor.clone(), rows);
        KeyBlock { keys: of(&self.keys), values: of(&self.values), rows: None }
    }
}

/// Swaps the position and head axes of newly computed tensors, `[batch, pos, head, d_head]` to `[batch, head, pos,
/// d_head]` or back.
pub(crate) fn heads_first<K: Basic>(x: Tensor<4, K>) -> Tensor<4, K> {
    let [batch, first, second, width] = x.dims();
    // A swapped view with a single position has strides that device kernels can't use directly.
    match first == 1 || second == 1 {
        true => x.reshape([batch, second, first, width]),
        false => x.swap_dims(1, 2),
    }
}

/// Selects rows of a tensor.
pub(crate) fn select_rows<const D: usize, K: Basic>(tensor: Tensor<D, K>, rows: &[usize]) -> Tensor<D, K> {
    select(tensor, 0, rows)
}

/// Selects heads of a tensor, `[rows, columns, head, d_head]`.
pub(crate) fn select_heads(tensor: Tensor<4>, heads: &[usize]) -> Tensor<4> {
    select(tensor, 2, heads)
}

fn select<const D: usize, K: Basic>(tensor: Tensor<D, K>, axis: usize, indices: &[usize]) -> Tensor<D, K> {
    let ids: Vec<i32> = indices.iter().map(|index| *index as i32).collect();
    let ids = upload::<1, Int>(TensorData::new(ids, [indices.len()]), &tensor.device());
    tensor.select(axis, ids)
}

/// All keys and values that a run attends to, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) blocks: Vec<KeyBlock>,
    /// Number of columns before the first block, which no query attends to anymore.
    pub(crate) dropped: usize,
}

impl Keys {
    /// Wraps contiguous keys and values, `[batch, columns, kv_head, d_head]`.
    pub(crate) fn whole(keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { blocks: vec![KeyBlock { keys, values, rows: None }], dropped: 0 }
    }

    /// Number of columns in the blocks.
    pub(crate) fn held(&self) -> usize {
        self.blocks.iter().map(KeyBlock::len).sum()
    }

    /// Number of columns, including dropped ones.
    pub(crate) fn columns(&self) -> usize {
        self.dropped + self.held()
    }

    /// The same columns of only these key/value heads. A head may be listed several times.
    pub(crate) fn of_heads(&self, heads: &[usize]) -> Self {
        let of = |tensor: &Tensor<4>| select_heads(tensor.clone(), heads);
        let of_block =
            |block: &KeyBlock| KeyBlock { keys: of(&block.keys), values: of(&block.values), rows: block.rows.clone() };
        Self { blocks: self.blocks.iter().map(of_block).collect(), dropped: self.dropped }
    }

    /// Concatenated keys and values of all blocks, with one row per batch row.
    pub(crate) fn joined(&self) -> (Tensor<4>, Tensor<4>) {
        if let [block] = &self.blocks[..] {
            let block = block.spread();
            return (block.keys, block.values);
        }
        let (keys, values) = self.blocks.iter().map(KeyBlock::spread).map(|block| (block.keys, block.values)).unzip();
        (Tensor::cat(keys, 1), Tensor::cat(values, 1))
    }
}
