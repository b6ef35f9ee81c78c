"""Results with named axes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from . import _native


class LabeledArray:
    """Numbers with named axes and a label for each index.

    `values` is a NumPy array, `axes` a dictionary from names to labels. Jupyter shows it as a heatmap, a line plot or a
    table.
    """

    def __init__(self, native: _native.Labeled) -> None:
        self._native = native
        self.values: np.ndarray[Any, Any] = native.values
        self.axes: dict[str, list[str]] = dict(native.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(self.axes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def mean(self, axis: str) -> LabeledArray:
        """The mean over an axis."""
        return LabeledArray(self._native.mean(axis))

    def at(self, axis: str, index: int) -> LabeledArray:
        """The numbers at one index of an axis."""
        return LabeledArray(self._native.at(axis, index))

    def to_pandas(self) -> Any:
        """A table with one row per number: the labels as columns, and `value`."""
        import pandas

        rows = list(product(*self.axes.values()))
        return pandas.DataFrame(rows, columns=list(self.axes)).assign(value=self.values.reshape(-1))

    def to_csv(self) -> str:
        """The table as CSV."""
        return self._native.to_csv()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._native.mimebundle()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(labels)}" for name, labels in self.axes.items())
        return f"LabeledArray({sizes})\n{self.values!r}"


class PatchingResult(LabeledArray):
    """The metric of every patched run; the last axis is the example.

    `clean` and `corrupted` are the metric of the runs without patches, per example.
    """

    def __init__(self, swept: tuple[_native.Labeled, list[float] | None, list[float]]) -> None:
        native, clean, corrupted = swept
        super().__init__(native)
        self.clean = None if clean is None else np.array(clean)
        self.corrupted = np.array(corrupted)

    def effect(self) -> np.ndarray[Any, Any]:
        """Change from the corrupted run, averaged over the examples."""
        return np.asarray((self.values - self.corrupted).mean(-1))

    def normalized(self) -> np.ndarray[Any, Any]:
        """Fraction of the difference between the clean and the corrupted run that each patch restores, averaged over
        the examples: 0 if it restores nothing, 1 if it restores all of it."""
        if self.clean is None:
            raise ValueError("an ablation has no clean run to compare with; use effect()")
        gap = self.clean - self.corrupted
        if not np.all(gap):
            raise ValueError("cannot normalize: the metric is the same in a clean and a corrupted run")
        return np.asarray(((self.values - self.corrupted) / gap).mean(-1))
