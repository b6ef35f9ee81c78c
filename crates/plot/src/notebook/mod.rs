//! Display of values in Jupyter notebooks.

mod caches;
mod experiments;
mod pictures;
mod tables;
mod tensors;

use std::io::Write;

use crate::error::PlotError;
use hooklens_model::error::error_chain;

/// Displays the last value of a notebook cell as a picture, a table or an interactive page, using the protocol of
/// [evcxr](https://github.com/evcxr/evcxr), the Rust kernel for Jupyter. The trait is part of the prelude, so
/// `use hooklens::prelude::*;` is enough.
///
/// Tensors are shown with their shape, some statistics and a small picture. Recordings, key-value caches and models are
/// shown as tables, and plots as they are.
///
/// ```
/// use hooklens::plot::Show;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let cache = model.record("king drum sun star", "*hook_pattern")?;
/// let shown = cache.shown()?;
/// assert!(shown[0].content.starts_with("ActivationCache of 2 points"));
/// assert_eq!(shown[1].mime, "text/html");
/// cache.evcxr_display(); // evcxr calls this for a cell that ends with `cache`
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait Show {
    /// Representations that a notebook can choose from, with the simplest first.
    ///
    /// # Errors
    /// Fails if there is nothing to show, or too much: see [`PlotError`].
    fn shown(&self) -> Result<Vec<Shown>, PlotError>;

    /// Prints the value for evcxr, or the reason it cannot be shown.
    fn evcxr_display(&self) {
        let shown = self
            .shown()
            .unwrap_or_else(|error| vec![Shown::text(format!("cannot be displayed: {}", error_chain(&error)))]);
        let blocks: String = shown.iter().map(Shown::block).collect();
        // Written in one call, so that output of other threads does not interleave. Errors are ignored, because they
        // mean that the notebook has been closed.
        let _ = std::io::stdout().lock().write_all(blocks.as_bytes());
    }
}

/// One representation of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The MIME type: `text/plain`, `text/html`, `image/svg+xml` or `image/png`.
    pub mime: &'static str,
    /// The content; base64 for PNG images.
    pub content: String,
}

impl Shown {
    /// Plain text.
    pub(crate) fn text(content: impl Into<String>) -> Self {
        Self { mime: "text/plain", content: content.into() }
    }

    pub(crate) fn html(content: impl Into<String>) -> Self {
        Self { mime: "text/html", content: content.into() }
    }

    fn svg(content: impl Into<String>) -> Self {
        Self { mime: "image/svg+xml", content: content.into() }
    }

    /// The representation between evcxr's markers. Markers inside the content are broken up, because they would end the
    /// block early.
    fn block(&self) -> String {
        let content = self.content.replace("EVCXR_", "EVCXR\u{2060}_");
        format!("EVCXR_BEGIN_CONTENT {}\n{}\nEVCXR_END_CONTENT\n", self.mime, content.trim_end())
    }
}

/// A text, and a page in an iframe that isolates it from the notebook's styles and shortcuts.
pub fn text_and_page(text: impl Into<String>, page: &str) -> Vec<Shown> {
    let attribute = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = Shown::html(format!(
        "<iframe sandbox=\"allow-scripts allow-downloads\" style=\"width: 100%; height: 640px; border: 1px solid #8884\" srcdoc=\"{attribute}\">\
             </iframe>"
    ));
    vec![Shown::text(text), frame]
}

impl<T: Show + ?Sized> Show for &T {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        (**self).shown()
    }
}
