//! Display of experiment results in notebooks.

use super::{Show, Shown};
use crate::{ColoredText, PlotError};
use hooklens_analysis::experiments::{FoundExamples, PromptReport};

impl Show for PromptReport {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text(self.to_string())])
    }
}

impl Show for FoundExamples {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text(self.to_string()), Shown::html(ColoredText::of(self)?.to_html()?)])
    }
}
