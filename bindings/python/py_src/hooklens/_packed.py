"""Files of packed dumps, which store the tokens of all rows one after the other, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ._file import File, widened

Array = np.ndarray[Any, Any]
# Arrays that describe the rows of a file.
ROWS = ("row_offsets", "prompt_numbers")
# Suffix of the array with the row shapes of a ragged point.
SHAPES = ".shapes"
# Maximum number of rows per batch.
_BATCH_ROWS = 64
# Number of padded tokens that a batch may always have.
_BATCH_TOKENS = 1 << 16


class Index(NamedTuple):
    """Where the rows of a file are stored."""

    offsets: Array
    """Index of each stored row's first token, followed by the number of tokens."""
    stored: Array
    """Number of the stored row of each prompt, in corpus order."""


class Rows(NamedTuple):
    """Rows of a point."""

    values: Array
    """All values of the file, as one axis; bf16 as bits."""
    starts: Array
    """Index of each row's first value."""
    shapes: Array
    """Shape of each row, `[row, axis]`."""


def is_packed(file: File) -> bool:
    """Whether the file has the packed layout."""
    return "attention_mask" not in file and all(name in file for name in ("tokens", "positions", *ROWS))


class PackedFile:
    """A file of a packed dump. Opening it reads nothing; the index of its rows is read with the first row."""

    def __init__(self, file: File, tensors: Mapping[str, Any]) -> None:
        missing = [name for name in ("tokens", "positions", *ROWS) if name not in file]
        if missing:
            raise ValueError(f"{file.path} is not a file of a packed dump: it has no `{missing[0]}`")
        self.file = file
        self._tensors = tensors
        tokens, numbers = file.shape("tokens"), file.shape("prompt_numbers")
        wanted = {"tokens": tokens[:1], "positions": tokens, "prompt_numbers": numbers[:1], "row_offsets": (sum(numbers) + 1,)}
        for name, shape in wanted.items():
            if file.shape(name) != shape or len(shape) != 1:
                raise ValueError(f"{file.path} is damaged: the shape of `{name}` is {file.shape(name)}")
        self.tokens = tokens[0]
        """Number of tokens."""
        self.rows = numbers[0]
        """Number of rows."""
        self._index: Index | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The index may be large, and is read again when it is needed.
        return self.__dict__ | {"_index": None}

    def index(self) -> Index:
        """Reads the index of the rows, once."""
        if self._index is None:
            offsets, numbers = (np.array(self.file.bits(name), np.int64) for name in ROWS)
            if offsets[0] != 0 or offsets[-1] != self.tokens or (np.diff(offsets) < 0).any():
                raise ValueError(f"{self.file.path} is damaged: `row_offsets` do not divide its {self.tokens} tokens into rows")
            stored = np.full(self.rows, -1)
            sound = not self.rows or (numbers.min() >= 0 and numbers.max() < self.rows)
            if sound:
                stored[numbers] = np.arange(self.rows)
            if not sound or (stored < 0).any():
                raise ValueError(f"{self.file.path} is damaged: `prompt_numbers` is not a permutation of its {self.rows} rows")
            self._index = Index(offsets, stored)
        return self._index

    def lengths(self, numbers: Array | None = None) -> Array:
        """Number of tokens of rows (all by default), in corpus order."""
        offsets, stored = self.index()
        own = stored if numbers is None else stored[numbers]
        return np.asarray(offsets[own + 1] - offsets[own])

    def axes(self, name: str) -> list[str]:
        """Names of the axes of a point in the padded layout, as far as the manifest describes them."""
        entry = self._tensors.get(name)
        axes = entry.get("axes") if isinstance(entry, dict) else None
        return list(axes) if isinstance(axes, list) else []

    def is_ragged(self, name: str) -> bool:
        """Whether the rows of a point have shapes of their own, such as attention patterns."""
        return name + SHAPES in self.file

    def is_routed(self, name: str) -> bool:
        """Whether a point contains only the tokens routed to one expert."""
        return self.axes(name)[:1] == ["routed"]

    def per_token(self, name: str) -> bool:
        """Whether a point has one value per token."""
        if self.is_ragged(name) or self.is_routed(name):
            return False
        axes = self.axes(name)
        if axes and "pos" not in axes[:2] and not axes[0].startswith("batch*pos"):
            return False
        return self.file.shape(name)[:1] == (self.tokens,) or axes[:1] == ["batch*pos*head"]

    def has_vectors(self, name: str) -> bool:
        """Whether a point has one vector per token, which includes values of last tokens if each row has one token."""
        if self.per_token(name):
            return self.axes(name)[:1] != ["batch*pos*head"]
        one = self.axes(name)[1:2] in (["1"], ["one"]) and self.rows == self.tokens and not self.is_ragged(name)
        return one and bool((self.lengths() == 1).all())

    def inner(self, name: str) -> tuple[int, ...]:
        """Shape of a point's value at a token, or of a row if it has one value per row."""
        shape = self.file.shape(name)
        if self.per_token(name) and shape[0] != self.tokens:
            if not self.tokens or shape[0] % self.tokens:
                raise ValueError(f"{self.file.path} is damaged: `{name}` has {shape[0]} values for {self.tokens} tokens")
            return (shape[0] // self.tokens, *shape[1:])
        return shape[1:]

    def read_rows(self, name: str, numbers: Array) -> Rows:
        """Rows of a point. `numbers` are their numbers in this file, in corpus order. Values are mapped, not read."""
        offsets, stored = self.index()
        own = stored[numbers]
        values = self.file.bits(name).reshape(-1)
        if self.is_ragged(name):
            shapes = self.file.bits(name + SHAPES)
            if shapes.ndim != 2 or len(shapes) != self.rows or (shapes < 0).any():
                raise ValueError(f"{self.file.path} is damaged: `{name}{SHAPES}` has shape {shapes.shape} for {self.rows} rows")
            ends = np.cumsum(shapes.prod(axis=1))
            if (ends[-1] if len(ends) else 0) != len(values):
                raise ValueError(f"{self.file.path} is damaged: `{name}` has {len(values)} values, which do not fit its `{SHAPES}`")
            chosen = shapes[own]
            return Rows(values, ends[own] - chosen.prod(axis=1), chosen)
        inner = self.inner(name)
        size = int(np.prod(inner, dtype=np.int64))
        if self.per_token(name):
            return Rows(values, offsets[own] * size, np.column_stack([self.lengths(numbers), *(np.full(len(own), one) for one in inner)]))
        if self.file.shape(name)[:1] != (self.rows,):
            wanted = f"{self.rows} rows and {self.tokens} tokens"
            raise ValueError(f"{self.file.path}: the shape of `{name}` is {self.file.shape(name)}, in a file of {wanted}")
        # Values of one token per row are presented as one position, as in padded dumps.
        one = (1,) if len(self.axes(name)) != len(inner) + 1 else ()
        return Rows(values, own * size, np.tile(np.array((*one, *inner), np.int64), (len(own), 1)))

    def token_order(self, numbers: Array | None = None) -> Array:
        """Indices of the tokens of rows (all by default), in corpus order."""
        offsets, stored = self.index()
        own = stored if numbers is None else stored[numbers]
        return ranges(offsets[own], offsets[own + 1] - offsets[own])

    def vectors(self, name: str) -> Array:
        """Values at all tokens, `[token, ...]`, ordered by prompt and position."""
        values = self.file.bits(name).reshape(self.tokens, *self.inner(name))
        ordered = bool((self.index().stored == np.arange(self.rows)).all())
        values = np.array(values) if ordered else values[self.token_order()]
        return widened(values) if self.is_bf16(name) else values

    def places(self, begin: int, end: int) -> Array:
        """Row in this file, position and token id of some stored tokens, `[token, 3]`."""
        stored = np.searchsorted(self.index().offsets, np.arange(begin, end), side="right") - 1
        rows = self.file.bits("prompt_numbers")[stored]
        return np.stack([rows, *(self.file.bits(name)[begin:end] for name in ("positions", "tokens"))], axis=1, dtype=np.int64)

    def latents(self, name: str, numbers: Array, width: int) -> tuple[Array, Array, Array]:
        """Latents of rows: the number at each position of the padded rows, `[row, pos]`, and all indices and values."""
        begins = self.file.bits(name + ".offsets")
        order = self.token_order(numbers)
        per_token = begins[order + 1] - begins[order]
        counts = np.zeros((len(numbers), width), np.int64)
        # Padding has no latents.
        counts[np.arange(width) < self.lengths(numbers)[:, None]] = per_token
        entries = ranges(begins[order], per_token)
        values = self.file.bits(name + ".values")[entries]
        return counts, self.file.bits(name + ".indices")[entries], widened(values) if self.is_bf16(name + ".values") else values

    def is_bf16(self, name: str) -> bool:
        """Whether the file stores an array as bf16."""
        return self.file.dtype(name) == "BF16"

    def batches(self, whole: bool) -> list[Array]:
        """Divides the rows into batches of consecutive prompts whose padding stays small; `whole` puts all into one."""
        if whole:
            return [np.arange(self.rows)]
        most = max(self.tokens, _BATCH_TOKENS)
        begins, longest = [0], 0
        for row, length in enumerate(self.lengths().tolist()):
            longest = max(longest, length)
            count = row - begins[-1]
            if count and (count == _BATCH_ROWS or (count + 1) * longest > most):
                begins.append(row)
                longest = length
        ends = [*begins[1:], self.rows]
        return [np.arange(begin, end) for begin, end in zip(begins, ends) if begin < end]


def ranges(starts: Array, lengths: Array) -> Array:
    """Joins the ranges that begin at `starts` and have these lengths."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def padded(parts: list[Rows], shape: tuple[int, ...], kind: np.dtype[Any], blank: float) -> Array:
    """Copies rows into an array `[row, ...]` of this shape, padded on the right."""
    joined = np.full(shape, blank, kind)
    first = 0
    for values, starts, shapes in parts:
        sizes = shapes.prod(axis=1)
        size = int(sizes[0]) if len(sizes) else 0
        if size and (shapes == shapes[0]).all() and (starts % size == 0).all():
            inner: tuple[Any, ...] = tuple(slice(length) for length in shapes[0].tolist())
            alike = values[: len(values) // size * size].reshape(-1, *shapes[0])
            joined[(slice(first, first + len(starts)), *inner)] = alike[starts // size]
        else:
            for number, (start, count, lengths) in enumerate(zip(starts.tolist(), sizes.tolist(), shapes.tolist()), first):
                inner = (number, *(slice(length) for length in lengths))
                joined[inner] = values[start : start + count].reshape(lengths)
        first += len(starts)
    return joined
