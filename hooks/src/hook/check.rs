//! Checks that a hook's rank fits a point, and that a returned tensor fits the one it replaces.

use crate::activation::Activation;
use crate::error::HookError;
use crate::point::PointInfo;

pub(crate) fn check_rank(rank: Option<usize>, point: &PointInfo) -> Result<(), HookError> {
    let Some(asked) = rank else { return Ok(()) };
    if point.integer {
        return Err(HookError::Kind { point: point.name.to_string(), held: "integers", asked: "floats" });
    }
    if asked != point.axes.len() {
        let (rank, axes) = (point.axes.len(), point.axes_label());
        return Err(HookError::Rank { point: point.name.to_string(), rank, axes, asked });
    }
    Ok(())
}

pub(crate) fn check_edit(point: &PointInfo, before: &Activation, edited: &Activation) -> Result<(), HookError> {
    let name = || point.name.to_string();
    if edited.shape() != before.shape() {
        let (expected, given) = (before.shape().to_vec(), edited.shape().to_vec());
        return Err(HookError::Shape { point: name(), expected, given, axes: point.axes_label() });
    }
    let (expected, given) = (before.dtype(), edited.dtype());
    if given != expected {
        return Err(HookError::DType { point: name(), expected: format!("{expected:?}"), given: format!("{given:?}") });
    }
    let (expected, given) = (before.device(), edited.device());
    if given != expected {
        return Err(HookError::Device {
            point: name(),
            expected: format!("{expected:?}"),
            given: format!("{given:?}"),
        });
    }
    Ok(())
}
