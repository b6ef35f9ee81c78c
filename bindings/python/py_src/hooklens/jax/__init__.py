"""hooklens with JAX's arrays: `from hooklens.jax import HookedTransformer`.

JAX's arrays cannot be changed in place, so hooks return new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax

from .. import _model, patching, utils
from .._cache import ActivationCache
from .._factored_matrix import FactoredMatrix
from .._frameworks import Framework
from .._frameworks.jax import FRAMEWORK
from .._hook_points import HookPoint
from .._kv_cache import HookedTransformerKeyValueCache

__all__ = [
    "ActivationCache",
    "FactoredMatrix",
    "HookPoint",
    "HookedTransformer",
    "HookedTransformerKeyValueCache",
    "patching",
    "utils",
]


class HookedTransformer(_model.HookedTransformer):
    """A decoder model whose activations are JAX arrays. See `hooklens.HookedTransformer`."""

    _framework: ClassVar[Framework] = FRAMEWORK

    def _differentiate(self, metric: Callable[[Any], Any], logits: Any) -> tuple[Any, Any]:
        value, slope = jax.value_and_grad(lambda x: metric(x).reshape(()))(logits)
        return value, slope
