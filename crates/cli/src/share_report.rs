//! Reporting of results, which may have been merged from shards.

use serde_json::{Value, json};

use super::Failure;
use super::json_result::{ModelId, with_header};
use super::out::{CsvArg, OutFile};
use super::picture_args::PictureArgs;
use super::share::{Part, described};

/// The forms in which a result is reported, and what it was computed from.
pub(super) struct ShareReport<'t> {
    /// The model. Its fingerprint is computed only if it is needed.
    pub(super) model: &'t dyn Fn() -> Result<ModelId, Failure>,
    /// The shards that the result was merged from.
    pub(super) shards: Option<&'t [Part]>,
    pub(super) json: bool,
    pub(super) csv: CsvArg,
    pub(super) picture: PictureArgs,
    pub(super) out: Option<OutFile>,
}

impl ShareReport<'_> {
    /// Completes a JSON result whose own fields are `body`.
    pub(super) fn result(&self, mut body: Value) -> Result<Value, Failure> {
        body["shards"] = json!(self.shards.map(described));
        Ok(with_header(Some(&(self.model)()?), body))
    }
}
