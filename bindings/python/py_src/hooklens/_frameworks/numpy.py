"""Arrays of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._native import Array
from ._names import FULL as _FULL


class NumPy:
    """See `Framework`."""

    name = "numpy"

    def shared(self, array: Array) -> Any:
        # Faster than `np.asarray`, and read-only for every version of NumPy.
        return np.from_dlpack(array.float32() if array.dtype == "bfloat16" else array)

    def weight(self, array: Array) -> Any:
        return self.shared(array)

    def writable(self, array: Array) -> Any:
        if array.dtype == "bfloat16":
            # A copy, which the caller gives back to the model.
            return np.array(array.float32())
        value = np.from_dlpack(array)
        # NumPy before 2.1 reads DLPack read-only.
        return value if value.flags.writeable else np.asarray(array)

    def copies(self, array: Array) -> bool:
        return array.dtype == "bfloat16"

    def to_native(self, value: Any, like: Array | None = None) -> Array:
        value = np.asarray(value)
        if like is not None and like.dtype == "bfloat16":
            return Array.copy_of(_bfloat16_bits(value.astype(np.float32)), bf16=True)
        if like is not None:
            value = value.astype(like.dtype, copy=False)
        return Array.copy_of(value)

    def dtype(self, name: str) -> Any:
        return np.dtype("float32" if name in ("bf16", "bfloat16") else _FULL.get(name, name))

    def tokens(self, rows: list[list[int]]) -> Any:
        return np.array(rows, dtype=np.int64)

    def stack(self, values: list[Any]) -> Any:
        return np.stack(values)

    def from_numpy(self, values: Any) -> Any:
        return values

    def svd(self, matrix: Any) -> tuple[Any, Any, Any]:
        u, s, vh = np.linalg.svd(matrix, full_matrices=False)
        return u, s, vh

    def log_softmax(self, logits: Any) -> Any:
        shifted = logits - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def at_ids(self, values: Any, ids: Any) -> Any:
        return np.take_along_axis(values, ids[..., None], -1)[..., 0]

    def eigenvalues(self, matrix: Any) -> Any:
        return np.linalg.eigvals(matrix)


def _bfloat16_bits(values: Any) -> Any:
    """The upper halves of float32 numbers, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), 0x7FC0, rounded >> 16).astype(np.uint16)


FRAMEWORK = NumPy()
