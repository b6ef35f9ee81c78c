//! Low-rank adapters (LoRA) in PEFT's folders, merged into the weights they were trained on.
//!
//! A weight `W` becomes `W + scale · B A`, `scale` being `lora_alpha / r`, or `lora_alpha / sqrt(r)` for
//! rank-stabilized ones (Hu et al. 2021, Kalajdzievski 2023). With magnitudes (DoRA: Liu et al. 2024) each output's weights
//! are then made as long as the adapter says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use hooklens_hooks::DType;
use serde_json::Value;

use crate::error::LoadError;
use crate::tokens::read_json;
use crate::weight_files::WeightFiles;
use crate::weight_files::WeightTable;

/// An adapter's files, read and understood.
#[derive(Debug)]
pub(super) struct Adapter {
    folder: PathBuf,
    /// What it was trained on, as its configuration says.
    pub(super) base: Option<String>,
    /// Which state of a base on the hub.
    pub(super) revision: Option<String>,
    pub(super) files: WeightFiles,
    /// By the tensor of the base model each changes.
    changes: BTreeMap<String, Change>,
}

/// How an adapter changes a tensor of the base model.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// The product of two matrices is added.
    LowRank(LowRank),
    /// The adapter holds another tensor in its place, under this name.
    Replaced(String),
}

/// `scale · B A`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LowRank {
    a: String,
    b: String,
    scale: f64,
    rank: usize,
    /// Whether the base model holds the weight as `[in, out]`.
    transposed: bool,
    /// The length of each output's weights afterwards, if the adapter learned it.
    magnitude: Option<String>,
}

/// Kinds of adapter that are no plain LoRA.
const OTHERS: [&str; 5] =
    ["use_qalora", "alora_invocation_tokens", "layer_replication", "trainable_token_indices", "target_parameters"];

/// Whether a setting is as if it were not there.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

impl Adapter {
    /// Whether a folder is an adapter and no model.
    pub(super) fn is_one(folder: &Path) -> bool {
        folder.join("adapter_config.json").is_file() && !folder.join("config.json").is_file()
    }

    /// Reads a folder that PEFT's `save_pretrained` wrote.
    pub(super) fn open(folder: &Path, mmap: bool) -> Result<Self, LoadError> {
        let refused = |reason: String| LoadError::Adapter { path: folder.to_path_buf(), reason };
        let json = read_json(folder.join("adapter_config.json"))?;
        let kind = json.get("peft_type").and_then(Value::as_str).unwrap_or("nothing");
        if kind != "LORA" {
            return Err(refused(format!("its `peft_type` is {kind}; only LORA is merged")));
        }
        let set = |field: &str| match json.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(other) => Err(refused(format!("its `{field}` is {other}, not true or false"))),
        };
        // What no product of two matrices, added once, stands for.
        let given = |field: &&&str| json.get(**field).is_some_and(|value| !is_nothing(value));
        if let Some(field) = OTHERS.iter().find(given) {
            return Err(refused(format!("`{field}` is not supported")));
        }
        // These train against a base that they changed first.
        let start = json.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        if ["pissa", "olora", "corda", "loftq", "orthogonal"].iter().any(|other| start.starts_with(other)) {
            return Err(refused(format!("it was trained against a changed base (`init_lora_weights` = {start})")));
        }
        let dora = set("use_dora")?;
        let path = ["adapter_model.safetensors", "adapter_model.bin"].map(|name| folder.join(name));
        let path = path.into_iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| refused("it has no adapter_model.safetensors or adapter_model.bin".into()))?;
        let files = WeightFiles::open_with(&[path], mmap)?;
        let turned = set("fan_in_fan_out")?;
        set("use_rslora")?;
        let scales = Scales::of(&json, folder)?;
        let mut changes = BTreeMap::new();
        for (name, _) in files.tensors() {
            let bare = name.strip_prefix("base_model.model.").unwrap_or(name);
            let module = |end: &str| bare.strip_suffix(end).map(str::to_string);
            let low_rank = |module: String, b: String, transposed: bool| {
                let (scale, rank) = scales.of_module(&module)?;
                let ends = ["lora_magnitude_vector", "lora_magnitude_vector.weight"];
                let names = ends.map(|end| format!("base_model.model.{module}.{end}"));
                let magnitude = names.iter().find(|name| files.info(name).is_some()).cloned();
                if dora && (magnitude.is_none() || name.contains("_embedding_A")) {
                    return Err(refused(format!("`use_dora` is set, and `{module}` has no magnitudes that are read")));
                }
                let change = LowRank { a: name.to_string(), b, scale, rank, transposed, magnitude };
                Ok::<_, LoadError>((format!("{module}.weight"), Change::LowRank(change)))
            };
            let (target, change) = if let Some(module) = module(".lora_A.weight") {
                low_rank(module, name.replace(".lora_A.", ".lora_B."), turned)?
            } else if let Some(module) = module(".lora_embedding_A") {
                low_rank(module, name.replace("_embedding_A", "_embedding_B"), true)?
            } else if let Some(module) = module(".lora_magnitude_vector").or(module(".lora_magnitude_vector.weight")) {
                if !dora || files.info(&format!("base_model.model.{module}.lora_A.weight")).is_none() {
                    return Err(refused(format!("`{name}` is not of a module that `use_dora` is set for")));
                }
                continue;
            } else if bare.ends_with(".lora_B.weight") || bare.ends_with(".lora_embedding_B") {
                let first = name.replace(".lora_B.", ".lora_A.").replace("_embedding_B", "_embedding_A");
                if files.info(&first).is_none() {
                    return Err(refused(format!("`{name}` has no `{first}` beside it")));
                }
                continue;
            } else {
                (bare.replace(".modules_to_save.default.", "."), Change::Replaced(name.to_string()))
            };
            changes.insert(target, change);
        }
        let said = |field| json.get(field).and_then(Value::as_str).filter(|said| !said.is_empty()).map(str::to_string);
        let (base, revision) = (said("base_model_name_or_path"), said("revision"));
        Ok(Self { folder: folder.to_path_buf(), base, revision, files, changes })
    }

    /// The change of a tensor, named with the family's prefix or without.
    pub(super) fn change(&self, name: &str, prefix: &str) -> Option<&Change> {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        self.changes.get(bare).or_else(|| self.changes.get(&format!("{prefix}{bare}")))
    }

    /// Every tensor it changes is one the model is made from.
    pub(super) fn check(&self, table: &WeightTable, files: &WeightFiles) -> Result<(), LoadError> {
        let used = |target: &str| {
            table.sources.values().any(|source| {
                let there = (!source.tied || source.own_if_there) && table.find(files, &source.name).is_some();
                let same = |name: &str| name.strip_prefix(table.prefix).unwrap_or(name).to_string();
                there && same(&source.name) == same(target)
            })
        };
        let foreign: Vec<&str> = self.changes.keys().map(String::as_str).filter(|target| !used(target)).collect();
        let Some(first) = foreign.first() else { return Ok(()) };
        let base = self.base.as_ref().map_or(String::new(), |base| format!("; it was trained on `{base}`"));
        let reason = format!(
            "it changes {} tensors this model lacks (or, tied, has no second copy of), `{first}` the first{base}",
            foreign.len()
        );
        Err(LoadError::Adapter { path: self.folder.clone(), reason })
    }

    /// The error for a weight that is no matrix in the base model's files.
    pub(super) fn not_a_matrix(&self, name: &str) -> LoadError {
        let reason = format!("`{name}` is not one matrix in the model's files");
        LoadError::Adapter { path: self.folder.clone(), reason }
    }

    /// A weight of the base model with its change added, in the file's shape.
    pub(super) fn merged(
        &self,
        change: &LowRank,
        weight: Tensor<2>,
        (device, compute): (&Device, DType),
    ) -> Result<Tensor<2>, LoadError> {
        // The product of 16-bit factors would lose what the adapter learned.
        let exact = if compute == DType::F64 { DType::F64 } else { DType::F32 };
        let read = |name: &str, expected: [usize; 2]| -> Result<Tensor<2>, LoadError> {
            let data = self.files.read(name, exact)?;
            let given = data.shape().to_vec();
            if given != expected {
                return Err(LoadError::Shape { name: name.to_string(), expected: expected.to_vec(), given });
            }
            Ok(Tensor::from_data(data, (device, exact.burn())))
        };
        let [rows, columns] = weight.dims();
        let (d_out, d_in) = if change.transposed { (columns, rows) } else { (rows, columns) };
        let a = read(&change.a, [change.rank, d_in])?;
        let b = read(&change.b, [d_out, change.rank])?;
        let product = b.matmul(a) * change.scale;
        let product = if change.transposed { product.transpose() } else { product };
        let mut sum = weight.cast(exact.burn()) + product;
        if let Some(name) = &change.magnitude {
            let data = self.files.read(name, exact)?;
            let given = data.shape().to_vec();
            // Older ones are a row or a column.
            if given.iter().product::<usize>() != d_out {
                return Err(LoadError::Shape { name: name.clone(), expected: vec![d_out], given });
            }
            let magnitudes: Tensor<1> = Tensor::from_data(reshaped(data, d_out), (device, exact.burn()));
            // The outputs are the rows, or of a transposed weight the columns.
            let along = if change.transposed { 0 } else { 1 };
            let length = sum.clone().square().sum_dim(along).sqrt();
            sum = sum * magnitudes.unsqueeze_dim::<2>(along) / length;
        }
        Ok(sum.cast(compute.burn()))
    }
}

/// The same values as a vector.
fn reshaped(data: TensorData, len: usize) -> TensorData {
    TensorData::from_bytes(data.bytes().clone(), [len], data.dtype())
}

/// Factors of the products, which may differ from module to module.
struct Scales<'j> {
    json: &'j Value,
    folder: &'j Path,
}

impl<'j> Scales<'j> {
    fn of(json: &'j Value, folder: &'j Path) -> Result<Self, LoadError> {
        let scales = Self { json, folder };
        scales.of_module("")?;
        Ok(scales)
    }

    /// The factor of a module's product, and its rank.
    fn of_module(&self, module: &str) -> Result<(f64, usize), LoadError> {
        for field in ["rank_pattern", "alpha_pattern"] {
            let refused = |reason| Err(LoadError::Adapter { path: self.folder.to_path_buf(), reason });
            let patterns = match self.json.get(field) {
                None | Some(Value::Null) => continue,
                Some(Value::Object(patterns)) => patterns,
                Some(other) => return refused(format!("its `{field}` is {other}, not an object")),
            };
            if let Some((pattern, value)) = patterns.iter().find(|(_, value)| !value.is_number()) {
                return refused(format!("its `{field}` has {value} for `{pattern}`, not a number"));
            }
            let mut strange =
                patterns.iter().map(|(pattern, _)| pattern).filter(|p| p.contains(|c| "^$*+?()[]{}|\\".contains(c)));
            if let Some(pattern) = strange.next() {
                return refused(format!("its `{field}` has `{pattern}`; only plain module names are read"));
            }
        }
        let by_pattern = |field: &str| {
            let patterns = self.json.get(field)?.as_object()?;
            // PEFT takes the patterns for ends of module names.
            let fits = |pattern: &str| module == pattern || module.ends_with(&format!(".{pattern}"));
            patterns.iter().find(|(pattern, _)| fits(pattern))?.1.as_f64()
        };
        let number = |field: &str, patterns: &str| {
            let found = by_pattern(patterns).or_else(|| self.json.get(field)?.as_f64());
            found.filter(|n| n.is_finite() && *n > 0.0).ok_or_else(|| {
                let reason = format!("its `{field}` is no positive number");
                LoadError::Adapter { path: self.folder.to_path_buf(), reason }
            })
        };
        let (rank, alpha) = (number("r", "rank_pattern")?, number("lora_alpha", "alpha_pattern")?);
        let refused = |reason: String| LoadError::Adapter { path: self.folder.to_path_buf(), reason };
        if rank.fract() != 0.0 {
            return Err(refused(format!("its `r` is {rank}, not a whole number")));
        }
        if !((alpha / rank) as f32).is_finite() {
            return Err(refused(format!("its `lora_alpha` is {alpha}, which no f32 holds")));
        }
        let stable = self.json.get("use_rslora").and_then(Value::as_bool) == Some(true);
        Ok((alpha / if stable { rank.sqrt() } else { rank }, rank as usize))
    }
}
