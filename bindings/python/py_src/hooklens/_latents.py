"""Sparse activations of a dictionary's latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Latents:
    """Nonzero latents of each position, in row order, as the parts of a CSR matrix `[row * pos, latent]`:
    `scipy.sparse.csr_array((values, indices, offsets), shape)`.
    """

    shape: tuple[int, int, int]
    """Number of rows, positions and latents."""
    offsets: Array
    """Index at which each position's entries start, followed by the total number of entries."""
    indices: Array
    """Latent indices, ascending within a position."""
    values: Array
    """Activations of the latents."""
    bf16: bool = False
    """Whether the file stores bf16. NumPy does not have this dtype, so `values` is f32."""

    def dense(self) -> Array:
        """All activations as a dense array, `[row, pos, latent]`."""
        rows, positions, latents = self.shape
        dense = np.zeros((rows * positions, latents), self.values.dtype)
        dense[np.repeat(np.arange(rows * positions), np.diff(self.offsets)), self.indices] = self.values
        return dense.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.dense() if dtype is None else self.dense().astype(dtype)

    def __repr__(self) -> str:
        return f"<latents {list(self.shape)}, {len(self.values)} nonzero, {self.values.dtype}>"

    def at(self, row: int, position: int) -> tuple[Array, Array]:
        """The active latents at a position, and their activations."""
        place = range(self.shape[0])[row] * self.shape[1] + range(self.shape[1])[position]
        own = slice(self.offsets[place], self.offsets[place + 1])
        return self.indices[own], self.values[own]

    def to_torch(self) -> Any:
        """Returns a sparse CSR tensor `[row * pos, latent]` in torch, with the dtype of the file."""
        import torch

        parts = (torch.from_numpy(np.array(part)) for part in (self.offsets, self.indices.astype(np.int64), self.values))
        offsets, indices, values = parts
        if self.bf16:
            values = values.to(torch.bfloat16)
        size = (self.shape[0] * self.shape[1], self.shape[2])
        return torch.sparse_csr_tensor(offsets, indices, values, size=size)
