//! Models by hub id: fetched once into the standard cache folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use hooklens_hooks::{FolderLock, FolderLockError};
use indicatif::{ProgressBar, ProgressStyle};

use crate::weight_files::{NAMES, shard_names};
use hooklens_io::stderr;
use hooklens_model::error::LoadError;
use hooklens_model::tokens::MARIAN_FILES;

/// Files besides the weights; all but the first may be absent.
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

/// How long a download by another process is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Which files of a hub model to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Configuration and tokenizer.
    Description,
    /// The weights too.
    Weights,
}

fn cache() -> Cache {
    match std::env::var_os("HF_HUB_CACHE").filter(|path| !path.is_empty()) {
        Some(path) => Cache::new(path.into()),
        None => Cache::from_env(),
    }
}

/// Where models of the hub lie on this machine.
pub fn cache_folder() -> PathBuf {
    cache().path().clone()
}

/// The folder that holds a hub model, downloading what is not in the cache: `gpt2`, or as of a branch, tag or commit,
/// `EleutherAI/pythia-70m@step1000`.
///
/// The cache folder (`HF_HUB_CACHE`, else in `HF_HOME`, else in `~/.cache/huggingface`), the
/// endpoint (`HF_ENDPOINT`) and the token (`HF_TOKEN`, else the one `huggingface-cli login` saved)
/// are the hub's own; `HF_HUB_OFFLINE=1` forbids any download.
pub(super) fn fetch(name: &str, want: Want) -> Result<PathBuf, LoadError> {
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    if !is_revision(revision) {
        let reason = format!("`{revision}`, behind the @, is not the name of a branch, tag or commit");
        return Err(not_found(name, reason));
    }
    let cache = cache();
    let of = |revision: &str| Repo::with_revision(id.to_string(), RepoType::Model, revision.to_string());
    if let Some(folder) = cached(&cache.repo(of(revision)), revision, want) {
        return Ok(folder);
    }
    if is_set("HF_HUB_OFFLINE") {
        let reason = "HF_HUB_OFFLINE is set and the model is not in the cache; pass a folder instead";
        return Err(not_found(name, reason.into()));
    }
    // Whoever comes first downloads; the others find all of it in the cache.
    let _lock = lock_cache(cache.path(), name);
    if let Some(folder) = cached(&cache.repo(of(revision)), revision, want) {
        return Ok(folder);
    }
    let token = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()).or_else(|| Cache::from_env().token());
    let builder = ApiBuilder::from_env().with_cache_dir(cache.path().clone());
    let built = builder.with_token(token).with_progress(false).with_retries(3).build();
    let api = built.map_err(|e| refused(name, "the hub's client can't be made".into(), e))?;
    let failed = |error: ApiError| {
        let advice = "offline, pass a folder with config.json and model.safetensors";
        refused(name, format!("there is no such folder, and the hub did not give it; {advice}"), error)
    };
    let config = get(&cache, &api, of(revision), SMALL[0]).map_err(failed)?;
    let folder = config.parent().ok_or_else(|| not_found(name, "the cache has no folder for it".into()))?;
    // The rest comes from the commit the configuration came from, should the hub move on meanwhile.
    let commit = folder.file_name().map_or(revision.into(), |name| name.to_string_lossy());
    let pinned = || of(&commit);
    let had_template = folder.join(CHAT_TEMPLATE).is_file();
    for file in &SMALL[1..] {
        // Absent is fine; a broken connection shows itself at the weights.
        let _ = get(&cache, &api, pinned(), file);
    }
    // Further templates have names of their own, and come with one that has none.
    if !had_template && folder.join(CHAT_TEMPLATE).is_file() {
        let siblings = api.repo(pinned()).info().map(|info| info.siblings).unwrap_or_default();
        for file in siblings.iter().filter(|file| file.rfilename.starts_with("additional_chat_templates/")) {
            let _ = get(&cache, &api, pinned(), &file.rfilename);
        }
    }
    // All that models of proteins have, and Marian's, which no other model's files need.
    if !folder.join("tokenizer.json").is_file() {
        for file in MARIAN_FILES.into_iter().chain(["vocab.txt"]) {
            let _ = get(&cache, &api, pinned(), file);
        }
    }
    // What a sentence encoder does behind its blocks lies in folders of its own.
    for module in super::sentence_modules(folder) {
        let _ = get(&cache, &api, pinned(), &module);
    }
    if want == Want::Weights {
        let mut failure = None;
        for (single, index) in NAMES {
            let weights = match get(&cache, &api, pinned(), index) {
                Ok(index) => shard_names(&index)?,
                Err(_) => vec![single.to_string()],
            };
            let fetched = weights.iter().try_for_each(|file| {
                let fetched = get(&cache, &api, pinned(), file).map(drop);
                fetched.map_err(|error| refused(name, format!("the hub did not give `{file}`"), error))
            });
            match fetched {
                Ok(()) => return Ok(folder.to_path_buf()),
                // What safetensors there were not is the news, not what PyTorch files there were not.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        return Err(failure.unwrap_or_else(|| not_found(name, "it has no weights".into())));
    }
    Ok(folder.to_path_buf())
}

fn get(cache: &Cache, api: &Api, repo: Repo, name: &str) -> Result<PathBuf, ApiError> {
    let waits = Instant::now();
    loop {
        if let Some(path) = cache.repo(repo.clone()).get(name) {
            return Ok(path);
        }
        match api.repo(repo.clone()).download_with_progress(name, Bar::default()) {
            // Another program is at it.
            Err(ApiError::LockAcquisition(_)) if waits.elapsed() < LONGEST_WAIT => {}
            done => return done,
        }
    }
}

/// Locks the cache, which one process of this program downloads to at a time: waits while another one does, and says so.
/// A cache that can't be locked is used without.
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
            stderr::line(format_args!("note: another process is downloading to {place}; {name} waits for it"));
            noted = true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Whether this can be a revision's name, which becomes part of a path.
fn is_revision(name: &str) -> bool {
    let letters = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+=,".contains(c));
    name.split('/').all(|part| !part.is_empty() && !part.contains("..") && letters(part))
}

/// The cached folder, if what is wanted is there.
fn cached(cache: &CacheRepo, revision: &str, want: Want) -> Option<PathBuf> {
    // A commit may be there without being known by its own name: as the latest of a branch.
    let commit = cache.pointer_path(revision).join(SMALL[0]);
    let config = cache.get(SMALL[0]).or_else(|| commit.is_file().then_some(commit))?;
    let folder = config.parent()?;
    let there = |name: &str| folder.join(name).is_file();
    let whole = match want {
        Want::Description => true,
        Want::Weights => NAMES.iter().any(|(single, index)| match there(index) {
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
    LoadError::not_found(name, reason)
}

fn refused(name: &str, reason: String, error: ApiError) -> LoadError {
    LoadError::NotFound { name: name.to_string(), reason, source: Some(error.into()) }
}

/// One progress bar per file; none when standard error is not a terminal.
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
