//! The propagation rules of RelP, as hooks that keep all values and change the gradients.

use std::cell::RefCell;
use std::rc::Rc;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, Catalog, Detach, Hook, HookError, PointInfo, at};

use hooklens_model::model::{narrowed, widened};

/// Hooks that apply the rules at all points of a model: the scales of norms, and the routing of experts, are constants
/// (LN-rule); activation functions are replaced by their secants (identity rule); and half of a product is attributed
/// to each factor (half rule).
pub(super) fn rules(catalog: &Catalog, frozen_patterns: bool) -> Vec<Hook<'static>> {
    let is_constant = |info: &&PointInfo| {
        let is = |suffix: &str| info.name.ends_with(suffix);
        is(".hook_scale") || is(".hook_expert_weights") || is(".hook_share") || (frozen_patterns && is(".hook_pattern"))
    };
    let constant = |info: &PointInfo| at(&*info.name).edit_any(|values, _| Ok(Some(values.detached())));
    let constants = catalog.points().iter().filter(is_constant).map(constant);
    constants.chain(Neurons::all(catalog).into_iter().flat_map(Neurons::hooks)).collect()
}

/// Points before activation functions, at which these rules give no gradient.
pub(super) fn before_activations(catalog: &Catalog) -> Vec<String> {
    Neurons::all(catalog).into_iter().flat_map(|own| own.factors).collect()
}

/// The points of an MLP or expert.
struct Neurons {
    /// The input of the activation function and, in a gated MLP, the linear factor.
    factors: Vec<String>,
    /// Output of the activation function.
    output: String,
}

/// The factors of an MLP that a run has computed so far.
type Seen = Rc<RefCell<Vec<Activation>>>;

impl Neurons {
    fn all(catalog: &Catalog) -> Vec<Self> {
        let of = |info: &PointInfo| {
            let stem = info.name.strip_suffix("hook_post").filter(|stem| stem.contains(".mlp."))?;
            let point = |suffix: &str| Some(format!("{stem}{suffix}")).filter(|name| catalog.find(name).is_ok());
            let factors = [point("hook_gate"), point("hook_pre"), point("hook_pre_linear")];
            let output = point("hook_mid").unwrap_or_else(|| info.name.to_string());
            Some(Self { factors: factors.into_iter().flatten().collect(), output })
        };
        catalog.points().iter().filter_map(of).collect()
    }

    fn hooks(self) -> Vec<Hook<'static>> {
        let seen = Seen::default();
        let read = |(number, factor): (usize, &String)| {
            let seen = seen.clone();
            at(factor.as_str()).read_any(move |values, _| {
                let mut seen = seen.borrow_mut();
                // An earlier run may have stopped before the output and left its factors here.
                seen.truncate(number);
                seen.push(values);
            })
        };
        let mut hooks: Vec<Hook<'static>> = self.factors.iter().enumerate().map(read).collect();
        hooks.push(at(self.output.as_str()).edit_any(move |output, _| {
            let factors = std::mem::take(&mut *seen.borrow_mut());
            Ok(Some(proportional(&output, &factors)?))
        }));
        hooks
    }
}

/// The values of `output`, with a gradient as if `output` were split into equal parts, one per factor, and each part
/// were proportional to its factor.
fn proportional(output: &Activation, factors: &[Activation]) -> Result<Activation, HookError> {
    let flat = |values: &Activation| values.reshape(&[values.shape().iter().product()]).to_tensor::<1>();
    let (values, dtype) = (flat(output)?.detach(), output.dtype());
    let wide = widened(values.clone());
    let mut sum = wide.clone();
    for factor in factors {
        let factor = widened(flat(factor)?);
        let fixed = factor.clone().detach();
        let slope = (wide.clone() / fixed.clone()).mask_fill(fixed.equal_elem(0.0), 0.0) / factors.len() as f64;
        let part: Tensor<1> = factor * slope;
        sum = sum + (part.clone() - part.detach());
    }
    Ok(Activation::from(narrowed(sum, dtype)).reshape(output.shape()))
}
