//! Attention patterns as an interactive HTML page.

mod cells;

use std::path::Path;

use serde_json::{Value, json};

use super::color::RISING;
use super::page;
use super::patterns::{AttentionPatterns, HeadAttention};
use super::token_text::visible;
use crate::error::PlotError;
use cells::{encoded, encoded_len};
use hooklens_io::script_json::script_json;
use hooklens_io::shown_text::shown;

/// Tokens a view shows at most.
const MOST_TOKENS: usize = 2048;
const LOOK: &str = include_str!("view.html");
const SCRIPT: &str = include_str!("view.js");

/// Every head's attention in one HTML file that needs nothing else: heads as thumbnails, one of them large, and the
/// text, where pointing at a token shows what it attends to, or what attends to it. Works with the mouse and with keys
/// alone, in a browser and in a notebook's output.
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
    causal: bool,
    title: String,
    start: Option<(usize, usize)>,
}

impl<'a> AttentionView<'a> {
    /// A view of all these heads. Numbers are kept in 255 steps up to each head's largest.
    ///
    /// # Errors
    /// [`PlotError::TooLong`] beyond 2,048 tokens, [`PlotError::TooLarge`] for a page beyond 16 MB.
    pub fn of(patterns: &'a AttentionPatterns) -> Result<Self, PlotError> {
        let causal = patterns.is_causal();
        Self::check(patterns.heads_shown().len(), patterns.tokens().len(), causal)?;
        Ok(Self { patterns, causal, title: String::new(), start: None })
    }

    /// Whether so many heads of so many tokens can be shown; check it before running a model.
    ///
    /// # Errors
    /// As [`AttentionView::of`].
    pub fn check(heads: usize, tokens: usize, causal: bool) -> Result<(), PlotError> {
        if tokens > MOST_TOKENS {
            return Err(PlotError::TooLong { tokens, most: MOST_TOKENS });
        }
        page::fits(heads * encoded_len(tokens, causal), (heads, "head"), tokens)
    }

    /// Writes this above the view.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Shows this head large when the view is opened; the first one else.
    ///
    /// # Errors
    /// [`PlotError::Absent`] if the view does not have it.
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

    /// The view as a fragment, to be put into any page, several times if need be.
    ///
    /// # Errors
    /// [`PlotError::TooLarge`] if long tokens make it so.
    pub fn to_html(&self) -> Result<String, PlotError> {
        let data = script_json(&self.data());
        let fragment = format!(
            "<div class=\"hooklens-attention\" data-lm-suppress-shortcuts=\"true\">\n\
             <p>This view is drawn by its script: trust the notebook, or open the page in a browser.</p>\n\
             <template>\n{LOOK}</template>\n\
             <script type=\"application/json\">{data}</script>\n</div>\n<script>\n{SCRIPT}</script>\n"
        );
        page::fits(fragment.len(), (self.patterns.heads_shown().len(), "head"), self.patterns.tokens().len())?;
        Ok(fragment)
    }

    /// The view as a whole page.
    ///
    /// # Errors
    /// As [`AttentionView::to_html`].
    pub fn to_page(&self) -> Result<String, PlotError> {
        let title = if self.title.is_empty() { "attention" } else { &self.title };
        Ok(page::whole(title, &self.to_html()?))
    }

    /// Writes the page to an `.html` file that appears whole or not at all.
    ///
    /// # Errors
    /// [`PlotError::Kind`], [`PlotError::TooLarge`], [`PlotError::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        page::save(path.as_ref(), || self.to_page())
    }

    fn data(&self) -> Value {
        let head = |head: &HeadAttention| {
            let most = head.values.iter().fold(0.0f32, |most, value| most.max(*value));
            let most = if most > 0.0 { most } else { 1.0 };
            let cells = encoded(&head.values, most, self.causal);
            json!({"layer": head.layer, "head": head.head, "most": most, "cells": cells})
        };
        json!({
            "title": shown(&self.title),
            "first": self.patterns.first(),
            "tokens": self.patterns.tokens().iter().map(|token| visible(token)).collect::<Vec<_>>(),
            "causal": self.causal,
            "colors": RISING,
            "start": self.start.map(|(layer, head)| [layer, head]),
            "heads": self.patterns.heads_shown().iter().map(head).collect::<Vec<_>>(),
        })
    }
}
