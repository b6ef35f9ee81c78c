"""Conversions between native arrays and the arrays of NumPy, torch and JAX, one module per framework.

A framework is imported when one of its models is made, so `import hooklens` requires only NumPy.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from .._native import Array


class Framework(Protocol):
    """Operations that hooklens needs from a framework. `Any` is the framework's array type."""

    name: str

    def shared(self, array: Array) -> Any:
        """The array without a copy, for reading only. NumPy has no bfloat16, so bfloat16 is copied to float32."""

    def weight(self, array: Array) -> Any:
        """A weight, which cannot be changed in place."""

    def writable(self, array: Array) -> Any:
        """The array without a copy, for a hook that may change it in place."""

    def copies(self, array: Array) -> bool:
        """Whether `writable` copies this array."""

    def to_native(self, value: Any, like: Array | None = None) -> Array:
        """A copy for the model, in the element type of `like`."""

    def dtype(self, name: str) -> Any:
        """The framework's element type with this name."""

    def tokens(self, rows: list[list[int]]) -> Any:
        """An integer array, `[batch, pos]`."""

    def stack(self, values: list[Any]) -> Any:
        """Stacks arrays of equal shape along a new first axis."""

    def from_numpy(self, values: Any) -> Any:
        """An array with the values of a NumPy array."""

    def svd(self, matrix: Any) -> tuple[Any, Any, Any]:
        """U, S, and the transpose of V."""

    def log_softmax(self, logits: Any) -> Any:
        """Logarithms of probabilities along the last axis."""

    def at_ids(self, values: Any, ids: Any) -> Any:
        """For each index of the other axes, the value on the last axis that `ids` selects."""

    def eigenvalues(self, matrix: Any) -> Any:
        """Complex eigenvalues of square matrices."""


def framework_of(value: Any) -> Framework:
    """The framework that an array belongs to; NumPy for anything that is not an array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from . import torch as torch_framework

        return torch_framework.FRAMEWORK
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        from . import jax as jax_framework

        return jax_framework.FRAMEWORK
    from . import numpy as numpy_framework

    return numpy_framework.FRAMEWORK
