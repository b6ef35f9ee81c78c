//! How a family's files hold each weight.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Tensor;

use super::weight_files::WeightFiles;

/// How a file holds a matrix that the model keeps as `[in, out]`, or a vector it keeps flat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As the model keeps it.
    AsIs,
    /// `[out, in]`, as `torch.nn.Linear` holds it. Vectors as they are.
    Transposed,
    /// Columns `part` of `of` equal parts: `[in, of * out]`; for vectors entries.
    Columns { part: usize, of: usize },
    /// `[head * of * d_head, in]`: part `part` of `of` within each of `heads` heads, as NeoX
    /// fuses queries, keys and values; for vectors entries.
    WithinHeads { part: usize, of: usize, heads: usize },
    /// `[head, in, d_head]`, as TransformerLens holds queries, keys and values; biases
    /// `[head, d_head]`.
    HeadsOut { heads: usize },
    /// `[head, d_head, out]`, as TransformerLens holds attention's output.
    HeadsIn { heads: usize },
}

impl Layout {
    /// The file's shape of a matrix kept as `[rows, columns]`.
    pub(crate) fn stored_matrix(self, [rows, columns]: [usize; 2]) -> Vec<usize> {
        match self {
            Layout::AsIs => vec![rows, columns],
            Layout::Transposed => vec![columns, rows],
            Layout::Columns { of, .. } => vec![rows, columns * of],
            Layout::WithinHeads { of, .. } => vec![columns * of, rows],
            Layout::HeadsOut { heads } => vec![heads, rows, columns / heads],
            Layout::HeadsIn { heads } => vec![heads, rows / heads, columns],
        }
    }

    /// The file's shape of a vector kept with `len` entries.
    pub(crate) fn stored_vector(self, len: usize) -> Vec<usize> {
        match self {
            Layout::Columns { of, .. } | Layout::WithinHeads { of, .. } => vec![len * of],
            Layout::HeadsOut { heads } => vec![heads, len / heads],
            _ => vec![len],
        }
    }

    /// The file's tensor, of the shape [`Layout::stored_matrix`] gives, as the model keeps it:
    /// a view wherever strides can tell it.
    pub(crate) fn matrix(self, stored: StoredTensor, [rows, columns]: [usize; 2]) -> Tensor<2> {
        match (self, stored) {
            (Layout::AsIs, StoredTensor::Matrix(m)) => m,
            (Layout::Transposed, StoredTensor::Matrix(m)) => m.transpose(),
            (Layout::Columns { part, .. }, StoredTensor::Matrix(m)) => m.narrow(1, part * columns, columns),
            (Layout::WithinHeads { part, of, heads }, StoredTensor::Matrix(m)) => {
                let apart = m.reshape([heads, of, columns / heads, rows]).narrow(1, part, 1);
                apart.reshape([columns, rows]).transpose()
            }
            (Layout::HeadsOut { .. }, StoredTensor::Cube(c)) => c.permute([1, 0, 2]).reshape([rows, columns]),
            (Layout::HeadsIn { .. }, StoredTensor::Cube(c)) => c.reshape([rows, columns]),
            // `stored_matrix` and `rank` decide together what is read.
            (_, StoredTensor::Matrix(m)) => m,
            (_, StoredTensor::Cube(c)) => c.reshape([rows, columns]),
        }
    }

    /// [`Layout::matrix`] for a vector.
    pub(crate) fn vector(self, stored: Tensor<1>, len: usize) -> Tensor<1> {
        match self {
            Layout::Columns { part, .. } => stored.narrow(0, part * len, len),
            Layout::WithinHeads { part, of, heads } => {
                stored.reshape([heads, of, len / heads]).narrow(1, part, 1).reshape([len])
            }
            _ => stored,
        }
    }

    /// The inverse of [`Layout::matrix`], for layouts that hold one weight a tensor.
    pub(crate) fn unmatrix(self, kept: Tensor<2>) -> StoredTensor {
        let [rows, columns] = kept.dims();
        match self {
            Layout::Transposed => StoredTensor::Matrix(kept.transpose()),
            Layout::HeadsOut { heads } => {
                StoredTensor::Cube(kept.reshape([rows, heads, columns / heads]).permute([1, 0, 2]))
            }
            Layout::HeadsIn { heads } => StoredTensor::Cube(kept.reshape([heads, rows / heads, columns])),
            _ => StoredTensor::Matrix(kept),
        }
    }
}

/// A matrix, or one matrix a head, as a file holds it.
#[derive(Debug)]
pub(crate) enum StoredTensor {
    Matrix(Tensor<2>),
    Cube(Tensor<3>),
}

/// Where a weight is found.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Whether the files may leave it out.
    pub(crate) optional: bool,
    /// Tensor to use instead when the file leaves this one out (tied weights).
    pub(crate) instead: Option<(String, Layout)>,
}

/// A family's table: for each weight, in TransformerLens's names, where the files hold it.
#[derive(Debug, Default)]
pub(crate) struct WeightTable {
    pub(crate) sources: BTreeMap<String, Source>,
    /// Prefix that some files of the family leave out.
    pub(crate) prefix: &'static str,
    /// Ends of tensor names that are derived and never needed.
    pub(crate) derived: &'static [&'static str],
}

impl WeightTable {
    pub(crate) fn new(prefix: &'static str, derived: &'static [&'static str]) -> Self {
        Self { sources: BTreeMap::new(), prefix, derived }
    }

    /// A tensor's name in the files, with or without the family's prefix.
    pub(crate) fn find(&self, files: &WeightFiles, name: &str) -> Option<String> {
        let bare = name.strip_prefix(self.prefix);
        [Some(name), bare].into_iter().flatten().find(|n| files.info(n).is_some()).map(str::to_string)
    }

    /// Number of weights the files hold: each tensor once, buffers left out.
    pub(crate) fn parameters(&self, files: &WeightFiles) -> usize {
        let names: BTreeSet<String> =
            self.sources.values().filter_map(|source| self.find(files, &source.name)).collect();
        names.iter().filter_map(|name| files.info(name)).map(|info| info.shape.iter().product::<usize>()).sum()
    }

    /// A weight the files must hold.
    pub(crate) fn add(&mut self, weight: impl Into<String>, name: impl Into<String>, layout: Layout) {
        let source = Source { name: name.into(), layout, optional: false, instead: None };
        self.sources.insert(weight.into(), source);
    }

    /// A weight the files may leave out.
    pub(crate) fn maybe(&mut self, weight: impl Into<String>, name: impl Into<String>, layout: Layout) {
        let source = Source { name: name.into(), layout, optional: true, instead: None };
        self.sources.insert(weight.into(), source);
    }

    /// The unembedding, held under `name`, or, in a tied model that leaves it out, the token
    /// embedding.
    pub(crate) fn unembedding(&mut self, weight: &str, name: &str, embedding: &str, tied: bool) {
        let instead = tied.then(|| (embedding.to_string(), Layout::Transposed));
        let source = Source { name: name.to_string(), layout: Layout::Transposed, optional: tied, instead };
        self.sources.insert(weight.to_string(), source);
    }

    /// A `torch.nn.Linear`: weight `[out, in]` and, where there is one, bias.
    pub(crate) fn linear(&mut self, weight: &str, bias: &str, name: &str) {
        self.add(weight, format!("{name}.weight"), Layout::Transposed);
        self.maybe(bias, format!("{name}.bias"), Layout::AsIs);
    }
}
