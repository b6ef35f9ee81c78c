//! Attention attribution: an attention score as a sum over pairs of query-side and key-side nodes.

use burn::tensor::{DType, Tensor, TensorData};
use hooklens_hooks::{Record, Selection};
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::attribution_graph::{AttributionGraph, GraphDetails};
use super::capture::Captured;
use super::frozen::Batch;
use super::host;
use super::replacement::Replacement;
use super::site::{PRE, STEPS};
use crate::error::GraphError;
use hooklens_model::config::{Layers, NormDetails, QkNormWeights};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{Attention, HookedTransformer, Linear, ModelParts, Norm, RotaryTable};

/// The contribution of two nodes, one in the query and one in the key, to an attention score.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttentionPair {
    /// The node in the query; `None` for the constant part.
    pub query: Option<usize>,
    /// The node in the key; `None` for the constant part.
    pub key: Option<usize>,
    /// Contribution of the pair to the score.
    pub score: f32,
}

/// The decomposition of one head's attention score for one query and key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AttentionPairs {
    /// The attention score, before any soft cap and position bias.
    pub score: f32,
    /// The pairs with the largest contributions by magnitude.
    pub strongest: Vec<AttentionPair>,
    /// The sum over all pairs. It equals the score, except for contributions of features that are not in the graph.
    pub sum: f32,
}

/// A query or key as a linear function of nodes, `[d_head, node + 1]`, with the constant in the last column.
/// [`Side::mapped`] applies the head's norm and rotation.
struct Side {
    values: Vec<f32>,
    columns: usize,
}

impl AttributionGraph {
    /// Decomposes the attention score of a head `(layer, head)`, from a query position to an earlier key position, into
    /// a sum over pairs of nodes. Queries and keys are linear in what features, errors and tokens write, with norms and
    /// earlier patterns frozen.
    ///
    /// ```
    /// # use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
    /// # use hooklens::features::Transcoders;
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
    /// let pairs = graph.attention_pairs(&model, &replacement, (3, 0), [14, 1], 5)?; // from " to" to " Mary"
    /// assert!((pairs.sum - pairs.score).abs() < 1e-3 * pairs.score.abs().max(1.0));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a head or positions that do not exist; otherwise the same as
    /// [`AttributionGraph::new`].
    pub fn attention_pairs(
        &self,
        model: &HookedTransformer,
        replacement: &Replacement,
        (layer, head): (usize, usize),
        [query, key]: [usize; 2],
        count: usize,
    ) -> Result<AttentionPairs> {
        let config = model.config();
        let wrong = |what, given: String, wanted| GraphError::Setting { what, given, wanted };
        if layer >= config.n_layers() || head >= config.n_heads() {
            return Err(wrong("the head", format!("L{layer}H{head}"), "a head of the model").into());
        }
        if key > query || query >= self.tokens().len() || self.prompts() > 1 {
            let given = format!("{query} to {key}");
            let wanted = "a query position and the same or an earlier key position, in a graph of one prompt";
            return Err(wrong("the pair of positions", given, wanted).into());
        }
        let captured = self.captured_again(model, replacement, self.left_out())?;
        let attention = attention_of(model, layer)?;
        let kv_heads = config.n_kv_heads_of(layer);
        let kv_head = head * kv_heads / config.n_heads();
        let (query_weights, key_weights) = ((&attention.q, config.n_heads()), (&attention.k, kv_heads));
        let sides = [(query_weights, head, query, "q"), (key_weights, kv_head, key, "k")];
        let [by_query, by_key] = sides.map(|(weights, head, pos, name)| {
            let (map, actual) = self.rotation(model, layer, head, pos, name)?;
            let side = self.side(&captured, weights, layer, head, pos)?;
            Ok::<_, hooklens_model::error::Error>((side.mapped(&map), actual))
        });
        let ((by_query, actual_query), (by_key, actual_key)) = (by_query?, by_key?);
        let divisor = config.score_divisor(layer) as f32;
        let score = actual_query.iter().zip(&actual_key).map(|(q, k)| q * k).sum::<f32>() / divisor;
        let (rows, columns, width) = (by_query.columns, by_key.columns, config.d_head_of(layer));
        let node = |column: usize, of: usize| (column + 1 < of).then_some(column);
        let (mut sum, mut strongest) = (0f64, Vec::new());
        let mut products = vec![0.0; columns];
        for row in 0..rows {
            let own: Vec<f32> = (0..width).map(|at| by_query.values[at * rows + row] / divisor).collect();
            if own.iter().all(|x| *x == 0.0) {
                continue;
            }
            let all = View2::row_major(&by_key.values, width, columns);
            gemm(View2::row_major(&own, 1, width), all, None, &mut products, columns);
            for (column, score) in products.iter().enumerate().filter(|(_, score)| **score != 0.0) {
                sum += f64::from(*score);
                strongest.push(AttentionPair { query: node(row, rows), key: node(column, columns), score: *score });
            }
            if strongest.len() > count.saturating_mul(4).saturating_add(columns) {
                keep(&mut strongest, count);
            }
        }
        keep(&mut strongest, count);
        Ok(AttentionPairs { score, strongest, sum: sum as f32 })
    }

    /// Coordinates of a head's query or key before its norm, as linear functions of nodes.
    fn side(
        &self,
        captured: &Captured,
        (linear, heads): (&Linear, usize),
        layer: usize,
        head: usize,
        pos: usize,
    ) -> Result<Side> {
        let Captured { frozen, active, .. } = captured;
        let [width, all] = linear.shape();
        let d_head = all / heads;
        let matrix = host(linear.matrix());
        let bias = linear.bias.as_ref().map(|bias| host(bias.val()));
        let (mut vectors, mut constants) = (Vec::new(), Vec::new());
        let norm = &captured.before_attention[layer];
        for coordinate in head * d_head..(head + 1) * d_head {
            let mut vector: Vec<f32> = (0..width).map(|row| matrix[row * all + coordinate]).collect();
            let mut constant = bias.as_ref().map_or(0.0, |bias| f64::from(bias[coordinate]));
            let beside = captured.beside_attention.as_ref().map(|rows| &rows[pos * width..][..width]);
            for added in norm.bias().into_iter().chain(beside) {
                constant += vector.iter().zip(added).map(|(x, b)| f64::from(*x) * f64::from(*b)).sum::<f64>();
            }
            norm.back(&mut vector, pos);
            vectors.extend(vector);
            constants.push(constant);
        }
        let positions = vec![pos; d_head];
        let batch = Batch { vectors, positions: &positions, start: Some(layer * STEPS + PRE) };
        let effects = frozen.effects(batch, active)?;
        let nodes = self.columns_in(active);
        let columns = nodes.len() + 1;
        let mut values = Vec::new();
        for (row, constant) in effects
            .rows
            .chunks_exact(frozen.columns(active))
            .zip(&effects.constants)
            .zip(&constants)
            .map(|((row, a), b)| (row, a + b))
        {
            values.extend(nodes.iter().map(|column| row[*column]));
            values.push(constant as f32);
        }
        Ok(Side { values, columns })
    }

    /// The linear map that a head's norm and rotation apply at a position, `[d_head out, d_head in]`, and the model's
    /// query or key after both.
    fn rotation(
        &self,
        model: &HookedTransformer,
        layer: usize,
        head: usize,
        pos: usize,
        name: &str,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let (config, device) = (model.config(), model.device());
        let (width, len) = (config.d_head_of(layer), self.tokens().len());
        let attention = attention_of(model, layer)?;
        let norm = if name == "q" { &attention.q_norm } else { &attention.k_norm };
        let (centers, behind) =
            config.qk_norm_of(layer).map_or((false, false), |own| (own.kind.centers(), own.after_rotation));
        let refused = match config.qk_norm_of(layer) {
            Some(own) if centers && own.weights == QkNormWeights::Whole => "their norm centers all heads at once",
            Some(_) if norm.as_ref().is_some_and(|norm| norm.b.is_some()) => "their norm has a bias",
            _ => "",
        };
        if !refused.is_empty() {
            return Err(GraphError::Replacement { what: "queries and keys".into(), reason: refused.into() }.into());
        }
        let at = |point: &str| format!("blocks.{layer}.attn.{point}");
        let there = |point: &String| model.catalog().find(point).is_ok();
        let before = at(&format!("hook_{name}"));
        let scale = Some(at(&format!("{name}_norm.hook_scale"))).filter(there);
        let rotated = Some(at(&format!("hook_rot_{name}"))).filter(there);
        let names: Vec<String> = [Some(before.clone()), scale.clone(), rotated.clone()].into_iter().flatten().collect();
        let clean = model.record(vec![self.tokens().to_vec()], Record::new(Selection::from(names)))?;
        let row = |of: Tensor<4>| -> Vec<f32> { host(of.slice([0..1, pos..pos + 1, head..head + 1])) };
        let held = scale.as_ref().map(|scale| clean.get::<2>(&**scale)).transpose()?;
        let factors = held_factors(norm.as_ref().zip(held), head, pos, width, len);
        let normed = |rows: &mut [f32]| {
            for row in rows.chunks_exact_mut(width) {
                let mean = if centers { row.iter().sum::<f32>() / width as f32 } else { 0.0 };
                row.iter_mut().zip(&factors).for_each(|(x, factor)| *x = (*x - mean) * factor);
            }
        };
        // Mapping the unit vectors gives the columns of the map.
        let mut rows: Vec<f32> = (0..width * width).map(|at| f32::from(u8::from(at % (width + 1) == 0))).collect();
        if !behind {
            normed(&mut rows);
        }
        if let Some(own) = config.rotary(layer) {
            let positions: Vec<u32> = (0..len as u32).collect();
            let table = RotaryTable::new(own, &positions, 1, &device, DType::F32).at(pos);
            let data = TensorData::new(rows, [width, 1, 1, width]);
            rows = host(table.rotate(Tensor::<4>::from_data(data, (&device, DType::F32))));
        }
        if behind {
            normed(&mut rows);
        }
        if let (Some(growth), "q") = (config.query_growth_of(layer), name) {
            rows.iter_mut().for_each(|x| *x *= growth.factor(pos as u32) as f32);
        }
        let map: Vec<f32> = (0..width * width).map(|at| rows[at % width * width + at / width]).collect();
        let actual = match rotated {
            Some(rotated) => row(clean.get::<4>(&*rotated)?),
            // Without rotation, no hook point has the vector after multiplication by the norm's weight, so the map is
            // applied here.
            None => {
                let vector = row(clean.get::<4>(&*before)?);
                map.chunks_exact(width).map(|row| row.iter().zip(&vector).map(|(a, b)| a * b).sum()).collect()
            }
        };
        Ok((map, actual))
    }
}

/// Factors by which a norm with a frozen scale multiplies a head's coordinates.
fn held_factors(norm: Option<(&Norm, Tensor<2>)>, head: usize, pos: usize, width: usize, len: usize) -> Vec<f32> {
    let Some((norm, scale)) = norm else { return vec![1.0; width] };
    let scale = host(scale);
    // One scale per position, or one per position and head.
    let heads = scale.len() / len.max(1);
    let scale = scale[pos * heads + head.min(heads - 1)];
    let weight = norm.w.as_ref().map(|weight| host(weight.val()));
    let first = weight.as_ref().map_or(0, |weight| if weight.len() > width { head * width } else { 0 });
    (0..width).map(|at| weight.as_ref().map_or(1.0, |weight| weight[first + at]) / scale).collect()
}

impl Side {
    fn mapped(self, map: &[f32]) -> Self {
        let width = self.values.len() / self.columns;
        let mut values = vec![0.0; self.values.len()];
        let own = View2::row_major(&self.values, width, self.columns);
        gemm(View2::row_major(map, width, width), own, None, &mut values, self.columns);
        Self { values, ..self }
    }
}

/// Keeps the pairs with the largest magnitude.
fn keep(pairs: &mut Vec<AttentionPair>, count: usize) {
    pairs.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()));
    pairs.truncate(count);
}

/// A layer's attention. Graphs require attention in every layer.
fn attention_of(model: &HookedTransformer, layer: usize) -> Result<&Attention> {
    let lacking = InputError::NoAttention { what: "attribution of attention scores", layer };
    Ok(model.parts().blocks[layer].attn().ok_or(lacking)?)
}
