//! [`AttentionView`]: attention patterns as an interactive HTML page.

mod cells;

use std::path::Path;

use serde_json::{Value, json};

use super::color::BLUES;
use super::page;
use super::patterns::{AttentionPatterns, HeadAttention, ShownHeads};
use super::token_text::visible;
use crate::error::PlotError;
use cells::{encoded, encoded_len};
use hooklens_io::script_json::script_json;
use hooklens_io::shown_text::shown;

/// Maximum number of tokens in a view.
const MOST_TOKENS: usize = 2048;
const LOOK: &str = include_str!("view.html");
const SCRIPT: &str = include_str!("view.js");

/// An interactive view of the attention of all heads in one self-contained HTML file. The view shows each head as a
/// thumbnail, one head enlarged, and the text. Hovering over a token shows what it attends to, or what attends to it.
/// The view works with mouse or keyboard, in a browser and in notebook output.
///
/// ```
/// use hooklens::plot::{AttentionPatterns, AttentionView};
/// use hooklens::prelude::*;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("attention.html");
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let patterns = AttentionPatterns::run(&model, "king drum sun star king drum sun", &[])?;
/// AttentionView::of(&patterns)?.title("induction").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AttentionView<'a> {
    patterns: &'a AttentionPatterns,
    /// Other texts that can be selected on the page.
    others: Vec<&'a AttentionPatterns>,
    title: String,
    start: Option<(usize, usize)>,
}

impl<'a> AttentionView<'a> {
    /// Creates a view of all heads in `patterns`. Values are quantized to 255 steps between 0 and each head's maximum.
    ///
    /// # Errors
    /// [`PlotError::TooLong`] for more than 2,048 tokens; [`PlotError::TooLarge`] for a page of more than 16 MB.
    pub fn of(patterns: &'a AttentionPatterns) -> Result<Self, PlotError> {
        check_attention_view(patterns.heads_shown().len(), patterns.tokens().len(), patterns.is_causal())?;
        Ok(Self { patterns, others: Vec::new(), title: String::new(), start: None })
    }

    /// Adds the patterns of one more text. The page has a list to select the text that it shows.
    ///
    /// ```
    /// use hooklens::plot::{AttentionPatterns, AttentionView};
    /// use hooklens::prelude::*;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("attention.html");
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let one = AttentionPatterns::run(&model, "king drum sun king drum", &[1])?;
    /// let other = AttentionPatterns::run(&model, "red fox sun red fox", &[1])?;
    /// AttentionView::of(&one)?.and(&other)?.save(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`AttentionView::of`], for all texts together.
    pub fn and(mut self, patterns: &'a AttentionPatterns) -> Result<Self, PlotError> {
        check_attention_view(patterns.heads_shown().len(), patterns.tokens().len(), patterns.is_causal())?;
        self.others.push(patterns);
        let size = |one: &AttentionPatterns| one.heads_shown().len() * encoded_len(one.tokens().len(), one.is_causal());
        let bytes = size(self.patterns) + self.others.iter().map(|one| size(one)).sum::<usize>();
        page::fits(bytes, (self.others.len() + 1, "text"), patterns.tokens().len())?;
        Ok(self)
    }

    /// Sets the title, shown above the view.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the head that is enlarged when the view opens. Default: the first one.
    ///
    /// # Errors
    /// [`PlotError::Absent`] if the view does not contain the head.
    pub fn start_at(mut self, layer: usize, head: usize) -> Result<Self, PlotError> {
        let absent = |what, asked, held: Vec<usize>| PlotError::Absent { what, asked, held };
        let shown = self.patterns.heads_shown();
        let of_layer: Vec<usize> = shown.iter().filter(|one| one.layer == layer).map(|one| one.head).collect();
        if of_layer.is_empty() {
            let mut held: Vec<usize> = shown.iter().map(|one| one.layer).collect();
            held.dedup();
            return Err(absent("layer", layer, held));
        }
        if !of_layer.contains(&head) {
            return Err(absent("head", head, of_layer));
        }
        self.start = Some((layer, head));
        Ok(self)
    }

    /// The view as an HTML fragment that can be inserted into any page, even more than once.
    ///
    /// # Errors
    /// [`PlotError::TooLarge`] if long tokens make the fragment too large.
    pub(crate) fn to_html(&self) -> Result<String, PlotError> {
        let data = script_json(&self.data());
        let fragment = format!(
            "<div class=\"hooklens-attention\" data-lm-suppress-shortcuts=\"true\">\n\
             <p>This view requires JavaScript: trust the notebook, or open the page in a browser.</p>\n\
             <template>\n{LOOK}</template>\n\
             <script type=\"application/json\">{data}</script>\n</div>\n<script>\n{SCRIPT}</script>\n"
        );
        page::fits(fragment.len(), (self.patterns.heads_shown().len(), "head"), self.patterns.tokens().len())?;
        Ok(fragment)
    }

    /// The view as a complete HTML page.
    ///
    /// # Errors
    /// Same as [`AttentionView::to_html`].
    fn to_page(&self) -> Result<String, PlotError> {
        let title = if self.title.is_empty() { "attention" } else { &self.title };
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

    fn data(&self) -> Value {
        let mut data = of_text(self.patterns);
        data["title"] = shown(&self.title).into();
        data["colors"] = json!(BLUES);
        data["start"] = json!(self.start.map(|(layer, head)| [layer, head]));
        data["others"] = self.others.iter().map(|patterns| of_text(patterns)).collect();
        data
    }
}

/// The tokens and heads of one text.
fn of_text(patterns: &AttentionPatterns) -> Value {
    let causal = patterns.is_causal();
    let head = |head: &HeadAttention| {
        let most = head.values.iter().fold(0.0f32, |most, value| most.max(*value));
        let most = if most > 0.0 { most } else { 1.0 };
        let cells = encoded(&head.values, most, causal);
        json!({"layer": head.layer, "head": head.head, "most": most, "cells": cells})
    };
    json!({
        "first": patterns.first(),
        "tokens": patterns.tokens().iter().map(|token| visible(token)).collect::<Vec<_>>(),
        "causal": causal,
        "heads": patterns.heads_shown().iter().map(head).collect::<Vec<_>>(),
    })
}

/// Checks that this number of heads and tokens can be shown. Call this before running a model, to fail early.
///
/// # Errors
/// Same as [`AttentionView::of`].
pub fn check_attention_view(heads: usize, tokens: usize, causal: bool) -> Result<(), PlotError> {
    if tokens > MOST_TOKENS {
        return Err(PlotError::TooLong { tokens, most: MOST_TOKENS });
    }
    page::fits(heads * encoded_len(tokens, causal), (heads, "head"), tokens)
}
