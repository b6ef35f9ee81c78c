//! Hub models, downloaded once into the standard Hugging Face cache.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use hooklens_hooks::{FolderLock, FolderLockError};
use indicatif::{ProgressBar, ProgressStyle};

use crate::weight_files::{NAMES, shard_names};
use hooklens_io::stderr;
use hooklens_model::error::{LoadError, load_errors};
use hooklens_model::tokens::MARIAN_FILES;

/// Small files to fetch in addition to the weights. Only the first is required.
const SMALL: [&str; 9] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    CHAT_TEMPLATE,
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
];

const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Maximum time to wait for another process's download.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Which files of a hub model to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DownloadScope {
    /// Configuration and tokenizer only.
    Description,
    /// Configuration, tokenizer and weights.
    Weights,
}

fn cache() -> Cache {
    match std::env::var_os("HF_HUB_CACHE").filter(|path| !path.is_empty()) {
        Some(path) => Cache::new(path.into()),
        None => Cache::from_env(),
    }
}

/// Hub cache folder on this machine.
pub fn cache_folder() -> PathBuf {
    cache().path().clone()
}

/// Returns the local folder of a hub model such as `gpt2`, downloading whatever is not in the cache.
/// `EleutherAI/pythia-70m@step1000` selects a branch, tag or commit.
///
/// Honors the hub's own settings: the cache folder (`HF_HUB_CACHE`, else `HF_HOME`, else `~/.cache/huggingface`), the
/// endpoint (`HF_ENDPOINT`) and the token (`HF_TOKEN`, else the one saved by `huggingface-cli login`).
/// `HF_HUB_OFFLINE=1` disables downloads.
pub(super) fn fetch(name: &str, want: DownloadScope) -> Result<PathBuf, LoadError> {
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    if !is_revision(revision) {
        let reason = format!("`{revision}`, after the @, is not a valid name of a branch, tag or commit");
        return Err(not_found(name, reason));
    }
    let cache = cache();
    let of = |revision: &str| Repo::with_revision(id.to_string(), RepoType::Model, revision.to_string());
    if let Some(folder) = cached(&cache.repo(of(revision)), revision, want) {
        return Ok(folder);
    }
    if is_set("HF_HUB_OFFLINE") {
        let reason = "HF_HUB_OFFLINE is set and the model is not in the cache; unset it or pass a folder";
        return Err(not_found(name, reason.into()));
    }
    // The first process downloads; the others then find everything in the cache.
    let _lock = lock_cache(cache.path(), name);
    if let Some(folder) = cached(&cache.repo(of(revision)), revision, want) {
        return Ok(folder);
    }
    let token = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()).or_else(|| Cache::from_env().token());
    let builder = ApiBuilder::from_env().with_cache_dir(cache.path().clone());
    let built = builder.with_token(token).with_progress(false).with_retries(3).build();
    let api = built.map_err(|e| refused(name, "cannot create the hub client".into(), e))?;
    let failed = |error: ApiError| {
        let advice = "without network access, pass a folder with config.json and model.safetensors";
        refused(name, format!("there is no such folder, and the download from the hub failed; {advice}"), error)
    };
    let config = get(&cache, &api, of(revision), SMALL[0]).map_err(failed)?;
    let folder = config.parent().ok_or_else(|| not_found(name, "the hub cache has no folder for it".into()))?;
    // Pin the other files to the configuration's commit, in case the branch moves meanwhile.
    let commit = folder.file_name().map_or(revision.into(), |name| name.to_string_lossy());
    let pinned = || of(&commit);
    // A file that could not be fetched must not be taken for one that the model does not have, now or later.
    let unfetched =
        |file: &str, error: ApiError| refused(name, format!("downloading `{file}` from the hub failed"), error);
    let optional = |file: &str| match get(&cache, &api, pinned(), file) {
        Err(error) if !is_missing(&error) => Err(unfetched(file, error)),
        _ => Ok(()),
    };
    let had_template = folder.join(CHAT_TEMPLATE).is_file();
    for file in &SMALL[1..] {
        optional(file)?;
    }
    // Additional chat templates are in separate files, and exist only beside a default template.
    if !had_template && folder.join(CHAT_TEMPLATE).is_file() {
        let siblings = api.repo(pinned()).info().map(|info| info.siblings).unwrap_or_default();
        for file in siblings.iter().filter(|file| file.rfilename.starts_with("additional_chat_templates/")) {
            optional(&file.rfilename)?;
        }
    }
    // Protein models and Marian models have vocabulary files instead of a tokenizer.json.
    if !folder.join("tokenizer.json").is_file() {
        for file in MARIAN_FILES.into_iter().chain(["vocab.txt"]) {
            optional(file)?;
        }
    }
    // A sentence encoder stores the configuration of each module after the transformer in its own folder.
    for module in super::sentence_modules(folder) {
        optional(&module)?;
    }
    if want == DownloadScope::Weights {
        let mut failure = None;
        for (single, index) in NAMES {
            let weights = match get(&cache, &api, pinned(), index) {
                Ok(index) => shard_names(&index)?,
                Err(error) if is_missing(&error) => vec![single.to_string()],
                Err(error) => return Err(unfetched(index, error)),
            };
            let fetched = weights.iter().try_for_each(|file| {
                get(&cache, &api, pinned(), file).map(drop).map_err(|error| unfetched(file, error))
            });
            match fetched {
                Ok(()) => return Ok(folder.to_path_buf()),
                // Report the missing safetensors file, not the missing PyTorch file.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        return Err(failure.unwrap_or_else(|| not_found(name, "it has no weights".into())));
    }
    Ok(folder.to_path_buf())
}

/// Whether the hub says that there is no such file.
fn is_missing(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) => matches!(**error, ureq::Error::StatusCode(404)),
        ApiError::TooManyRetries(error) => is_missing(error),
        _ => false,
    }
}

fn get(cache: &Cache, api: &Api, repo: Repo, name: &str) -> Result<PathBuf, ApiError> {
    let waits = Instant::now();
    loop {
        if let Some(path) = cache.repo(repo.clone()).get(name) {
            return Ok(path);
        }
        match api.repo(repo.clone()).download_with_progress(name, Bar::default()) {
            // Another program is downloading this file.
            Err(ApiError::LockAcquisition(_)) if waits.elapsed() < LONGEST_WAIT => {}
            done => return done,
        }
    }
}

/// Locks the cache so that only one hooklens process downloads at a time. Prints a note if it has to wait for the lock,
/// and continues without a lock if the cache cannot be locked.
fn lock_cache(cache: &Path, name: &str) -> Option<FolderLock> {
    std::fs::create_dir_all(cache).ok()?;
    let begun = Instant::now();
    let mut noted = false;
    loop {
        match FolderLock::take(cache) {
            Err(FolderLockError::Held { .. }) if begun.elapsed() < LONGEST_WAIT => {}
            taken => return taken.ok(),
        }
        if !noted {
            let place = cache.display();
            stderr::line(format_args!("note: {name}: waiting for another process to finish downloading to {place}"));
            noted = true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Whether this is a plausible revision name that is safe to use in a path.
fn is_revision(name: &str) -> bool {
    let letters = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+=,".contains(c));
    name.split('/').all(|part| !part.is_empty() && !part.contains("..") && letters(part))
}

/// Returns the cached folder if it contains the requested files.
fn cached(cache: &CacheRepo, revision: &str, want: DownloadScope) -> Option<PathBuf> {
    // A commit that was downloaded under the name of its branch has a folder in the cache but no ref.
    let commit = cache.pointer_path(revision).join(SMALL[0]);
    let config = cache.get(SMALL[0]).or_else(|| commit.is_file().then_some(commit))?;
    let folder = config.parent()?;
    let there = |name: &str| folder.join(name).is_file();
    let whole = match want {
        DownloadScope::Description => true,
        DownloadScope::Weights => NAMES.iter().any(|(single, index)| match there(index) {
            true => shard_names(&folder.join(index)).is_ok_and(|shards| shards.iter().all(|shard| there(shard))),
            false => there(single),
        }),
    };
    whole.then(|| folder.to_path_buf())
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off"))
}

fn not_found(name: &str, reason: String) -> LoadError {
    load_errors::not_found(name, reason)
}

fn refused(name: &str, reason: String, error: ApiError) -> LoadError {
    LoadError::NotFound { name: name.to_string(), reason, source: Some(error.into()) }
}

/// One progress bar per file; hidden if standard error is not a terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        // The hub client calls this again on every attempt.
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
