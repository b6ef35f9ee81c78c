//! Display of values in Jupyter notebooks.

mod caches;
mod experiments;
mod pictures;
mod tables;
mod tensors;

use std::io::Write;

use crate::error::PlotError;
use hooklens_model::error::error_chain;

/// The display of a value that is the last expression of a notebook's cell: a picture, a table, an interactive page,
/// by the protocol of [evcxr](https://github.com/evcxr/evcxr), the Rust kernel of Jupyter. It is part of the
/// [prelude](crate::prelude), so `use hooklens::prelude::*;` is all it takes.
///
/// Tensors and recordings are shown by their shapes, some statistics and a small picture, caches and models by a table,
/// pictures as they are.
///
/// ```
/// use hooklens::plot::Show;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let cache = model.record("king drum sun star", "*hook_pattern")?;
/// let shown = cache.shown()?;
/// assert!(shown[0].content.starts_with("ActivationCache of 2 points"));
/// assert_eq!(shown[1].mime, "text/html");
/// cache.evcxr_display(); // what evcxr calls for a cell that ends in `cache`
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait Show {
    /// The forms a notebook may choose from, the plainest first.
    ///
    /// # Errors
    /// If there is nothing to show or too much of it: see [`PlotError`].
    fn shown(&self) -> Result<Vec<Shown>, PlotError>;

    /// Prints the value for evcxr, or why it can't be shown.
    fn evcxr_display(&self) {
        let shown =
            self.shown().unwrap_or_else(|error| vec![Shown::text(format!("can't be shown: {}", error_chain(&error)))]);
        let blocks: String = shown.iter().map(Shown::block).collect();
        // In one piece, so that what other threads print doesn't get in between. A notebook that is gone needs nothing.
        let _ = std::io::stdout().lock().write_all(blocks.as_bytes());
    }
}

/// One form of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown {
    /// Its MIME type: `text/plain`, `text/html`, `image/svg+xml` or `image/png`.
    pub mime: &'static str,
    /// The form itself; of an image of dots, in base64.
    pub content: String,
}

impl Shown {
    pub fn text(content: impl Into<String>) -> Self {
        Self { mime: "text/plain", content: content.into() }
    }

    pub(crate) fn html(content: impl Into<String>) -> Self {
        Self { mime: "text/html", content: content.into() }
    }

    /// A page within the notebook's, which its styles and keys don't reach.
    pub fn page(page: &str) -> Self {
        let attribute = page.replace('&', "&amp;").replace('"', "&quot;");
        Self::html(format!(
            "<iframe sandbox=\"allow-scripts allow-downloads\" style=\"width: 100%; height: 640px; border: 1px solid #8884\" srcdoc=\"{attribute}\">\
             </iframe>"
        ))
    }

    fn svg(content: impl Into<String>) -> Self {
        Self { mime: "image/svg+xml", content: content.into() }
    }

    /// The form between evcxr's marks. A text that holds such a mark would end early.
    fn block(&self) -> String {
        let content = self.content.replace("EVCXR_", "EVCXR\u{2060}_");
        format!("EVCXR_BEGIN_CONTENT {}\n{}\nEVCXR_END_CONTENT\n", self.mime, content.trim_end())
    }
}

impl<T: Show + ?Sized> Show for &T {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        (**self).shown()
    }
}
