//! Top activating examples as colored texts.

use hooklens_analysis::experiments::{FoundExamples, number};

use crate::{ColoredText, PlotError};

/// Display of top activating examples. Part of the prelude.
pub trait ColoredExamples {
    /// The examples with their surrounding tokens, colored by activation on a common scale.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("coordinate.html");
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let found = TopExamples::new("resid_post1").neuron(3).run(&model, ["king drum sun king"])?;
    /// found.colored_text()?.save(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Values`] if an example was modified to have different numbers of values and tokens.
    fn colored_text(&self) -> Result<ColoredText, PlotError>;
}

impl ColoredExamples for FoundExamples {
    fn colored_text(&self) -> Result<ColoredText, PlotError> {
        let none: [String; 0] = [];
        self.examples.iter().try_fold(ColoredText::new(none).title(self.heading()), |page, example| {
            let name = format!("{}: text {}, position {}", number(example.value), example.text, example.position);
            page.passage(name, &example.tokens, example.values.iter().copied())
        })
    }
}
