//! Correlations of units' activations with other units and with the coordinates of the point that units read, computed
//! in a second pass over the prompts.

use burn::tensor::{DType, Tensor, TensorData};

use super::{Dashboards, batches, recorded};
use crate::host::host;
use hooklens_model::error::Result;

/// Number of correlated units listed.
pub(super) const ROWS: usize = 3;

/// A unit or coordinate correlated with a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Similar {
    pub(super) place: usize,
    /// Pearson correlation over all tokens.
    pub(super) pearson: f64,
    /// Cosine similarity over all tokens.
    pub(super) cosine: f64,
}

/// Sums, over all tokens, of values, their squares, and their products with units' activations.
#[derive(Default)]
struct Sums {
    sum: Vec<f64>,
    square: Vec<f64>,
    /// Sums of products with each unit's activation, `[unit, value]`.
    product: Vec<f64>,
}

/// Sums for all units and for the coordinates of the point they read.
pub(super) struct Correlations {
    tokens: f64,
    of_units: Sums,
    of_coordinates: Sums,
}

impl Sums {
    /// Adds rows `[row, value]`; `own` are the activations of the selected units, `[row, unit]`.
    fn add(&mut self, rows: &Tensor<2>, own: &Tensor<2>) {
        let sums = host(rows.clone().sum_dim(0));
        let squares = host(rows.clone().square().sum_dim(0));
        let products = host(own.clone().transpose().matmul(rows.clone()));
        for (all, some) in [(&mut self.sum, sums), (&mut self.square, squares), (&mut self.product, products)] {
            all.resize(some.len(), 0.0);
            all.iter_mut().zip(some).for_each(|(all, some)| *all += f64::from(some));
        }
    }

    /// The values most correlated with the unit at this index, given the unit's own sum and sum of squares.
    fn most(&self, place: usize, [sum, square]: [f64; 2], tokens: f64, but: Option<usize>) -> Vec<Similar> {
        let count = self.sum.len();
        let similar = |other: usize| {
            let product = self.product[place * count + other];
            let spread = |sum: f64, square: f64| (square - sum * sum / tokens).max(0.0).sqrt();
            let (spreads, sizes) = (
                spread(sum, square) * spread(self.sum[other], self.square[other]),
                (square * self.square[other]).sqrt(),
            );
            let pearson = (product - sum * self.sum[other] / tokens) / spreads;
            Similar { place: other, pearson, cosine: product / sizes }
        };
        let others = (0..count).filter(|other| but != Some(*other)).map(similar);
        let mut all: Vec<Similar> = others.filter(|one| one.pearson.is_finite()).collect();
        all.sort_by(|a, b| b.pearson.total_cmp(&a.pearson));
        all.truncate(ROWS);
        all
    }
}

impl Correlations {
    /// Computes the correlations of these units with all others over the dashboards' prompts. `seen` is called with each
    /// batch of prompts.
    pub(super) fn of(all: &Dashboards<'_>, units: &[usize], mut seen: impl FnMut(&[Vec<u32>])) -> Result<Self> {
        let (mut tokens, mut of_units, mut of_coordinates) = (0.0, Sums::default(), Sums::default());
        for batch in batches(&*all.prompts, all.options.batch_size).take_while(|_| !units.is_empty()) {
            let (batch, _) = batch?;
            seen(&batch);
            let (activation, real, _) = recorded(all.model, &all.units.point, &batch)?;
            let rows = real.len();
            let kept = |id: &Option<u32>| id.is_some_and(|id| !all.options.leaves_out(id));
            let kept: Vec<f32> = real.iter().map(|id| f32::from(u8::from(kept(id)))).collect();
            tokens += kept.iter().map(|kept| f64::from(*kept)).sum::<f64>();
            let acts = all.units.read(&activation, rows)?.cast(DType::F32);
            let width = activation.shape().iter().product::<usize>() / rows.max(1);
            let coordinates = activation.reshape(&[rows, width]).to_tensor::<2>()?.cast(DType::F32);
            // Excluded tokens are set to zero, and not counted.
            let mask = Tensor::<2>::from_data(TensorData::new(kept, [rows, 1]), (&acts.device(), DType::F32));
            let (acts, coordinates) = (acts * mask.clone(), coordinates * mask);
            let own = Tensor::cat(units.iter().map(|unit| acts.clone().narrow(1, *unit, 1)).collect(), 1);
            of_units.add(&acts, &own);
            of_coordinates.add(&coordinates, &own);
        }
        Ok(Self { tokens, of_units, of_coordinates })
    }

    /// The units and coordinates most correlated with a unit.
    pub(super) fn of_unit(&self, place: usize, unit: usize) -> [Vec<Similar>; 2] {
        let own = [self.of_units.sum[unit], self.of_units.square[unit]];
        [
            self.of_units.most(place, own, self.tokens, Some(unit)),
            self.of_coordinates.most(place, own, self.tokens, None),
        ]
    }
}
