"""Models with torch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .. import _model
from .._frameworks import Framework
from .._frameworks.torch import FRAMEWORK


class HookedTransformer(_model.HookedTransformer):
    """A decoder model whose activations are torch tensors. See `hooklens.HookedTransformer`."""

    _framework: ClassVar[Framework] = FRAMEWORK

    def _run(
        self, made: dict[str, Any], return_type: Any, loss_per_token: bool
    ) -> tuple[Any, Any]:
        tracked = (
            torch.is_grad_enabled()
            and return_type is not None
            and all(made.get(name) is None for name in ("start_at_layer", "stop_at_layer", "kv_cache"))
        )
        if not tracked or (return_type != "logits" and not self._hooks.has_backward()):
            return super()._run(made, return_type, loss_per_token)
        made = {**made, "logits": True, "loss": False, "loss_per_token": False}
        logits, cache = super()._run(made, "logits", False)
        logits = _Run.apply(torch.zeros((), requires_grad=True), logits, self, made)  # type: ignore[no-untyped-call]
        if return_type == "logits":
            return logits, cache
        mask = None if made["mask"] is None else torch.tensor(made["mask"])
        loss = self.loss_fn(logits, torch.tensor(made["input"]), mask, loss_per_token)
        return (loss if return_type == "loss" else _model.Output(logits, loss)), cache

    def _differentiate(self, metric: Callable[[Any], Any], logits: Any) -> tuple[Any, Any]:
        with torch.enable_grad():  # type: ignore[no-untyped-call]
            leaf = logits.detach().clone().requires_grad_()
            value = metric(leaf)
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"the metric must return a tensor, so that torch can differentiate it, not {value!r}")
            if value.numel() != 1:
                raise ValueError(f"the metric must return a scalar, not a tensor of shape {tuple(value.shape)}")
            (slope,) = torch.autograd.grad(value.reshape(()), leaf)
        return value.detach(), slope


class _Run(torch.autograd.Function):
    """A run of the model in torch's autograd graph. Its backward pass is a run with gradients, in which the model's
    hooks with `dir="bwd"` get the gradients of activations."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, logits: Any, model: HookedTransformer, made: dict[str, Any]) -> Any:
        ctx.model, ctx.made = model, made
        ctx.hooks, ctx.replaced = model._hooks.forward_now(), model._replaced
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        model, made = ctx.model, ctx.made
        if not model._hooks.has_backward():
            raise NotImplementedError(
                "hooklens computes gradients of activations, not of weights: add hooks with dir='bwd', or call "
                "run_with_cache(..., incl_bwd=True) or run_with_gradients(input, metric). To train on logits without "
                "the model, detach them. Models are trained in Rust: docs/training.md"
            )
        if model._replaced != ctx.replaced:
            raise RuntimeError(
                "weights were replaced after the run, so its gradients are no longer known: run the model again"
            )
        # The run is repeated with the forward hooks that it had.
        with model._hooks.with_forward(ctx.hooks):
            model._run_gradients(made["input"], mask=made["mask"], gradient=lambda _: FRAMEWORK.to_native(slope))
        return slope.new_zeros(()), None, None, None
