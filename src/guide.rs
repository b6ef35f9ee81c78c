//! Includes README.md and the guide, so that their examples run as tests if the required features are enabled.

#[doc = include_str!("../README.md")]
mod readme {}

#[doc = include_str!("../docs/analysis.md")]
mod analysis {}

#[doc = include_str!("../docs/attribution.md")]
mod attribution {}

#[cfg(feature = "decompositions")]
#[doc = include_str!("../docs/circuits.md")]
mod circuits {}

#[doc = include_str!("../docs/proving_circuits.md")]
mod proving_circuits {}

#[doc = include_str!("../docs/attribution_graphs.md")]
mod attribution_graphs {}

#[doc = include_str!("../docs/command_line.md")]
mod command_line {}

#[doc = include_str!("../docs/devices.md")]
mod devices {}

#[doc = include_str!("../docs/dumps.md")]
mod dumps {}

#[doc = include_str!("../docs/families.md")]
mod families {}

#[doc = include_str!("../docs/features.md")]
mod features {}

#[cfg(feature = "plot")]
#[doc = include_str!("../docs/first_hour.md")]
mod first_hour {}

#[doc = include_str!("../docs/generation.md")]
mod generation {}

#[doc = include_str!("../docs/hooks.md")]
mod hooks {}

#[doc = include_str!("../docs/installing.md")]
mod installing {}

#[doc = include_str!("../docs/models.md")]
mod models {}

#[doc = include_str!("../docs/notebooks.md")]
mod notebooks {}

#[doc = include_str!("../docs/own_models.md")]
mod own_models {}

#[doc = include_str!("../docs/patching.md")]
mod patching {}

#[cfg(feature = "plot")]
#[doc = include_str!("../docs/pictures.md")]
mod pictures {}

#[cfg(feature = "decompositions")]
#[doc = include_str!("../docs/recipes.md")]
mod recipes {}

#[doc = include_str!("../docs/recording.md")]
mod recording {}

#[doc = include_str!("../docs/training.md")]
mod training {}

#[doc = include_str!("../docs/transformer_lens.md")]
mod transformer_lens {}

#[doc = include_str!("../docs/upstream.md")]
mod upstream {}

mod caches {
    #[doc = include_str!("../docs/caches/README.md")]
    mod overview {}

    #[doc = include_str!("../docs/caches/easydel.md")]
    mod easydel {}

    #[doc = include_str!("../docs/caches/hugging_face.md")]
    mod hugging_face {}

    #[doc = include_str!("../docs/caches/labml.md")]
    mod labml {}

    #[doc = include_str!("../docs/caches/torchtune.md")]
    mod torchtune {}

    #[doc = include_str!("../docs/caches/transformer_lens.md")]
    mod transformer_lens {}
}
