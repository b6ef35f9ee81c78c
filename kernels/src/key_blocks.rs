//! Attention over several blocks of keys and values, such as a prefix shared by many batch rows and each row's own
//! keys.
//!
//! Queries of all heads and batch rows that read the same keys are gathered in one matrix, so a shared block costs one
//! product, no matter how many rows read it. All blocks share one softmax, so the result equals attention over the
//! concatenated blocks, without copying them.

use crate::attention::{Attention, HeadsView};
use crate::gemm::gemm_tile;
use crate::isa::Isa;
use crate::scratch::{GATHERED, MIXED, SCORES, with_scratch};
use crate::softmax::{RowMask, Scores, mask_row, softmax_row};
use crate::tasks::each;
use crate::view::{OutTile, View2};

/// Number of query rows processed together.
const ROWS: usize = 64;

/// A block of keys and values at consecutive columns.
#[derive(Clone, Copy, Debug)]
pub struct KeyBlock<'a> {
    /// Keys, `[rows, tokens, kv_heads, dh]`.
    pub keys: HeadsView<'a>,
    /// Values, `[rows, tokens, kv_heads, dh]`.
    pub values: HeadsView<'a>,
    /// For each batch row, the row of `keys` and `values` that it reads, `[batch]`.
    pub rows: &'a [usize],
}

/// Attention of `q` `[batch, queries, heads, dh]` over the columns of all blocks, in order. Masks and positions refer
/// to all columns. Writes `z` `[batch, queries, heads, dh]` (contiguous); a query that sees no key gets 0.
///
/// # Panics
/// If sizes disagree, there is no block, or a slice is too short.
///
/// ```
/// use hooklens_kernels::attention::{Attention, HeadsView};
/// use hooklens_kernels::key_blocks::{KeyBlock, attention_over};
/// // Two rows share one key, and each row also has its own key. One head of width one.
/// let request = Attention {
///     batch: 2, dh: 1, scale: 1.0, soft_cap: None, alibi: None, causal: Some(1), oldest: None,
///     valid: None, query_pos: &[], key_pos: &[],
/// };
/// let (shared, own) = ([0.0], [0.0, 0.0]);
/// let (shared_value, own_values) = ([1.0], [3.0, 5.0]);
/// let heads = |data| HeadsView::contiguous(data, 1, 1, 1);
/// let blocks = [
///     KeyBlock { keys: heads(&shared), values: heads(&shared_value), rows: &[0, 0] },
///     KeyBlock { keys: heads(&own), values: heads(&own_values), rows: &[0, 1] },
/// ];
/// let mut z = [0.0; 2];
/// attention_over(request, heads(&[1.0, 1.0]), &blocks, &mut z);
/// assert_eq!(z, [2.0, 3.0]);
/// ```
pub fn attention_over(attention: Attention, q: HeadsView, blocks: &[KeyBlock], z: &mut [f32]) {
    let Attention { batch, dh, .. } = attention;
    let (queries, heads) = (q.tokens, q.heads);
    assert_eq!(z.len(), batch * queries * heads * dh, "the output has the wrong length");
    if z.is_empty() {
        return;
    }
    let kv_heads = blocks.first().map_or(0, |block| block.keys.heads);
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads are not a multiple of {kv_heads} key heads");
    for KeyBlock { keys, values, rows } in blocks {
        assert!(keys.heads == kv_heads && values.heads == kv_heads, "blocks differ in the number of heads");
        assert!(keys.tokens == values.tokens, "keys and values differ in shape");
        assert_eq!(rows.len(), batch, "`rows` has the wrong length");
    }
    let columns = blocks.iter().map(|block| block.keys.tokens).sum();
    attention.check(queries, columns, heads);
    if columns == 0 {
        return z.fill(0.0);
    }

    let group = heads / kv_heads;
    // A query block holds some queries of one batch row, or all queries of several batch rows.
    let many = (ROWS / (group * queries)).clamp(1, batch);
    let some = if many > 1 { queries } else { (ROWS / group).clamp(1, queries) };
    let (across, along) = (batch.div_ceil(many), queries.div_ceil(some));
    let z = OutTile::new(z, (batch * queries, heads * dh), heads * dh);
    let isa = Isa::current();
    each(kv_heads * across * along, |task| {
        let (kv_head, place) = (task / (across * along), task % (across * along));
        let (b, i) = (place / along * many, place % along * some);
        let query_block = QueryBlock {
            attention,
            isa,
            blocks,
            columns,
            kv_head,
            group,
            batch: (b, many.min(batch - b)),
            queries: (i, some.min(queries - i)),
            all_queries: queries,
        };
        query_block.run(q, &z);
    });
}

/// Queries that read one key head: the queries of its group of heads, for some batch rows and tokens. Row `r` of a
/// query block is head `r / queries % group`, token `r % queries` and batch row `r / queries / group`, each counted
/// from the first head, token or batch row of the query block.
struct QueryBlock<'a> {
    attention: Attention<'a>,
    isa: Isa,
    blocks: &'a [KeyBlock<'a>],
    columns: usize,
    kv_head: usize,
    group: usize,
    batch: (usize, usize),
    queries: (usize, usize),
    all_queries: usize,
}

impl QueryBlock<'_> {
    /// Batch row, token and head of a row.
    fn place(&self, row: usize) -> (usize, usize, usize) {
        let count = self.queries.1;
        let head = self.kv_head * self.group + row / count % self.group;
        (self.batch.0 + row / count / self.group, self.queries.0 + row % count, head)
    }

    /// Number of query-block rows per batch row.
    fn each(&self) -> usize {
        self.group * self.queries.1
    }

    /// One item per block and run of consecutive batch rows that read the same row of the block: the block, that row,
    /// the block's first column, and the run's query-block rows, as start and count.
    fn runs(&self) -> impl Iterator<Item = (&KeyBlock<'_>, usize, usize, (usize, usize))> {
        let (first, count) = self.batch;
        let mut column = 0;
        self.blocks.iter().flat_map(move |block| {
            let start = column;
            column += block.keys.tokens;
            let mut b = 0;
            std::iter::from_fn(move || {
                let row = *block.rows[first..first + count].get(b)?;
                let same = block.rows[first + b..first + count].iter().take_while(|r| **r == row).count();
                let run = (b * self.each(), same * self.each());
                b += same;
                Some((block, row, start, run))
            })
        })
    }

    fn run(&self, q: HeadsView, z: &OutTile) {
        let (dh, rows) = (self.attention.dh, self.batch.1 * self.each());
        with_scratch(&GATHERED, rows * dh, |gathered| {
            for (row, out) in gathered.chunks_exact_mut(dh).enumerate() {
                let (b, i, h) = self.place(row);
                let at = b * q.batch_stride + i * q.token_stride + h * q.head_stride;
                out.copy_from_slice(&q.data[at..at + dh]);
            }
            with_scratch(&SCORES, rows * self.columns, |scores| {
                self.patterns(View2::row_major(gathered, rows, dh), scores);
                // The queries are no longer needed, so their buffer is reused for the output.
                self.mix(scores, gathered);
            });
            for (row, mixed) in gathered.chunks_exact(dh).enumerate() {
                let (b, i, h) = self.place(row);
                // SAFETY: only one token of one head of this handle is used, and no other row of any query block has
                // the same batch row, token and head.
                let mut out = unsafe { z.alias() }.tile((b * self.all_queries + i, 1), (h * dh, dh));
                out.row_mut(0).copy_from_slice(mixed);
            }
        });
    }

    /// The attention pattern of every row, `[rows, columns]`.
    fn patterns(&self, q: View2, scores: &mut [f32]) {
        let (attention, columns) = (self.attention, self.columns);
        let mut tile = OutTile::new(scores, (q.rows(), columns), columns);
        for (block, row, column, (start, count)) in self.runs() {
            let tokens = block.keys.tokens;
            let keys = block.keys.matrix(row, self.kv_head, (0, tokens), attention.dh);
            let out = tile.reborrow().tile((start, count), (column, tokens));
            gemm_tile(self.isa, q.block((start, count), (0, attention.dh)), keys.t(), None, out);
        }
        for (r, row) in scores.chunks_exact_mut(columns).enumerate() {
            let (b, i, h) = self.place(r);
            let query = b * self.all_queries + i;
            let positions = attention.key_pos.get(b * columns..(b + 1) * columns).unwrap_or(&[]);
            let limit = attention.causal.map_or(columns, |offset| (offset + i + 1).min(columns));
            let logits = Scores {
                scale: attention.scale,
                soft_cap: attention.soft_cap,
                alibi: attention.alibi.map(|slopes| (slopes[h], attention.query_pos[query], positions)),
            };
            let mask = RowMask {
                limit: usize::MAX,
                valid: attention.valid.map(|valid| &valid[b * columns..][..limit]),
                oldest: attention.oldest.map(|oldest| (oldest[query], positions)),
            };
            let (seen, hidden) = row.split_at_mut(limit);
            mask_row(self.isa, seen, logits, mask);
            softmax_row(self.isa, seen);
            hidden.fill(0.0);
        }
    }

    /// The weighted sum of values for every row, `[rows, dh]`.
    fn mix(&self, pattern: &[f32], mixed: &mut [f32]) {
        let (dh, columns) = (self.attention.dh, self.columns);
        let rows = mixed.len() / dh;
        mixed.fill(0.0);
        let pattern = View2::row_major(pattern, rows, columns);
        for (block, row, column, (start, count)) in self.runs() {
            let tokens = block.values.tokens;
            let values = block.values.matrix(row, self.kv_head, (0, tokens), dh);
            with_scratch(&MIXED, count * dh, |own| {
                let weights = pattern.block((start, count), (column, tokens));
                gemm_tile(self.isa, weights, values, None, OutTile::new(own, (count, dh), dh));
                mixed[start * dh..].iter_mut().zip(own).for_each(|(sum, own)| *sum += *own);
            });
        }
    }
}
