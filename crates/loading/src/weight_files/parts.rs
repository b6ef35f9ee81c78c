//! Files of models of several parts: text, and images or sound.

/// Beginnings, behind `model.` or nothing, of the names of other parts.
const TOWERS: [&str; 17] = [
    "vision",
    "visual",
    "image_",
    "mm_",
    "multi_modal_projector",
    "connector",
    "projector",
    "perceiver",
    "audio",
    "speech",
    "mlp1",
    "resampler",
    "aligner",
    "vpm",
    "apm",
    "tts",
    "patch_merger",
];

/// Whether a tensor is one of another part, where a text model's begin with one of these.
pub(super) fn is_of_another_part(name: &str, own: &[&str]) -> bool {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    match own {
        [] => false,
        [""] => TOWERS.iter().any(|tower| bare.starts_with(tower)),
        own => !own.iter().any(|own| name.starts_with(own)),
    }
}
