//! Features that act alike.

use super::attribution_graph::{AttributionGraph, PrunedGraph};

impl AttributionGraph {
    /// Groups of kept features whose effects, in and out, point the same way: the cosine of any two is at least this, on
    /// average. Features that are like no other are left out.
    pub fn groups(&self, pruned: &PrunedGraph, cosine: f64) -> Vec<Vec<usize>> {
        let features: Vec<usize> =
            pruned.nodes().iter().copied().filter(|node| self.nodes()[*node].is_feature()).collect();
        let profile = |feature: usize| {
            let mut profile: Vec<(usize, f64)> = Vec::new();
            let count = self.nodes().len();
            for edge in pruned.edges() {
                // An input by its share of the target's, so that sources of large and of small targets are compared.
                let share = f64::from(edge.weight) / self.size(edge.target);
                if edge.target == feature {
                    profile.push((edge.source, share));
                }
                if edge.source == feature {
                    profile.push((count + edge.target, share));
                }
            }
            profile.sort_unstable_by_key(|(place, _)| *place);
            profile
        };
        let profiles: Vec<Vec<(usize, f64)>> = features.iter().map(|feature| profile(*feature)).collect();
        let dot = |a: &[(usize, f64)], b: &[(usize, f64)]| {
            let find = |place: usize| b.binary_search_by_key(&place, |(place, _)| *place).map_or(0.0, |at| b[at].1);
            a.iter().map(|(place, x)| x * find(*place)).sum::<f64>()
        };
        let norms: Vec<f64> = profiles.iter().map(|own| dot(own, own).sqrt().max(1e-12)).collect();
        let mut alike: Vec<Vec<f64>> = profiles
            .iter()
            .zip(&norms)
            .map(|(a, m)| profiles.iter().zip(&norms).map(|(b, n)| dot(a, b) / (m * n)).collect())
            .collect();
        // Agglomerative, by the average: rows of `alike` are sums over members.
        let mut groups: Vec<Vec<usize>> = (0..features.len()).map(|feature| vec![feature]).collect();
        loop {
            let mut best = (cosine, None);
            for a in 0..groups.len() {
                for b in a + 1..groups.len() {
                    let mean = alike[a][b] / (groups[a].len() * groups[b].len()) as f64;
                    if mean >= best.0 {
                        best = (mean, Some((a, b)));
                    }
                }
            }
            let Some((a, b)) = best.1 else { break };
            let joined = groups.remove(b);
            groups[a].extend(joined);
            let row = alike.remove(b);
            alike[a].iter_mut().zip(&row).for_each(|(x, y)| *x += y);
            for own in &mut alike {
                let more = own.remove(b);
                own[a] += more;
            }
        }
        groups.retain(|group| group.len() > 1);
        groups.into_iter().map(|group| group.into_iter().map(|place| features[place]).collect()).collect()
    }
}
