"""Activations of a dictionary's latents, which are nearly all zero: those other than zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Latents:
    """Of each position, in the order of rows: the latents that are not zero. The parts of a matrix in compressed sparse
    rows, `[row * pos, latent]`: `scipy.sparse.csr_array((values, indices, offsets), shape)`.
    """

    shape: tuple[int, int, int]
    """Rows, positions, latents."""
    offsets: Array
    """Where the entries of a position begin, and where the last one's end."""
    indices: Array
    """Latents, rising within a position."""
    values: Array
    """Their activations."""
    bf16: bool = False
    """Whether the file holds them in bf16, which NumPy has not: they are f32 here."""

    def dense(self) -> Array:
        """All of them, `[row, pos, latent]`."""
        rows, positions, latents = self.shape
        dense = np.zeros((rows * positions, latents), self.values.dtype)
        dense[np.repeat(np.arange(rows * positions), np.diff(self.offsets)), self.indices] = self.values
        return dense.reshape(self.shape)

    def at(self, row: int, position: int) -> tuple[Array, Array]:
        """The latents of a position and their activations."""
        place = range(self.shape[0])[row] * self.shape[1] + range(self.shape[1])[position]
        own = slice(self.offsets[place], self.offsets[place + 1])
        return self.indices[own], self.values[own]

    def to_torch(self) -> Any:
        """A sparse tensor `[row * pos, latent]`, of torch's CSR layout and the file's own type."""
        import torch

        parts = (torch.from_numpy(np.array(part)) for part in (self.offsets, self.indices.astype(np.int64), self.values))
        offsets, indices, values = parts
        if self.bf16:
            values = values.to(torch.bfloat16)
        size = (self.shape[0] * self.shape[1], self.shape[2])
        return torch.sparse_csr_tensor(offsets, indices, values, size=size)
