//! [`Unit`]: the unit whose activation is ranked, with one number per position.

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, Axis, DType, HookError, PointInfo};
use ndarray::{Array2, Ix2};

use crate::activations::AnalysisError;
use crate::tensor_ext::TensorExt;
use hooklens_model::error::{InputError, Result};

/// How an activation vector is reduced to a number.
#[derive(Debug, Clone)]
pub(super) enum ReduceAxis {
    /// The element at this index.
    Neuron(usize),
    /// The dot product with this direction.
    Direction(Box<Tensor<1>>),
    /// The norm.
    Norm,
}

/// A unit of a point: one number per position.
#[derive(Debug)]
pub(super) struct Unit<'a> {
    point: &'a PointInfo,
    head: Option<usize>,
    along: &'a ReduceAxis,
}

impl<'a> Unit<'a> {
    /// Validates the options for a point. The point must have a position axis.
    pub(super) fn new(point: &'a PointInfo, head: Option<usize>, along: Option<&'a ReduceAxis>) -> Result<Self> {
        let setting = |name, given: String, allowed: String| InputError::Setting { name, given, allowed };
        let whole = described(point);
        if point.integer {
            let point = point.name.to_string();
            return Err(HookError::Kind { point, held: "integers", asked: "floats" }.into());
        }
        match (point.axes, head) {
            ([Axis::Batch, Axis::Pos, _] | [Axis::BatchPos, _], None) => {}
            ([Axis::Batch, Axis::Pos, _] | [Axis::BatchPos, _], Some(head)) => {
                return Err(setting("head", head.to_string(), format!("no head: {whole} has no heads")).into());
            }
            ([Axis::Batch, Axis::Pos, Axis::Head | Axis::KvHead, _], Some(_)) => {}
            ([Axis::Batch, Axis::Pos, Axis::Head | Axis::KvHead, _], None) => {
                return Err(setting("head", "not chosen".into(), format!("a head of {whole}")).into());
            }
            _ => {
                let allowed = "a point with axes [batch, pos, d] or [batch, pos, head, d]";
                return Err(setting("point", whole, allowed.into()).into());
            }
        }
        let Some(along) = along else {
            let allowed = format!("an index on the last axis of {whole}, or a direction or the norm instead");
            return Err(setting("neuron", "not chosen".into(), allowed).into());
        };
        Ok(Self { point, head, along })
    }

    /// Full name of the point.
    pub(super) fn point(&self) -> &str {
        &self.point.name
    }

    /// Name of the unit: `head 3, neuron 0`.
    pub(super) fn name(&self) -> String {
        let along = match self.along {
            ReduceAxis::Neuron(neuron) => format!("neuron {neuron}"),
            ReduceAxis::Direction(_) => "a direction".into(),
            ReduceAxis::Norm => "norm".into(),
        };
        self.head.map_or(along.clone(), |head| format!("head {head}, {along}"))
    }

    /// The values of the unit in a recording of the point, `[batch, pos]`.
    pub(super) fn values(&self, recorded: &Activation, [batch, len]: [usize; 2]) -> Result<Array2<f32>> {
        let outside = |name, given: usize, places: usize, what: &str| {
            let allowed = format!("0 to {}: {} {what}", places - 1, described(self.point));
            InputError::Setting { name, given: given.to_string(), allowed }
        };
        let width = recorded.shape().last().copied().unwrap_or_default();
        let of_head = match (self.head, recorded.shape()) {
            (Some(head), [_, _, heads, _]) if head >= *heads => {
                return Err(outside("head", head, *heads, &format!("has {heads} heads")).into());
            }
            (Some(head), _) => recorded.narrow(2, head, head + 1),
            (None, _) => recorded.clone(),
        };
        let vectors: Tensor<3> = of_head.reshape(&[batch, len, width]).cast(DType::F32).to_tensor()?;
        let numbers = match self.along {
            ReduceAxis::Neuron(neuron) if *neuron >= width => {
                return Err(outside("neuron", *neuron, width, &format!("is {width} wide")).into());
            }
            ReduceAxis::Neuron(neuron) => vectors.narrow(2, *neuron, 1),
            ReduceAxis::Direction(direction) if direction.dims() != [width] => {
                let expected = format!("[{width}], as wide as {}", described(self.point));
                let given = direction.dims().to_vec();
                return Err(AnalysisError::Shape { what: "the direction".into(), given, expected }.into());
            }
            // Copied through the host, since the direction may be on another device or tracked by autodiff.
            ReduceAxis::Direction(direction) => {
                let direction = Tensor::<1>::from_floats(direction.to_vec()?.as_slice(), &vectors.device());
                (vectors * direction.unsqueeze()).sum_dim(2)
            }
            ReduceAxis::Norm => vectors.square().sum_dim(2).sqrt(),
        };
        let numbers = numbers.reshape([batch, len]).to_ndarray()?;
        let given = numbers.shape().to_vec();
        let expected = "[batch, pos]".to_string();
        let misshapen = |_| AnalysisError::Shape { what: "the recording".into(), given, expected };
        Ok(numbers.into_dimensionality::<Ix2>().map_err(misshapen)?)
    }
}

/// A point's name and axes, for error messages.
fn described(point: &PointInfo) -> String {
    format!("`{}` {}", point.name, point.axes_label())
}
