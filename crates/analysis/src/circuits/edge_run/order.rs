//! [`RunOrder`]: the senders and receivers of a graph in the order in which a forward pass reaches them.

use std::ops::Range;

use crate::attribution::{EdgeGraph, Sender};
use crate::patching::Receiver;

/// The senders and receivers of a graph in the order of the forward pass.
///
/// Outputs are kept in chunks, one per write to the residual stream: the embedding, then for each layer its heads and
/// its MLP.
#[derive(Debug)]
pub(super) struct RunOrder {
    /// Indices of the senders of each chunk.
    pub(super) chunks: Vec<Vec<usize>>,
    pub(super) layers: Vec<LayerOrder>,
    /// What the unembedding reads, after the last layer.
    pub(super) end: Reads,
}

#[derive(Debug)]
pub(super) struct LayerOrder {
    /// Queries, keys and values of the layer's heads.
    pub(super) attn: Reads,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) mlp: Option<Reads>,
}

/// Receivers that read the residual stream at the same point.
#[derive(Debug, Clone)]
pub(super) struct Reads {
    /// Indices of the receivers.
    pub(super) receivers: Range<usize>,
    /// Number of chunks that are written before this read.
    pub(super) chunks: usize,
}

impl RunOrder {
    pub(super) fn of(graph: &EdgeGraph) -> Self {
        let senders = |is: &dyn Fn(&Sender) -> bool| -> Vec<usize> {
            (0..graph.senders().len()).filter(|from| is(&graph.senders()[*from])).collect()
        };
        let mut chunks = vec![senders(&|own| *own == Sender::Embed)];
        let (mut layers, mut next) = (Vec::new(), 0);
        for layer in 0..graph.n_layers() {
            let [heads, kv_heads] = graph.heads_of(layer as isize);
            let attn = Reads { receivers: next..next + heads + 2 * kv_heads, chunks: chunks.len() };
            next = attn.receivers.end;
            chunks.push(senders(&|own| matches!(own, Sender::Head(at, _) if *at == layer)));
            let has_mlp = graph.receivers().contains(&Receiver::Mlp(layer as isize));
            // A parallel MLP reads the same stream as the attention.
            let before = attn.chunks + usize::from(!graph.is_parallel());
            let mlp = has_mlp.then(|| Reads { receivers: next..next + 1, chunks: before });
            if has_mlp {
                next += 1;
                chunks.push(senders(&|own| *own == Sender::Mlp(layer)));
            }
            layers.push(LayerOrder { attn, heads, kv_heads, mlp });
        }
        let end = Reads { receivers: next..next + 1, chunks: chunks.len() };
        Self { chunks, layers, end }
    }
}
