"""One .safetensors file, mapped: numbers are read from the disk when they are used."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    # NumPy has no such type: its bits, which `widened` makes f32.
    "BF16": "<u2",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The f32 numbers of bf16's bits."""
    return (bits.astype("<u4") << 16).view("<f4")


class File(Mapping[str, np.ndarray[Any, Any]]):
    """The arrays of a file. Those of bf16 come as f32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - len(start), _LONGEST_HEADER):
                raise ValueError(f"{path} is no .safetensors file: its header would be longer than it")
            try:
                header = json.loads(file.read(length))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is no .safetensors file: its header is no JSON") from error
        if not isinstance(header, dict):
            raise ValueError(f"{path} is no .safetensors file: its header is no JSON object")
        metadata = header.pop("__metadata__", None)
        self.metadata: dict[str, str] = metadata if isinstance(metadata, dict) else {}
        """What the header says of the file."""
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
                raise ValueError(f"{path} is no .safetensors file: `{name}` is not described")
            if tensor["dtype"] not in _TYPES:
                raise ValueError(f"{path}: `{name}` is of {tensor['dtype']}, which is not read")
            wanted = int(np.prod(tensor["shape"], dtype=np.int64)) * np.dtype(_TYPES[tensor["dtype"]]).itemsize
            if end - begin != wanted or self._first + end > size:
                raise ValueError(f"{path}: `{name}` is cut off")

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
        """The element type as the file has it: F32, F16, BF16, I64."""
        return str(self._tensors[name]["dtype"])

    def kind(self, name: str) -> np.dtype[Any]:
        """The type of what `bits` gives."""
        return np.dtype(_TYPES[self.dtype(name)])

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """All numbers, read at once: faster than by the map where all are wanted."""
        begin, end = self._tensors[name]["data_offsets"]
        kind = self.kind(name)
        bits = np.fromfile(self.path, kind, (end - begin) // kind.itemsize, offset=self._first + begin).reshape(self.shape(name))
        return widened(bits) if self.dtype(name) == "BF16" else bits

    def bits(self, name: str) -> np.ndarray[Any, Any]:
        """The numbers as they lie in the file, not copied; of bf16 the bits."""
        tensor = self._tensors[name]
        begin, end = tensor["data_offsets"]
        if begin == end:
            return np.empty(tensor["shape"], _TYPES[tensor["dtype"]])
        # Mapped anew each time: a dump may have more files than a process may have open.
        part = np.memmap(self.path, np.uint8, "r", offset=self._first + begin, shape=(end - begin,))
        # A plain array: what is made of it should not look like a file.
        return np.asarray(part).view(_TYPES[tensor["dtype"]]).reshape(tensor["shape"])
