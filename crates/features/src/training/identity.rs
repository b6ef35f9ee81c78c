//! [`TrainingIdentity`], which is stored in checkpoints and `training.json`.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::objective::{JumpReluSparsity, Objective};
use super::settings::{TrainedPoints, Training};

/// Version of the settings below. Increase it when a field is renamed or changes meaning.
const VERSION: u64 = 1;
const VERSION_FIELD: &str = "version";

/// Settings and data that a dictionary is trained with. Training again with the same identity produces the same bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct TrainingIdentity {
    pub(super) settings: Value,
    /// Description of the activations. Null if it was not computed, because computing it may require reading all
    /// activations; a string in files of earlier versions.
    pub(super) data: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Version(reason) => f.write_str(reason),
            Difference::Setting(name, [file, now]) => {
                write!(
                    f,
                    "it belongs to a training run with different settings: `{name}` is {file} in the file, but \
                     {now} in this run"
                )
            }
            Difference::Data([file, now]) => {
                write!(f, "it belongs to a training run on different data: {file} in the file, but {now} in this run")
            }
        }
    }
}

impl TrainingIdentity {
    pub(super) fn new(training: &Training, data: &Value) -> Self {
        Self { settings: training.described(), data: data.clone() }
    }

    /// The first difference between `self`, read from a file, and `now`: settings first, then data.
    pub fn difference(&self, now: &Self) -> Option<Difference> {
        different_settings(&self.settings, &now.settings).or_else(|| {
            let [before, now] = [&self.data, &now.data].map(data_text);
            (before != now).then_some(Difference::Data([before, now]))
        })
    }
}

/// Formats a description of activations as text, for messages and checkpoints. Earlier versions stored this text.
pub(super) fn data_text(data: &Value) -> String {
    let text = |name: &str| data[name].as_str().unwrap_or_default();
    let list = |name: &str| -> Vec<String> {
        let all = data[name].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_string)).collect()
    };
    let after = |before: &str, all: &[String]| match all {
        [] => String::new(),
        all => format!(" {before} {}", all.join(", ")),
    };
    let (tokens, hash, without) = (&data["tokens"], text("hash"), list("exclude_tokens").join(", "));
    if let Some(files) = data["corpus"].as_array() {
        let file = |file: &Value| match file["bytes"].as_u64() {
            Some(bytes) => format!("{} ({bytes} bytes)", file["file"].as_str().unwrap_or_default()),
            None => file["file"].as_str().unwrap_or_default().to_string(),
        };
        let files: Vec<String> = files.iter().map(file).collect();
        let (model, parts) = (text("model"), after("with", &list("parts")));
        let named = |name: &str| -> Vec<String> {
            let all = data[name].as_object().into_iter().flatten();
            all.map(|(name, value)| format!("{name} {value}")).collect()
        };
        let (files, selected) = (files.join(", "), after("selected with", &named("selection")));
        let tokenized = after("tokenized with", &named("tokenization"));
        return format!(
            "the prompts of {files}{selected}{tokenized}, without [{without}], in the model {model}{parts}"
        );
    }
    match (data, data.get("files")) {
        (Value::String(text), _) => text.clone(),
        (Value::Object(_), Some(files)) => {
            let models = after("of the model", &list("models"));
            format!("{tokens} tokens of dumps of {files} files ({hash}){models}, without [{without}]")
        }
        (Value::Object(_), None) => {
            let (prompts, model, parts) = (&data["prompts"], text("model"), after("with", &list("parts")));
            format!("{tokens} tokens of {prompts} prompts ({hash}), without [{without}], in the model {model}{parts}")
        }
        _ => String::new(),
    }
}

/// How a stored identity differs from the current run's.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// The file's settings have a different version than this program's.
    Version(String),
    /// The first setting that differs, with its values in the file and in this run.
    Setting(String, [String; 2]),
    /// The data, in the file and in this run.
    Data([String; 2]),
}

/// Compares settings read from a file with the current run's.
pub(super) fn different_settings(file: &Value, now: &Value) -> Option<Difference> {
    let Some(file) = file.as_object() else {
        return Some(Difference::Version("its settings were written by an earlier version of hooklens".into()));
    };
    let version = file.get(VERSION_FIELD).unwrap_or(&Value::Null);
    if *version != VERSION {
        let message =
            format!("its settings have version {version}, but this version of hooklens reads version {VERSION}");
        return Some(Difference::Version(message));
    }
    let now = now.as_object()?;
    let differs = now.keys().chain(file.keys()).find(|name| file.get(*name) != now.get(*name))?;
    let value = |of: &Map<String, Value>| of.get(differs).map_or("not set".into(), Value::to_string);
    Some(Difference::Setting(differs.clone(), [value(file), value(now)]))
}

impl Training {
    /// Every setting that affects the result, by name. The names are a file format and must not change with field
    /// names.
    pub(super) fn described(&self) -> Value {
        // Destructured without `..`, so that a new setting cannot be forgotten here. Otherwise, a checkpoint could be
        // resumed with a different value of it.
        let Training {
            trained_on,
            name,
            latents,
            objective,
            total,
            batch,
            rate,
            warm_up,
            decay,
            penalty_warm_up,
            betas,
            clip,
            seed,
            decoder_norm,
            dead_after,
            revive,
            normalize,
            skip,
            buffer,
            model,
            prepend_bos,
        } = self;
        let sites = match trained_on {
            TrainedPoints::Autoencoder(point) => json!({ "kind": "autoencoder", "point": point }),
            TrainedPoints::Transcoder(reads, writes) => {
                json!({ "kind": "transcoder", "reads": reads, "writes": writes })
            }
            TrainedPoints::CrossLayer(reads, writes, layers) => {
                json!({ "kind": "cross-layer", "reads": reads, "writes": writes, "layers": layers })
            }
        };
        json!({
            VERSION_FIELD: VERSION,
            "sites": sites,
            "name": name,
            "latents": latents,
            "objective": objective.described(),
            "tokens": total,
            "batch_size": batch,
            "learning_rate": rate,
            "warm_up": warm_up,
            "decay": decay,
            "penalty_warm_up": penalty_warm_up,
            "betas": betas,
            "clip": clip,
            "seed": seed,
            "decoder_norm": decoder_norm,
            "dead_after": dead_after,
            "revive": revive,
            "normalize": normalize,
            "skip": skip,
            "buffer": buffer,
            "model": model,
            "prepend_bos": prepend_bos,
        })
    }
}

impl Objective {
    fn described(&self) -> Value {
        match self {
            Objective::BatchTopK { k } => json!({ "kind": "batchtopk", "k": k }),
            Objective::TopK { k } => json!({ "kind": "topk", "k": k }),
            Objective::Matryoshka { k, widths } => json!({ "kind": "matryoshka", "k": k, "widths": widths }),
            Objective::JumpRelu { sparsity, bandwidth, threshold } => json!({
                "kind": "jumprelu",
                "sparsity": sparsity.described(),
                "bandwidth": bandwidth,
                "threshold": threshold,
            }),
            Objective::L1 { coefficient } => json!({ "kind": "l1", "coefficient": coefficient }),
            Objective::Gated { coefficient } => json!({ "kind": "gated", "coefficient": coefficient }),
        }
    }
}

impl JumpReluSparsity {
    fn described(&self) -> Value {
        match self {
            JumpReluSparsity::Step { coefficient } => json!({ "kind": "step", "coefficient": coefficient }),
            JumpReluSparsity::Tanh { coefficient, scale } => {
                json!({ "kind": "tanh", "coefficient": coefficient, "scale": scale })
            }
            JumpReluSparsity::Quadratic { coefficient, target } => {
                json!({ "kind": "quadratic", "coefficient": coefficient, "target": target })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings after a round trip through a file.
    fn read(settings: &Value) -> Value {
        serde_json::from_str(&settings.to_string()).unwrap()
    }

    /// Guards the checkpoint format: if a change makes this test fail, older checkpoints would be rejected.
    #[test]
    fn settings_are_stored_under_fixed_names() {
        let training = Training::transcoder("blocks.0.mlp.hook_in", "blocks.0.hook_mlp_out", 64)
            .objective(Objective::jump_relu(16.0))
            .tokens(4000)
            .learning_rate(0.25)
            .model("embedded:ioi");
        let expected = r#"{"batch_size":2048,"betas":[0.0,0.9990000128746033],"buffer":32,"clip":1.0,"dead_after":null,"decay":0.2,"decoder_norm":0.10000000149011612,"latents":64,"learning_rate":0.25,"model":"embedded:ioi","name":"blocks.0.hook_mlp_out","normalize":true,"objective":{"bandwidth":0.5,"kind":"jumprelu","sparsity":{"coefficient":1.0,"kind":"quadratic","target":16.0},"threshold":0.10000000149011612},"penalty_warm_up":0.1,"prepend_bos":null,"revive":1.0,"seed":0,"sites":{"kind":"transcoder","reads":"blocks.0.mlp.hook_in","writes":"blocks.0.hook_mlp_out"},"skip":false,"tokens":4000,"version":1,"warm_up":0.05}"#;
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(read(&training.described()), expected);
        assert_eq!(different_settings(&expected, &training.described()), None);
    }

    /// Every setting and kind is compared, and the difference is named.
    #[test]
    fn every_setting_is_compared() {
        let base = || Training::autoencoder("hook_x", 64);
        let tanh = JumpReluSparsity::Tanh { coefficient: 1.0, scale: 4.0 };
        let jump = |sparsity| Objective::JumpRelu { sparsity, bandwidth: 0.5, threshold: 0.1 };
        let others = [
            ("sites", Training::autoencoder("hook_y", 64).named("hook_x")),
            ("sites", Training::transcoder("hook_x", "hook_x", 64)),
            ("latents", Training::autoencoder("hook_x", 65)),
            ("objective", base().k(31.0)),
            ("objective", base().objective(Objective::TopK { k: 32 })),
            ("objective", base().objective(Objective::Matryoshka { k: 32.0, widths: vec![8] })),
            ("objective", base().objective(Objective::L1 { coefficient: 5.0 })),
            ("objective", base().objective(Objective::Gated { coefficient: 5.0 })),
            ("tokens", base().tokens(5)),
            ("batch_size", base().batch_size(5)),
            ("learning_rate", base().learning_rate(1e-3)),
            ("warm_up", base().schedule(0.1, 0.2)),
            ("decay", base().schedule(0.05, 0.3)),
            ("penalty_warm_up", base().penalty_warm_up(0.3)),
            ("betas", base().betas(0.9, 0.99)),
            ("clip", base().clip(2.0)),
            ("seed", base().seed(u64::MAX)),
            ("decoder_norm", base().decoder_norm(0.2)),
            ("dead_after", base().dead_after(7)),
            ("revive", base().revive(0.0)),
            ("normalize", base().normalize(false)),
            ("skip", base().skip(true)),
            ("buffer", base().buffer(7)),
            ("model", base().model("m")),
            ("prepend_bos", base().prepend_bos(false)),
            ("name", base().named("n")),
        ];
        for (name, other) in &others {
            match different_settings(&read(&other.described()), &base().described()) {
                Some(Difference::Setting(setting, [before, now])) => {
                    assert!(setting == *name && before != now, "{setting}")
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let all = others.iter().map(|(_, other)| other.described()).chain([
            base().objective(jump(tanh)).described(),
            base().objective(jump(JumpReluSparsity::Step { coefficient: 1.0 })).described(),
            Training::cross_layer(3, 64).described(),
        ]);
        for one in all {
            assert_eq!(different_settings(&read(&one), &one), None);
        }
    }

    /// Earlier versions stored the data as text, which is compared with today's description.
    #[test]
    fn data_of_earlier_versions_are_compared() {
        let of = |data: Value| TrainingIdentity::new(&Training::autoencoder("hook_x", 64), &data);
        let prompts = json!({
            "tokens": 16, "prompts": 5, "hash": "b960", "exclude_tokens": [0, 2], "model": "32fa", "parts": ["a", "b"],
        });
        let text = "16 tokens of 5 prompts (b960), without [0, 2], in the model 32fa with a, b";
        let dumps = json!({ "tokens": 9, "files": 3, "hash": "acce", "exclude_tokens": [], "models": ["f709"] });
        let of_dumps = "9 tokens of dumps of 3 files (acce) of the model f709, without []";
        for (data, before) in [(&prompts, text), (&dumps, of_dumps), (&Value::Null, "")] {
            assert_eq!(of(before.into()).difference(&of(data.clone())), None, "{before}");
        }
        let other = of(text.into()).difference(&of(dumps));
        assert_eq!(other, Some(Difference::Data([text.into(), of_dumps.into()])));
    }

    #[test]
    fn settings_of_other_versions_are_refused_as_such() {
        let now = Training::autoencoder("hook_x", 64).described();
        let message = |file: Value| match different_settings(&file, &now) {
            Some(Difference::Version(message)) => message,
            other => panic!("{other:?}"),
        };
        assert!(message(json!("Training { sites: Autoencoder(\"x\") }")).contains("earlier version"));
        assert!(message(json!({ "version": 2 })).contains("version 2, but this version of hooklens reads version 1"));
    }
}
