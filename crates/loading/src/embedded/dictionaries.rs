//! Dictionaries embedded in the binary, trained by `examples/train_dictionaries.rs`.

/// An embedded dictionary or set of transcoders: its configuration and weight files.
#[derive(Debug)]
pub struct EmbeddedDictionary {
    /// Name, as in `embedded:NAME`.
    pub name: &'static str,
    /// Contents of the configuration file.
    pub description: &'static str,
    /// Contents of the weight files.
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

/// Names of the embedded dictionaries, which can be opened as `embedded:NAME`.
pub fn embedded_dictionaries() -> impl Iterator<Item = &'static str> {
    DICTIONARIES.iter().map(|one| one.name)
}

/// Finds the dictionary with this name.
pub fn find_dictionary(name: &str) -> Option<&'static EmbeddedDictionary> {
    DICTIONARIES.iter().find(|one| one.name == name)
}
