//! Groups of features with similar effects.

use super::attribution_graph::{AttributionGraph, PrunedGraph};
use crate::error::GraphError;
use hooklens_model::error::Result;

/// The nonzero effects into and out of a feature, each with the node at its other end.
type Profile = Vec<(usize, f32)>;

/// Groups the kept features whose incoming and outgoing effects, as vectors, have similar directions: within a
/// group, the average cosine similarity is at least `cosine`. Features that are similar to no other are left out.
///
/// # Errors
/// [`GraphError::Setting`] for a cosine outside 0 to 1, or for a pruned graph of another graph.
pub fn groups(graph: &AttributionGraph, pruned: &PrunedGraph, cosine: f64) -> Result<Vec<Vec<usize>>> {
    if !(0.0..=1.0).contains(&cosine) {
        let (what, given) = ("the cosine of a group", cosine.to_string());
        return Err(GraphError::Setting { what, given, wanted: "a value from 0 to 1" }.into());
    }
    graph.check_pruned(pruned)?;
    let features: Vec<usize> = pruned.nodes.iter().copied().filter(|node| graph.nodes()[*node].is_feature()).collect();
    let groups = joined(&cosines(&graph.profiles(pruned, &features)), features.len(), cosine);
    Ok(groups.into_iter().map(|group| group.into_iter().map(|place| features[place]).collect()).collect())
}

impl AttributionGraph {
    /// The effects into and out of each feature, as a unit vector.
    fn profiles(&self, pruned: &PrunedGraph, features: &[usize]) -> Vec<Profile> {
        let count = self.nodes().len();
        let mut places = vec![usize::MAX; count];
        features.iter().enumerate().for_each(|(place, feature)| places[*feature] = place);
        let mut sizes: Vec<Option<f64>> = vec![None; count];
        let mut profiles: Vec<Profile> = vec![Vec::new(); features.len()];
        for edge in &pruned.edges {
            // Inputs are relative to the target's total input, so that features with large and small targets are
            // comparable.
            let size = *sizes[edge.target].get_or_insert_with(|| self.size(edge.target));
            let share = (f64::from(edge.weight) / size) as f32;
            for (own, other) in [(edge.target, edge.source), (edge.source, count + edge.target)] {
                if let Some(profile) = profiles.get_mut(places[own]) {
                    profile.push((other, share));
                }
            }
        }
        for profile in &mut profiles {
            let norm = profile.iter().map(|(_, x)| x * x).sum::<f32>().sqrt().max(1e-12);
            profile.iter_mut().for_each(|(_, x)| *x /= norm);
        }
        profiles
    }
}

/// Cosine similarities of unit vectors, `[vector, vector]`. Visits only entries that are nonzero in both vectors.
fn cosines(profiles: &[Profile]) -> Vec<f32> {
    let count = profiles.len();
    let width = profiles.iter().flatten().map(|(place, _)| place + 1).max().unwrap_or(0);
    let mut having: Vec<Profile> = vec![Vec::new(); width];
    for (own, profile) in profiles.iter().enumerate() {
        profile.iter().for_each(|(place, x)| having[*place].push((own, *x)));
    }
    let mut cosines = vec![0f32; count * count];
    for (row, profile) in cosines.chunks_exact_mut(count.max(1)).zip(profiles) {
        for (place, x) in profile {
            having[*place].iter().for_each(|(other, y)| row[*other] += x * y);
        }
    }
    cosines
}

/// Average-linkage clustering of features `0..count`: repeatedly joins the two most similar groups while their average
/// similarity is at least `least`. Returns groups of at least two features.
///
/// Uses nearest-neighbor chains. A third group's similarity to the union of two groups is at most the larger of its
/// similarities to the two. Mutual nearest neighbors can therefore be joined in any order, and a group without a
/// similar neighbor never gets one.
fn joined(cosines: &[f32], count: usize, least: f64) -> Vec<Vec<usize>> {
    let mut alike = cosines.to_vec(); // between groups, the sum over pairs of members
    let mut groups: Vec<Vec<usize>> = (0..count).map(|feature| vec![feature]).collect();
    let (mut live, mut chain): (Vec<usize>, Vec<usize>) = ((0..count).collect(), Vec::new());
    let mut done: Vec<Vec<usize>> = Vec::new();
    while let Some(last) = chain.last().or(live.first()).copied() {
        let before = chain.len().checked_sub(2).map(|place| chain[place]);
        let mean =
            |other: usize| f64::from(alike[last * count + other]) / (groups[last].len() * groups[other].len()) as f64;
        // In a tie, prefer the previous group, so that chains end.
        let others = before.into_iter().chain(live.iter().copied()).filter(|other| *other != last);
        let nearest =
            others.map(|other| (mean(other), other)).reduce(|best, one| if one.0 > best.0 { one } else { best });
        match nearest.filter(|(mean, _)| *mean >= least) {
            None => {
                chain.pop();
                live.retain(|group| *group != last);
                done.push(std::mem::take(&mut groups[last]));
            }
            Some((_, other)) if before == Some(other) => {
                chain.truncate(chain.len() - 2);
                live.retain(|group| *group != last);
                let more = std::mem::take(&mut groups[last]);
                groups[other].extend(more);
                for group in live.iter().copied() {
                    let sum = alike[other * count + group] + alike[last * count + group];
                    (alike[other * count + group], alike[group * count + other]) = (sum, sum);
                }
            }
            Some((_, other)) => {
                if chain.is_empty() {
                    chain.push(last);
                }
                chain.push(other);
            }
        }
    }
    done.retain(|group| group.len() > 1);
    done.iter_mut().for_each(|group| group.sort_unstable());
    done.sort_unstable();
    done
}

#[cfg(test)]
mod tests {
    use super::super::attribution_graph::{GraphNode, NodeKind};
    use super::*;

    /// A graph of features with five input tokens and one target.
    fn graph(inputs: &[[f32; 5]], outputs: &[f32]) -> AttributionGraph {
        let node = |kind, layer: Option<usize>, position| {
            let site = layer.filter(|layer| *layer < 1);
            GraphNode { kind, layer, position, label: String::new(), activation: None, influence: 0.0, site }
        };
        let count = inputs.len();
        let mut nodes: Vec<GraphNode> =
            (0..count).map(|latent| node(NodeKind::Feature { latent }, Some(0), 4)).collect();
        nodes.extend((0..5).map(|position| node(NodeKind::Token { id: 1 }, None, position)));
        nodes.push(node(NodeKind::Logit { token: None, weight: 1.0 }, Some(1), 4));
        let mut effects = Vec::new();
        for row in inputs {
            effects.extend(vec![0.0; count]);
            effects.extend(row);
        }
        effects.extend(outputs);
        effects.extend([0.0; 5]);
        let rows = count + 1;
        AttributionGraph::assembled(
            nodes,
            effects,
            [count, 0, 5],
            [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]],
            (vec![1; 5], vec![String::new(); 5]),
            (count, 0, 1),
            Vec::new(),
        )
    }

    #[test]
    fn features_that_hear_the_same_are_a_group() {
        let inputs = [
            [1.0, 1.0, 0.0, 0.0, 0.0],  // 0 and 3 are alike, despite their different norms
            [0.0, 0.0, 1.0, -1.0, 0.0], // 1, 2 and 5 are alike
            [0.0, 0.0, 2.0, -2.1, 0.0],
            [5.0, 5.2, 0.0, 0.1, 0.0],
            [0.0, 0.0, -1.0, 1.0, 0.0], // the opposite of the above
            [0.1, 0.0, 1.0, -1.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0], // unlike all others
        ];
        let graph = graph(&inputs, &[1e-3; 7]);
        let pruned = graph.prune(1.0, 1.0).unwrap();
        assert_eq!(groups(&graph, &pruned, 0.9).unwrap(), [vec![0, 3], vec![1, 2, 5]]);
        assert!(groups(&graph, &pruned, 1.0).unwrap().is_empty());
        for cosine in [f64::NAN, 2.0, -0.1] {
            let message = groups(&graph, &pruned, cosine).unwrap_err().to_string();
            assert!(message.contains("the cosine of a group") && message.contains("from 0 to 1"), "{message}");
        }
    }

    /// Reference implementation: joins the two most similar groups repeatedly.
    fn by_hand(cosines: &[f32], count: usize, least: f64) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = (0..count).map(|feature| vec![feature]).collect();
        loop {
            let mean = |a: &[usize], b: &[usize]| {
                let all = a.iter().flat_map(|x| b.iter().map(move |y| f64::from(cosines[x * count + y])));
                all.sum::<f64>() / (a.len() * b.len()) as f64
            };
            let pairs = (0..groups.len()).flat_map(|a| (a + 1..groups.len()).map(move |b| (a, b)));
            let best = pairs.map(|(a, b)| (mean(&groups[a], &groups[b]), a, b)).max_by(|x, y| x.0.total_cmp(&y.0));
            let Some((_, a, b)) = best.filter(|best| best.0 >= least) else { break };
            let more = groups.remove(b);
            groups[a].extend(more);
        }
        groups.retain(|group| group.len() > 1);
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        groups
    }

    #[test]
    fn chains_join_what_the_most_alike_do() {
        let mut seed = 7u64;
        let mut draw = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f32 / (1u64 << 31) as f32 - 0.3
        };
        for count in [0, 1, 2, 9, 40] {
            let profiles: Vec<Profile> = (0..count)
                .map(|_| {
                    let own: Vec<f32> = (0..4).map(|_| draw()).collect();
                    let norm = own.iter().map(|x| x * x).sum::<f32>().sqrt();
                    own.into_iter().enumerate().map(|(place, x)| (place, x / norm)).collect()
                })
                .collect();
            let cosines = cosines(&profiles);
            for least in [0.0, 0.5, 0.8, 0.95] {
                assert_eq!(joined(&cosines, count, least), by_hand(&cosines, count, least), "{count} {least}");
            }
        }
    }
}
