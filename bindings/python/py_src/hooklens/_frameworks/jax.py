"""Arrays of JAX. They cannot be changed in place, so a hook that edits returns a new array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._native import Array
from ._names import FULL as _FULL
from .numpy import FRAMEWORK as NUMPY


class Jax:
    """See `Framework`."""

    name = "jax"

    def shared(self, array: Array) -> Any:
        return jnp.asarray(NUMPY.shared(array))

    def weight(self, array: Array) -> Any:
        return self.shared(array)

    def writable(self, array: Array) -> Any:
        return self.shared(array)

    def copies(self, array: Array) -> bool:
        return True

    def to_native(self, value: Any, like: Array | None = None) -> Array:
        return NUMPY.to_native(np.asarray(value), like)

    def dtype(self, name: str) -> Any:
        return jnp.dtype(_FULL.get(name, name))

    def tokens(self, rows: list[list[int]]) -> Any:
        return jnp.asarray(rows, dtype=jnp.int32)

    def stack(self, values: list[Any]) -> Any:
        return jnp.stack(values)

    def from_numpy(self, values: Any) -> Any:
        return jnp.asarray(values, dtype=jnp.float32)

    def svd(self, matrix: Any) -> tuple[Any, Any, Any]:
        u, s, vh = jnp.linalg.svd(matrix, full_matrices=False)
        return u, s, vh

    def log_softmax(self, logits: Any) -> Any:
        return jax.nn.log_softmax(logits)

    def at_ids(self, values: Any, ids: Any) -> Any:
        return jnp.take_along_axis(values, ids[..., None], -1)[..., 0]

    def eigenvalues(self, matrix: Any) -> Any:
        return jax.numpy.linalg.eigvals(matrix)


FRAMEWORK = Jax()
