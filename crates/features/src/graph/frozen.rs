//! The linear model of one prompt, with patterns, norms and MLPs frozen. Every pre-activation and logit is a sum of
//! contributions from features, errors and tokens.

use super::active::Active;
use super::frozen_attention::{FrozenAttention, add_dots};
use super::frozen_mlp::FrozenMlp;
use super::gradient::{Gradient, Targets};
use super::held_norm::HeldNorm;
use super::place::{Place, Rows, through};
use super::site::{ATTENTION, MID, MLP, POST, PRE, STEPS};
use hooklens_model::error::Result;

/// The frozen linear model of a prompt.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) layers: Vec<Layer>,
    pub(super) width: usize,
    /// Token embeddings, `[pos, d_model]`.
    pub(super) tokens: Vec<f32>,
    /// Position embeddings, if they are learned and added to the stream.
    pub(super) positions: Option<Vec<f32>>,
    /// Number of places with error nodes.
    pub(super) places: usize,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention: FrozenAttention,
    /// Whether the MLP reads the stream before attention.
    pub(super) parallel: bool,
    pub(super) mlp: MlpPart,
    /// Dictionaries on the stream before attention, between attention and MLP, and after the MLP.
    pub(super) streams: [Option<Place>; 3],
}

/// The part of the frozen model that replaces an MLP.
#[derive(Debug)]
pub(super) enum MlpPart {
    None,
    Features(Box<Place>),
    Linear(Box<FrozenMlp>, [Option<HeldNorm>; 2]),
}

/// Targets at the same step of the model: vectors that read the stream, and their positions in order.
pub(super) struct Batch<'b> {
    pub(super) vectors: Vec<f32>,
    pub(super) positions: &'b [usize],
    /// The last step before the targets; `None` if only the embedding precedes them.
    pub(super) start: Option<usize>,
}

/// Direct effects on targets, `[target, column]`, and the constants.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) rows: Vec<f32>,
    pub(super) constants: Vec<f64>,
}

impl Frozen {
    /// Memory size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let place = |place: &Place| 4 * (place.errors.len() + place.constant.len());
        let layer = |layer: &Layer| {
            let linear = if let MlpPart::Linear(mlp, _) = &layer.mlp { mlp.bytes() } else { 0 };
            layer.attention.bytes() + linear
        };
        let places: usize = self.all_places().map(place).sum();
        self.layers.iter().map(layer).sum::<usize>() + places + 4 * self.tokens.len()
    }

    /// All places where features write.
    pub(super) fn all_places(&self) -> impl Iterator<Item = &Place> {
        self.layers.iter().flat_map(|layer| {
            let mlp = if let MlpPart::Features(own) = &layer.mlp { Some(&**own) } else { None };
            mlp.into_iter().chain(layer.streams.iter().flatten())
        })
    }

    /// Number of columns of a row: features, errors, tokens, positions.
    pub(super) fn columns(&self, active: &Active) -> usize {
        active.count() + (self.places + 1 + usize::from(self.positions.is_some())) * active.len
    }

    /// Computes the direct effects on the targets of a batch.
    pub(super) fn effects(&self, batch: Batch<'_>, active: &Active) -> Result<Effects> {
        let targets = Targets { positions: batch.positions, width: self.width };
        let columns = self.columns(active);
        let mut values = vec![0.0; targets.count() * columns];
        let mut constants = vec![0.0; targets.count()];
        let mut rows = Rows { values: &mut values, columns, errors: active.count() };
        self.descend(Gradient::Own(batch.vectors), batch.start, &targets, active, &mut rows, &mut constants);
        Ok(Effects { rows: values, constants })
    }

    /// Propagates a gradient backward from a step and adds the effects it collects to the targets' rows.
    fn descend(
        &self,
        mut gradient: Gradient,
        start: Option<usize>,
        targets: &Targets<'_>,
        active: &Active,
        rows: &mut Rows<'_>,
        constants: &mut [f64],
    ) {
        // The MLP's part of the gradient, which bypasses attention in a parallel block.
        let mut skipping: Option<Gradient> = None;
        for step in (0..start.map_or(0, |start| start + 1)).rev() {
            let layer = &self.layers[step / STEPS];
            match step % STEPS {
                MLP => gradient = layer.mlp_back(gradient, targets, active, rows, constants, &mut skipping),
                ATTENTION => {
                    layer.attention.add_constants(&gradient, targets, constants);
                    gradient = layer.attention.back(gradient, targets);
                }
                at => {
                    if at == PRE
                        && let Some(skipped) = skipping.take()
                    {
                        add_skipped(&mut gradient, skipped, targets);
                    }
                    if let Some(place) = layer.stream(at) {
                        // The dictionary replaces the whole stream here, so nothing earlier contributes.
                        return place.contract(&gradient, targets, active, rows, constants);
                    }
                }
            }
        }
        self.embedded(&gradient, targets, active, rows);
    }

    /// Adds the effects of token and position embeddings.
    fn embedded(&self, gradient: &Gradient, targets: &Targets<'_>, active: &Active, rows: &mut Rows<'_>) {
        let first = rows.errors + self.places * active.len;
        let written = [Some(&self.tokens), self.positions.as_ref()];
        for (number, written) in written.into_iter().enumerate() {
            let Some(written) = written else { continue };
            add_each(gradient, written, targets, rows, first + number * active.len);
        }
    }

    /// The direct effects on one target, split by the attention head that carried them: one row per head for each layer
    /// before the target, last layer first, followed by the effects carried by no head. An effect carried by several
    /// heads in sequence is attributed to the one nearest to the target. The heads' own contributions to the constant
    /// are left out.
    pub(super) fn effects_by_head(&self, batch: Batch<'_>, active: &Active, heads: usize) -> Vec<(usize, Effects)> {
        let pos = batch.positions[0];
        let (one, each) = ([pos], vec![pos; heads]);
        let targets = Targets { positions: &one, width: self.width };
        let split = Targets { positions: &each, width: self.width };
        let columns = self.columns(active);
        let mut direct = Effects { rows: vec![0.0; columns], constants: vec![0.0] };
        let mut by_head = Vec::new();
        let mut gradient = Gradient::Own(batch.vectors);
        let mut skipping: Option<Gradient> = None;
        let mut met = false;
        for step in (0..batch.start.map_or(0, |start| start + 1)).rev() {
            let layer = &self.layers[step / STEPS];
            let mut rows = Rows { values: &mut direct.rows, columns, errors: active.count() };
            match step % STEPS {
                MLP => {
                    let constants = &mut direct.constants;
                    gradient = layer.mlp_back(gradient, &targets, active, &mut rows, constants, &mut skipping);
                }
                ATTENTION => {
                    let mut values = Vec::new();
                    for head in 0..heads {
                        values.extend_from_slice(layer.attention.through_head(&gradient, &targets, head).values());
                    }
                    let mut own = Effects { rows: vec![0.0; heads * columns], constants: vec![0.0; heads] };
                    let mut rows = Rows { values: &mut own.rows, columns, errors: active.count() };
                    let constants = &mut own.constants;
                    self.descend(Gradient::Spread(values), step.checked_sub(1), &split, active, &mut rows, constants);
                    by_head.push((step / STEPS, own));
                }
                at => {
                    if at == PRE
                        && let Some(skipped) = skipping.take()
                    {
                        add_skipped(&mut gradient, skipped, &targets);
                    }
                    if let Some(place) = layer.stream(at) {
                        place.contract(&gradient, &targets, active, &mut rows, &mut direct.constants);
                        met = true;
                        break;
                    }
                }
            }
        }
        if !met {
            let mut rows = Rows { values: &mut direct.rows, columns, errors: active.count() };
            self.embedded(&gradient, &targets, active, &mut rows);
        }
        by_head.push((self.layers.len(), direct));
        by_head
    }
}

/// Adds the part of a gradient that bypassed attention.
fn add_skipped(gradient: &mut Gradient, skipped: Gradient, targets: &Targets<'_>) {
    match (gradient, skipped) {
        (Gradient::Spread(values), Gradient::Own(own)) => {
            let (len, width) = (targets.len(), targets.width);
            for ((target, pos), own) in targets.positions.iter().enumerate().zip(own.chunks_exact(width)) {
                let row = &mut values[(target * len + pos) * width..][..width];
                row.iter_mut().zip(own).for_each(|(x, more)| *x += more);
            }
        }
        (gradient, Gradient::Own(more) | Gradient::Spread(more)) => gradient.add(&more),
    }
}

/// Adds the dot product of each position's gradient and row to the position's column.
fn add_each(gradient: &Gradient, written: &[f32], targets: &Targets<'_>, rows: &mut Rows<'_>, first: usize) {
    let width = targets.width;
    for (row, own) in gradient.values().chunks_exact(width).enumerate() {
        let pos = gradient.position(row, targets);
        let target = match gradient {
            Gradient::Own(_) => row,
            Gradient::Spread(_) => row / targets.len(),
        };
        let dot: f32 = own.iter().zip(&written[pos * width..]).map(|(a, b)| a * b).sum();
        rows.values[target * rows.columns + first + pos] += dot;
    }
}

impl Layer {
    /// The dictionary on the stream at a step.
    fn stream(&self, at: usize) -> Option<&Place> {
        let number = [PRE, MID, POST].iter().position(|step| *step == at)?;
        self.streams[number].as_ref()
    }

    fn mlp_back(
        &self,
        mut gradient: Gradient,
        targets: &Targets<'_>,
        active: &Active,
        rows: &mut Rows<'_>,
        constants: &mut [f64],
        skipping: &mut Option<Gradient>,
    ) -> Gradient {
        let back = match &self.mlp {
            MlpPart::None => return gradient,
            MlpPart::Features(place) => {
                let seen = place.seen(&gradient, targets, constants);
                let seen = seen.as_ref().unwrap_or(&gradient);
                place.contract(seen, targets, active, rows, constants);
                place.skipped(seen, targets, constants)
            }
            MlpPart::Linear(mlp, [before, behind]) => {
                let seen = behind.as_ref().map(|norm| through(norm, &gradient, targets, constants));
                let seen = seen.as_ref().unwrap_or(&gradient);
                add_dots(seen, mlp.constant(), targets, constants);
                let back = mlp.back(seen.values(), |row| seen.position(row, targets));
                let back = match seen {
                    Gradient::Own(_) => Gradient::Own(back),
                    Gradient::Spread(_) => Gradient::Spread(back),
                };
                Some(match before {
                    Some(norm) => match through(norm, &back, targets, constants) {
                        Gradient::Own(back) | Gradient::Spread(back) => back,
                    },
                    None => match back {
                        Gradient::Own(back) | Gradient::Spread(back) => back,
                    },
                })
            }
        };
        let Some(back) = back else { return gradient };
        if !self.parallel {
            gradient.add(&back);
            return gradient;
        }
        *skipping = Some(match gradient {
            Gradient::Own(_) => Gradient::Own(back),
            Gradient::Spread(_) => Gradient::Spread(back),
        });
        gradient
    }
}
