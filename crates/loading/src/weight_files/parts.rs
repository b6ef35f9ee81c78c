//! Names of tensors in multimodal models, which combine text with images or audio.

/// Name prefixes, after an optional `model.`, of parts other than the text model.
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

/// Whether a tensor belongs to a part other than the text model, given the text model's name prefixes.
pub(super) fn is_of_another_part(name: &str, own: &[&str]) -> bool {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    match own {
        [] => false,
        [""] => TOWERS.iter().any(|tower| bare.starts_with(tower)),
        own => !own.iter().any(|own| name.starts_with(own)),
    }
}
