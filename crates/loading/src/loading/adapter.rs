//! Low-rank adapters (LoRA) in PEFT's format, merged into the base model's weights.
//!
//! A weight `W` becomes `W + scale · B A`, where `scale` is `lora_alpha / r`, or `lora_alpha / sqrt(r)` with rank
//! stabilization (Hu et al. 2021, Kalajdzievski 2023). With DoRA (Liu et al. 2024), each output's weights are then
//! rescaled to the magnitude stored in the adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use fancy_regex::Regex;
use hooklens_hooks::DType;
use serde_json::Value;

use crate::weight_files::{Source, WeightFiles, WeightTable};
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::LoadError;
use hooklens_model::tokens::read_json;

/// An opened adapter: its weight files and the change to each base tensor.
#[derive(Debug)]
pub(super) struct Adapter {
    folder: PathBuf,
    /// Name of the base model, from `base_model_name_or_path`.
    pub(super) base: Option<String>,
    /// Revision of the base model, if it is on the hub.
    pub(super) revision: Option<String>,
    pub(super) files: WeightFiles,
    /// Changes, keyed by the name of the base tensor.
    changes: BTreeMap<String, Change>,
}

/// Change to one tensor of the base model.
#[derive(Debug, Default)]
struct Change {
    /// Adapter tensor that replaces the base model's tensor.
    replaced: Option<String>,
    /// Whether the replacement applies only to this module (`modules_to_save`) and not to others that share the tensor.
    alone: bool,
    /// Low-rank product added to a weight.
    low_rank: Option<LowRank>,
    /// Vector added to a bias, and its factor.
    added: Option<(String, f64)>,
}

/// Low-rank product `scale · B A`.
#[derive(Debug)]
pub(super) struct LowRank {
    a: String,
    b: String,
    scale: f64,
    rank: usize,
    /// Whether the target is an embedding, whose table is `[in, out]`.
    embedding: bool,
    /// Name of the DoRA magnitude vector, if the adapter has one.
    magnitude: Option<String>,
}

/// Configuration fields of adapter variants that are not supported.
const OTHERS: [&str; 9] = [
    "use_qalora",
    "alora_invocation_tokens",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
];

/// Role of an adapter tensor in its module.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    A,
    B,
    Bias,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
}

impl Part {
    const ENDS: [(&str, Part); 7] = [
        (".lora_A.weight", Part::A),
        (".lora_B.weight", Part::B),
        (".lora_B.bias", Part::Bias),
        (".lora_embedding_A", Part::EmbeddingA),
        (".lora_embedding_B", Part::EmbeddingB),
        (".lora_magnitude_vector", Part::Magnitude),
        (".lora_magnitude_vector.weight", Part::Magnitude),
    ];

    /// Splits a tensor name into module and part; `None` for a replaced base tensor.
    fn of(name: &str) -> Option<(&str, Self)> {
        Self::ENDS.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)))
    }

    fn is_of_embedding(self) -> bool {
        matches!(self, Part::EmbeddingA | Part::EmbeddingB)
    }
}

/// Whether a setting's value means that the feature is disabled.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

impl Adapter {
    /// Whether the folder contains an adapter but no model.
    pub(super) fn is_one(folder: &Path) -> bool {
        folder.join("adapter_config.json").is_file() && !folder.join("config.json").is_file()
    }

    /// Opens a folder written by PEFT's `save_pretrained`.
    pub(super) fn open(folder: &Path, mmap: bool) -> Result<Self, LoadError> {
        let refused = |reason: String| LoadError::Adapter { path: folder.to_path_buf(), reason };
        let json = read_json(folder.join("adapter_config.json"))?;
        let kind = json.get("peft_type").and_then(Value::as_str).unwrap_or("nothing");
        if kind != "LORA" {
            return Err(refused(format!("its `peft_type` is {}; only LORA is supported", excerpt(kind))));
        }
        let set = |field: &str| match json.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(other) => Err(refused(format!("its `{field}` is {}, not true or false", excerpt(other)))),
        };
        // Settings that a single added low-rank product can't express.
        let given = |field: &&&str| json.get(**field).is_some_and(|value| !is_nothing(value));
        if let Some(field) = OTHERS.iter().find(given) {
            return Err(refused(format!("`{field}` is not supported")));
        }
        // These initializations modify the base weights before training.
        let start = json.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        if ["pissa", "olora", "corda", "loftq", "lora_ga"].iter().any(|other| start.starts_with(other)) {
            return Err(refused(format!(
                "it was trained on a modified base model (`init_lora_weights` = {})",
                excerpt(start)
            )));
        }
        let (dora, biased) = (set("use_dora")?, set("lora_bias")?);
        if dora && biased {
            return Err(refused("`use_dora` and `lora_bias` are both set, which PEFT does not support".into()));
        }
        // Only checked for validity: as in PEFT, the base model decides which layers store weights as `[in, out]`.
        set("fan_in_fan_out")?;
        set("use_rslora")?;
        let saved = match json.get("modules_to_save") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(other) => {
                return Err(refused(format!("its `modules_to_save` is {}, not a list of names", excerpt(other))));
            }
        };
        let path = ["adapter_model.safetensors", "adapter_model.bin"].map(|name| folder.join(name));
        let path = path.into_iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| refused("it has no adapter_model.safetensors or adapter_model.bin".into()))?;
        let files = WeightFiles::open_with(&[path], mmap)?;
        let scales = Scales::of(&json, folder)?;
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for (name, _) in files.tensors() {
            let bare = name.strip_prefix("base_model.model.").unwrap_or(name);
            let Some((module, part)) = Part::of(bare) else {
                let (target, alone) = match bare.split_once(".modules_to_save.default.") {
                    Some((module, rest)) => (format!("{module}.{rest}"), true),
                    None => {
                        let target = bare.replace(".base_layer.", ".");
                        let module = target.rsplit_once('.').map_or("", |(module, _)| module);
                        let alone = bare == target && saved.iter().any(|end| module.ends_with(end));
                        (target, alone)
                    }
                };
                let change = changes.entry(target).or_default();
                if let Some(other) = change.replaced.replace(name.to_string()) {
                    return Err(refused(format!("`{other}` and `{name}` both replace the same tensor")));
                }
                change.alone = alone;
                continue;
            };
            let beside = |end: &str| format!("{}{end}", &name[..name.len() - bare.len() + module.len()]);
            let there = |end: &str| files.info(&beside(end)).is_some();
            let (a, b) = if part.is_of_embedding() || there(".lora_embedding_A") {
                (".lora_embedding_A", ".lora_embedding_B")
            } else {
                (".lora_A.weight", ".lora_B.weight")
            };
            match part {
                Part::A | Part::EmbeddingA => {
                    let (scale, rank) = scales.of_module(module)?;
                    let ends = [".lora_magnitude_vector", ".lora_magnitude_vector.weight"];
                    let magnitude = ends.into_iter().find(|end| there(end)).map(beside);
                    if dora && magnitude.is_none() {
                        return Err(refused(format!("`use_dora` is set, but `{module}` has no magnitude vector")));
                    }
                    let embedding = part == Part::EmbeddingA;
                    if biased && !there(".lora_B.bias") {
                        return Err(refused(format!("`lora_bias` is set, but `{module}` has no `lora_B.bias`")));
                    }
                    let (a, b) = (name.to_string(), beside(b));
                    let low_rank = Some(LowRank { a, b, scale, rank, embedding, magnitude });
                    changes.entry(format!("{module}.weight")).or_default().low_rank = low_rank;
                }
                Part::Bias => {
                    if !biased || !there(a) {
                        let reason = format!("`{name}` requires `lora_bias` and a `lora_A` tensor of the same module");
                        return Err(refused(reason));
                    }
                    let added = Some((name.to_string(), scales.of_module(module)?.0));
                    changes.entry(format!("{module}.bias")).or_default().added = added;
                }
                Part::Magnitude if !dora || !there(a) => {
                    return Err(refused(format!(
                        "`{name}` requires `use_dora` and a `lora_A` tensor of the same module"
                    )));
                }
                Part::B | Part::EmbeddingB if !there(a) => {
                    return Err(refused(format!("`{name}` has no matching `{}`", beside(a))));
                }
                Part::Magnitude | Part::B | Part::EmbeddingB => {}
            }
        }
        let said = |field| json.get(field).and_then(Value::as_str).filter(|said| !said.is_empty()).map(str::to_string);
        let (base, revision) = (said("base_model_name_or_path"), said("revision"));
        Ok(Self { folder: folder.to_path_buf(), base, revision, files, changes })
    }

    /// Change to the named tensor, with or without the family's prefix, and the adapter's name for it.
    fn change(&self, name: &str, prefix: &str) -> Option<(&str, &Change)> {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        let found = self.changes.get_key_value(bare).or_else(|| self.changes.get_key_value(&format!("{prefix}{bare}")));
        found.map(|(name, change)| (name.as_str(), change))
    }

    /// Low-rank product added to a weight, and the adapter's name for the weight.
    pub(super) fn low_rank(&self, name: &str, prefix: &str) -> Option<(&str, &LowRank)> {
        let (target, change) = self.change(name, prefix)?;
        Some((target, change.low_rank.as_ref()?))
    }

    /// Vector added to the bias of the layer with this weight, with its factor and the adapter's name for the bias.
    pub(super) fn added_bias(&self, weight: &str, prefix: &str) -> Option<(&str, &(String, f64))> {
        let (target, change) = self.change(&format!("{}.bias", weight.strip_suffix(".weight")?), prefix)?;
        Some((target, change.added.as_ref()?))
    }

    /// Adapter tensor that the first of `modules` uses instead of the base tensor that all of them share.
    pub(super) fn replacement<'s>(&'s self, modules: &[&str], prefix: &str) -> Option<&'s str> {
        self.replacements(modules, prefix).into_iter().find_map(|(_, change)| change.replaced.as_deref())
    }

    /// Names of the adapter's changes that replace the tensor without adding to it; see [`Self::replacement`].
    pub(super) fn replacing<'s>(&'s self, modules: &[&str], prefix: &str) -> Vec<&'s str> {
        let changes = self.replacements(modules, prefix).into_iter();
        changes
            .filter(|(_, change)| change.low_rank.is_none() && change.added.is_none())
            .map(|(name, _)| name)
            .collect()
    }

    fn replacements<'s>(&'s self, modules: &[&str], prefix: &str) -> Vec<(&'s str, &'s Change)> {
        let changes = modules.iter().map(|module| self.change(module, prefix)).enumerate();
        changes.filter_map(|(number, change)| change.filter(|(_, change)| number == 0 || !change.alone)).collect()
    }

    /// Gives modules that share a tensor, such as a tied embedding and unembedding, separate sources if the adapter
    /// changes only some of them: in PEFT, a change applies to one module. Returns the names of the modules that share
    /// the tensor but are never called by the model.
    pub(super) fn separate(&self, table: &mut WeightTable, files: &WeightFiles) -> Result<Vec<String>, LoadError> {
        let Some(embed) = table.sources.get("embed.W_E").cloned() else { return Ok(Vec::new()) };
        let mut embeds = vec![("embed.W_E", embed.clone())];
        let mut idle = Vec::new();
        match (table.sources.get("decoder_embed.W_E"), embed.name.strip_suffix("shared.weight")) {
            (Some(own), _) => embeds = vec![("decoder_embed.W_E", own.clone())],
            // Each stack has its own embedding module; the shared module itself is never called.
            (None, Some(outer)) => {
                idle.push(embed.name.clone());
                let module = |stack: &str| vec![format!("{outer}{stack}.embed_tokens.weight")];
                embeds[0].1.modules = module("encoder");
                embeds.push(("decoder_embed.W_E", Source { modules: module("decoder"), ..embed }));
            }
            (None, None) => {}
        }
        let mut sharing = embeds;
        let lacking = |source: &Source| !source.own_if_there || table.find(files, &source.name).is_none();
        let head = table.sources.get("unembed.W_U").filter(|source| source.tied && lacking(source)).cloned();
        if let Some(head) = head {
            let partner = &sharing[sharing.len() - 1].1.name;
            table.check_tied(files, &head.name, partner)?;
            // PyTorch checkpoints contain a tied tensor under both names.
            let name = if table.find(files, &head.name).is_some() { head.name.clone() } else { partner.clone() };
            let modules = vec![head.name.clone()];
            sharing.push(("unembed.W_U", Source { name, tied: false, modules, ..head }));
        }
        for (_, source) in &mut sharing {
            if source.modules.is_empty() {
                source.modules = vec![source.name.clone()];
            }
        }
        let modules: Vec<String> =
            sharing.iter().map(|(_, source)| source.modules[0].clone()).chain(idle.clone()).collect();
        let changed: Vec<&Change> =
            modules.iter().filter_map(|module| Some(self.change(module, table.prefix)?.1)).collect();
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let shared: Vec<&String> =
            changed.iter().filter(|own| !own.alone).filter_map(|own| own.replaced.as_ref()).collect();
        for pair in shared.windows(2) {
            if !self.files.same(pair[0], pair[1])? {
                let reason =
                    format!("`{}` and `{}` differ, but the model shares one tensor between them", pair[0], pair[1]);
                return Err(LoadError::Adapter { path: self.folder.clone(), reason });
            }
        }
        for (weight, mut source) in sharing {
            let own = source.modules[0].clone();
            source.modules.extend(modules.iter().filter(|module| **module != own).cloned());
            table.sources.insert(weight.to_string(), source);
        }
        let unused = |change: &Change| change.alone || change.low_rank.is_some();
        idle.retain(|module| self.change(module, table.prefix).is_some_and(|(_, change)| unused(change)));
        Ok(idle)
    }

    /// Fails if the adapter changes tensors that the model was not built from.
    pub(super) fn check(
        &self,
        applied: &BTreeSet<String>,
        idle: &[String],
        table: &WeightTable,
    ) -> Result<(), LoadError> {
        // Some versions of transformers save attention masks under names that end in `.bias`.
        let derived = |target: &str| target.ends_with(".bias") && table.derived.iter().any(|end| target.ends_with(end));
        let idle =
            |target: &str| idle.iter().any(|module| self.change(module, table.prefix).is_some_and(|c| c.0 == target));
        let targets = self.changes.keys().map(String::as_str);
        let foreign: Vec<&str> =
            targets.filter(|target| !applied.contains(*target) && !derived(target) && !idle(target)).collect();
        let Some(first) = foreign.first() else { return Ok(()) };
        let base = self.base.as_ref().map_or(String::new(), |base| format!("; it was trained on `{base}`"));
        let count = foreign.len();
        let reason = format!("it changes {count} tensors that the model does not have, such as `{first}`{base}");
        Err(LoadError::Adapter { path: self.folder.clone(), reason })
    }

    /// The error for a base weight that is not stored as a single matrix.
    pub(super) fn not_a_matrix(&self, name: &str) -> LoadError {
        let reason = format!("`{name}` is not stored as a single matrix in the model's files");
        LoadError::Adapter { path: self.folder.clone(), reason }
    }

    /// Base weight with the change added, shaped as in the file: `[in, out]` for an embedding or if `transposed`.
    pub(super) fn merged(
        &self,
        change: &LowRank,
        (weight, transposed): (Tensor<2>, bool),
        (device, compute): (&Device, DType),
    ) -> Result<Tensor<2>, LoadError> {
        let transposed = change.embedding || transposed;
        // Multiplying the factors in 16 bits would lose precision that the adapter learned.
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
        let (d_out, d_in) = if transposed { (columns, rows) } else { (rows, columns) };
        let a = read(&change.a, [change.rank, d_in])?;
        let b = read(&change.b, [d_out, change.rank])?;
        let product = b.matmul(a) * change.scale;
        let product = if transposed { product.transpose() } else { product };
        let mut sum = weight.cast(exact.burn()) + product;
        if let Some(name) = &change.magnitude {
            let data = self.files.read(name, exact)?;
            let given = data.shape().to_vec();
            // Older adapters store the magnitudes as a row or a column.
            if given.iter().product::<usize>() != d_out {
                return Err(LoadError::Shape { name: name.clone(), expected: vec![d_out], given });
            }
            let magnitudes: Tensor<1> = Tensor::from_data(reshaped(data, d_out), (device, exact.burn()));
            // Outputs are rows, or columns if the weight is transposed.
            let along = if transposed { 0 } else { 1 };
            let length = sum.clone().square().sum_dim(along).sqrt();
            sum = sum * magnitudes.unsqueeze_dim::<2>(along) / length;
        }
        Ok(sum.cast(compute.burn()))
    }
}

/// Reshapes the values to a vector.
fn reshaped(data: TensorData, len: usize) -> TensorData {
    TensorData::from_bytes(data.bytes().clone(), [len], data.dtype())
}

/// Ranks and alphas, which may differ per module.
struct Scales<'j> {
    json: &'j Value,
    folder: &'j Path,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

impl<'j> Scales<'j> {
    fn of(json: &'j Value, folder: &'j Path) -> Result<Self, LoadError> {
        let [ranks, alphas] = [patterns(json, "rank_pattern"), patterns(json, "alpha_pattern")];
        let refused = |reason| LoadError::Adapter { path: folder.to_path_buf(), reason };
        let scales = Self { json, folder, ranks: ranks.map_err(refused)?, alphas: alphas.map_err(refused)? };
        scales.of_module("")?;
        Ok(scales)
    }

    /// Scale and rank of a module's low-rank product.
    fn of_module(&self, module: &str) -> Result<(f64, usize), LoadError> {
        let refused = |reason: String| LoadError::Adapter { path: self.folder.to_path_buf(), reason };
        let number = |field: &str, patterns: &[(Regex, f64)]| {
            let mut found = self.json.get(field).and_then(Value::as_f64);
            for (pattern, value) in patterns {
                let fits = pattern.is_match(module).map_err(|error| {
                    refused(format!("cannot match the pattern `{}` against `{module}`: {error}", pattern.as_str()))
                })?;
                if fits {
                    found = Some(*value);
                    break;
                }
            }
            found
                .filter(|n| n.is_finite() && *n > 0.0)
                .ok_or_else(|| refused(format!("its `{field}` is missing or not a positive number")))
        };
        let (rank, alpha) = (number("r", &self.ranks)?, number("lora_alpha", &self.alphas)?);
        if rank.fract() != 0.0 {
            return Err(refused(format!("its `r` is {rank}, not a whole number")));
        }
        if !((alpha / rank) as f32).is_finite() {
            return Err(refused(format!("its `lora_alpha` is {alpha}, which is too large for f32")));
        }
        let stable = self.json.get("use_rslora").and_then(Value::as_bool) == Some(true);
        Ok((alpha / if stable { rank.sqrt() } else { rank }, rank as usize))
    }
}

/// Regular expressions for module names, each with its value, in file order; the first match wins. As in PEFT, a
/// pattern must match a suffix of the name that starts at a dot.
fn patterns(json: &Value, field: &str) -> Result<Vec<(Regex, f64)>, String> {
    let patterns = match json.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(patterns)) => patterns,
        Some(other) => return Err(format!("its `{field}` is {}, not an object", excerpt(other))),
    };
    let parsed = patterns.iter().map(|(pattern, value)| {
        let number = value.as_f64();
        let number = number.ok_or_else(|| {
            format!("its `{field}` maps `{}` to {}, which is not a number", excerpt(pattern), excerpt(value))
        })?;
        let whole = Regex::new(&format!(r"^(.*\.)?({pattern})$"));
        let whole = whole.map_err(|error| {
            format!("its `{field}` contains an invalid regular expression `{}`: {error}", excerpt(pattern))
        })?;
        Ok((whole, number))
    });
    parsed.collect()
}
