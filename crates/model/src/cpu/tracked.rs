//! Custom autodiff operations whose forward and backward passes are computed by the kernels of `hooklens-kernels`.

use std::fmt;
use std::sync::Arc;

use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing};
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_flex::Flex;

/// Backward function: computes the gradients of an operation's inputs from the gradient of its output, `None` for
/// inputs that need no gradient.
type Back<P, const N: usize> = dyn Fn(P, [bool; N]) -> [Option<P>; N] + Send + Sync;

/// Runs `forward` as an autodiff operation. At least one input must be tracked. `forward` gets the inputs' values and
/// returns the output with a backward function. `None` if the inputs are not all on one CPU backend, or if `forward`
/// returns `None`.
pub(crate) fn tracked<const N: usize, const D: usize, const E: usize, F>(
    inputs: [&Tensor<D>; N],
    forward: impl FnOnce([Tensor<D>; N]) -> Option<(Tensor<E>, F)>,
) -> Option<Tensor<E>>
where
    F: Fn(Tensor<E>, [bool; N]) -> [Option<Tensor<D>>; N] + Send + Sync + 'static,
{
    let device = inputs.iter().find(|input| input.is_tracked())?.device();
    let strategy = device.gradient_checkpointing_strategy()?;
    // The results of `forward` are kept in either case, so the strategies differ only in their types.
    let (plain, keeps) = (device.without_autodiff(), strategy == GradientCheckpointingStrategy::Disabled);
    #[cfg(feature = "libtorch")]
    #[allow(deprecated, reason = "Burn is pinned to the last release series that supports LibTorch")]
    if plain == Device::libtorch() {
        return match keeps {
            true => on::<burn_tch::LibTorch, NoCheckpointing, N, D, E, F>(inputs, strategy, forward),
            false => on::<burn_tch::LibTorch, BalancedCheckpointing, N, D, E, F>(inputs, strategy, forward),
        };
    }
    match keeps {
        _ if plain != Device::flex() => None,
        true => on::<Flex, NoCheckpointing, N, D, E, F>(inputs, strategy, forward),
        false => on::<Flex, BalancedCheckpointing, N, D, E, F>(inputs, strategy, forward),
    }
}

fn on<B, C, const N: usize, const D: usize, const E: usize, F>(
    inputs: [&Tensor<D>; N],
    strategy: GradientCheckpointingStrategy,
    forward: impl FnOnce([Tensor<D>; N]) -> Option<(Tensor<E>, F)>,
) -> Option<Tensor<E>>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, C>>,
    F: Fn(Tensor<E>, [bool; N]) -> [Option<Tensor<D>>; N] + Send + Sync + 'static,
{
    let mut nodes = Vec::with_capacity(N);
    let mut values = Vec::with_capacity(N);
    for input in inputs {
        // Untracked inputs are constants.
        let held = match input.is_tracked() {
            true => input.clone(),
            false => input.clone().without_autodiff().autodiff().with_gradient_checkpointing_strategy(strategy),
        };
        let held = held.try_into_primitive::<Autodiff<B, C>>().ok()?;
        nodes.push(held.node());
        values.push(Tensor::from_primitive::<B>(held.into_primitive()));
    }
    let (output, back) = forward(values.try_into().ok()?)?;
    let output = output.try_into_primitive::<B>().ok()?;
    let way = BackwardFn::<B, N>(Arc::new(move |gradient, needed| {
        let inputs = back(Tensor::from_primitive::<B>(gradient), needed);
        inputs.map(|input| input.and_then(|input| input.try_into_primitive::<B>().ok()))
    }));
    let output = match Operation.prepare::<C>(nodes.try_into().ok()?).compute_bound().stateful() {
        OpsKind::Tracked(ready) => ready.finish(way, output),
        OpsKind::UnTracked(ready) => ready.finish(output),
    };
    Some(Tensor::from_primitive::<Autodiff<B, C>>(output))
}

#[derive(Debug)]
struct Operation;

/// State that an operation keeps for its backward pass.
struct BackwardFn<B: Backend, const N: usize>(Arc<Back<B::FloatTensorPrimitive, N>>);

impl<B: Backend, const N: usize> Clone for BackwardFn<B, N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend, const N: usize> fmt::Debug for BackwardFn<B, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackwardFn")
    }
}

impl<B: Backend, const N: usize> Backward<B, N> for Operation {
    type State = BackwardFn<B, N>;

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let needed = ops.parents.each_ref().map(Option::is_some);
        for (parent, made) in ops.parents.into_iter().zip((ops.state.0)(gradient, needed)) {
            // A missing gradient would silently count as zero.
            assert!(made.is_some() || parent.is_none(), "an operation returned no gradient for a tracked input");
            if let (Some(parent), Some(made)) = (parent, made) {
                gradients.register::<B>(parent.id, made);
            }
        }
    }
}
