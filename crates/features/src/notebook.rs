//! Display of dictionaries and dashboards in notebooks.

use super::dictionary::Dictionary;
use super::show::{DashboardCounts, Dashboards};
use hooklens_io::numerals::grouped;
use hooklens_model::error::Result;
use hooklens_plot::error::PlotError;
use hooklens_plot::{Show, Shown, text_and_page};

/// Maximum number of units shown in a notebook.
const SHOWN: usize = 20;

impl Show for Dictionary {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let metadata = self.metadata();
        let kind = if self.is_transcoder() { "transcoder" } else { "sparse autoencoder" };
        let [read, write] = [&metadata.reads, &metadata.writes].map(|point| point.as_deref().unwrap_or_default());
        let place = if write.is_empty() { read.to_string() } else { format!("{read} to {write}") };
        let latents = grouped(self.latents());
        let content = format!("{kind} {}: {latents} latents, {}, {place}", self.name(), self.architecture());
        Ok(vec![Shown { mime: "text/plain", content }])
    }
}

impl Show for Dashboards<'_> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let units: Vec<usize> = self.by_query().into_iter().take(SHOWN).collect();
        Ok(text_and_page(format!("{self:?}"), &self.page(&units).map_err(unread)?))
    }
}

/// The dashboard of one unit, for display in a notebook.
#[derive(Debug, Clone)]
pub struct UnitView {
    what: String,
    page: String,
}

impl Dashboards<'_> {
    /// The dashboard of one unit, for display in a notebook.
    ///
    /// # Errors
    /// [`FeatureError::Latent`](super::FeatureError::Latent) if the unit does not exist.
    pub fn unit(&self, unit: usize) -> Result<UnitView> {
        Ok(UnitView { what: format!("{unit} of {self:?}"), page: self.page(&[unit])? })
    }
}

impl Show for UnitView {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(text_and_page(&*self.what, &self.page))
    }
}

fn unread(error: hooklens_model::error::Error) -> PlotError {
    PlotError::Shown { reason: hooklens_model::error::error_chain(&error) }
}
