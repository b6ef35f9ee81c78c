//! [`LensTable`]: the most likely next token at each stage and position, as a table.

use hooklens_analysis::activations::Analyze;
use std::path::Path;

use hooklens_hooks::{Activation, HookError, Record, ResolvePositions};
use ndarray::{ArrayD, Axis, IxDyn};

use super::color::Scale;
use super::draw;
use super::heatmap::Heatmap;
use super::number_text::short;
use super::page::{self, escaped};
use super::token_text::{drawn, visible};
use crate::error::PlotError;
use crate::picture::Picture;
use hooklens_analysis::activations::Per;
use hooklens_analysis::labeled::{self, LabeledArray, LabeledAxis};
use hooklens_analysis::lens::{LensReading, may_be_of};
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::Result;
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::token_text;

/// Maximum number of cells in a table.
const MOST: usize = 5_000;
/// Maximum number of characters of a token in a cell or an axis label.
const LETTERS: usize = 12;
/// Number of tokens listed when hovering over a cell.
const LISTED: usize = 5;

/// A lens reading as a table: one row per stage, one column per position, with the most likely next token in each cell.
/// Cells are colored by a [`LensShade`]. On a page, hovering over a cell lists more tokens.
///
/// ```
/// use hooklens::plot::{LensShade, LensTable};
/// use hooklens::prelude::*;
/// # let folder = tempfile::tempdir()?;
/// # let (figure, page) = (folder.path().join("lens.svg"), folder.path().join("lens.html"));
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let table = LensTable::run(&model, "When Mary and John went to the store, John gave a drink to", LensShade::Entropy)?;
/// table.clone().title("logit lens").save(figure)?;
/// table.positions(-4..)?.save(page)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LensTable {
    /// Values that color the cells, `[stage, pos]`.
    shade: LabeledArray,
    /// Description of the colors.
    shown: String,
    /// The most likely tokens at each stage and position.
    cells: Vec<Vec<Vec<(String, f32)>>>,
    /// The tokens at the positions.
    tokens: Vec<String>,
    title: String,
}

/// The quantity that the colors of a [`LensTable`] show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LensShade {
    /// Probability of the displayed token.
    #[default]
    Probability,
    /// Probability of the token with this id.
    ProbabilityOf(u32),
    /// Entropy of the next-token distribution, in nats.
    Entropy,
    /// Kullback-Leibler divergence KL(final ‖ stage), in nats.
    KlToFinal,
}

impl LensTable {
    /// Creates a table from one row of a lens reading, given the tokens at its positions.
    ///
    /// # Errors
    /// [`PlotError::OtherTokens`] for the wrong number of tokens; [`PlotError::TooMany`] for more than 5,000 cells;
    /// [`HookError::Rows`] for a row that does not exist. Also fails for a token id that has no logit.
    pub fn of(
        model: &impl HookedModel,
        reading: &LensReading,
        tokens: &[u32],
        row: usize,
        shade: LensShade,
    ) -> Result<Self> {
        let [stages, batch, pos, _] = reading.logits.dims();
        if row >= batch {
            return Err(HookError::Rows { asked: row..row + 1, batch }.into());
        }
        if tokens.len() != pos {
            return Err(PlotError::OtherTokens { positions: pos, tokens: tokens.len() }.into());
        }
        if !may_be_of(reading, row, tokens) {
            return Err(PlotError::OtherText { row }.into());
        }
        Self::fits(stages, pos)?;
        let tokenizer = model.tokenizer().ok();
        let text = |id: u32| token_text(tokenizer, id);
        let top = reading.top(LISTED)?;
        let named = |place: &Vec<(u32, f32)>| place.iter().map(|(id, share)| (text(*id), *share)).collect();
        let cells: Vec<Vec<Vec<(String, f32)>>> =
            top.iter().map(|stage| stage[row].iter().map(named).collect()).collect();
        let of_row = |values: Activation| -> Result<ArrayD<f64>> {
            Ok(values.to_ndarray()?.index_axis(Axis(1), row).mapv(f64::from))
        };
        let (values, shown) = match shade {
            LensShade::Probability => {
                let most = |at: IxDyn| cells[at[0]][at[1]].first().map_or(f64::NAN, |(_, share)| f64::from(*share));
                (ArrayD::from_shape_fn(IxDyn(&[stages, pos]), most), "probability".into())
            }
            LensShade::ProbabilityOf(id) => {
                let values = reading.prob(id)?.index_axis(Axis(1), row).mapv(f64::from).into_dyn();
                (values, format!("probability of {}", visible(&text(id))))
            }
            LensShade::Entropy => (of_row(reading.entropy().into())?, "entropy, nats".into()),
            LensShade::KlToFinal => {
                // For equal distributions, rounding can make the divergence negative.
                (
                    of_row(reading.kl_to_final().into())?.mapv(|nats| nats.max(0.0)),
                    "KL divergence to the final stage, nats".into(),
                )
            }
        };
        let tokens: Vec<String> = tokens.iter().map(|id| drawn(&text(*id), LETTERS)).collect();
        let axes = [LabeledAxis::new("stage", &reading.labels), LabeledAxis::new("pos", numbered(0, &tokens))];
        Ok(Self { shade: labeled::matching(axes, values), shown, cells, tokens, title: String::new() })
    }

    /// Runs a model on one text or row of tokens, and applies the logit lens before each layer and after the last
    /// layer.
    ///
    /// # Errors
    /// Same as [`HookedModel::record`] and [`LensTable::of`].
    pub fn run(model: &HookedTransformer, input: impl Into<Input>, shade: LensShade) -> Result<Self> {
        let tokens = model.token_input(input.into())?;
        let [_, len] = tokens.shape();
        Self::fits(model.config().n_layers() + 1, len)?;
        let cache = model.record(&tokens, Record::new("*hook_resid_{pre,post}"))?;
        let reading = model.analyze(&cache)?.logit_lens(Per::Layer)?;
        Self::of(model, &reading, &tokens.ids()[..len], 0, shade)
    }

    fn fits(stages: usize, pos: usize) -> Result<(), PlotError> {
        match stages * pos {
            places if places > MOST => Err(PlotError::TooMany { places, most: MOST, axes: vec!["pos".into()] }),
            _ => Ok(()),
        }
    }

    /// Keeps only these positions.
    ///
    /// # Errors
    /// [`HookError::Positions`] for positions that do not exist.
    pub fn positions(mut self, positions: impl Into<hooklens_hooks::Positions>) -> Result<Self, HookError> {
        let range = positions.into().resolve(self.tokens.len())?;
        let (stages, places) = self.axes();
        let axes = [stages.clone(), LabeledAxis::new("pos", &places.labels[range.clone()])];
        let values = self.shade.values().slice_axis(Axis(1), range.clone().into()).to_owned();
        self.shade = labeled::matching(axes, values);
        self.tokens = self.tokens.drain(range.clone()).collect();
        for stage in &mut self.cells {
            *stage = stage.drain(range.clone()).collect();
        }
        Ok(self)
    }

    /// The stage axis and the position axis.
    fn axes(&self) -> (&LabeledAxis, &LabeledAxis) {
        let axes = self.shade.axes();
        (&axes[0], &axes[1])
    }

    /// Sets the title, shown above the table.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    fn picture(&self) -> Result<Heatmap<'_>, PlotError> {
        let texts = self.texts().into_iter().flatten().map(|text| drawn(text, LETTERS)).collect();
        Ok(Heatmap::of(&self.shade)?.texts(texts).title(&self.title).value(&self.shown))
    }

    /// The table as an HTML fragment that can be inserted into any page. Hovering over a cell lists its most likely
    /// tokens.
    ///
    /// # Errors
    /// [`PlotError::TooLarge`] for a page of more than 16 MB.
    pub(crate) fn to_html(&self) -> Result<String, PlotError> {
        let scale = Scale::of(self.shade.values().iter());
        let (stages, places) = self.axes();
        let mut html = String::from(
            "<div class=\"hooklens-lens\" style=\"padding: 10px 12px; background: #fff; color: #1a1a1a; color-scheme: \
             light; font: 13px/1.5 system-ui, sans-serif\">\n",
        );
        if !self.title.is_empty() {
            html.push_str(&format!("<div style=\"font-weight: 600\">{}</div>\n", escaped(&self.title)));
        }
        html.push_str(&format!("<div style=\"font-size: 12px\">{} {}</div>\n", escaped(&self.shown), scale.legend()));
        html.push_str(
            "<div style=\"overflow: auto\" role=\"region\" aria-label=\"Lens table\" tabindex=\"0\"><table style=\"border-collapse: separate; border-spacing: 1px\">\n",
        );
        let head = "position: sticky; left: 0; background: #fff; text-align: right; font-weight: 400; padding: 1px 6px";
        html.push_str(&format!("<tr><th scope=\"col\" style=\"{head}\">stage</th>"));
        for place in &places.labels {
            let column = "font-weight: 400; padding: 1px 6px; text-align: center; white-space: nowrap";
            html.push_str(&format!("<th scope=\"col\" style=\"{column}\">{}</th>", escaped(place)));
        }
        html.push_str("</tr>\n");
        for (at, (stage, cells)) in stages.labels.iter().zip(&self.cells).enumerate() {
            html.push_str(&format!("<tr><th scope=\"row\" style=\"{head}\">{}</th>", escaped(stage)));
            for (place, cell) in cells.iter().enumerate() {
                html.push_str(&self.cell(scale, self.shade.values()[[at, place]], cell));
            }
            html.push_str("</tr>\n");
            page::fits(html.len(), (self.cells.len(), "stage"), places.labels.len())?;
        }
        html.push_str("</table></div></div>\n");
        Ok(html)
    }

    fn cell(&self, scale: Scale, value: f64, tokens: &[(String, f32)]) -> String {
        let line = |(text, share): &(String, f32)| format!("{:.1} %  {}", share * 100.0, escaped(&visible(text)));
        let mut listed: Vec<String> = tokens.iter().map(line).collect();
        listed.push(escaped(&format!("{}: {}", self.shown, short(value))));
        let ink = if scale.is_dark(value) { "#fff" } else { "#000" };
        let best = escaped(&drawn(best(tokens), LETTERS));
        format!(
            "<td title=\"{}\" style=\"padding: 1px 6px; text-align: center; white-space: nowrap; unicode-bidi: isolate; \
             background: {}; color: {ink}\">{best}</td>",
            listed.join("&#10;"),
            scale.hex(value)
        )
    }

    /// The table as a complete HTML page.
    ///
    /// # Errors
    /// Same as [`LensTable::to_html`].
    fn to_page(&self) -> Result<String, PlotError> {
        let title = if self.title.is_empty() { "logit lens" } else { &self.title };
        Ok(page::whole(title, &self.to_html()?))
    }

    /// Saves the table to a file atomically, as SVG, PNG or HTML depending on the file's extension.
    ///
    /// # Errors
    /// [`PlotError::Kind`] for any other extension; [`PlotError::Draw`] if drawing fails; [`PlotError::TooLarge`] for a
    /// page of more than 16 MB; [`PlotError::Write`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        draw::save(path.as_ref(), || self.to_svg(), || self.to_png(2), || self.to_page())
    }
}

/// The text of the most likely token in a cell.
fn best(place: &[(String, f32)]) -> &str {
    place.first().map_or("", |(text, _)| text)
}

/// Tokens prefixed with their positions.
fn numbered(first: usize, tokens: &[String]) -> Vec<String> {
    tokens.iter().enumerate().map(|(at, token)| format!("{} {token}", first + at)).collect()
}

/// The cells of a lens table, and the position of its first token.
pub trait LensCells: Sized {
    /// Sets the text position of the table's first token, which is used in labels. Default: 0.
    #[must_use]
    fn first(self, position: usize) -> Self;

    /// The values that the colors show, `[stage, pos]`.
    fn shades(&self) -> &LabeledArray;

    /// The text of the most likely token in each cell, `[stage][pos]`.
    fn texts(&self) -> Vec<Vec<&str>>;
}

impl LensCells for LensTable {
    fn first(mut self, position: usize) -> Self {
        let (stages, _) = self.axes();
        let axes = [stages.clone(), LabeledAxis::new("pos", numbered(position, &self.tokens))];
        self.shade = labeled::matching(axes, self.shade.values().clone());
        self
    }

    fn shades(&self) -> &LabeledArray {
        &self.shade
    }

    fn texts(&self) -> Vec<Vec<&str>> {
        self.cells.iter().map(|stage| stage.iter().map(|place| best(place)).collect()).collect()
    }
}

impl Picture for LensTable {
    fn to_svg(&self) -> Result<String, PlotError> {
        self.picture()?.to_svg()
    }

    fn to_png(&self, scale: u32) -> Result<Vec<u8>, PlotError> {
        self.picture()?.to_png(scale)
    }
}
