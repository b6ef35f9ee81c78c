"""A memory-mapped .safetensors file, whose values are read from disk on access."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    # NumPy has no bf16. Its bits are read as integers, which `widened` converts to f32.
    "BF16": "<u2",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Converts the bits of bf16 values to f32."""
    return (bits.astype("<u4") << 16).view("<f4")


class File(Mapping[str, np.ndarray[Any, Any]]):
    """Arrays by name. bf16 arrays are converted to f32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - len(start), _LONGEST_HEADER):
                raise ValueError(f"{path} is not a .safetensors file: its header does not fit in the file")
            try:
                header = json.loads(file.read(length))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is not a .safetensors file: its header is not valid JSON") from error
        if not isinstance(header, dict):
            raise ValueError(f"{path} is not a .safetensors file: its header is not a JSON object")
        metadata = header.pop("__metadata__", None)
        self.metadata: dict[str, str] = metadata if isinstance(metadata, dict) else {}
        """The metadata in the file's header."""
        self._first = 8 + length
        self._tensors: dict[str, Any] = header
        for name, tensor in header.items():
            try:
                begin, end = tensor["data_offsets"]
                numbers = [begin, end, *tensor["shape"]]
                sound = all(isinstance(number, int) and number >= 0 for number in numbers) and tensor["dtype"] is not None
            except (KeyError, TypeError, ValueError):
                sound = False
            if not sound:
                raise ValueError(f"{path} is not a .safetensors file: the entry of `{name}` is invalid")
            if tensor["dtype"] not in _TYPES:
                raise ValueError(f"{path}: `{name}` has dtype {tensor['dtype']}, which is not supported")
            wanted = int(np.prod(tensor["shape"], dtype=np.int64)) * np.dtype(_TYPES[tensor["dtype"]]).itemsize
            if end - begin != wanted or self._first + end > size:
                raise ValueError(f"{path}: `{name}` is truncated or has an inconsistent size")

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        bits = self.bits(name)
        return widened(bits) if self.dtype(name) == "BF16" else bits

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Any:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name]["shape"])

    def dtype(self, name: str) -> str:
        """Element type in the file: F32, F16, BF16, I64."""
        return str(self._tensors[name]["dtype"])

    def kind(self, name: str) -> np.dtype[Any]:
        """Dtype of the array that `bits` returns."""
        return np.dtype(_TYPES[self.dtype(name)])

    def read(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray[Any, Any]:
        """Reads the values `first..last` of the first axis (all by default) at once, which is faster than going through
        the memory map.
        """
        kind, (count, *inner) = self.kind(name), self.shape(name)
        last = count if last is None else last
        size = int(np.prod(inner, dtype=np.int64))
        offset = self._first + self._tensors[name]["data_offsets"][0] + first * size * kind.itemsize
        bits = np.fromfile(self.path, kind, (last - first) * size, offset=offset).reshape(last - first, *inner)
        return widened(bits) if self.dtype(name) == "BF16" else bits

    def bits(self, name: str) -> np.ndarray[Any, Any]:
        """The values as stored in the file, without a copy; for bf16, their bits."""
        tensor = self._tensors[name]
        begin, end = tensor["data_offsets"]
        if begin == end:
            return np.empty(tensor["shape"], _TYPES[tensor["dtype"]])
        # Mapped on every call, because a dump may have more files than a process can have open.
        part = np.memmap(self.path, np.uint8, "r", offset=self._first + begin, shape=(end - begin,))
        # A plain array, so that arrays derived from it are not memmaps.
        return np.asarray(part).view(_TYPES[tensor["dtype"]]).reshape(tensor["shape"])
