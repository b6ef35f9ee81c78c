//! Attribution graphs: which features led to the model's output.
//!
//! Attention patterns, norm scales and MLP activation functions are frozen at their values in one run on a prompt.
//! Every pre-activation of a latent, and every logit, is then a sum of contributions from latents of earlier layers,
//! reconstruction errors, token and position embeddings, and constants. An edge of the graph is one summand.
//! Hand-written code propagates gradients through this linear model, only to layers before a target and to positions up
//! to the target's, so that graphs can be computed on a CPU in bounded memory.

pub use hooklens_features::graph::{
    AttentionPair, AttentionPairs, AttributionGraph, FeatureEdit, GraphCheck, GraphEdge, GraphError, GraphFile,
    GraphNode, GraphOptions, GraphPath, GraphProgress, GraphScores, GraphTarget, HeadEffects, Hold, NodeKind,
    PrunedGraph, Replacement, generate_edited, intervene,
};
