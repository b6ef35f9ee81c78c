//! Dictionaries compiled into the program, made by `examples/train_dictionaries.rs`.

use hooklens_model::error::LoadError;

/// A dictionary, or transcoders of all layers: its description and its files of weights.
pub struct EmbeddedDictionary {
    pub name: &'static str,
    pub description: &'static str,
    pub weights: &'static [&'static [u8]],
}

static DICTIONARIES: &[EmbeddedDictionary] = &[
    EmbeddedDictionary {
        name: "ioi-sae",
        description: include_str!("ioi-sae/cfg.json"),
        weights: &[include_bytes!("ioi-sae/sae_weights.safetensors")],
    },
    EmbeddedDictionary {
        name: "ioi-transcoders",
        description: include_str!("ioi-transcoders/config.yaml"),
        weights: &[
            include_bytes!("ioi-transcoders/layer_0.safetensors"),
            include_bytes!("ioi-transcoders/layer_1.safetensors"),
            include_bytes!("ioi-transcoders/layer_2.safetensors"),
            include_bytes!("ioi-transcoders/layer_3.safetensors"),
        ],
    },
];

/// The dictionary of this name.
pub fn find_dictionary(name: &str) -> Result<&'static EmbeddedDictionary, LoadError> {
    DICTIONARIES.iter().find(|one| one.name == name).ok_or_else(|| {
        let names: Vec<&str> = DICTIONARIES.iter().map(|one| one.name).collect();
        let reason = format!("embedded dictionaries are {}", names.join(", "));
        LoadError::not_found(format!("embedded:{name}"), reason)
    })
}
