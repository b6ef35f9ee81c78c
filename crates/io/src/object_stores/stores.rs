//! Opened stores, each opened once, and the threads that run requests.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use super::fault;
use super::parts::Parts;

/// An object store with multipart uploads.
pub(super) trait Store: ObjectStore + MultipartStore {}

impl<S: ObjectStore + MultipartStore> Store for S {}

/// Timeout of a request, including its response.
const LONGEST: &str = "45 seconds";

/// Retry policy: retries last long enough for a server to restart, but not so long that a dead server goes unreported.
fn retries() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(300), max_backoff: Duration::from_secs(5), base: 2.0 };
    RetryConfig { backoff, max_retries: 14, retry_timeout: Duration::from_secs(60) }
}

/// Opens the store of a bucket (or container), configured from the environment.
pub(super) fn open(scheme: &str, bucket: &str) -> io::Result<Arc<dyn Store>> {
    /// Opened stores, keyed by scheme and bucket.
    type Open = HashMap<(String, String), Arc<dyn Store>>;
    static OPEN: Mutex<Option<Open>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    let key = (scheme.to_string(), bucket.to_string());
    if let Some(store) = open.get(&key) {
        return Ok(store.clone());
    }
    // An embedding program may have installed another provider already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let store: Result<Arc<dyn Store>, object_store::Error> = match scheme {
        "s3" => {
            let builder =
                AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries()).with_http_connector(Parts);
            let builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), LONGEST);
            builder.build().map(|store| Arc::new(store) as _)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_retry(retries())
                .with_http_connector(Parts);
            let builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), LONGEST);
            builder.build().map(|store| Arc::new(store) as _)
        }
        _ => {
            let builder = MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_retry(retries())
                .with_http_connector(Parts);
            let builder = builder.with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), LONGEST);
            builder.build().map(|store| Arc::new(store) as _)
        }
    };
    let store = store.map_err(fault::io)?;
    open.insert(key, store.clone());
    Ok(store)
}

fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let new = Builder::new_multi_thread().worker_threads(2).thread_name("object-stores").enable_all().build()?;
    Ok(RUNTIME.get_or_init(|| new))
}

/// Pending result of a request.
pub(super) struct Coming<T>(mpsc::Receiver<Result<T, object_store::Error>>);

impl<T> Coming<T> {
    /// Waits for the result.
    pub(super) fn wait(self) -> Result<T, object_store::Error> {
        let ended = |_| object_store::Error::Generic { store: "any", source: "the request was abandoned".into() };
        self.0.recv().map_err(ended)?
    }

    /// Waits for the result for at most this long, and discards it.
    pub(super) fn wait_for(self, most: Duration) {
        self.0.recv_timeout(most).ok();
    }
}

/// Starts a request. (Waiting on a channel works on any thread, even one of another runtime.)
pub(super) fn begin<T: Send + 'static>(
    request: impl Future<Output = Result<T, object_store::Error>> + Send + 'static,
) -> io::Result<Coming<T>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // The receiver may have been dropped.
        sender.send(request.await).ok();
    });
    Ok(Coming(receiver))
}

/// Makes a request and waits for its result.
pub(super) fn wait<T: Send + 'static>(
    request: impl Future<Output = Result<T, object_store::Error>> + Send + 'static,
) -> io::Result<T> {
    begin(request)?.wait().map_err(fault::io)
}
