//! What families with Mamba 2 share: one projection for all that a mixer reads, in place of five.

use crate::config::TransformerConfig;
use crate::weight_files::{Layout, WeightTable};

/// What the tensors of a mixer are called, and which have biases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The folder of layers.
    pub(super) folder: &'static str,
    /// The mixer's name within a layer.
    pub(super) part: &'static str,
    /// Whether the projections have biases.
    pub(super) maps: bool,
    /// Whether the convolution has one.
    pub(super) conv: bool,
}

impl Names {
    /// Adds the mixers of all layers that have one. The gate comes first in the projection, then the channels of the
    /// convolution, then the steps.
    pub(super) fn add(self, table: &mut WeightTable, c: &TransformerConfig) {
        for layer in 0..c.n_layers {
            let Some(space) = c.state_space_of(layer) else { continue };
            let from = |part: &str| format!("{}.{layer}.{}.{part}", self.folder, self.part);
            let to = |part: &str| format!("blocks.{layer}.ssm.{part}");
            let (all, shared) = (space.n_heads * space.d_head, space.n_groups * space.d_state);
            let of = 2 * (all + shared) + space.n_heads;
            let parts = [("gate", 0), ("x", all), ("B", 2 * all), ("C", 2 * all + shared), ("dt", 2 * (all + shared))];
            for (part, start) in parts {
                let layout = Layout::Rows { start, of };
                table.add(to(&format!("W_{part}")), from("in_proj.weight"), layout);
                if self.maps {
                    table.add(to(&format!("b_{part}")), from("in_proj.bias"), layout);
                }
            }
            table.linear(&to("W_O"), &from("out_proj"), self.maps);
            table.add(to("conv"), from("conv1d.weight"), Layout::Filters);
            if self.conv {
                table.add(to("conv_bias"), from("conv1d.bias"), Layout::AsIs);
            }
            for part in ["A_log", "dt_bias", "D"] {
                table.add(to(part), from(part), Layout::AsIs);
            }
            table.add(to("norm.w"), from("norm.weight"), Layout::AsIs);
        }
    }
}
