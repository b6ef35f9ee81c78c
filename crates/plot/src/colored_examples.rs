//! Top activating examples as colored texts.

use hooklens_analysis::experiments::{FoundExamples, number};

use crate::{ColoredText, PlotError};

impl ColoredText {
    /// Top activating examples with their surrounding tokens, colored by activation on a common scale.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("coordinate.html");
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let found = TopExamples::new("resid_post1").neuron(3).run(&model, ["king drum sun king"])?;
    /// ColoredText::of(&found)?.save(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Values`] if an example was modified to have different numbers of values and tokens.
    pub fn of(found: &FoundExamples) -> Result<Self, PlotError> {
        let none: [String; 0] = [];
        found.examples.iter().try_fold(Self::new(none).title(found.heading()), |page, example| {
            let name = format!("{}: text {}, position {}", number(example.value), example.text, example.position);
            page.passage(name, &example.tokens, example.values.iter().copied())
        })
    }
}
