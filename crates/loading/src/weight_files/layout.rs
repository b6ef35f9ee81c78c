//! Storage layouts of weights in a family's files, and the table that maps weights to tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::Tensor;
use hooklens_kernels::packed::Order;

use super::parts::is_of_another_part;
use super::{Runs, WeightFiles};
use hooklens_model::encoder_decoder::Sinusoids;
use hooklens_model::error::LoadError;

/// How a file stores a matrix that the model keeps as `[in, out]`, or a flat vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Stored as the model keeps it.
    AsIs,
    /// `[out, in]`, as in `torch.nn.Linear`. Vectors are unchanged.
    Transposed,
    /// Block `part` of `of` equal column blocks, `[in, of * out]`. Entries of vectors are selected in the same way.
    Columns { part: usize, of: usize },
    /// `[groups * of * d, in]`: each of `groups` groups consists of `of` parts, of which parts `start..start + take`
    /// are read. NeoX (one group per head) and Falcon (one per key/value head) fuse queries, keys and values this way.
    /// Entries of vectors are selected in the same way.
    Grouped { start: usize, take: usize, of: usize, groups: usize },
    /// Rows `start..` of `[of, in]`, as in Phi-3's fused projections. Entries of vectors are selected in the same way.
    Rows { start: usize, of: usize },
    /// `[out, 1, in]`, as `torch.nn.Conv1d` stores depthwise filters.
    Filters,
    /// `[skip + rows, columns]`: the first `skip` rows are dropped, as in OPT's position table.
    AfterRows { skip: usize },
    /// `[out, in]`, with each row normalized to unit length on load, as in Baichuan 2's unembedding.
    UnitRows,
    /// Matrix `index` of a stacked `[of, in, step * out]` tensor, columns `start..` with stride `step`, as GPT-OSS
    /// stores its experts. For vectors, entries of `[of, step * out]`.
    OfCube { index: usize, of: usize, start: usize, step: usize },
    /// Block `part` of `parts` equal column blocks of matrix `index` of a stacked `[of, in, parts * out]` tensor, as
    /// Llama 4 stores its experts.
    ColumnsOfCube { index: usize, of: usize, part: usize, parts: usize },
    /// A vector from which 1 was subtracted, as Gemma stores norm weights.
    OneLess,
    /// `[out, in]`, with the two halves of each head's `head` rows interleaved, as GGUF stores queries and keys of
    /// models in which llama.cpp rotates adjacent pairs. Entries of vectors are interleaved in the same way.
    Paired { head: usize },
    /// Matrix `index` of a stacked `[of, out, in]` tensor, as GGUF stores experts. For vectors, entries of `[of, out]`.
    OfStack { index: usize, of: usize },
    /// Rows `start..` of matrix `index` of a stacked `[of, rows, in]` tensor, as Granite stores the two halves of its
    /// experts.
    RowsOfStack { index: usize, of: usize, start: usize, rows: usize },
    /// Rows `start..` of `[of, out]`, as DBRX stacks its experts' output weights.
    RowsAsIs { start: usize, of: usize },
    /// `[expert, head * d_head, in]`, as JetMoE stores queries. The model orders them by head, then by expert.
    ExpertHeadsOut { experts: usize, heads: usize },
    /// `[expert, out, head * d_head]`, as JetMoE stores the attention output. The model orders it by head, then by
    /// expert.
    ExpertHeadsIn { experts: usize, heads: usize },
    /// `[head, in, d_head]`, as TransformerLens stores queries, keys and values. Biases are `[head, d_head]`.
    HeadsOut { heads: usize },
    /// `[head, d_head, out]`, as TransformerLens stores the attention output.
    HeadsIn { heads: usize },
}

impl Layout {
    /// Shape in the file of a matrix kept as `[rows, columns]`.
    pub(crate) fn stored_matrix(self, [rows, columns]: [usize; 2]) -> Vec<usize> {
        match self {
            Layout::AsIs => vec![rows, columns],
            Layout::Transposed | Layout::UnitRows | Layout::Paired { .. } => vec![columns, rows],
            Layout::OfStack { of, .. } => vec![of, columns, rows],
            Layout::RowsOfStack { of, rows: all, .. } => vec![of, all, rows],
            Layout::RowsAsIs { of, .. } => vec![of, columns],
            Layout::Columns { of, .. } => vec![rows, columns * of],
            Layout::Grouped { take, of, .. } => vec![columns / take * of, rows],
            Layout::Rows { of, .. } => vec![of, rows],
            Layout::Filters => vec![columns, 1, rows],
            Layout::AfterRows { skip } => vec![rows + skip, columns],
            Layout::OfCube { of, step, .. } => vec![of, rows, columns * step],
            Layout::ColumnsOfCube { of, parts, .. } => vec![of, rows, columns * parts],
            Layout::OneLess => vec![rows, columns],
            Layout::ExpertHeadsOut { experts, .. } => vec![experts, columns / experts, rows],
            Layout::ExpertHeadsIn { experts, .. } => vec![experts, columns, rows / experts],
            Layout::HeadsOut { heads } => vec![heads, rows, columns / heads],
            Layout::HeadsIn { heads } => vec![heads, rows / heads, columns],
        }
    }

    /// Shape in the file of a vector kept with `len` entries.
    pub(crate) fn stored_vector(self, len: usize) -> Vec<usize> {
        match self {
            Layout::Columns { of, .. } => vec![len * of],
            Layout::Grouped { take, of, .. } => vec![len / take * of],
            Layout::Rows { of, .. } => vec![of],
            Layout::HeadsOut { heads } => vec![heads, len / heads],
            Layout::OfCube { of, step, .. } => vec![of, len * step],
            Layout::OfStack { of, .. } => vec![of, len],
            _ => vec![len],
        }
    }

    /// Whether the matrix in the model is a strided view of the tensor in the file, so that the data can stay in the
    /// mapped file.
    pub(crate) fn is_view(self) -> bool {
        !matches!(
            self,
            Layout::Grouped { .. }
                | Layout::Filters
                | Layout::HeadsOut { .. }
                | Layout::ExpertHeadsOut { .. }
                | Layout::ExpertHeadsIn { .. }
                | Layout::UnitRows
                | Layout::OfCube { .. }
                | Layout::Paired { .. }
        )
    }

    /// Whether the file stores the matrix as `[in, out]`, as transformers' `Conv1D` does.
    pub(crate) fn is_in_out(self) -> bool {
        matches!(self, Layout::AsIs | Layout::Columns { .. })
    }

    /// Range and order of the stored tensor's rows that become the columns of a matrix kept as `[rows, columns]`;
    /// `None` if the columns are not stored as rows.
    pub(crate) fn packed_rows(self, [_, columns]: [usize; 2]) -> Option<(Range<usize>, Order)> {
        let (first, order) = match self {
            Layout::Transposed => (0, Order::AsIs),
            Layout::Rows { start, .. } => (start, Order::AsIs),
            Layout::OfStack { index, .. } => (index * columns, Order::AsIs),
            Layout::RowsOfStack { index, start, rows, .. } => (index * rows + start, Order::AsIs),
            Layout::Paired { head } => (0, Order::Paired(head)),
            Layout::OfCube { index, start, step, .. } => {
                let all = columns * step;
                return Some((index * all..(index + 1) * all, Order::Every { start, step }));
            }
            _ => return None,
        };
        Some((first..first + columns, order))
    }

    /// Elements to read for a matrix kept as `[rows, columns]`, and the shape they form. The other parts of a fused
    /// tensor are not read.
    pub(crate) fn to_read(self, shape @ [rows, columns]: [usize; 2]) -> (Runs, Vec<usize>) {
        match self {
            Layout::Columns { part, of } => {
                let runs = Runs { offset: part * columns, len: columns, stride: columns * of, count: rows };
                (runs, vec![rows, columns])
            }
            Layout::Grouped { start, take, of, groups } => {
                let part = columns / groups / take * rows;
                let runs = Runs { offset: start * part, len: take * part, stride: of * part, count: groups };
                (runs, vec![columns, rows])
            }
            Layout::Filters => (Runs::all(columns * rows), vec![columns, rows]),
            Layout::Rows { start, .. } => {
                (Runs { offset: start * rows, ..Runs::all(columns * rows) }, vec![columns, rows])
            }
            Layout::AfterRows { skip } => {
                (Runs { offset: skip * columns, ..Runs::all(rows * columns) }, vec![rows, columns])
            }
            Layout::OfCube { index, step, .. } => {
                let len = rows * columns * step;
                (Runs { offset: index * len, ..Runs::all(len) }, vec![rows, columns * step])
            }
            Layout::ColumnsOfCube { index, part, parts, .. } => {
                let stride = columns * parts;
                let offset = index * rows * stride + part * columns;
                (Runs { offset, len: columns, stride, count: rows }, vec![rows, columns])
            }
            Layout::OfStack { index, .. } => {
                let len = rows * columns;
                (Runs { offset: index * len, ..Runs::all(len) }, vec![columns, rows])
            }
            Layout::RowsOfStack { index, start, rows: all, .. } => {
                let offset = (index * all + start) * rows;
                (Runs { offset, ..Runs::all(rows * columns) }, vec![columns, rows])
            }
            Layout::RowsAsIs { start, .. } => {
                (Runs { offset: start * columns, ..Runs::all(rows * columns) }, vec![rows, columns])
            }
            _ => (Runs::all(rows * columns), self.stored_matrix(shape)),
        }
    }

    /// Converts the elements selected by [`Layout::to_read`] to the model's form.
    pub(crate) fn matrix(self, stored: StoredTensor, [rows, columns]: [usize; 2]) -> Tensor<2> {
        match (self, stored) {
            (
                Layout::Transposed
                | Layout::Grouped { .. }
                | Layout::Rows { .. }
                | Layout::Filters
                | Layout::OfStack { .. }
                | Layout::RowsOfStack { .. },
                StoredTensor::Matrix(m),
            ) => m.transpose(),
            (Layout::Paired { head }, StoredTensor::Matrix(m)) => {
                let pairs = m.reshape([columns / head, head / 2, 2, rows]).swap_dims(1, 2);
                pairs.reshape([columns, rows]).transpose()
            }
            (Layout::OfCube { start, step, .. }, StoredTensor::Matrix(m)) => {
                m.reshape([rows, columns, step]).narrow(2, start, 1).reshape([rows, columns])
            }
            (Layout::UnitRows, StoredTensor::Matrix(m)) => {
                // The least length is that of `torch.nn.functional.normalize`.
                let length = m.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
                (m / length).transpose()
            }
            (Layout::ExpertHeadsOut { experts, heads }, StoredTensor::Cube(c)) => {
                let apart = c.reshape([experts, heads, columns / experts / heads, rows]);
                apart.permute([3, 1, 0, 2]).reshape([rows, columns])
            }
            (Layout::ExpertHeadsIn { experts, heads }, StoredTensor::Cube(c)) => {
                let apart = c.reshape([experts, columns, heads, rows / experts / heads]);
                apart.permute([2, 0, 3, 1]).reshape([rows, columns])
            }
            (Layout::HeadsOut { .. }, StoredTensor::Cube(c)) => c.permute([1, 0, 2]).reshape([rows, columns]),
            (_, StoredTensor::Cube(c)) => c.reshape([rows, columns]),
            (_, StoredTensor::Matrix(m)) => m,
        }
    }

    /// Converts a whole stored tensor to the model's form, for layouts that are views.
    pub(crate) fn view(self, stored: StoredTensor, shape @ [rows, columns]: [usize; 2]) -> Tensor<2> {
        match (self, stored) {
            (Layout::Rows { start, .. }, StoredTensor::Matrix(m)) => m.narrow(0, start, columns).transpose(),
            (Layout::AfterRows { skip }, StoredTensor::Matrix(m)) => m.narrow(0, skip, rows),
            (Layout::OfStack { index, .. }, StoredTensor::Cube(c)) => {
                c.narrow(0, index, 1).reshape([columns, rows]).transpose()
            }
            (Layout::RowsOfStack { index, start, .. }, StoredTensor::Cube(c)) => {
                c.narrow(0, index, 1).narrow(1, start, columns).reshape([columns, rows]).transpose()
            }
            (Layout::ColumnsOfCube { index, part, parts, .. }, StoredTensor::Cube(c)) => {
                let own = c.narrow(0, index, 1).reshape([rows, columns * parts]);
                own.narrow(1, part * columns, columns)
            }
            (Layout::RowsAsIs { start, .. }, StoredTensor::Matrix(m)) => m.narrow(0, start, rows),
            (Layout::Columns { part, .. }, StoredTensor::Matrix(m)) => m.narrow(1, part * columns, columns),
            (_, stored) => self.matrix(stored, shape),
        }
    }

    /// Converts a whole stored tensor to the model's form, for any layout.
    pub(crate) fn of_whole(self, stored: Tensor<2>, shape @ [rows, columns]: [usize; 2]) -> Tensor<2> {
        match self {
            Layout::Grouped { start, take, of, groups } => {
                let part = columns / groups / take;
                let parts = stored.reshape([groups, of, part, rows]).narrow(1, start, take);
                parts.reshape([columns, rows]).transpose()
            }
            Layout::UnitRows | Layout::Paired { .. } => self.matrix(StoredTensor::Matrix(stored), shape),
            Layout::ExpertHeadsOut { experts, .. } => {
                self.matrix(StoredTensor::Cube(stored.reshape([experts, columns / experts, rows])), shape)
            }
            Layout::ExpertHeadsIn { experts, .. } => {
                self.matrix(StoredTensor::Cube(stored.reshape([experts, columns, rows / experts])), shape)
            }
            _ => self.view(StoredTensor::Matrix(stored), shape),
        }
    }

    /// Like [`Layout::to_read`], for a vector kept with `len` entries.
    pub(crate) fn to_read_vector(self, len: usize) -> Runs {
        match self {
            Layout::Columns { part, .. } => Runs { offset: part * len, ..Runs::all(len) },
            Layout::Grouped { start, take, of, groups } => {
                let part = len / groups / take;
                Runs { offset: start * part, len: take * part, stride: of * part, count: groups }
            }
            Layout::Rows { start, .. } => Runs { offset: start, ..Runs::all(len) },
            Layout::OfCube { index, step, .. } => Runs { offset: index * len * step, ..Runs::all(len * step) },
            Layout::OfStack { index, .. } => Runs { offset: index * len, ..Runs::all(len) },
            _ => Runs::all(len),
        }
    }

    /// Converts the elements selected by [`Layout::to_read_vector`] to the model's form.
    pub(crate) fn vector(self, stored: Tensor<1>, len: usize) -> Tensor<1> {
        match self {
            Layout::OfCube { start, step, .. } => stored.reshape([len, step]).narrow(1, start, 1).reshape([len]),
            Layout::OneLess => stored + 1.0,
            Layout::Paired { head } => stored.reshape([len / head, head / 2, 2]).swap_dims(1, 2).reshape([len]),
            _ => stored,
        }
    }

    /// The inverse of [`Layout::matrix`], for layouts with one weight per tensor.
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

/// A stored matrix, or a stack of one matrix per head.
#[derive(Debug)]
pub(crate) enum StoredTensor {
    Matrix(Tensor<2>),
    Cube(Tensor<3>),
}

/// Where and how the files store a weight.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Whether the weight is tied to the token embedding.
    pub(crate) tied: bool,
    /// Whether a tied weight is still read from the files if they contain it under its own name.
    pub(crate) own_if_there: bool,
    /// Factor that the weight is multiplied by.
    pub(crate) scale: f64,
    /// Whether the files may lack the weight, for example because it belongs to an output head.
    pub(crate) optional: bool,
    /// Names of the tensor in adapters: first under the module that uses this weight, then under the modules that share
    /// it. Empty if adapters only use the tensor's own name.
    pub(crate) modules: Vec<String>,
}

/// Part name under which cross-attention tensors are reported.
pub(crate) const CROSS_ATTENTION: &str = "cross-attention";

/// A family's weight table: maps each weight, by its TransformerLens name, to its location in the files.
#[derive(Debug, Default)]
pub(crate) struct WeightTable {
    pub(crate) sources: BTreeMap<String, Source>,
    /// Width of the stored token embeddings, if they are projected to and from the residual stream.
    pub(crate) projected: Option<usize>,
    /// Alternative locations of weights, used by some of the family's files.
    pub(crate) others: BTreeMap<String, (String, Layout)>,
    /// Prefix that some of the family's files omit.
    pub(crate) prefix: &'static str,
    /// Name prefixes of the text model's tensors in a multimodal model's files; else empty.
    pub(crate) own: Vec<&'static str>,
    /// Name suffixes of tensors that are derived and never needed.
    pub(crate) derived: &'static [&'static str],
    /// Name suffixes, each with the suffix that some files use instead.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Pairs of names that files may use for the same tensor. Transformers reads one or the other, depending on its
    /// version.
    pub(crate) twins: Vec<(String, String)>,
    /// Substring of cross-attention tensor names, in files of a decoder that is run without its encoder.
    pub(crate) cross_attention: Option<&'static str>,
    /// Position table to compute if the files contain none.
    pub(crate) sinusoids: Option<Sinusoids>,
}

impl WeightTable {
    pub(crate) fn new(prefix: &'static str, derived: &'static [&'static str]) -> Self {
        Self {
            sources: BTreeMap::new(),
            others: BTreeMap::new(),
            projected: None,
            own: Vec::new(),
            prefix,
            derived,
            aliases: &[],
            twins: Vec::new(),
            cross_attention: None,
            sinusoids: None,
        }
    }

    /// Finds a tensor's name in the files, with or without the family's prefix.
    pub(crate) fn find(&self, files: &WeightFiles, name: &str) -> Option<String> {
        let others = self.aliases.iter();
        let others = others.filter_map(|(ours, theirs)| Some(format!("{}{theirs}", name.strip_suffix(ours)?)));
        let names: Vec<String> = [name.to_string()].into_iter().chain(others).collect();
        let bare = names.iter().filter_map(|name| name.strip_prefix(self.prefix));
        names.iter().map(String::as_str).chain(bare).find(|n| files.info(n).is_some()).map(str::to_string)
    }

    /// Number of parameters in the files. Each tensor counts once; buffers do not count.
    pub(crate) fn parameters(&self, files: &WeightFiles) -> usize {
        let names: BTreeSet<String> = self
            .sources
            .values()
            .filter(|s| !s.tied || s.own_if_there)
            .filter_map(|source| self.find(files, &source.name))
            .collect();
        names.iter().filter_map(|name| files.info(name)).map(|info| info.shape.iter().product::<usize>()).sum()
    }

    /// Required tensors that the files lack.
    pub(crate) fn missing(&self, files: &WeightFiles) -> Vec<String> {
        let missing = |source: &&Source| !source.tied && !source.optional && self.find(files, &source.name).is_none();
        let names: BTreeSet<_> = self.sources.values().filter(missing).map(|source| source.name.clone()).collect();
        names.into_iter().collect()
    }

    /// Tensors in the files that no weight is built from, except derived ones.
    pub(crate) fn unused(&self, files: &WeightFiles) -> Vec<String> {
        let used: BTreeSet<_> = self.sources.values().filter_map(|source| self.find(files, &source.name)).collect();
        let derived = |name: &str| {
            self.derived.iter().any(|end| name.ends_with(end))
                || is_of_another_part(name, &self.own)
                || self.is_of_cross_attention(name)
        };
        let names = files.tensors().map(|(name, _)| name).filter(|name| !used.contains(*name) && !derived(name));
        names.map(str::to_string).collect()
    }

    fn is_of_cross_attention(&self, name: &str) -> bool {
        self.cross_attention.is_some_and(|part| name.contains(part))
    }

    /// Counts the tensors in each part other than the text model, keyed by name prefix, and the unused cross-attention
    /// tensors.
    pub(crate) fn other_parts(&self, files: &WeightFiles) -> BTreeMap<String, usize> {
        let mut parts = BTreeMap::new();
        for _ in files.tensors().filter(|(name, _)| self.is_of_cross_attention(name)) {
            *parts.entry(CROSS_ATTENTION.to_string()).or_default() += 1;
        }
        for (name, _) in files.tensors().filter(|(name, _)| is_of_another_part(name, &self.own)) {
            let (outer, rest) = name.split_once('.').unwrap_or((name, ""));
            let part = match (outer, rest.split_once('.')) {
                ("model" | "thinker", Some((inner, _))) => format!("{outer}.{inner}"),
                _ => outer.to_string(),
            };
            *parts.entry(part).or_default() += 1;
        }
        parts
    }

    /// Adds a weight that the files must contain.
    pub(crate) fn add(&mut self, weight: impl Into<String>, name: impl Into<String>, layout: Layout) {
        self.sources.insert(
            weight.into(),
            Source {
                name: name.into(),
                layout,
                tied: false,
                own_if_there: false,
                scale: 1.0,
                optional: false,
                modules: Vec::new(),
            },
        );
    }

    /// Adds an alternative location for a weight, used if the files lack the main one.
    pub(crate) fn or(&mut self, weight: &str, name: &str, layout: Layout) {
        self.others.insert(weight.into(), (name.into(), layout));
    }

    /// Chooses the location that these files use for each weight with an alternative.
    pub(crate) fn settle(&mut self, files: &WeightFiles) {
        for (weight, (name, layout)) in std::mem::take(&mut self.others) {
            let Some(there) = self.sources.get(&weight).map(|source| self.find(files, &source.name).is_some()) else {
                continue;
            };
            let other = !there && self.find(files, &name).is_some();
            if let (true, Some(source)) = (other, self.sources.get_mut(&weight)) {
                (source.name, source.layout) = (name, layout);
            }
        }
    }

    /// Adds the unembedding: stored under `name`, or tied to the token embedding.
    pub(crate) fn unembedding(&mut self, name: &str, tied: bool) {
        self.add("unembed.W_U", name, Layout::Transposed);
        if let Some(source) = self.sources.get_mut("unembed.W_U") {
            source.tied = tied;
        }
    }

    /// Adds the unembedding: stored under `name` if the files contain it, else tied to the token embedding.
    pub(crate) fn unembedding_if_there(&mut self, name: &str) {
        self.unembedding(name, true);
        if let Some(source) = self.sources.get_mut("unembed.W_U") {
            source.own_if_there = true;
        }
    }

    /// Declares token embeddings of this width, with one linear map into the residual stream, and a second one that
    /// maps the stream back to this width before the unembedding.
    pub(crate) fn project(&mut self, width: usize, into: &str, out_of: &str) {
        self.projected = Some(width);
        self.add("embed.projection", into, Layout::Transposed);
        self.add("unembed.projection", out_of, Layout::Transposed);
    }

    /// Fails if the files store a tied unembedding that differs from the embedding, since transformers uses one or the
    /// other depending on its version.
    pub(crate) fn check_tied(&self, files: &WeightFiles, unembedding: &str, embedding: &str) -> Result<(), LoadError> {
        match (self.find(files, unembedding), self.find(files, embedding)) {
            (Some(unembedding), Some(embedding)) if !files.same(&unembedding, &embedding)? => {
                Err(LoadError::NotTied { unembedding, embedding })
            }
            _ => Ok(()),
        }
    }

    /// Returns the first pair in the field `twins` whose two tensors are both in the files, with different values.
    pub(crate) fn twins(&self, files: &WeightFiles) -> Result<Option<[String; 2]>, LoadError> {
        for (one, other) in &self.twins {
            if let (Some(one), Some(other)) = (self.find(files, one), self.find(files, other))
                && !files.same(&one, &other)?
            {
                return Ok(Some([one, other]));
            }
        }
        Ok(None)
    }

    /// Adds a layer norm's weight and bias.
    pub(crate) fn norm(&mut self, norm: &str, name: &str) {
        self.add(format!("{norm}.w"), format!("{name}.weight"), Layout::AsIs);
        self.add(format!("{norm}.b"), format!("{name}.bias"), Layout::AsIs);
    }

    /// Marks weights with these name prefixes as optional.
    pub(crate) fn optional(&mut self, beginnings: &[&str]) {
        for (weight, source) in &mut self.sources {
            source.optional |= beginnings.iter().any(|beginning| weight.starts_with(beginning));
        }
    }

    /// Removes a weight that the family lacks.
    pub(crate) fn remove(&mut self, weight: &str) {
        self.sources.remove(weight);
    }

    /// Multiplies a weight by a factor, which some families store separately.
    pub(crate) fn scale(&mut self, weight: &str, by: f64) {
        if let Some(source) = self.sources.get_mut(weight) {
            source.scale *= by;
        }
    }

    /// Adds a `torch.nn.Linear`: weight `[out, in]`, and a bias if `biased`. The bias is named like the weight, with
    /// `b` instead of `W`.
    pub(crate) fn linear(&mut self, weight: &str, name: &str, biased: bool) {
        self.add(weight, format!("{name}.weight"), Layout::Transposed);
        if biased {
            self.add(weight.replace(".W_", ".b_"), format!("{name}.bias"), Layout::AsIs);
        }
    }
}
