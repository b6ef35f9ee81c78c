//! Attribution graphs: which features made the model say what it says.
//!
//! Attention patterns, the scales of norms and what MLPs do are taken as they were in one run of a prompt. Then every
//! pre-activation of a latent, and every logit, is a sum: of what latents of earlier layers write, of what these miss
//! (errors), of token and position vectors, and of constants. An edge of the graph is one summand. Gradients go back
//! through the linear model by hand, only to layers below a target and to positions up to its own, so that a graph is
//! made on a CPU, in bounded memory.

pub use hooklens_features::graph::{
    AttentionPair, AttentionPairs, AttributionGraph, FeatureEdit, FeatureTokens, GraphCheck, GraphEdge, GraphError,
    GraphFile, GraphNode, GraphOptions, GraphPath, GraphProgress, GraphScores, GraphTarget, HeadEffects, Hold,
    Intervened, NodeKind, PrunedGraph, Replacement, generate_edited, intervene,
};
