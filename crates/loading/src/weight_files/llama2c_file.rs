//! llama2.c's `.bin` format: a header of seven numbers, then every tensor in `f32`.

use std::path::Path;

use hooklens_hooks::DType;
use serde_json::{Value, json};

use super::tensor_file::TensorFile;
use super::{Location, TensorInfo};
use hooklens_io::regular;
use hooklens_model::error::{LoadError, load_errors};

const HEADER: usize = 7 * 4;

/// Numbers in the header.
struct Header {
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    vocab_size: usize,
    /// Whether the unembedding is tied; a negative vocabulary size means it is not.
    tied: bool,
    max_seq_len: usize,
}

impl Header {
    /// Parses the header; `None` if the file does not have exactly the length that the header implies.
    fn of(bytes: &[u8], file_len: u64) -> Option<Self> {
        let numbers: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        let [dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab, max_seq_len] = numbers[..] else { return None };
        let size = |n: i32| usize::try_from(n).ok().filter(|n| (1..1 << 28).contains(n));
        let header = Self {
            dim: size(dim)?,
            hidden_dim: size(hidden_dim)?,
            n_layers: size(n_layers).filter(|n| *n <= 10_000)?,
            n_heads: size(n_heads)?,
            n_kv_heads: size(n_kv_heads)?,
            vocab_size: size(vocab.checked_abs()?)?,
            tied: vocab > 0,
            max_seq_len: size(max_seq_len)?,
        };
        let elements: u128 =
            header.layout().iter().map(|(_, layers, shape)| layers.unwrap_or(1) as u128 * elements(shape)).sum();
        (HEADER as u128 + 4 * elements == u128::from(file_len)).then_some(header)
    }

    /// Tensors in file order: name, number of layers (`None` if not per layer), and shape.
    fn layout(&self) -> Vec<(&'static str, Option<usize>, Vec<usize>)> {
        let Self { dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, tied, max_seq_len } = *self;
        let d_head = dim / n_heads;
        let kv = d_head * n_kv_heads;
        let each = Some(n_layers);
        let mut layout = vec![
            ("tok_embeddings.weight", None, vec![vocab_size, dim]),
            ("attention_norm.weight", each, vec![dim]),
            ("attention.wq.weight", each, vec![dim, dim]),
            ("attention.wk.weight", each, vec![kv, dim]),
            ("attention.wv.weight", each, vec![kv, dim]),
            ("attention.wo.weight", each, vec![dim, dim]),
            ("ffn_norm.weight", each, vec![dim]),
            ("feed_forward.w1.weight", each, vec![hidden_dim, dim]),
            ("feed_forward.w2.weight", each, vec![dim, hidden_dim]),
            ("feed_forward.w3.weight", each, vec![hidden_dim, dim]),
            ("norm.weight", None, vec![dim]),
            ("freqs_cos", None, vec![max_seq_len, d_head / 2]),
            ("freqs_sin", None, vec![max_seq_len, d_head / 2]),
        ];
        if !tied {
            layout.push(("output.weight", None, vec![vocab_size, dim]));
        }
        layout
    }
}

fn elements(shape: &[usize]) -> u128 {
    shape.iter().map(|n| *n as u128).product()
}

fn header(path: &Path) -> Option<Header> {
    use std::io::Read;
    let mut file = regular::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut bytes = [0; HEADER];
    file.read_exact(&mut bytes).ok()?;
    Header::of(&bytes, len)
}

/// Whether a `.bin` file was exported by llama2.c: its length matches its header.
pub(crate) fn is_one(path: &Path) -> bool {
    header(path).is_some()
}

/// Configuration derived from the header.
pub(crate) fn configuration(path: &Path) -> Option<Value> {
    let h = header(path)?;
    Some(json!({
        "architectures": ["llama2.c"], "dim": h.dim, "hidden_dim": h.hidden_dim, "n_layers": h.n_layers,
        "n_heads": h.n_heads, "n_kv_heads": h.n_kv_heads, "vocab_size": h.vocab_size, "max_seq_len": h.max_seq_len,
        "tie_word_embeddings": h.tied,
    }))
}

/// Lists the tensors, under the names of llama2.c's model.
pub(crate) fn tensors(file: &TensorFile, number: usize) -> Result<Vec<(String, TensorInfo)>, LoadError> {
    let start = file.start(HEADER)?;
    let header = start.first_chunk::<HEADER>().and_then(|bytes| Header::of(bytes, file.len()));
    let Some(header) = header else {
        return Err(load_errors::corrupt(&file.path, "its length does not match its header"));
    };
    let mut at = HEADER;
    let mut tensors = Vec::new();
    for (name, layers, shape) in header.layout() {
        let bytes = 4 * shape.iter().product::<usize>();
        for layer in 0..layers.unwrap_or(1) {
            let name = layers.map_or(name.to_string(), |_| format!("layers.{layer}.{name}"));
            let place = Location::File { file: number, bytes: at..at + bytes };
            let info = TensorInfo {
                shape: shape.clone(),
                dtype: "f32".into(),
                float: Some(DType::F32),
                packed: None,
                bytes,
                place,
            };
            tensors.push((name, info));
            at += bytes;
        }
    }
    Ok(tensors)
}
