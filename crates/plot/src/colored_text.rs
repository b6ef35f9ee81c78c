//! [`ColoredText`]: text whose tokens are colored by values.

use std::path::Path;

use super::color::Scale;
use super::page::{self, escaped};
use super::token_text::visible;
use crate::error::PlotError;

/// Text whose tokens are colored by values, such as a neuron's activations or the loss at each token. Each set of
/// values is a row, and all rows share one color scale: red above zero and blue below it or, without negative values,
/// white to blue. Hovering over a token shows its value. The page is plain HTML without scripts, and rows can be
/// collapsed.
///
/// ```
/// use hooklens::plot::ColoredText;
/// use hooklens::prelude::*;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("loss.html");
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun star king drum sun star";
/// let tokens = model.to_tokens(text)?;
/// let stream = model.record(&tokens, hook::resid_post(0))?.get(hook::resid_post(0))?; // [batch, pos, d_model]
/// let seventh = stream.narrow(2, 7, 1).to_vec()?;
/// ColoredText::new(model.to_str_tokens(text)?).row("resid_post 0, coordinate 7", seventh)?.save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ColoredText {
    tokens: Vec<String>,
    rows: Vec<NumberRow>,
    title: String,
}

/// A row of values for tokens.
#[derive(Debug, Clone, PartialEq)]
struct NumberRow {
    name: String,
    /// The row's own tokens; `None` if it uses the tokens of the text.
    tokens: Option<Vec<String>>,
    values: Vec<f64>,
}

impl ColoredText {
    /// Creates a text of these tokens, without rows of values.
    pub fn new(tokens: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { tokens: tokens.into_iter().map(Into::into).collect(), rows: Vec::new(), title: String::new() }
    }

    /// Adds a row with the text colored by these values, one per token. NaN is gray.
    ///
    /// # Errors
    /// [`PlotError::Values`] for the wrong number of values.
    pub fn row(
        self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = impl Into<f64>>,
    ) -> Result<Self, PlotError> {
        let tokens = self.tokens.len();
        self.with(name.into(), None, tokens, values.into_iter().map(Into::into).collect())
    }

    /// Adds a row with a different text, colored by one value per token on the common scale.
    ///
    /// ```
    /// use hooklens::plot::{ColoredText, Show};
    /// let page = ColoredText::new(["red", "fox"]).row("text 0", [0.1, 0.9])?;
    /// let page = page.passage("text 1", ["king", "drum", "sun"], [0.0, 0.5, 2.0])?;
    /// assert!(page.shown()?[1].content.contains("title=\"sun: 2.0000\"")); // as in a notebook
    /// # Ok::<(), hooklens::plot::PlotError>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Values`] for the wrong number of values.
    pub fn passage(
        self,
        name: impl Into<String>,
        tokens: impl IntoIterator<Item = impl Into<String>>,
        values: impl IntoIterator<Item = impl Into<f64>>,
    ) -> Result<Self, PlotError> {
        let own: Vec<String> = tokens.into_iter().map(Into::into).collect();
        let tokens = own.len();
        self.with(name.into(), Some(own), tokens, values.into_iter().map(Into::into).collect())
    }

    fn with(
        mut self,
        name: String,
        own: Option<Vec<String>>,
        tokens: usize,
        values: Vec<f64>,
    ) -> Result<Self, PlotError> {
        if values.len() != tokens {
            return Err(PlotError::Values { name, values: values.len(), tokens });
        }
        self.rows.push(NumberRow { name, tokens: own, values });
        Ok(self)
    }

    /// Sets the title, shown above the text.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The text as an HTML fragment that can be inserted into any page.
    ///
    /// # Errors
    /// [`PlotError::TooLarge`] for a page of more than 16 MB.
    pub(crate) fn to_html(&self) -> Result<String, PlotError> {
        let scale = Scale::of(self.rows.iter().flat_map(|row| &row.values));
        let mut html = String::from(
            "<div class=\"hooklens-text\" style=\"box-sizing: border-box; padding: 10px 12px; background: #fff; \
             color: #1a1a1a; color-scheme: light; font: 14px/1.9 system-ui, sans-serif\">\n",
        );
        if !self.title.is_empty() {
            html.push_str(&format!("<div style=\"font-weight: 600\">{}</div>\n", escaped(&self.title)));
        }
        html.push_str(&format!("<div style=\"font-size: 12px\">{}</div>\n", scale.legend()));
        for row in &self.rows {
            html.push_str(&format!(
                "<details open><summary style=\"cursor: pointer\">{}</summary>\n<div>",
                escaped(&row.name)
            ));
            let tokens = row.tokens.as_ref().unwrap_or(&self.tokens);
            for (token, value) in tokens.iter().zip(&row.values) {
                html.push_str(&colored(&escaped(&visible(token)), *value, scale));
                if token.contains('\n') {
                    html.push_str("<br>");
                }
            }
            html.push_str("</div></details>\n");
            page::fits(html.len(), (self.rows.len(), "row"), tokens.len())?;
        }
        html.push_str("</div>\n");
        Ok(html)
    }

    /// The text as a complete HTML page.
    ///
    /// # Errors
    /// Same as [`ColoredText::to_html`].
    fn to_page(&self) -> Result<String, PlotError> {
        let title = if self.title.is_empty() { "tokens" } else { &self.title };
        Ok(page::whole(title, &self.to_html()?))
    }

    /// Saves the page to an `.html` file atomically.
    ///
    /// # Errors
    /// [`PlotError::Kind`] for any other extension; [`PlotError::TooLarge`] for a page of more than 16 MB;
    /// [`PlotError::Write`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        page::save(path.as_ref(), || self.to_page())
    }
}

/// HTML for an escaped token, with the value's color as background.
fn colored(token: &str, value: f64, scale: Scale) -> String {
    let color = scale.hex(value);
    let ink = if scale.is_dark(value) { "#fff" } else { "#000" };
    format!(
        "<span title=\"{token}: {}\" style=\"display: inline-block; max-width: 100%; margin: 0 1px; padding: 0 3px; \
         border-radius: 3px; line-height: 1.5; overflow-wrap: anywhere; unicode-bidi: isolate; background: {color}; \
         color: {ink}\">{token}</span>",
        number(value)
    )
}

/// Formats a value with four decimals, or in scientific notation if it is very small or very large.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "NaN".into(),
        size if size == 0.0 || (0.001..10_000.0).contains(&size) => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}
