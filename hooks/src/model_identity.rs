//! Which model made a recording.

/// The identity of a model's weights: two models are the same if they share their weights, or if their weights have the
/// same contents.
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
    /// An identity with a description for messages, and a hash of the weights. Without a hash, it is the same as itself
    /// only.
    pub fn new(label: impl Into<String>, content: Option<String>) -> Self {
        Self { label: label.into(), content }
    }

    /// Whether both are identities of the same weights.
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.content.is_some() && self.content == other.content)
    }

    /// The hash of the weights, if they have one.
    pub fn content(&self) -> Option<&str> {
        self.content.as_deref()
    }

    /// The model in a few words, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }
}
