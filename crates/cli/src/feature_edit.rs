//! The `--set` option: edits of features.

use std::fmt;

use hooklens_features::graph::FeatureEdit;

/// A feature intervention given with `--set`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FeatureEditArg {
    layer: usize,
    pub(super) position: usize,
    latent: usize,
    /// Whether the edit also applies to all later positions.
    onward: bool,
    /// Whether the activation is multiplied by `value` instead of set to it.
    times: bool,
    value: f32,
    pub(super) edit: FeatureEdit,
}

impl FeatureEditArg {
    /// The position that the edit changes, or `None` if the edit also applies to all later positions.
    pub(super) fn one_position(&self) -> Option<usize> {
        (!self.onward).then_some(self.position)
    }

    /// The change to the activation, for messages: `setting it to 0`.
    pub(super) fn change(&self) -> String {
        let what = if self.times { "multiplying it by" } else { "setting it to" };
        format!("{what} {}", self.value)
    }
}

/// Formats the edit as on the command line, without the value.
impl fmt::Display for FeatureEditArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.layer, self.position, self.latent)
    }
}

/// Parses `3:14:12=0` or `3:14+:12=x2`.
pub(super) fn feature_edit(text: &str) -> Result<FeatureEditArg, String> {
    let wrong = || "expected LAYER:POS:LATENT=VALUE, such as 3:14:12=0, 3:14:12=x2 or 3:14+:12=5".to_string();
    let (place, value) = text.split_once('=').ok_or_else(wrong)?;
    let [layer, pos, latent] = place.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let (layer, latent, onward) = (number(layer)?, number(latent)?, pos.ends_with('+'));
    let pos = number(pos.strip_suffix('+').unwrap_or(pos))?;
    let (times, value) = value.strip_prefix('x').map_or((false, value), |value| (true, value));
    let value = value.parse::<f32>().ok().filter(|value| value.is_finite()).ok_or_else(wrong)?;
    let make = if times { FeatureEdit::times } else { FeatureEdit::set };
    let edit = make(layer, pos, latent, value);
    let edit = if onward { edit.onward() } else { edit };
    Ok(FeatureEditArg { layer, position: pos, latent, onward, times, value, edit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_read() {
        assert_eq!(feature_edit("3:14:12=0.5").unwrap().edit, FeatureEdit::set(3, 14, 12, 0.5));
        assert_eq!(feature_edit("3:14+:12=x-2").unwrap().edit, FeatureEdit::times(3, 14, 12, -2.0).onward());
        assert_eq!(feature_edit("3:14:12=0").unwrap().change(), "setting it to 0");
        assert_eq!(feature_edit("3:14:12=x2").unwrap().change(), "multiplying it by 2");
        for wrong in ["", "3:14=1", "3:14:12", "3:14:12=", "3:14:12=nan", "a:1:2=3", "1:2:3:4=5"] {
            assert!(feature_edit(wrong).unwrap_err().contains("LAYER:POS:LATENT=VALUE"), "{wrong}");
        }
    }
}
