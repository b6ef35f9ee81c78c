"""A dump: one file, or a folder with one file per batch of prompts."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._file import File, widened
from ._latents import Latents
from ._nearest import nearest
from ._packed import ROWS, SHAPES, PackedFile, Rows, is_packed, padded

Array = np.ndarray[Any, Any]
# MoE points whose row and position axes are merged, and MoE points that contain only the tokens routed to one expert.
_TOGETHER = re.compile(r"\.hook_expert_(weights|indices)$")
_ROUTED = re.compile(r"\.experts\.\d+\.")
# Points with a head axis between rows and positions.
_BY_HEAD = re.compile(r"\.hook_(pattern|attn_scores)$")
_PARTS = (".shape", ".offsets", ".indices", ".values")
_BESIDE = ("tokens", "attention_mask")
# In padded dumps, `positions` is present only if positions were selected. Packed dumps always have it, and have no mask.
_INTEGERS = (*_BESIDE, "positions")
# Newest supported manifest version.
_VERSION = 6
_LAYOUTS = ("padded", "packed")
# Manifest version whose settings were strings.
_OF_STRINGS = 4
# Settings that version 4 stored as JSON.
_AS_TEXT = ("hooks", "batch_size", "prefix_tokens")


class Incomplete(UserWarning):
    """Warns that a dump does not contain all of its prompts, because it is still being written or failed."""


class Batch(dict[str, Array]):
    """Named arrays for a batch of prompts."""

    tokens: Array
    """Token ids, `[row, pos]`."""
    mask: Array
    """True at tokens and false at padding, `[row, pos]`."""


def load(path: str | os.PathLike[str]) -> Dump:
    """Opens a dump: a folder written by `hooklens dump` or `hooklens merge`, or one .safetensors file.

    Reads only names and shapes; values are read when they are accessed.
    """
    place = Path(path)
    if place.is_file():
        file = File(place)
        if any(name not in file for name in _BESIDE) and not is_packed(file):
            raise ValueError(f"{place} does not contain `tokens` and `attention_mask`, so it is not a dump")
        return Dump([file], _header(place, file.metadata))
    manifest = place / "manifest.json"
    if not place.is_dir():
        raise FileNotFoundError(f"{place} does not exist")
    if not manifest.is_file():
        within = sorted(entry.name for entry in place.iterdir() if (entry / "manifest.json").is_file())
        more = f"; it contains shards ({', '.join(within[:4])} ...): run `hooklens merge --out {place}`" if within else ""
        raise FileNotFoundError(f"{place} has no manifest.json, so it is not a dump{more}")
    content = _manifest(manifest)
    log = place / "shards.jsonl"
    if not content["complete"] and not log.is_file():
        # The dump may have been completed since the manifest was read.
        content = _manifest(manifest)
    if content["settings"].get("format") == "parquet":
        raise ValueError(f"{place} contains tables: read its .parquet files with pandas, polars, duckdb or datasets")
    listed = content["shards"]
    if not content["complete"]:
        # Files of an incomplete dump are listed in a log, whose last line may be cut off.
        listed = []
        for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
            try:
                listed.append(json.loads(line))
            except ValueError:
                break
        rows, done = content.get("part_rows") or content["rows"], sum(one["rows"] for one in listed)
        warnings.warn(f"{place} is not complete: {done} of {rows} prompts", Incomplete, stacklevel=2)
    if content.get("layout") == "packed":
        listed = sorted(listed, key=lambda one: one.get("first_row", 0))
    return Dump([File(place / one["file"]) for one in listed], content, [one.get("first_row", 0) for one in listed])


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The manifest in the header of a single file. Earlier versions recorded only the model."""
    for key in ("hooklens_dump", "hooklens_model"):
        if key in metadata:
            try:
                content = json.loads(metadata[key])
            except ValueError as error:
                raise ValueError(f"{path}: `{key}` in its header is not valid JSON: {error}") from error
            content = content if key == "hooklens_dump" else {"model": content, "settings": {}}
            if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
                raise ValueError(f"{path}: `{key}` in its header is damaged")
            _check_model(path, content)
            return content
    return {}


def _check_model(path: Path, content: Mapping[str, Any]) -> None:
    model = content.get("model")
    hashes = [model.get(key) for key in ("identity", "fingerprint")] if isinstance(model, dict) else []
    if model is not None and not any(isinstance(one, str) for one in hashes):
        raise ValueError(f"{path}: its model record has no hash")


def _upgrade(content: dict[str, Any]) -> None:
    """Converts the manifest of an earlier version, in which settings were strings and also described the model."""
    settings = content["settings"]
    if content.get("model") is None and "weights" in settings:
        parts = {"edits": "edits", "parts": "part"}
        model = {"name": settings.get("model", ""), "fingerprint": settings["weights"]}
        content["model"] = {**model, **{name: [settings[key]] for name, key in parts.items() if key in settings}}
    for key in ("weights", "edits", "part"):
        settings.pop(key, None)
    for key in _AS_TEXT:
        if isinstance(settings.get(key), str):
            try:
                settings[key] = json.loads(settings[key])
            except ValueError:
                pass


def _manifest(path: Path) -> dict[str, Any]:
    """Reads and validates a manifest."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a manifest: {error}") from error
    if not isinstance(content, dict) or content.get("format") != "hooklens-dump":
        raise ValueError(f"{path} is not the manifest of a hooklens dump")
    if not isinstance(content.get("version"), int):
        raise ValueError(f"{path} is damaged: `version` is {json.dumps(content.get('version'))[:40]}")
    if content["version"] > _VERSION:
        newer = f"has version {content['version']}, but this module reads versions up to {_VERSION}"
        raise ValueError(f"{path} {newer}: the dump was written by a newer hooklens; install that version's Python package")
    if content.get("layout", _LAYOUTS[0]) not in _LAYOUTS:
        raise ValueError(f"{path} has the layout {json.dumps(content['layout'])[:40]}; this module reads {' and '.join(_LAYOUTS)}")
    kinds = {"complete": bool, "rows": int, "settings": dict, "shards": list}
    for field, kind in kinds.items():
        if not isinstance(content.get(field), kind):
            raise ValueError(f"{path} is damaged: `{field}` is {json.dumps(content.get(field))[:40]}")
    for one in content["shards"]:
        if not isinstance(one, dict) or not isinstance(one.get("file"), str):
            raise ValueError(f"{path} is damaged: an entry of `shards` has no file name")
    if content["version"] <= _OF_STRINGS:
        _upgrade(content)
    _check_model(path, content)
    return content


class Dump(Mapping[str, "Point | Latents"]):
    """A mapping from hook points to activations: `dump["blocks.0.hook_resid_post"]`."""

    def __init__(self, files: list[File], manifest: Mapping[str, Any], first_rows: list[int] | None = None) -> None:
        self.first_rows = [0] if first_rows is None else first_rows
        """Number of the first prompt of each file."""
        self.manifest = dict(manifest)
        """The whole manifest. Manifests of earlier versions have fewer fields, and files of other programs have none."""
        self.model: dict[str, Any] | None = manifest.get("model")
        """The model whose activations the dump contains: `name`, `identity` and `fingerprint` (hashes), `processing`,
        `bos`, `prepend_bos`, and `edits` and `parts` if there are any. None if the dump does not record it.
        """
        self.files = files
        """The files, in the order of their prompts."""
        self.settings: dict[str, Any] = dict(manifest.get("settings", {}))
        """Settings that the dump was written with: model, hooks, positions, dtype."""
        self.token_texts = {int(token): text for token, text in manifest.get("token_texts", {}).items()}
        """Text of each token id in the prompts. Empty in dumps of earlier versions and of models without a tokenizer."""
        self._left_padded = self.settings.get("padding_side") == "left"
        is_of_packed = manifest.get("layout") == "packed" or (bool(files) and is_packed(files[0]))
        tensors = manifest.get("tensors")
        self._tensors: dict[str, Any] = tensors if isinstance(tensors, dict) else {}
        self._packed = [PackedFile(file, self._tensors) for file in files] if is_of_packed else None
        names = dict.fromkeys(name for file in files for name in file)
        latents = {name.removesuffix(".offsets") for name in names if name.endswith(".offsets")}
        sparse = {name + part for name in latents for part in _PARTS}
        if self._packed is not None:
            sparse |= {*ROWS, *(name for name in names if name.endswith(SHAPES))}
        self._latents = latents
        self.names: list[str] = sorted({name for name in names if name not in sparse} - set(_INTEGERS) | latents)
        """Names of the hook points, and `logits` if they were dumped."""

    def __getitem__(self, name: str) -> Point | Latents:
        if name in self._latents:
            return self._joined_latents(name)
        if name not in self.names and name not in _INTEGERS:
            raise KeyError(f"the dump has no `{name}`; {nearest(name, self.names)}")
        return self._point(name)

    def _point(self, name: str) -> Point:
        if self._packed is None:
            return Point(name, self.files, self._left_padded)
        return PackedPoint(name, self._packed, self._described_shape(name))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<Dump of {self.rows} prompts: {', '.join(self.names[:3])}{' ...' if len(self.names) > 3 else ''}>"

    @property
    def rows(self) -> int:
        """Number of prompts."""
        if self._packed is not None:
            return sum(file.rows for file in self._packed)
        return sum(file.shape("tokens")[0] for file in self.files)

    @property
    def tokens(self) -> Array:
        """Token ids, `[row, pos]`, padded with zeros to the longest prompt."""
        if not self.files:
            return np.empty((0, 0), np.int64)
        # Padded files contain the tokenizer's pad token. Packed files have a smaller dtype.
        return np.where(self.mask, np.asarray(self._point("tokens")).astype(np.int64, copy=False), 0)

    @property
    def mask(self) -> Array:
        """True at tokens and false at padding, `[row, pos]`."""
        if not self.files:
            return np.empty((0, 0), bool)
        return np.asarray(self._point("attention_mask")).astype(bool)

    def batches(self, names: Iterable[str] | None = None) -> Iterator[Batch]:
        """Yields named arrays with `tokens` and `mask`, file by file, so that only one file is in memory at a time.
        Packed files yield several batches, of at most 64 prompts.
        """
        wanted = [names] if isinstance(names, str) else list(names) if names is not None else self.names
        for name in wanted:
            if name not in self:
                self[name]
        if self._packed is not None:
            yield from self._packed_batches(self._packed, wanted)
            return
        for file in self.files:
            one = Dump([file], self.manifest)
            batch = Batch()
            for name in wanted:
                if name not in one and name not in file:
                    # No token in this file was routed to the expert.
                    batch[name] = np.empty((0, *self._of_any(name)), np.float32)
                    continue
                held = one[name]
                batch[name] = held.dense() if isinstance(held, Latents) else np.asarray(held)
            batch.tokens, batch.mask = one.tokens, one.mask
            yield batch

    def _packed_batches(self, files: list[PackedFile], wanted: list[str]) -> Iterator[Batch]:
        for packed in files:
            file = packed.file
            # The row of a routed token is not stored, so files with routed tokens are not divided.
            whole = any(name in file and packed.is_routed(name) for name in wanted)
            for numbers in packed.batches(whole):
                batch = Batch()
                batch.tokens, batch.mask = (
                    PackedPoint(name, [packed])._gather(numbers, tight=True) for name in ("tokens", "attention_mask")
                )
                batch.tokens, batch.mask = batch.tokens.astype(np.int64), batch.mask.astype(bool)
                for name in wanted:
                    if name in self._latents:
                        counts, indices, values = packed.latents(name, numbers, batch.mask.shape[1])
                        shape = (*counts.shape, int(file[name + ".shape"][-1]))
                        batch[name] = Latents(shape, _offsets(counts), indices, values).dense()
                    elif name not in file and name not in _INTEGERS:
                        batch[name] = np.empty((0, *self._of_any(name)), np.float32)
                    elif packed.is_routed(name):
                        batch[name] = np.array(file[name])
                    else:
                        batch[name] = PackedPoint(name, [packed])._gather(numbers, tight=True)
                yield batch

    def vectors(self, name: str) -> Iterator[Array]:
        """Yields the vectors of a point file by file, `[token, ...]`, without padding, ordered by prompt and position.
        """
        if isinstance(self[name], Latents):
            raise ValueError(f"`{name}` contains sparse latents, not vectors: use dump[name]")
        for packed in self._packed or []:
            if not packed.has_vectors(name):
                raise ValueError(f"`{name}` does not have one vector per token: its shape is {self._point(name).shape}")
            yield packed.vectors(name)
        if self._packed is not None:
            return
        for file in self.files:
            point, mask = Point(name, [file], self._left_padded), file["attention_mask"].astype(bool)
            if _BY_HEAD.search(name) or _ROUTED.search(name) or point.shape[:2] != mask.shape:
                raise ValueError(f"`{name}` does not have one vector per token: its shape is {point.shape}")
            yield np.asarray(point)[mask]

    def _of_any(self, name: str) -> tuple[int, ...]:
        return next(file.shape(name)[1:] for file in self.files if name in file)

    def _described_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a point of a packed dump; None if the manifest lacks it, so that it must be computed."""
        entry = self._tensors.get("tokens" if name in _INTEGERS else name)
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not self.manifest.get("complete") or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            return None
        return tuple(shape) if shape[:1] == [self.rows] else None

    def _packed_latents(self, files: list[PackedFile], name: str) -> Latents:
        longest = self._point("tokens").shape[1]
        parts = [file.latents(name, np.arange(file.rows), longest) for file in files]
        counts, indices, values = (np.concatenate(column) for column in zip(*parts))
        first = files[0]
        shape = (*counts.shape, int(first.file[name + ".shape"][-1]))
        return Latents(shape, _offsets(counts), indices, values, first.is_bf16(name + ".values"))

    def _joined_latents(self, name: str) -> Latents:
        if self._packed is not None:
            return self._packed_latents(self._packed, name)
        parts = []
        for file in self.files:
            rows, positions, latents = (int(size) for size in file[name + ".shape"])
            offsets, indices, values = (file[name + part] for part in _PARTS[1:])
            bf16 = file.dtype(name + ".values") == "BF16"
            parts.append(Latents((rows, positions, latents), offsets, indices, values, bf16))
        longest = max(part.shape[1] for part in parts)
        begins, ends = [np.zeros(1, np.int64)], 0
        for part in parts:
            rows, positions, _ = part.shape
            # Padding has no latents.
            counts = np.zeros((rows, longest), np.int64)
            own = slice(longest - positions, None) if self._left_padded else slice(positions)
            counts[:, own] = np.diff(part.offsets).reshape(rows, positions)
            begins.append(ends + np.cumsum(counts))
            ends += int(part.offsets[-1])
        shape = (sum(part.shape[0] for part in parts), longest, parts[0].shape[2])
        indices, values = (np.concatenate([getattr(part, field) for part in parts]) for field in ("indices", "values"))
        return Latents(shape, np.concatenate(begins), indices, values, parts[0].bf16)


def _offsets(counts: Array) -> Array:
    """Index at which the entries of each position start, followed by the total number of entries."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _blank(name: str, bits: bool) -> float:
    """Padding value of a point, or its bits in bf16."""
    if "hook_attn_scores" not in name:
        return 0
    return 0xFF80 if bits else -np.inf


def _is_plain(index: Any) -> bool:
    return isinstance(index, (int, np.integer, slice)) and not isinstance(index, bool)


class Point:
    """Activations of all prompts at a hook point, `[row, ...]`, padded to the longest prompt. Values are read on
    access: `x[3]`, `x[10:20]`, `numpy.asarray(x)`, `x.to_torch()`. Padding is zero, and minus infinity in attention scores.
    """

    def __init__(self, name: str, files: list[File], left_padded: bool) -> None:
        self.name = name
        self._files = [file for file in files if name in file]
        self._left_padded = left_padded
        if not self._files:
            raise KeyError(f"the dump has no `{name}`")
        if _ROUTED.search(name) and len(files) > 1:
            raise ValueError(f"`{name}` contains only the tokens routed to one expert, which differ by file: use dump.batches([...])")
        shapes = [self._shape(file) for file in self._files]
        rest = np.max([shape[1:] for shape in shapes], axis=0).astype(int).tolist()
        self._size: tuple[int, ...] | None = (sum(shape[0] for shape in shapes), *rest)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, followed by the lengths of the other axes."""
        assert self._size is not None
        return self._size

    def _shape(self, file: File) -> tuple[int, ...]:
        """Shape within a file, with rows first and then positions."""
        shape = file.shape(self.name)
        return (*file.shape("tokens"), *shape[1:]) if _TOGETHER.search(self.name) else shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array; bf16 is converted to f32."""
        return np.dtype("<f4") if self._is_bf16 else self._files[0].kind(self.name)

    @property
    def _is_bf16(self) -> bool:
        return self._files[0].dtype(self.name) == "BF16"

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{self.name} {list(self.shape)} {self.dtype}>"

    def __getitem__(self, index: Any) -> Array:
        parts = index if isinstance(index, tuple) else (index,)
        # Only integers and slices are handled here. NumPy handles everything else.
        plain = parts and all(map(_is_plain, parts))
        first, rest = (parts[0], parts[1:]) if plain else (None, ())
        if isinstance(first, (int, np.integer)):
            row = range(len(self))[first]
            return np.asarray(self._rows(row, row + 1)[(0, *rest)])
        if isinstance(first, slice):
            begin, end, step = first.indices(len(self))
            if step == 1:
                return np.asarray(self._rows(begin, max(begin, end))[(slice(None), *rest)])
        return np.asarray(self._rows(0, len(self))[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        all_rows = self._rows(0, len(self))
        return all_rows if dtype is None else all_rows.astype(dtype)

    def to_torch(self) -> Any:
        """Returns a torch tensor with the dtype of the file."""
        import torch

        if not self._is_bf16:
            return torch.from_numpy(np.array(self))
        bits = self._rows(0, len(self), bits=True)
        return torch.from_numpy(bits.view("<i2")).view(torch.bfloat16)

    def _rows(self, begin: int, end: int, bits: bool = False) -> Array:
        """Reads the rows `begin..end`, joined across files."""
        parts, first = [], 0
        for file in self._files:
            count = self._shape(file)[0]
            own = slice(max(begin - first, 0), min(end - first, count))
            if own.start < own.stop:
                parts.append(file.bits(self.name).reshape(self._shape(file))[own])
            first += count
        kind = self._files[0].kind(self.name)
        joined = np.full((max(end - begin, 0), *self.shape[1:]), _blank(self.name, self._is_bf16), kind)
        row = 0
        for part in parts:
            inner = tuple(
                slice(wanted - size, None) if self._left_padded else slice(size)
                for wanted, size in zip(self.shape[1:], part.shape[1:])
            )
            joined[(slice(row, row + len(part)), *inner)] = part
            row += len(part)
        return widened(joined) if self._is_bf16 and not bits else joined


class PackedPoint(Point):
    """A point of a packed dump, whose rows are padded when they are read."""

    def __init__(self, name: str, files: list[PackedFile], shape: tuple[int, ...] | None = None) -> None:
        """`shape` is the shape of all rows together, if it is known."""
        self.name = name
        # The mask is not stored: it follows from the lengths of the rows.
        self._is_mask = name == "attention_mask"
        self._packed = [file for file in files if self._is_mask or name in file.file]
        self._files = [file.file for file in self._packed]
        if not self._packed:
            raise KeyError(f"the dump has no `{name}`")
        self._is_routed = self._packed[0].is_routed(name)
        if self._is_routed:
            if len(files) > 1:
                raise ValueError(f"`{name}` contains only the tokens routed to one expert, which differ by file: use dump.batches([...])")
            shape = self._files[0].shape(name)
        self._size = shape
        # Number of the first row of each file, followed by the number of rows.
        self._begins = np.cumsum([0, *(file.rows for file in self._packed)])

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, followed by the lengths of the other axes."""
        if self._size is None:
            rest = [self._rows_of(file, np.arange(file.rows)).shapes.max(axis=0, initial=0) for file in self._packed]
            self._size = (len(self), *np.max(rest, axis=0).tolist())
        return self._size

    def __len__(self) -> int:
        return self._files[0].shape(self.name)[0] if self._is_routed else int(self._begins[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<i8") if self._is_mask else super().dtype

    @property
    def _is_bf16(self) -> bool:
        return not self._is_mask and super()._is_bf16

    def __getitem__(self, index: Any) -> Array:
        parts = index if isinstance(index, tuple) else (index,)
        if parts and all(map(_is_plain, parts[1:])):
            first = np.asarray(parts[0]) if isinstance(parts[0], (list, np.ndarray)) else parts[0]
            chosen = isinstance(first, np.ndarray) and first.ndim == 1 and first.size and first.dtype.kind in "iub"
            if chosen or (isinstance(first, slice) and first.step not in (None, 1)):
                # Only these rows are read.
                return np.asarray(self._gather(np.arange(len(self))[first])[(slice(None), *parts[1:])])
        return super().__getitem__(index)

    def _rows(self, begin: int, end: int, bits: bool = False) -> Array:
        return self._gather(np.arange(begin, end), bits)

    def _rows_of(self, file: PackedFile, numbers: Array) -> Rows:
        if not self._is_mask:
            return file.read_rows(self.name, numbers)
        shapes = file.lengths(numbers)[:, None]
        return Rows(np.ones(shapes.max(initial=0), np.int64), np.zeros(len(numbers), np.int64), shapes)

    def _gather(self, numbers: Array, bits: bool = False, tight: bool = False) -> Array:
        """Reads rows in this order, padded to the longest row of the dump or, if `tight`, to the longest of these."""
        if self._is_routed:
            whole = self._files[0].bits(self.name)[numbers]
            return widened(whole) if self._is_bf16 and not bits else whole
        if (np.diff(numbers) < 0).any():
            # Read each file only once.
            order = np.argsort(numbers, kind="stable")
            joined = self._gather(numbers[order], bits, tight)
            return joined[np.argsort(order)]
        owners = np.searchsorted(self._begins, numbers, side="right") - 1
        breaks = np.flatnonzero(np.diff(owners)) + 1
        parts = []
        for own in np.split(numbers, breaks) if len(numbers) else []:
            number = int(np.searchsorted(self._begins, own[0], side="right")) - 1
            parts.append(self._rows_of(self._packed[number], own - self._begins[number]))
        longest = np.max([part.shapes.max(axis=0) for part in parts], axis=0).tolist() if parts else []
        inner = tuple(longest) if tight else self.shape[1:]
        if parts and (len(longest) != len(inner) or any(own > size for own, size in zip(longest, inner))):
            raise ValueError(f"`{self.name}` has rows of shape {tuple(longest)}, but the manifest describes {inner}")
        kind = self.dtype if self._is_mask else self._files[0].kind(self.name)
        joined = padded(parts, (len(numbers), *inner), kind, _blank(self.name, self._is_bf16))
        return widened(joined) if self._is_bf16 and not bits else joined
