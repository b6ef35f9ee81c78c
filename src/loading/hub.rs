//! Models by hub id: fetched once into the standard cache folder.

use std::path::PathBuf;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::error::LoadError;

/// Files besides the weights; all but the first may be absent.
const SMALL: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

/// The folder that holds a hub model, downloading what is not in the cache.
///
/// The cache folder (`HF_HOME`, else `~/.cache/huggingface`), the endpoint (`HF_ENDPOINT`) and the
/// token (`HF_TOKEN`, else the one `huggingface-cli login` saved) are the hub's own;
/// `HF_HUB_OFFLINE=1` forbids any download.
pub(super) fn fetch(id: &str) -> Result<PathBuf, LoadError> {
    let cache = Cache::from_env();
    if is_set("HF_HUB_OFFLINE") {
        return cached(&cache, id).ok_or_else(|| {
            not_found(id, "HF_HUB_OFFLINE is set and the model is not in the cache; pass a folder instead".into())
        });
    }
    let token = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()).or_else(|| cache.token());
    let built = ApiBuilder::from_env().with_token(token).with_progress(false).with_retries(3).build();
    let api = built.map_err(|e| not_found(id, e.to_string()))?;
    let repo = api.model(id.to_string());
    let failed = |error: ApiError| match cached(&cache, id) {
        Some(folder) => Ok(folder),
        None => Err(not_found(
            id,
            format!(
                "there is no such folder, and the hub did not give it ({error}); offline, pass a folder with config.json and model.safetensors"
            ),
        )),
    };
    let config = match get(&cache, &repo, id, "config.json") {
        Ok(path) => path,
        Err(error) => return failed(error),
    };
    for name in &SMALL[1..] {
        // Absent is fine; a broken connection shows itself at the weights.
        let _ = get(&cache, &repo, id, name);
    }
    let weights = match get(&cache, &repo, id, "model.safetensors.index.json") {
        Ok(index) => shards(&index),
        Err(_) => vec!["model.safetensors".to_string()],
    };
    for name in weights {
        if let Err(error) = get(&cache, &repo, id, &name) {
            return Err(not_found(id, format!("`{name}`: {error}")));
        }
    }
    config.parent().map(PathBuf::from).ok_or_else(|| not_found(id, "the cache has no folder for it".into()))
}

fn get(cache: &Cache, repo: &ApiRepo, id: &str, name: &str) -> Result<PathBuf, ApiError> {
    match cache.repo(Repo::model(id.to_string())).get(name) {
        Some(path) => Ok(path),
        None => repo.download_with_progress(name, Bar::default()),
    }
}

/// The cached folder, if configuration and all weights are there.
fn cached(cache: &Cache, id: &str) -> Option<PathBuf> {
    let repo = cache.repo(Repo::model(id.to_string()));
    let config = repo.get("config.json")?;
    match repo.get("model.safetensors.index.json") {
        Some(index) => shards(&index).iter().try_for_each(|shard| repo.get(shard).map(|_| ()))?,
        None => repo.get("model.safetensors").map(|_| ())?,
    }
    config.parent().map(PathBuf::from)
}

/// Shard names of an index; an unreadable one gives none, and the loader says what is wrong.
fn shards(index: &std::path::Path) -> Vec<String> {
    let json: Value = std::fs::read(index).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    let map = json.get("weight_map").and_then(Value::as_object);
    let mut names: Vec<String> =
        map.into_iter().flat_map(|m| m.values()).filter_map(|v| v.as_str()).map(str::to_string).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off"))
}

fn not_found(id: &str, reason: String) -> LoadError {
    LoadError::NotFound { name: id.to_string(), reason }
}

/// A progress bar a file; none when standard error is not a terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        // Called again for every attempt.
        self.finish();
        let bar = ProgressBar::new(size as u64);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(filename.to_string());
        self.0 = Some(bar);
    }

    fn update(&mut self, size: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(size as u64);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
