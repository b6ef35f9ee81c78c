//! Placement of point labels so that they do not overlap.

use super::super::draw::LABELS;
use super::super::pen::wide;

/// The area that labels must stay in, and the points they must not cover.
pub(super) struct Obstacles<'a> {
    /// Left, top, right and bottom edges of the plot area.
    pub(super) edges: [f64; 4],
    pub(super) points: &'a [(f64, f64)],
    /// Radius of a marker.
    pub(super) radius: f64,
}

/// Left, top, right and bottom of a text.
type Corners = [f64; 4];

/// Positions of the labels, as the middle of their left edges. A label is placed to the right of its point, to the
/// left, above or below, in this order of preference. `None` if there is no free place. Points far from the
/// mean of all points come first, because readers look for outliers.
pub(super) fn free(labels: &[String], around: &Obstacles<'_>) -> Vec<Option<(f64, f64)>> {
    let mut taken: Vec<Corners> = Vec::new();
    let mut places = vec![None; labels.len()];
    let count = around.points.len().max(1) as f64;
    let middle = around.points.iter().fold((0.0, 0.0), |sum, (x, y)| (sum.0 + x / count, sum.1 + y / count));
    let apart = |at: usize| (around.points[at].0 - middle.0).hypot(around.points[at].1 - middle.1);
    let mut order: Vec<usize> = (0..labels.len()).filter(|at| !labels[*at].is_empty()).collect();
    order.sort_by(|a, b| apart(*b).total_cmp(&apart(*a)));
    for place in order {
        let (width, gap) = (wide(&labels[place], LABELS) + 2.0, around.radius + 2.0);
        let (x, y) = around.points[place];
        let beside = [
            (x + gap, y),
            (x - gap - width, y),
            (x - width / 2.0, y - gap - LABELS / 2.0),
            (x - width / 2.0, y + gap + LABELS / 2.0),
            (x + gap, y - LABELS / 2.0),
            (x + gap, y + LABELS / 2.0),
            (x - gap - width, y - LABELS / 2.0),
            (x - gap - width, y + LABELS / 2.0),
        ];
        let corners = |(left, middle): (f64, f64)| [left, middle - LABELS / 2.0, left + width, middle + LABELS / 2.0];
        let alone = |at: &(f64, f64)| !taken.iter().any(|other| meet(*other, corners(*at)));
        places[place] = beside.into_iter().find(|at| alone(at) && around.is_free(corners(*at)));
        taken.extend(places[place].map(corners));
    }
    places
}

impl Obstacles<'_> {
    /// Whether a text with these corners is within the picture and covers no point.
    fn is_free(&self, corners @ [left, top, right, bottom]: Corners) -> bool {
        let within = left > self.edges[0] && top > self.edges[1] && right < self.edges[2] && bottom < self.edges[3];
        let half = self.radius * 0.8;
        within && !self.points.iter().any(|(x, y)| meet([x - half, y - half, x + half, y + half], corners))
    }
}

fn meet(one: Corners, other: Corners) -> bool {
    one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_label_lies_on_another_or_outside() {
        let points: Vec<(f64, f64)> =
            (0..60).map(|n| (f64::from(n * 37 % 60) * 7.0, f64::from(n * 53 % 60) * 5.0)).collect();
        let labels: Vec<String> =
            (0..60).map(|n| if n % 7 == 0 { String::new() } else { format!("label {n}") }).collect();
        let around = Obstacles { edges: [0.0, 0.0, 420.0, 300.0], points: &points, radius: 3.0 };
        let places = free(&labels, &around);
        let corners: Vec<Corners> = labels
            .iter()
            .zip(&places)
            .filter_map(|(label, at)| {
                let (x, y) = (*at)?;
                Some([x, y - LABELS / 2.0, x + wide(label, LABELS), y + LABELS / 2.0])
            })
            .collect();
        assert!(corners.len() > 10 && corners.len() < 52, "some fit, some don't: {}", corners.len());
        for (number, one) in corners.iter().enumerate() {
            assert!(one[0] >= 0.0 && one[2] <= 420.0 && one[1] >= 0.0 && one[3] <= 300.0);
            assert!(!corners[..number].iter().any(|other| meet(*one, *other)));
        }
        assert!(places[0].is_none(), "an empty label has no place");
        let alone = Obstacles { edges: [0.0, 0.0, 200.0, 150.0], points: &[(100.0, 75.0)], radius: 3.0 };
        assert_eq!(free(&["a".into()], &alone), [Some((105.0, 75.0))]);
    }
}
