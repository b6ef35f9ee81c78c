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

Array = np.ndarray[Any, Any]
# MoE points whose row and position axes are merged, and MoE points that contain only the tokens routed to one expert.
_TOGETHER = re.compile(r"\.hook_expert_(weights|indices)$")
_ROUTED = re.compile(r"\.experts\.\d+\.")
# Points with a head axis between rows and positions.
_BY_HEAD = re.compile(r"\.hook_(pattern|attn_scores)$")
_PARTS = (".shape", ".offsets", ".indices", ".values")
_BESIDE = ("tokens", "attention_mask")
# `positions` is present only in dumps of selected positions.
_INTEGERS = (*_BESIDE, "positions")
# Newest supported manifest version.
_VERSION = 5
# Settings that version 4 stored as JSON in strings.
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
        if any(name not in file for name in _BESIDE):
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
    """Converts the manifest of an earlier version, whose settings were strings and included the model's."""
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
    if not isinstance(content.get("version"), int) or content["version"] > _VERSION:
        raise ValueError(f"{path} has version {content.get('version')}; this module reads versions up to {_VERSION}")
    kinds = {"complete": bool, "rows": int, "settings": dict, "shards": list}
    for field, kind in kinds.items():
        if not isinstance(content.get(field), kind):
            raise ValueError(f"{path} is damaged: `{field}` is {json.dumps(content.get(field))[:40]}")
    for one in content["shards"]:
        if not isinstance(one, dict) or not isinstance(one.get("file"), str):
            raise ValueError(f"{path} is damaged: an entry of `shards` has no file name")
    if content["version"] < _VERSION:
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
        names = dict.fromkeys(name for file in files for name in file)
        latents = {name.removesuffix(".offsets") for name in names if name.endswith(".offsets")}
        sparse = {name + part for name in latents for part in _PARTS}
        self._latents = latents
        self.names: list[str] = sorted({name for name in names if name not in sparse} - set(_INTEGERS) | latents)
        """Names of the hook points, and `logits` if they were dumped."""

    def __getitem__(self, name: str) -> Point | Latents:
        if name in self._latents:
            return self._joined_latents(name)
        if name not in self.names and name not in _INTEGERS:
            raise KeyError(f"the dump has no `{name}`; {nearest(name, self.names)}")
        return Point(name, self.files, self._left_padded)

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
        return sum(file.shape("tokens")[0] for file in self.files)

    @property
    def tokens(self) -> Array:
        """Token ids, `[row, pos]`, padded with zeros to the longest prompt."""
        if not self.files:
            return np.empty((0, 0), np.int64)
        # Files are padded with the tokenizer's pad token.
        return np.where(self.mask, np.asarray(Point("tokens", self.files, self._left_padded)), 0)

    @property
    def mask(self) -> Array:
        """True at tokens and false at padding, `[row, pos]`."""
        if not self.files:
            return np.empty((0, 0), bool)
        return np.asarray(Point("attention_mask", self.files, self._left_padded)).astype(bool)

    def batches(self, names: Iterable[str] | None = None) -> Iterator[Batch]:
        """Yields named arrays with `tokens` and `mask`, file by file, so that only one file is in memory at a time."""
        wanted = [names] if isinstance(names, str) else list(names) if names is not None else self.names
        for name in wanted:
            if name not in self:
                self[name]
        for file in self.files:
            one = Dump([file], self.manifest)
            batch = Batch()
            for name in wanted:
                if name not in one:
                    # No token in this file was routed to the expert.
                    batch[name] = np.empty((0, *self._of_any(name)), np.float32)
                    continue
                held = one[name]
                batch[name] = held.dense() if isinstance(held, Latents) else np.asarray(held)
            batch.tokens, batch.mask = one.tokens, one.mask
            yield batch

    def vectors(self, name: str) -> Iterator[Array]:
        """Yields the vectors of a point file by file, `[token, ...]`, without padding, ordered by prompt and position.
        """
        if isinstance(self[name], Latents):
            raise ValueError(f"`{name}` contains sparse latents, not vectors: use dump[name]")
        for file in self.files:
            point, mask = Point(name, [file], self._left_padded), file["attention_mask"].astype(bool)
            if _BY_HEAD.search(name) or _ROUTED.search(name) or point.shape[:2] != mask.shape:
                raise ValueError(f"`{name}` does not have one vector per token: its shape is {point.shape}")
            yield np.asarray(point)[mask]

    def _of_any(self, name: str) -> tuple[int, ...]:
        return next(file.shape(name)[1:] for file in self.files if name in file)

    def _joined_latents(self, name: str) -> Latents:
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
        self.shape: tuple[int, ...] = (sum(shape[0] for shape in shapes), *rest)

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
        plain = parts and all(isinstance(part, (int, np.integer, slice)) and not isinstance(part, bool) for part in parts)
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
        blank: float = 0
        if "hook_attn_scores" in self.name:
            blank = 0xFF80 if self._is_bf16 else -np.inf
        joined = np.full((max(end - begin, 0), *self.shape[1:]), blank, kind)
        row = 0
        for part in parts:
            inner = tuple(
                slice(wanted - size, None) if self._left_padded else slice(size)
                for wanted, size in zip(self.shape[1:], part.shape[1:])
            )
            joined[(slice(row, row + len(part)), *inner)] = part
            row += len(part)
        return widened(joined) if self._is_bf16 and not bits else joined
