//! Attribution graphs: which features led to the model's output.

mod active;
mod attention_pairs;
mod attribution_graph;
mod capture;
mod check;
mod circuit;
mod combined;
mod frozen;
mod frozen_attention;
mod frozen_mlp;
mod gradient;
mod graph_file;
mod groups;
mod heads;
mod held_norm;
mod influence;
mod intervene;
mod mlp_run;
mod neurons;
#[cfg(feature = "plot")]
mod notebook;
mod options;
mod outline;
mod paths;
mod place;
mod replacement;
mod row_file;
mod row_of;
mod rows;
mod saved_view;
mod secant_slopes;
mod site;
mod stacked;
mod target;
mod trace;
mod words;

use burn::tensor::{DType, Tensor};

pub use crate::error::GraphError;
pub use attention_pairs::{AttentionPair, AttentionPairs};
pub use attribution_graph::{AttributionGraph, GraphDetails, GraphEdge, GraphNode, GraphScores, NodeKind, PrunedGraph};
pub use check::GraphCheck;
pub use graph_file::{GraphFile, GraphFileParts};
pub use groups::groups;
pub use heads::HeadEffects;
pub use intervene::{EditedFeature, FeatureEdit, Hold, Intervened, generate_edited, intervene, intervened};
pub use options::{GraphOptions, batch_size, ranked_every, weighted_target};
pub use paths::GraphPath;
pub use replacement::Replacement;
pub use target::{GraphTarget, difference_of_ids};
pub use trace::GraphProgress;
pub use words::{FeatureTokens, feature_tokens};

/// A tensor's values in host memory, in row-major order.
fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.cast(DType::F32).into_data();
    match data.as_slice::<f32>() {
        Ok(_) => data.try_into_vec().unwrap_or_default(),
        Err(_) => data.iter().collect(),
    }
}
