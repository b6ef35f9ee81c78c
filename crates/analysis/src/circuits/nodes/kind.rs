//! [`KindOfNodes`]: the kinds of nodes that have names on the command line and in Python.

use hooklens_hooks::Axis;

use crate::patching::Sites;

/// A kind of node that can be chosen by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindOfNodes {
    /// Attention heads.
    Heads,
    /// Outputs of MLPs.
    Mlps,
    /// Neurons of MLPs.
    Neurons,
    /// Latents of spliced dictionaries.
    Latents,
}

impl KindOfNodes {
    /// Glob of the hook points that contain the nodes.
    pub fn points(self) -> &'static str {
        match self {
            Self::Heads => "blocks.*.attn.hook_z",
            Self::Mlps => "blocks.*.hook_mlp_out",
            Self::Neurons => "blocks.*.mlp.hook_post",
            Self::Latents => "*hook_sae_acts_post",
        }
    }

    /// The sites of the nodes. Each node covers one position if `by_position`, otherwise all positions.
    pub fn sites(self, by_position: bool) -> Sites {
        let own = match self {
            Self::Heads => Some(Axis::Head),
            Self::Mlps => None,
            Self::Neurons => Some(Axis::DMlp),
            Self::Latents => Some(Axis::Feature),
        };
        Sites::new(self.points()).per(by_position.then_some(Axis::Pos).into_iter().chain(own))
    }
}
