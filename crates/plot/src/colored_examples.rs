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
    /// Same as [`ColoredText::passage`].
    pub fn of(found: &FoundExamples) -> Result<Self, PlotError> {
        let none: [String; 0] = [];
        found.examples.iter().try_fold(Self::new(none).title(found.heading()), |page, example| {
            let (value, text, position) = (number(example.value), example.text, example.position);
            let (tokens, values): (Vec<&str>, Vec<f32>) =
                example.context.iter().map(|(_, token, value)| (token.as_str(), *value)).unzip();
            page.passage(format!("{value}: text {text}, position {position}"), tokens, values)
        })
    }
}
