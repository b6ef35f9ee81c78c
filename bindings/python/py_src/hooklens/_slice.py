"""Selections along one axis, as in TransformerLens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

SliceInput = Union[None, int, tuple[int, ...], slice, Sequence[int], Any]


class Slice:
    """An index, `(stop,)`, `(start, stop)`, `(start, stop, step)`, a list of indices, or None for everything.

    >>> Slice(-1).indices(5), Slice((1, 3)).indices(5), Slice([0, 2]).indices(5)
    ([4], [1, 2], [0, 2])
    """

    def __init__(self, input_slice: SliceInput = None) -> None:
        if isinstance(input_slice, Slice):
            input_slice = input_slice.slice
        given: Any = input_slice
        if isinstance(input_slice, tuple):
            self.slice: Any = slice(*input_slice)
        elif input_slice is None:
            self.slice = slice(None)
        elif isinstance(input_slice, slice):
            self.slice = input_slice
        elif np.ndim(given) == 0:
            self.slice = int(given)
        else:
            self.slice = [int(index) for index in given]
        self.mode = {int: "int", list: "array"}.get(type(self.slice), "slice")
        if self.slice == slice(None):
            self.mode = "identity"

    def apply(self, tensor: Any, dim: int = 0) -> Any:
        """Indexes one axis of an array; a single index removes the axis."""
        index: list[Any] = [slice(None)] * len(tensor.shape)
        index[dim] = self.slice
        return tensor[tuple(index)]

    def indices(self, max_ctx: int) -> list[int]:
        """The selected indices of an axis of length `max_ctx`."""
        if isinstance(self.slice, int):
            return [range(max_ctx)[self.slice]]
        if isinstance(self.slice, list):
            return [range(max_ctx)[index] for index in self.slice]
        return list(range(max_ctx)[self.slice])

    def __repr__(self) -> str:
        return f"Slice: {self.slice} Mode: {self.mode}"
