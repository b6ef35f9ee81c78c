//! Correlations of units' activations with other units and with the coordinates of the point that units read, computed
//! in a second pass over the prompts.

use burn::tensor::{DType, Int, Tensor, TensorData};

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

/// Share of a mean square below which the variance counts as zero, because rounding in f32 may have caused it.
const ROUNDING: f64 = 1e-12;

/// Means of values over all tokens, and sums of products of deviations from them.
#[derive(Default)]
struct Moments {
    mean: Vec<f64>,
    /// Sums of squared deviations.
    square: Vec<f64>,
    /// Sums of products with the deviations of each unit's activation, `[unit, value]`.
    product: Vec<f64>,
}

/// Moments of all units and of the coordinates of the point they read.
pub(super) struct Correlations {
    tokens: f64,
    of_units: Moments,
    of_coordinates: Moments,
}

/// The rows `[row, value]` of a batch as deviations from their means.
struct Deviations {
    rows: Tensor<2>,
    mean: Vec<f64>,
}

impl Deviations {
    fn of(rows: Tensor<2>) -> Self {
        let mean = rows.clone().mean_dim(0);
        let rows = rows - mean.clone();
        // The mean is rounded, which matters if it is much larger than the deviations.
        let left = rows.clone().mean_dim(0);
        let rows = rows - left.clone();
        let mean = host(mean).into_iter().zip(host(left)).map(|(mean, left)| f64::from(mean) + f64::from(left));
        Self { rows, mean: mean.collect() }
    }

    /// The columns of some values.
    fn columns(&self, columns: &[usize]) -> Tensor<2> {
        Tensor::cat(columns.iter().map(|column| self.rows.clone().narrow(1, *column, 1)).collect(), 1)
    }

    /// By how much the means differ from earlier ones.
    fn shifts(&self, earlier: &[f64]) -> Vec<f64> {
        let earlier = earlier.iter().copied().chain(std::iter::repeat(0.0));
        self.mean.iter().zip(earlier).map(|(mean, earlier)| mean - earlier).collect()
    }
}

impl Moments {
    /// Adds a batch to earlier tokens, with the pairwise update of Chan, Golub and LeVeque (1983). `own` are the
    /// deviations of the selected units, `[row, unit]`, and `own_shifts` says by how much their means differ from the
    /// earlier means.
    fn add(&mut self, batch: &Deviations, own: &Tensor<2>, own_shifts: &[f64], earlier: f64) {
        let [count, width] = batch.rows.dims();
        let (count, shifts) = (count as f64, batch.shifts(&self.mean));
        let both = earlier * count / (earlier + count);
        let squares = host(batch.rows.clone().square().sum_dim(0));
        let products = host(own.clone().transpose().matmul(batch.rows.clone()));
        self.mean.resize(width, 0.0);
        self.square.resize(width, 0.0);
        self.product.resize(products.len(), 0.0);
        for (place, (square, shift)) in squares.into_iter().zip(&shifts).enumerate() {
            self.square[place] += f64::from(square) + shift * shift * both;
            self.mean[place] += shift * count / (earlier + count);
        }
        let shifts = own_shifts.iter().flat_map(|own| shifts.iter().map(move |shift| own * shift));
        for ((all, product), shift) in self.product.iter_mut().zip(products).zip(shifts) {
            *all += f64::from(product) + shift * both;
        }
    }

    /// Sum of the squares of one value.
    fn size(&self, place: usize, tokens: f64) -> f64 {
        self.square[place] + tokens * self.mean[place].powi(2)
    }

    /// Sum of the squared deviations of one value; 0 if the value is constant up to rounding.
    fn spread(&self, place: usize, tokens: f64) -> f64 {
        let square = self.square[place];
        if square > self.size(place, tokens) * ROUNDING { square } else { 0.0 }
    }

    /// The values most correlated with a unit, which is at index `place` of the selected units and `unit` of `units`.
    fn most(&self, place: usize, units: &Self, unit: usize, tokens: f64, but: Option<usize>) -> Vec<Similar> {
        let count = self.mean.len();
        let similar = |other: usize| {
            let product = self.product[place * count + other];
            let raw = product + tokens * units.mean[unit] * self.mean[other];
            let spreads = (units.spread(unit, tokens) * self.spread(other, tokens)).sqrt();
            let sizes = (units.size(unit, tokens) * self.size(other, tokens)).sqrt();
            Similar { place: other, pearson: (product / spreads).clamp(-1.0, 1.0), cosine: raw / sizes }
        };
        let others = (0..count).filter(|other| but != Some(*other) && self.spread(*other, tokens) > 0.0).map(similar);
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
        let (mut tokens, mut of_units, mut of_coordinates) = (0.0, Moments::default(), Moments::default());
        for batch in batches(&*all.prompts, all.options.batch_size).take_while(|_| !units.is_empty()) {
            let (batch, _) = batch?;
            seen(&batch);
            let (activation, real, _) = recorded(all.model, &all.units.point, &batch)?;
            let rows = real.len();
            let kept = |id: &Option<u32>| id.is_some_and(|id| !all.options.leaves_out(id));
            let kept: Vec<i64> = (0..rows).filter(|row| kept(&real[*row])).map(|row| row as i64).collect();
            if kept.is_empty() {
                continue;
            }
            let acts = all.units.read(&activation, rows)?.cast(DType::F32);
            let width = activation.shape().iter().product::<usize>() / rows.max(1);
            let coordinates = activation.reshape(&[rows, width]).to_tensor::<2>()?.cast(DType::F32);
            let count = kept.len();
            let kept = Tensor::<1, Int>::from_data(TensorData::new(kept, [count]), &acts.device());
            let [acts, coordinates] = [acts, coordinates].map(|rows| Deviations::of(rows.select(0, kept.clone())));
            let own = acts.columns(units);
            let shifts = acts.shifts(&of_units.mean);
            let shifts: Vec<f64> = units.iter().map(|unit| shifts[*unit]).collect();
            of_units.add(&acts, &own, &shifts, tokens);
            of_coordinates.add(&coordinates, &own, &shifts, tokens);
            tokens += count as f64;
        }
        Ok(Self { tokens, of_units, of_coordinates })
    }

    /// The units and coordinates most correlated with a unit.
    pub(super) fn of_unit(&self, place: usize, unit: usize) -> [Vec<Similar>; 2] {
        let units = &self.of_units;
        [
            units.most(place, units, unit, self.tokens, Some(unit)),
            self.of_coordinates.most(place, units, unit, self.tokens, None),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use burn::tensor::Device;

    /// Columns: one that rises, one that falls far from zero, a constant, and one whose values are large only in the
    /// first batch.
    #[test]
    fn moments_are_those_of_all_rows() {
        let row = |at: usize| {
            let x = (at * 7 % 11) as f32;
            [x, 1000.0 - 0.01 * x, 0.3, if at == 0 { 3000.0 } else { 0.1 * x }]
        };
        let rows: Vec<[f32; 4]> = (0..50).map(row).collect();
        let (mut moments, mut tokens) = (Moments::default(), 0.0);
        for batch in rows.chunks(20) {
            let data = TensorData::new(batch.concat(), [batch.len(), 4]);
            let batch = Deviations::of(Tensor::from_data(data, &Device::flex()));
            let (own, shifts) = (batch.columns(&[0]), batch.shifts(&moments.mean));
            moments.add(&batch, &own, &shifts[..1], tokens);
            tokens += batch.rows.dims()[0] as f64;
        }
        let column = |at: usize| rows.iter().map(|row| f64::from(row[at])).collect::<Vec<f64>>();
        let mean = |at: usize| column(at).iter().sum::<f64>() / tokens;
        let product = |a: usize, b: usize| -> f64 {
            column(a).iter().zip(column(b)).map(|(x, y)| (x - mean(a)) * (y - mean(b))).sum()
        };
        let found = moments.most(0, &moments, 0, tokens, Some(0));
        assert_eq!(found.iter().map(|one| one.place).collect::<Vec<_>>(), [3, 1], "a constant has no correlation");
        for Similar { place, pearson, cosine } in found {
            let expected = product(0, place) / (product(0, 0) * product(place, place)).sqrt();
            assert!((pearson - expected).abs() < 1e-5, "{place}: {pearson} and {expected}");
            let raw = |a: usize, b: usize| -> f64 { column(a).iter().zip(column(b)).map(|(x, y)| x * y).sum() };
            let expected = raw(0, place) / (raw(0, 0) * raw(place, place)).sqrt();
            assert!((cosine - expected).abs() < 1e-6, "{place}: {cosine} and {expected}");
        }
    }
}
