//! Identity of the model that made a recording.

/// The identity of a model's weights. Two models are the same if they share their weights or if their weights have
/// equal contents.
///
/// ```
/// use hooklens_hooks::ModelIdentity;
/// let [base, again] = ["e3b0", "e3b0"].map(|content| ModelIdentity::new("as published", Some(content.to_string())));
/// let edited = ModelIdentity::new("as published", None);
/// assert!(base.is(&again) && edited.is(&edited) && !edited.is(&base));
/// ```
#[derive(Debug)]
pub struct ModelIdentity {
    label: String,
    content: Option<String>,
}

impl ModelIdentity {
    /// Creates an identity with a label for messages and a hash of the weights. Without a hash, the identity
    /// equals only itself.
    pub fn new(label: impl Into<String>, content: Option<String>) -> Self {
        Self { label: label.into(), content }
    }

    /// Whether both identify the same weights.
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.content.is_some() && self.content == other.content)
    }

    /// The hash of the weights, if known.
    pub fn content(&self) -> Option<&str> {
        self.content.as_deref()
    }

    /// A short description of the model, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }
}
