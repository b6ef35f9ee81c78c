//! Drawings of circuits.

use std::collections::{BTreeMap, BTreeSet};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::draw::{BLACK_INK, FINE, LABELS, TITLE, failed};
use super::frame::framed;
use super::pen::{color, path, polygon, text, wide};
use crate::error::PlotError;
use hooklens_analysis::attribution::{EdgeScores, Sender};
use hooklens_analysis::circuits::{Circuit, check_scored};
use hooklens_analysis::patching::Receiver;

/// Maximum number of edges.
const MOST: usize = 1000;

/// Height of a box, in units.
const BOX: f64 = 20.0;
/// Distance between rows, in units.
const ROW: f64 = 62.0;
/// Gap between boxes, in units.
const GAP: f64 = 14.0;
/// Margin, in units.
const MARGIN: f64 = 20.0;

/// Maximum width of a line, in units.
const WIDEST: f64 = 4.0;

/// A circuit as a graph: the embedding at the bottom, the logits at the top, and between them the heads and MLPs that
/// have edges, layer by layer. Edges enter a head's box at the left for queries, in the middle for keys and at the right
/// for values. With scores, a line's width shows the magnitude of the score; lines are blue where ablation lowers the
/// metric and orange where it raises the metric.
///
/// ```
/// use hooklens::circuits::{Circuit, Discovery};
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::plot::{CircuitDiagram, Picture};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let scores = patching.discover(&Discovery::EapIg(5))?;
/// let circuit = Circuit::top(&scores, 30)?.pruned();
/// let svg = CircuitDiagram::new(&circuit, Some(&scores))?.title("IOI").to_svg()?;
/// assert!(svg.contains("logits"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CircuitDiagram {
    title: String,
    edges: Vec<Edge>,
}

/// Positions of the boxes, and the size of the picture.
struct Layout {
    boxes: BTreeMap<Node, Place>,
    size: (u32, u32),
}

/// A node that is drawn as a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Embed,
    /// Keys and values that several heads share: layer, key/value head.
    Shared(usize, usize),
    Head(usize, usize),
    Mlp(usize),
    Logits,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Center.
    x: f64,
    y: f64,
    width: f64,
}

#[derive(Debug, Clone)]
struct Edge {
    from: Node,
    to: Node,
    /// Where the line enters the box: -1 at the left, 1 at the right.
    side: f64,
    /// Score divided by the largest magnitude; `None` without scores.
    strength: Option<f64>,
}

impl CircuitDiagram {
    /// Lays out a circuit.
    ///
    /// # Errors
    /// [`PlotError::Nothing`] for a circuit without edges, [`PlotError::TooMany`] for more than 1,000 edges,
    /// [`PlotError::Scores`] for scores of another model or of other edges.
    pub fn new(circuit: &Circuit, scores: Option<&EdgeScores>) -> Result<Self, PlotError> {
        let count = circuit.len();
        if count == 0 {
            return Err(PlotError::Nothing);
        }
        if count > MOST {
            return Err(PlotError::TooMany { places: count, most: MOST, axes: vec!["edge".into()] });
        }
        if let Some(scores) = scores {
            check_scored(circuit, scores).map_err(PlotError::Scores)?;
        }
        let groups = groups(circuit);
        let mut edges = Vec::new();
        for (sender, receiver) in circuit.edges() {
            let strength = scores.and_then(|scores| scores.score(sender, receiver));
            let (to, side) = reader(receiver, &groups);
            edges.push(Edge { from: writer(sender), to, side, strength });
        }
        let largest = edges.iter().filter_map(|edge| edge.strength).fold(0.0, |most: f64, own| most.max(own.abs()));
        for edge in &mut edges {
            edge.strength = edge.strength.map(|own| if largest > 0.0 { own / largest } else { 0.0 });
        }
        // Connect shared keys and values to the heads that read them.
        let nodes = nodes(&edges);
        for node in &nodes {
            if let Node::Head(layer, head) = *node {
                let shared = Node::Shared(layer, head / groups.get(&layer).copied().unwrap_or(1));
                if nodes.contains(&shared) {
                    edges.push(Edge { from: shared, to: *node, side: 0.0, strength: Some(0.0) });
                }
            }
        }
        Ok(Self { title: String::new(), edges })
    }

    fn frame(&self) -> Layout {
        let mut rows: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
        for node in nodes(&self.edges) {
            rows.entry(row_of(node)).or_default().push(node);
        }
        let width = |node: &Node| wide(&node.to_string(), LABELS) + 12.0;
        let wide_row = |row: &Vec<Node>| row.iter().map(|node| width(node) + GAP).sum::<f64>() - GAP;
        let most = rows.values().map(wide_row).fold(wide(&self.title, TITLE), f64::max).max(200.0);
        let above = if self.title.is_empty() { 0.0 } else { TITLE + 14.0 };
        let height = above + 2.0 * MARGIN + BOX + ROW * (rows.len() - 1) as f64;
        // Room for the edges that pass by other rows.
        let beside = 0.75 * sideways(rows.len().saturating_sub(2));
        let mut boxes = BTreeMap::new();
        for (number, row) in rows.values().enumerate() {
            let mut x = MARGIN + beside + (most - wide_row(row)) / 2.0;
            for node in row {
                let width = width(node);
                let y = height - MARGIN - BOX / 2.0 - ROW * number as f64;
                boxes.insert(*node, Place { x: x + width / 2.0, y, width });
                x += width + GAP;
            }
        }
        let width = most + 2.0 * (MARGIN + beside);
        Layout { boxes, size: (width.ceil() as u32, height.ceil() as u32) }
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, layout: &Layout) -> Result<(), PlotError> {
        area.fill(&WHITE).map_err(failed)?;
        text(area, &self.title, (MARGIN, MARGIN / 2.0), TITLE, (HPos::Left, VPos::Top), false)?;
        // The strongest edges are drawn last, on top.
        let mut edges: Vec<&Edge> = self.edges.iter().collect();
        let size = |edge: &&Edge| edge.strength.unwrap_or(1.0).abs();
        edges.sort_by(|a, b| size(a).total_cmp(&size(b)));
        for edge in edges {
            let (from, to) = (layout.boxes[&edge.from], layout.boxes[&edge.to]);
            let start = (from.x, from.y - BOX / 2.0);
            let end = (to.x + edge.side * to.width / 3.0, to.y + BOX / 2.0);
            let ink = match edge.strength {
                Some(own) if own < 0.0 => color(0),
                Some(own) if own > 0.0 => color(1),
                Some(_) => RGBColor(200, 200, 200),
                None => RGBColor(120, 120, 120),
            };
            let width = (WIDEST * edge.strength.unwrap_or(0.3).abs()).max(0.4) * f64::from(FINE);
            // Edges that skip rows bow out, so that the boxes between do not hide them.
            let skipped = ((from.y - to.y) / ROW).round() as usize - 1;
            let out = if matches!(edge.from, Node::Mlp(_)) { sideways(skipped) } else { -sideways(skipped) };
            path(area, &curve(start, end, out), ink, width.round() as u32)?;
        }
        for (node, place) in &layout.boxes {
            let (half, tall) = (place.width / 2.0, BOX / 2.0);
            let corners = [(-half, -tall), (half, -tall), (half, tall), (-half, tall)];
            let corners = corners.map(|(x, y)| (place.x + x, place.y + y));
            polygon(area, corners, WHITE.mix(1.0))?;
            path(area, &[corners[0], corners[1], corners[2], corners[3], corners[0]], BLACK_INK, FINE)?;
            text(area, &node.to_string(), (place.x, place.y), LABELS, (HPos::Center, VPos::Center), false)?;
        }
        Ok(())
    }
}

framed!(CircuitDiagram);

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Node::Embed => f.write_str("embed"),
            Node::Shared(layer, head) => write!(f, "L{layer}KV{head}"),
            Node::Head(layer, head) => write!(f, "L{layer}H{head}"),
            Node::Mlp(layer) => write!(f, "{layer}_mlp"),
            Node::Logits => f.write_str("logits"),
        }
    }
}

/// Row of a node, from the bottom. Each layer has three rows: shared keys and values, heads, and the MLP.
fn row_of(node: Node) -> usize {
    match node {
        Node::Embed => 0,
        Node::Shared(layer, _) => 3 * layer + 1,
        Node::Head(layer, _) => 3 * layer + 2,
        Node::Mlp(layer) => 3 * layer + 3,
        Node::Logits => usize::MAX,
    }
}

/// All boxes.
fn nodes(edges: &[Edge]) -> BTreeSet<Node> {
    edges.iter().flat_map(|edge| [edge.from, edge.to]).collect()
}

/// Number of heads per key/value head, for each layer whose heads share keys and values.
fn groups(circuit: &Circuit) -> BTreeMap<usize, usize> {
    let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for receiver in circuit.graph().receivers() {
        match receiver {
            Receiver::Query(layer, _) => counts.entry(*layer as usize).or_default().0 += 1,
            Receiver::Key(layer, _) => counts.entry(*layer as usize).or_default().1 += 1,
            _ => {}
        }
    }
    let shared = counts.into_iter().filter(|(_, (heads, kv_heads))| *kv_heads > 0 && heads > kv_heads);
    shared.map(|(layer, (heads, kv_heads))| (layer, heads / kv_heads)).collect()
}

fn writer(sender: Sender) -> Node {
    match sender {
        Sender::Head(layer, head) => Node::Head(layer, head),
        Sender::Mlp(layer) => Node::Mlp(layer),
        _ => Node::Embed,
    }
}

/// The box that a receiver belongs to, and the side at which its edges enter.
fn reader(receiver: Receiver, groups: &BTreeMap<usize, usize>) -> (Node, f64) {
    let own = |layer: isize, head: usize, side: f64| match groups.contains_key(&(layer as usize)) {
        true => (Node::Shared(layer as usize, head), side),
        false => (Node::Head(layer as usize, head), side),
    };
    match receiver {
        Receiver::Query(layer, head) => (Node::Head(layer as usize, head), -1.0),
        Receiver::Key(layer, head) => own(layer, head, 0.0),
        Receiver::Value(layer, head) => own(layer, head, 1.0),
        Receiver::Mlp(layer) => (Node::Mlp(layer as usize), 0.0),
        _ => (Node::Logits, 0.0),
    }
}

/// How far the control points of an edge are moved to the side if it skips this number of rows.
fn sideways(rows: usize) -> f64 {
    if rows == 0 { 0.0 } else { 45.0 + 12.0 * rows as f64 }
}

/// A curve that starts and ends vertically, or bows out to the side.
fn curve((x, y): (f64, f64), (to_x, to_y): (f64, f64), out: f64) -> Vec<(f64, f64)> {
    const STEPS: usize = 24;
    let bend = ((y - to_y) / 2.0).max(10.0);
    let at = |step: usize| {
        let t = step as f64 / STEPS as f64;
        let [a, b, c, d] = [(1.0 - t).powi(3), 3.0 * t * (1.0 - t).powi(2), 3.0 * t * t * (1.0 - t), t.powi(3)];
        ((a + b) * x + (c + d) * to_x + (b + c) * out, a * y + b * (y - bend) + c * (to_y + bend) + d * to_y)
    };
    (0..=STEPS).map(at).collect()
}
