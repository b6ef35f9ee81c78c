//! Builds a model's weights from files, following the family's weight table.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use hooklens_hooks::DType;
use hooklens_kernels::packed::Order;

use super::adapter::Adapter;
use super::options::{InputRounding, Progress};
use crate::weight_files::{Layout, RawTensors, StoredTensor, TensorInfo, WeightFiles, WeightTable};
use hooklens_model::config::{
    ActivationFn, Experts, Latent, Layers, NormDetails, NormKind, PerLayerInputs, QkNorm, Settings, SharedExpert,
    TransformerConfig,
};
use hooklens_model::cpu::Weight;
use hooklens_model::cpu::packed_matrix::PackedMatrix;
use hooklens_model::device::{Placement, is_cubecl};
use hooklens_model::error::LoadError;
use hooklens_model::model::LoadReport;
use hooklens_model::model::Pages;
use hooklens_model::model::{
    Attention, Block, DecoderWeights, DenseMlp, Embed, Expert, LatentMaps, Linear, Mixer, Mlp, Moe, MoeNorms, Norm,
    Paging, PerLayer, PerLayerEmbed, SharedMlp, Slopes, WeightSource,
};

/// Reads weights one at a time, checking each shape against the configuration first.
pub(super) struct Assembler<'a> {
    pub(super) files: &'a WeightFiles,
    pub(super) table: &'a WeightTable,
    pub(super) compute: DType,
    /// Whether tensors may borrow from the mapped files.
    pub(super) borrow: bool,
    /// Whether 16-bit matrices keep their element type.
    narrow: bool,
    /// Whether block-quantized matrices stay quantized.
    blocks: bool,
    /// How products round their inputs.
    rounding: Option<InputRounding>,
    placement: &'a Placement,
    /// Device for the weights being read now.
    pub(super) device: &'a Device,
    adapter: Option<&'a Adapter>,
    /// Names of the adapter's changes applied so far.
    changed: BTreeSet<String>,
    applied: BTreeSet<String>,
    missing: Vec<String>,
    /// Pages of borrowed tensors in the current part of the model.
    pages: Pages,
    /// Pages of borrowed tensors, per block.
    blocks_pages: Vec<Pages>,
    /// Bytes of weights that were copied.
    copied: usize,
    /// Progress callback.
    progress: Option<&'a Progress>,
    /// Number of bytes read so far.
    done: usize,
    /// Tensors kept block-quantized.
    in_blocks: BTreeSet<String>,
    /// Block-quantized tensors that are dequantized.
    widened: BTreeSet<String>,
}

/// Location of a weight in the files.
pub(super) struct Located<'a> {
    name: String,
    layout: Layout,
    /// Names of the tensor in adapters; see [`Source::modules`](crate::weight_files::Source::modules).
    modules: &'a [String],
}

impl Located<'_> {
    /// Name of the weight's module in an adapter.
    fn module(&self) -> &str {
        self.modules.first().unwrap_or(&self.name)
    }

    /// [`Self::module`], followed by the names of modules that share the tensor.
    fn names(&self) -> Vec<&str> {
        match self.modules {
            [] => vec![&self.name],
            names => names.iter().map(String::as_str).collect(),
        }
    }
}

impl<'a> Assembler<'a> {
    pub(super) fn new(
        files: &'a WeightFiles,
        table: &'a WeightTable,
        compute: DType,
        borrow: bool,
        placement: &'a Placement,
    ) -> Self {
        Self {
            files,
            table,
            compute,
            borrow,
            narrow: false,
            blocks: false,
            rounding: None,
            placement,
            device: placement.first(),
            adapter: None,
            changed: BTreeSet::new(),
            applied: BTreeSet::new(),
            missing: Vec::new(),
            pages: Pages::default(),
            blocks_pages: Vec::new(),
            copied: 0,
            progress: None,
            done: 0,
            in_blocks: BTreeSet::new(),
            widened: BTreeSet::new(),
        }
    }

    /// Sets whether 16-bit and block-quantized matrices keep their stored form.
    pub(super) fn keeping(&mut self, narrow: bool, blocks: bool) -> &mut Self {
        (self.narrow, self.blocks) = (narrow, blocks);
        self
    }

    /// Sets how products round their inputs.
    pub(super) fn rounding_inputs(&mut self, rounding: Option<InputRounding>) -> &mut Self {
        self.rounding = rounding;
        self
    }

    /// Reports progress for each tensor read.
    pub(super) fn telling(mut self, progress: Option<&'a Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Merges an adapter into all weights read from now on.
    pub(super) fn with_adapter(mut self, adapter: Option<&'a Adapter>) -> Self {
        self.adapter = adapter;
        self
    }

    /// Names of the adapter's changes applied so far.
    pub(super) fn changed(&self) -> &BTreeSet<String> {
        &self.changed
    }

    /// Reads all weights.
    pub(super) fn weights(&mut self, config: &TransformerConfig) -> Result<DecoderWeights, LoadError> {
        self.check_all_there()?;
        let c = config;
        let width = self.table.projected.unwrap_or(c.d_model());
        let kept = self.table("embed.W_E", [c.d_vocab(), width])?;
        let tokens = match self.table.projected {
            Some(_) => {
                let by = self.exact("embed.projection", [width, c.d_model()])?;
                Weight::Plain(self.exact("embed.W_E", [c.d_vocab(), width])?.matmul(by))
            }
            None => kept.clone(),
        };
        // A table in the files takes precedence, since it may have been trained.
        let computed = self.table.sinusoids.filter(|_| self.locate("pos_embed.W_pos").is_none());
        let positions = match (c.has_position_table(), computed) {
            (true, None) => Some(self.matrix("pos_embed.W_pos", [c.n_ctx(), c.d_model()])?),
            (true, Some(sinusoids)) => {
                let data = TensorData::new(sinusoids.rows(c.n_ctx(), c.d_model()), [c.n_ctx(), c.d_model()]);
                Some(Tensor::from_data(data, (self.device, self.compute.burn())))
            }
            (false, _) => None,
        };
        let norm = match c.post_embedding_norm() {
            true => Some(self.norm("embed.ln", NormKind::LayerNorm, c.d_model(), c.eps())?),
            false => None,
        };
        let embed = Embed::new(tokens, positions, norm, self.device);
        let per_layer_embed = match c.per_layer_inputs() {
            Some(own) => Some(self.per_layer_embed(c, own)?),
            None => None,
        };
        let mut blocks = Vec::with_capacity(c.n_layers());
        // Lookups touch only a few rows of the table, so its pages are not counted unless it is also the unembedding.
        let table = std::mem::take(&mut self.pages);
        for layer in 0..c.n_layers() {
            self.device = self.placement.of_layer(layer, c.n_layers());
            blocks.push(self.block(&format!("blocks.{layer}"), c, layer)?);
            self.blocks_pages.push(std::mem::take(&mut self.pages));
        }
        self.device = self.placement.last();
        let mut unembed = match c.d_vocab_out() {
            0 => Linear::new(Tensor::zeros([c.d_model(), 0], (self.device, self.compute.burn())), None),
            rows => self.unembed(&kept, [width, rows])?,
        };
        if self.table.projected.is_some() && c.d_vocab_out() > 0 {
            let by = self.exact("unembed.projection", [c.d_model(), width])?;
            let own = unembed.weight_in(self.compute.burn());
            unembed = Linear::new(by.matmul(own), unembed.bias.map(|bias| bias.val()));
        }
        if self.pages.size() == 0 {
            self.pages = table;
        }
        let ln_final = self.norm("ln_final", c.final_norm(), c.d_model(), c.final_eps().unwrap_or(c.eps()))?;
        Ok(DecoderWeights { embed, per_layer_embed, blocks, ln_final, unembed })
    }

    fn per_layer_embed(&mut self, c: &TransformerConfig, own: PerLayerInputs) -> Result<PerLayerEmbed, LoadError> {
        let all = c.n_layers() * own.width;
        // Lookups touch only a few rows of the table, so its pages are not counted.
        let before = std::mem::take(&mut self.pages);
        let vectors = self.table("per_layer_embed.W_E", [c.d_vocab(), all])?;
        self.pages = before;
        Ok(PerLayerEmbed {
            vectors: Embed::new(vectors, None, None, self.device),
            projection: self.linear("per_layer_embed.W_proj", "per_layer_embed.b_proj", [c.d_model(), all])?,
            norm: self.norm("per_layer_embed.norm", NormKind::Rms, own.width, c.eps())?,
        })
    }

    /// Reads a block's per-layer input weights under this name.
    fn per_layer(&mut self, name: &str, c: &TransformerConfig, own: PerLayerInputs) -> Result<PerLayer, LoadError> {
        let mut linear =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        Ok(PerLayer {
            gate: linear("gate", [c.d_model(), own.width])?,
            output: linear("out", [own.width, c.d_model()])?,
            post: self.norm(&format!("{name}_post"), NormKind::Rms, c.d_model(), c.eps())?,
        })
    }

    /// Decides which blocks stay in memory under a limit; `None` if all fit.
    pub(super) fn paging(&mut self, limit: Option<u64>) -> Result<Option<Paging>, LoadError> {
        let (blocks, staying) = (std::mem::take(&mut self.blocks_pages), self.copied + self.pages.size());
        limit.map_or(Ok(None), |limit| Paging::under(limit, blocks, staying))
    }

    /// Builds the load report: which tensors in the files were used.
    pub(super) fn report(self) -> LoadReport {
        let mut report = LoadReport::default();
        report.unused = self.table.unused(self.files);
        report.missing = self.missing;
        report.stored_bytes = self.files.stored_bytes();
        report.applied = self.applied.into_iter().collect();
        report.in_blocks = self.in_blocks.into_iter().collect();
        report.widened = self.widened.into_iter().collect();
        report
    }

    /// Checks that every required weight is in the files, before reading anything large.
    pub(super) fn check_all_there(&self) -> Result<(), LoadError> {
        if let Some(name) = self.table.missing(self.files).into_iter().next() {
            return Err(LoadError::MissingTensor { nearest: self.files.nearest(&name), name });
        }
        match self.table.twins(self.files)? {
            Some([one, other]) => Err(LoadError::Ambiguous { one, other }),
            None => Ok(()),
        }
    }

    /// Locates a weight; `None` if the model has no such weight or the files do not contain it.
    pub(super) fn locate(&self, weight: &str) -> Option<Located<'a>> {
        let source = self.table.sources.get(weight)?;
        let name = self.table.find(self.files, &source.name)?;
        Some(Located { name, layout: source.layout, modules: &source.modules })
    }

    /// Like [`Self::locate`], but fails if the files lack the weight.
    fn located(&self, weight: &str) -> Result<Located<'a>, LoadError> {
        let missing = || LoadError::MissingTensor { name: weight.to_string(), nearest: self.files.nearest(weight) };
        self.locate(weight).ok_or_else(missing)
    }

    /// Files and tensor name that a weight is read from: the adapter's if it replaces the base tensor.
    fn holder(&self, at: &Located<'_>) -> (&'a WeightFiles, String) {
        let replaced = self.adapter.and_then(|adapter| {
            let own = adapter.replacement(&at.names(), self.table.prefix)?;
            Some((&adapter.files, own.to_string()))
        });
        replaced.unwrap_or((self.files, at.name.clone()))
    }

    /// Like [`Self::holder`], but checks the shape and records the tensor as used.
    fn held(&mut self, at: &Located<'_>, expected: Vec<usize>) -> Result<(&'a WeightFiles, String), LoadError> {
        let (name, (files, held)) = (&at.name, self.holder(at));
        if let Some(adapter) = self.adapter {
            let changes = adapter.replacing(&at.names(), self.table.prefix);
            self.changed.extend(changes.into_iter().map(str::to_string));
        }
        let given = files.info(&held).map(|info| info.shape.clone()).unwrap_or_default();
        if given != expected {
            return Err(LoadError::Shape { name: name.to_string(), expected, given });
        }
        if self.applied.insert(name.to_string())
            && let Some(progress) = self.progress
        {
            self.done += files.info(&held).map_or(0, |info| info.bytes);
            progress.tell(self.done, self.files.stored_bytes());
        }
        Ok((files, held))
    }

    /// Reads the unembedding: its own tensor, or a view of the token embedding if tied.
    pub(super) fn unembed(&mut self, tokens: &Weight, shape: [usize; 2]) -> Result<Linear, LoadError> {
        self.unembed_of("embed.W_E", tokens, shape)
    }

    /// Like [`Self::unembed`], for a token embedding with this name.
    pub(super) fn unembed_of(
        &mut self,
        embedding: &str,
        tokens: &Weight,
        shape: [usize; 2],
    ) -> Result<Linear, LoadError> {
        let tied = self.table.sources.get("unembed.W_U").filter(|source| source.tied);
        let own = |name: &String| self.table.find(self.files, name);
        match tied.filter(|tied| !tied.own_if_there || own(&tied.name).is_none()).map(|source| source.name.clone()) {
            Some(name) => {
                match own(&name) {
                    // PyTorch checkpoints contain a tied tensor under both names.
                    Some(second) => {
                        if let Some(embedding) = self.table.sources.get(embedding) {
                            self.table.check_tied(self.files, &second, &embedding.name)?;
                        }
                        self.applied.insert(second);
                    }
                    None => self.missing.push(name),
                }
                let bias = self.vector("unembed.b_U", shape[1])?;
                Ok(match tokens {
                    Weight::Plain(tokens) => {
                        let weight = self.unquantized(tokens.clone().to_device(self.device).transpose());
                        Linear::of(weight, bias, self.device)
                    }
                    packed => Linear::of(packed.clone(), bias, self.device),
                })
            }
            None => self.linear("unembed.W_U", "unembed.b_U", shape),
        }
    }

    pub(super) fn matrix(&mut self, weight: &str, shape: [usize; 2]) -> Result<Tensor<2>, LoadError> {
        let at = self.located(weight)?;
        let scale = self.scale(weight);
        if scale != 1.0 {
            return Ok(self.unscaled(&at, shape, (self.compute, false))? * scale);
        }
        let kept = self.kept_in(&at);
        // A matrix kept in 16 bits is not converted, so borrowing it leaves no second copy.
        let borrow = self.borrow || kept != self.compute;
        self.unscaled(&at, shape, (kept, borrow))
    }

    /// Like [`Self::matrix`], cast to the compute type.
    fn exact(&mut self, weight: &str, shape: [usize; 2]) -> Result<Tensor<2>, LoadError> {
        Ok(self.matrix(weight, shape)?.cast(self.compute.burn()))
    }

    /// Element type that a matrix is kept in.
    fn kept_in(&self, at: &Located<'_>) -> DType {
        let (files, held) = self.holder(at);
        let stored = files.info(&held).and_then(|info| info.float);
        match stored {
            Some(stored @ (DType::F16 | DType::BF16)) if self.narrow && at.layout != Layout::UnitRows => stored,
            _ => self.compute,
        }
    }

    /// Scale applied to a weight when it is loaded.
    fn scale(&self, weight: &str) -> f64 {
        self.table.sources.get(weight).map_or(1.0, |source| source.scale)
    }

    fn unscaled(
        &mut self,
        at: &Located<'_>,
        shape: [usize; 2],
        (kept, borrow): (DType, bool),
    ) -> Result<Tensor<2>, LoadError> {
        let layout = at.layout;
        let (files, held) = self.held(at, layout.stored_matrix(shape))?;
        if files.info(&held).is_some_and(TensorInfo::is_quantized) {
            self.widened.insert(at.name.clone());
        }
        let stored = |data: TensorData| {
            let options = (self.device, data.dtype());
            match data.shape().len() {
                3 => StoredTensor::Cube(Tensor::from_data(data, options)),
                _ => StoredTensor::Matrix(Tensor::from_data(data, options)),
            }
        };
        if let Some(adapter) = self.adapter
            && let Some((target, change)) = adapter.low_rank(at.module(), self.table.prefix)
        {
            let whole = match stored(files.read(&held, self.compute)?) {
                StoredTensor::Matrix(whole) => whole,
                StoredTensor::Cube(_) => return Err(adapter.not_a_matrix(target)),
            };
            let merged = adapter.merged(change, (whole, layout.is_in_out()), (self.device, self.compute))?;
            self.changed.insert(target.to_string());
            return Ok(layout.of_whole(merged, shape));
        }
        // CubeCL devices may read the data later, when the file may have been overwritten, so don't borrow there.
        if borrow
            && layout.is_view()
            && !is_cubecl(self.device)
            && let Some(data) = files.borrow(&held, kept)?
        {
            self.pages.extend(files.pages(&held));
            return Ok(layout.view(stored(data), shape));
        }
        let (runs, read) = layout.to_read(shape);
        self.copied += runs.len * runs.count * kept.size();
        Ok(layout.matrix(stored(files.read_runs(&held, kept, runs, read)?), shape))
    }

    pub(super) fn vector(&mut self, weight: &str, len: usize) -> Result<Option<Tensor<1>>, LoadError> {
        let Some(at) = self.locate(weight) else { return Ok(None) };
        let layout = at.layout;
        let (files, held) = self.held(&at, layout.stored_vector(len))?;
        let runs = layout.to_read_vector(len);
        let data = files.read_runs(&held, self.compute, runs, vec![runs.len * runs.count])?;
        let vector = layout.vector(Tensor::from_data(data, (self.device, self.compute.burn())), len);
        let scale = self.scale(weight);
        Ok(Some(if scale == 1.0 { vector } else { vector * scale }))
    }

    /// Like [`Self::vector`], for a weight that the configuration requires: fails if the files lack the weight.
    fn needed(&mut self, weight: &str, len: usize) -> Result<Tensor<1>, LoadError> {
        let found = self.vector(weight, len)?;
        found.ok_or_else(|| LoadError::MissingTensor { name: weight.to_string(), nearest: self.files.nearest(weight) })
    }

    /// Like [`Self::needed`], but at least in `f32`: rounding a router score could send a token to a different expert.
    fn wide_vector(&mut self, weight: &str, len: usize) -> Result<Tensor<1>, LoadError> {
        let kept = self.compute;
        if matches!(kept, DType::F16 | DType::BF16) {
            self.compute = DType::F32;
        }
        let vector = self.needed(weight, len);
        self.compute = kept;
        vector
    }

    pub(super) fn linear(&mut self, weight: &str, bias: &str, shape: [usize; 2]) -> Result<Linear, LoadError> {
        let at = self.located(weight)?;
        let packed = match at.layout.packed_rows(shape) {
            Some((rows, order)) if self.scale(weight) == 1.0 => {
                self.packed(&at, at.layout.stored_matrix(shape), rows, order)?
            }
            _ => None,
        };
        let added = self.added_bias(&at, shape[1])?.map(|added| {
            let source = if self.table.sources.contains_key(bias) { bias } else { weight };
            added * self.scale(source)
        });
        let weight = match packed {
            Some(packed) => Weight::Packed(packed),
            None => {
                let matrix = self.matrix(weight, shape)?;
                self.unquantized(matrix)
            }
        };
        let bias = match (self.vector(bias, shape[1])?, added) {
            (Some(bias), Some(added)) => Some(bias + added),
            (bias, added) => bias.or(added),
        };
        Ok(Linear::of(weight, bias, self.device))
    }

    /// The weight of a linear layer that is not quantized.
    fn unquantized(&self, matrix: Tensor<2>) -> Weight {
        match self.rounding {
            Some(InputRounding::Bf16) if matrix.dtype() == DType::BF16.burn() => Weight::RoundingInputs(matrix),
            _ => Weight::Plain(matrix),
        }
    }

    /// Bias that an adapter adds to a linear layer. The base layer may have no bias.
    fn added_bias(&mut self, weight: &Located<'_>, len: usize) -> Result<Option<Tensor<1>>, LoadError> {
        let Some(adapter) = self.adapter else { return Ok(None) };
        let Some((target, (name, factor))) = adapter.added_bias(weight.module(), self.table.prefix) else {
            return Ok(None);
        };
        let (layout, expected) = (weight.layout, weight.layout.stored_vector(len));
        let given = adapter.files.info(name).map(|info| info.shape.clone()).unwrap_or_default();
        if given != expected {
            return Err(LoadError::Shape { name: name.clone(), expected, given });
        }
        let runs = layout.to_read_vector(len);
        let data = adapter.files.read_runs(name, self.compute, runs, vec![runs.len * runs.count])?;
        let added = layout.vector(Tensor::from_data(data, (self.device, self.compute.burn())), len);
        self.changed.insert(target.to_string());
        Ok(Some(added * *factor))
    }

    /// Reads a table of vectors, `[row, d_model]`.
    fn table(&mut self, weight: &str, shape: [usize; 2]) -> Result<Weight, LoadError> {
        let at = self.located(weight)?;
        let packed = match at.layout {
            Layout::AsIs if self.scale(weight) == 1.0 => self.packed(&at, shape.to_vec(), 0..shape[0], Order::AsIs)?,
            _ => None,
        };
        Ok(match packed {
            Some(packed) => Weight::Packed(packed),
            None => Weight::Plain(self.matrix(weight, shape)?),
        })
    }

    /// Reads rows of a block-quantized tensor; `None` if the tensor is not quantized or will be dequantized.
    fn packed(
        &mut self,
        at: &Located<'_>,
        shape: Vec<usize>,
        rows: Range<usize>,
        order: Order,
    ) -> Result<Option<PackedMatrix>, LoadError> {
        let name = &at.name;
        let changed = self.adapter.is_some_and(|adapter| {
            let (names, prefix) = (at.names(), self.table.prefix);
            adapter.low_rank(at.module(), prefix).is_some() || adapter.replacement(&names, prefix).is_some()
        });
        if !self.blocks || changed || self.files.info(name).is_none_or(|info| info.packed.is_none()) {
            return Ok(None);
        }
        let (files, held) = self.held(at, shape)?;
        let packed = files.packed(&held, rows, order)?;
        let lent = files.pages(&held);
        self.copied += packed.as_ref().filter(|_| lent.size() == 0).map_or(0, PackedMatrix::size);
        self.pages.extend(lent);
        self.in_blocks.extend(packed.is_some().then(|| name.to_string()));
        let rounds = self.rounding == Some(InputRounding::EightBits);
        Ok(if rounds { packed.map(PackedMatrix::rounding_inputs) } else { packed })
    }

    pub(super) fn norm(&mut self, name: &str, kind: NormKind, width: usize, eps: f64) -> Result<Norm, LoadError> {
        let (mut w, mut b) = (None, None);
        if kind.has_weight() {
            w = Some(self.needed(&format!("{name}.w"), width)?);
        }
        if kind == NormKind::LayerNorm {
            let bias = format!("{name}.b");
            b = Some(match self.table.sources.contains_key(&bias) {
                true => self.needed(&bias, width)?,
                // nanoGPT allows norms without a bias.
                false => Tensor::zeros([width], (self.device, self.compute.burn())),
            });
        }
        Ok(Norm::new(kind, eps, w, b))
    }

    /// Reads a query or key norm. The files may store one tensor per head.
    fn qk_norm(&mut self, name: &str, norm: QkNorm, [heads, d_head]: [usize; 2], eps: f64) -> Result<Norm, LoadError> {
        let width = norm.weights.width(heads, d_head);
        if !norm.kind.has_weight() || !self.table.sources.contains_key(&format!("{name}.0.w")) {
            return self.norm(name, norm.kind, width, eps);
        }
        let each = |part: &str, this: &mut Self| {
            let own = (0..heads).map(|head| this.vector(&format!("{name}.{head}.{part}"), d_head));
            let own: Option<Vec<Tensor<1>>> = own.collect::<Result<_, _>>()?;
            Ok::<_, LoadError>(own.map(|own| Tensor::cat(own, 0)))
        };
        let w = each("w", self)?;
        let mut b = None;
        if norm.kind == NormKind::LayerNorm {
            let none = Tensor::zeros([width], (self.device, self.compute.burn()));
            b = Some(each("b", self)?.unwrap_or(none));
        }
        Ok(Norm::new(norm.kind, eps, w, b))
    }

    /// Reads the attention layer under this name.
    pub(super) fn attention(
        &mut self,
        name: &str,
        c: &TransformerConfig,
        layer: usize,
    ) -> Result<Attention, LoadError> {
        let (kv_heads, d_head, d_value) = (c.n_kv_heads_of(layer), c.d_head_of(layer), c.d_value_of(layer));
        let (width, kv_width) = (c.n_heads() * d_head, kv_heads * d_head);
        let mut project =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        let q_in = c.latent().and_then(|own| own.q_rank).unwrap_or(c.d_model());
        let kv_in = c.latent().map_or(c.d_model(), |own| own.kv_rank);
        let k_width = kv_width - kv_heads * c.latent().map_or(0, |own| own.d_rope);
        let (q, o) = (project("Q", [q_in, width])?, project("O", [c.n_heads() * d_value, c.d_model()])?);
        let own_keys = c.reads_keys_of(layer).is_none();
        let [k, v] = match own_keys {
            true => [project("K", [kv_in, k_width])?, project("V", [kv_in, kv_heads * d_value])?],
            false => [(); 2].map(|()| Linear::new(Tensor::zeros([kv_in, 0], (self.device, self.compute.burn())), None)),
        };
        let (mut q_norm, mut k_norm) = (None, None);
        if let Some(norm) = c.qk_norm_of(layer) {
            q_norm = Some(self.qk_norm(&format!("{name}.q_norm"), norm, [c.n_heads(), d_head], c.eps())?);
            if own_keys {
                k_norm = Some(self.qk_norm(&format!("{name}.k_norm"), norm, [kv_heads, d_head], c.eps())?);
            }
        }
        let sinks = match c.attn_sinks() {
            true => Some(Param::from_tensor(self.needed(&format!("{name}.sinks"), c.n_heads())?)),
            false => None,
        };
        let latent = match c.latent() {
            Some(own) => Some(self.latent(name, c.d_model(), own)?),
            None => None,
        };
        let gate = match c.attn_gates() {
            true => Some(self.linear(&format!("{name}.W_gate"), &format!("{name}.b_gate"), [c.d_model(), width])?),
            false => None,
        };
        let router = match c.attn_experts() {
            Some(own) => {
                Some(self.linear(&format!("{name}.W_router"), &format!("{name}.b_router"), [c.d_model(), own.count])?)
            }
            None => None,
        };
        Ok(Attention { q, k, v, o, q_norm, k_norm, sinks, gate, router, latent })
    }

    fn latent(&mut self, name: &str, d_model: usize, own: Latent) -> Result<LatentMaps, LoadError> {
        let mut linear =
            |part: &str, width| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), [d_model, width]);
        let (kv_down, k_rope) = (linear("KV_down", own.kv_rank)?, linear("K_rope", own.d_rope)?);
        let (mut q_down, mut q_norm) = (None, None);
        if let Some(rank) = own.q_rank {
            q_down = Some(linear("Q_down", rank)?);
            q_norm = Some(self.norm(&format!("{name}.q_latent_norm"), NormKind::Rms, rank, own.eps)?);
        }
        let kv_norm = self.norm(&format!("{name}.kv_latent_norm"), NormKind::Rms, own.kv_rank, own.eps)?;
        Ok(LatentMaps { q_down, q_norm, kv_down, kv_norm, k_rope })
    }

    /// Reads the block under this name.
    pub(super) fn block(&mut self, block: &str, c: &TransformerConfig, layer: usize) -> Result<Block, LoadError> {
        let name = |part: &str| format!("{block}.{part}");
        let mut made = Block {
            ln1: self.norm(&name("ln1"), c.ln1_kind(layer), c.d_model(), c.eps())?,
            mixer: Mixer::build(self, block, c, layer)?,
            ln1_post: None,
            ln2: None,
            mlp: None,
            ln2_post: None,
            per_layer: None,
            scalar: None,
        };
        if c.post_norms() {
            made.ln1_post = Some(self.norm(&name("ln1_post"), c.post_norm(), c.d_model(), c.eps())?);
        }
        if !c.has_mlp(layer) {
            return Ok(made);
        }
        made.ln2 = Some(self.norm(&name("ln2"), c.pre_norm(), c.d_model(), c.eps())?);
        if c.post_norms() {
            made.ln2_post = Some(self.norm(&name("ln2_post"), c.post_norm(), c.d_model(), c.eps())?);
        }
        if let Some(own) = c.per_layer_inputs() {
            made.per_layer = Some(self.per_layer(&name("per_layer"), c, own)?);
        }
        if c.layer_scalars() {
            made.scalar = Some(Param::from_tensor(self.needed(&name("scalar"), 1)?));
        }
        made.mlp = Some(match c.experts_of(layer) {
            Some(experts) => Mlp::Experts(self.moe(&name("mlp"), c, layer, experts)?),
            None => Mlp::Dense(self.mlp(&name("mlp"), c, layer)?),
        });
        Ok(made)
    }

    fn moe(&mut self, name: &str, c: &TransformerConfig, layer: usize, experts: Experts) -> Result<Moe, LoadError> {
        let part = |part: &str| format!("{name}.{part}");
        let router = self.linear(&part("W_gate"), &part("b_gate"), [c.d_model(), experts.count])?;
        let each = (0..experts.count).map(|expert| self.expert(&part(&format!("experts.{expert}")), c, layer));
        let each = each.collect::<Result<_, _>>()?;
        let choice_bias = match experts.choice_bias {
            true => Some(Param::from_tensor(self.wide_vector(&part("choice_bias"), experts.count)?)),
            false => None,
        };
        let shared = match experts.shared {
            Some(shared) => Some(self.shared_expert(&part("shared"), c, shared, c.is_gated(layer))?),
            None => None,
        };
        let scales = match experts.own_scales {
            true => Some(Param::from_tensor(self.wide_vector(&part("expert_scales"), experts.count)?)),
            false => None,
        };
        let norms = if experts.own_norms { Some(self.moe_norms(name, c)?) } else { None };
        Ok(Moe { router, experts: each, choice_bias, shared, scales, norms })
    }

    fn moe_norms(&mut self, name: &str, c: &TransformerConfig) -> Result<MoeNorms, LoadError> {
        let mut norm = |part: &str| self.norm(&format!("{name}.{part}"), NormKind::Rms, c.d_model(), c.eps());
        Ok(MoeNorms {
            router: norm("router_ln")?,
            experts: norm("experts_ln")?,
            shared_post: norm("shared_ln_post")?,
            experts_post: norm("experts_ln_post")?,
        })
    }

    fn expert(&mut self, name: &str, c: &TransformerConfig, layer: usize) -> Result<Expert, LoadError> {
        let d_mlp = c.d_mlp_of(layer);
        let mut linear =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        Ok(Expert {
            gate: if c.is_gated(layer) { Some(linear("gate", [c.d_model(), d_mlp])?) } else { None },
            input: linear("in", [c.d_model(), d_mlp])?,
            output: linear("out", [d_mlp, c.d_model()])?,
        })
    }

    fn shared_expert(
        &mut self,
        name: &str,
        c: &TransformerConfig,
        own: SharedExpert,
        gated: bool,
    ) -> Result<SharedMlp, LoadError> {
        let d_model = c.d_model();
        let mut linear =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        Ok(SharedMlp {
            gate: if gated { Some(linear("gate", [d_model, own.d_mlp])?) } else { None },
            input: linear("in", [d_model, own.d_mlp])?,
            output: linear("out", [own.d_mlp, d_model])?,
            share: if own.gated { Some(linear("share", [d_model, 1])?) } else { None },
        })
    }

    /// Reads the dense MLP of a layer under this name.
    pub(super) fn mlp(&mut self, name: &str, c: &TransformerConfig, layer: usize) -> Result<DenseMlp, LoadError> {
        let d_mlp = c.d_mlp_of(layer);
        let mut linear =
            |part: &str, shape| self.linear(&format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape);
        let input = linear("in", [c.d_model(), d_mlp])?;
        let gate = if c.is_gated(layer) { Some(linear("gate", [c.d_model(), d_mlp])?) } else { None };
        let mut output = linear("out", [d_mlp, c.d_model()])?;
        // Only TransformerLens files have a bias after the gated product. Its effect on the output is constant, so fold
        // it into the output bias.
        if let Some(after) = self.vector(&format!("{name}.b_after_product"), d_mlp)? {
            let constant = after.unsqueeze::<2>().matmul(output.weight_in(self.compute.burn())).squeeze_dim::<1>(0);
            let bias = output.bias.take().map(|b| b.val() + constant.clone()).unwrap_or(constant);
            output.bias = Some(Param::from_tensor(bias));
        }
        let norm = match c.activation() {
            ActivationFn::SoluLn => {
                let kind = hooklens_model::model::solu_norm(c.norm());
                Some(self.norm(&format!("{name}.ln"), kind, d_mlp, c.eps())?)
            }
            _ => None,
        };
        let slopes = match c.activation() {
            ActivationFn::Xielu => {
                let mut alpha = |part: &str| self.needed(&format!("{name}.{part}"), 1).map(Param::from_tensor);
                Some(Slopes { alpha_p: alpha("alpha_p")?, alpha_n: alpha("alpha_n")? })
            }
            _ => None,
        };
        Ok(DenseMlp { input, gate, norm, slopes, output })
    }
}

impl WeightSource for Assembler<'_> {
    type Error = LoadError;

    fn attention(&mut self, name: &str, c: &TransformerConfig, layer: usize) -> Result<Attention, LoadError> {
        Assembler::attention(self, name, c, layer)
    }

    fn linear(&mut self, name: &str, part: &str, shape: [usize; 2]) -> Result<Linear, LoadError> {
        Assembler::linear(self, &format!("{name}.W_{part}"), &format!("{name}.b_{part}"), shape)
    }

    fn filters(&mut self, name: String, shape: [usize; 2]) -> Result<Param<Tensor<2>>, LoadError> {
        Ok(Param::from_tensor(self.exact(&name, shape)?))
    }

    fn vector(&mut self, name: String, len: usize, _: f64) -> Result<Param<Tensor<1>>, LoadError> {
        Ok(Param::from_tensor(self.needed(&name, len)?))
    }

    fn optional_vector(&mut self, name: String, len: usize) -> Result<Option<Param<Tensor<1>>>, LoadError> {
        Ok(Assembler::vector(self, &name, len)?.map(Param::from_tensor))
    }

    fn norm(&mut self, name: String, kind: NormKind, width: usize, eps: f64) -> Result<Norm, LoadError> {
        Assembler::norm(self, &name, kind, width, eps)
    }
}
