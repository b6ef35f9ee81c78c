"""Activations of dumps in random order, for training and probes."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypedDict, overload

import numpy as np

from ._dump import _BY_HEAD, load
from ._file import File
from ._nearest import nearest
from ._packed import SHAPES, PackedFile

Array = np.ndarray[Any, Any]
# Number of chunks to read ahead.
AHEAD = 2
# Size of the pieces that packed files are divided into.
_PIECE = 16 << 20


class Places(NamedTuple):
    """Where the vectors of a batch come from, to join labels with them: three arrays of integers, `[batch]`."""

    rows: Array
    """Number of each vector's prompt, counted from 0 through all dumps in the given order."""
    positions: Array
    """Position of each vector's token in its prompt, not counting padding."""
    tokens: Array
    """Token ids."""


class _Piece(NamedTuple):
    """A padded file, or a range of the tokens of a packed file."""

    file: File
    packed: PackedFile | None
    first_row: int
    """Number of the file's first prompt."""
    begin: int
    end: int


class State(TypedDict, total=False):
    """Position of a store in its sequence of batches."""

    epoch: int
    batch: int
    of: list[int]
    """The values that determine the order of batches: seed, batch size, mix, reader, readers, number of vectors."""


def _one_model(models: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any] | None:
    """The model recorded in the dumps, if any records one. Raises if they record different models."""
    for path, model in models[1:]:
        first = models[0][1]
        hashed = "identity" if "identity" in model and "identity" in first else "fingerprint"
        for what in (hashed, "parts", "edits"):
            own, other = (", ".join(one.get(what, [])) if what != hashed else one.get(what) for one in (model, first))
            if own != other:
                names = [f"{one or 'none'} ({of.get('name', '')})" for one, of in ((own, model), (other, first))]
                raise ValueError(f"the activations in {path} come from a different model ({what}: {names[0]}, not {names[1]})")
    return models[0][1] if models else None


class ActivationStore:
    """Batches of a hook point's vectors, `[batch, ...]`, without padding and in random order. Dumps may be larger than
    memory.

    Files are visited in random order, and the vectors of `mix` files at a time are shuffled together (up to three
    times as many files are in memory). Packed files are divided into pieces of at most 16 MiB, which count as files
    here. The same seed gives the same batches, so a saved state is enough to resume. With several readers, each reads
    its own part of the files.

    >>> store = ActivationStore(["activations"], "blocks.6.hook_resid_post", batch_size=4096)  # doctest: +SKIP
    >>> for x in store.batches(epochs=2): train(x)                                             # doctest: +SKIP
    >>> state = store.state                                    # position to save with a checkpoint # doctest: +SKIP
    >>> store = ActivationStore(["activations"], "blocks.6.hook_resid_post", batch_size=4096, state=state)  # doctest: +SKIP
    """

    def __init__(
        self,
        dumps: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        point: str,
        *,
        batch_size: int = 1024,
        mix: int = 16,
        seed: int = 0,
        reader: int = 0,
        readers: int = 1,
        state: State | None = None,
    ) -> None:
        if batch_size < 1 or mix < 1:
            raise ValueError(f"batch_size is {batch_size} and mix is {mix}; both must be at least 1")
        if readers < 1:
            raise ValueError(f"readers is {readers}; it must be at least 1")
        if not 0 <= reader < readers:
            raise ValueError(f"there is no reader {reader} of {readers}; readers are numbered from 0 to {readers - 1}")
        paths = [dumps] if isinstance(dumps, (str, os.PathLike)) else list(dumps)
        opened = [(path, load(path)) for path in paths]
        files: list[File] = []
        packed: list[PackedFile | None] = []
        first_rows, rows = [], 0
        for _, dump in opened:
            files += dump.files
            packed += [None] * len(dump.files) if dump._packed is None else dump._packed
            first_rows += [rows + first for first in dump.first_rows]
            # An incomplete dump lacks its last prompts.
            rows += dump.manifest.get("rows", dump.rows)
        self.model = _one_model([(path, dump.model) for path, dump in opened if dump.model is not None])
        """The model whose activations the dumps contain. None if no dump records it."""
        self.point = point
        self.batch_size = batch_size
        self.mix = mix
        self.seed = seed
        shapes = []
        for file, of_packed in zip(files, packed):
            if point not in file:
                if point + ".offsets" in file:
                    raise ValueError(f"{file.path}: `{point}` contains sparse latents, not vectors: use load(...)[point]")
                parts = (".offsets", ".indices", ".values", SHAPES)
                points = [name for name in file if "." in name and not name.endswith(parts)]
                raise KeyError(f"{file.path} has no `{point}`; {nearest(point, points)}")
            if of_packed is None:
                sound = not _BY_HEAD.search(point) and file.shape(point)[:2] == file.shape("tokens")
            else:
                sound = of_packed.has_vectors(point)
            if not sound:
                raise ValueError(f"{file.path}: `{point}` does not have one vector per token: its shape is {file.shape(point)}")
            shapes.append(file.shape(point)[2 if of_packed is None else 1 :])
        if not files:
            raise ValueError(f"no dump files to read `{point}` from: {', '.join(map(str, paths)) or 'no dump was given'}")
        if len(set(shapes)) != 1:
            raise ValueError(f"vectors of `{point}` have different shapes in these dumps: {sorted(set(shapes))}")
        self.shape: tuple[int, ...] = shapes[0]
        """Shape of a vector."""
        kinds = [np.dtype("<f4") if file.dtype(point) == "BF16" else file.kind(point) for file in files]
        self.dtype = np.result_type(*kinds)
        """Dtype of the vectors: the widest if dumps have different dtypes."""
        pieces = []
        for file, of_packed, first_row in zip(files, packed, first_rows):
            if of_packed is None:
                pieces.append(_Piece(file, None, first_row, 0, 0))
                continue
            size = int(np.prod(self.shape, dtype=np.int64)) * file.kind(point).itemsize
            length = max(_PIECE // max(size, 1), 1)
            ranges = [(begin, min(begin + length, of_packed.tokens)) for begin in range(0, of_packed.tokens, length)]
            pieces += [_Piece(file, of_packed, first_row, begin, end) for begin, end in ranges]
        self._pieces = pieces[reader::readers]
        # Masks are small: read them now to count the vectors in each file.
        self._counts = [
            int(piece.file["attention_mask"].sum()) if piece.packed is None else piece.end - piece.begin for piece in self._pieces
        ]
        self._of = [seed, batch_size, mix, reader, readers, sum(self._counts)]
        if state is not None:
            self._check(state)
        begin = state or State(epoch=0, batch=0)
        self.state: State = self._at(begin["epoch"], begin["batch"])
        """The next epoch and batch."""

    def _check(self, state: State) -> None:
        """Raises if the state belongs to a different store or is out of range."""
        epoch, batch = state.get("epoch", -1), state.get("batch", -1)
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ValueError(f"there is no batch {batch} of epoch {epoch}: an epoch has {len(self)} batches")
        names = ("seed", "batch_size", "mix", "reader", "readers", "number of vectors")
        for name, before, now in zip(names, state.get("of", []), self._of):
            if before != now:
                raise ValueError(f"the state belongs to a different store ({name}: {before} in the state, {now} in this store)")

    def _at(self, epoch: int, batch: int) -> State:
        return State(epoch=epoch, batch=batch, of=self._of)

    def __len__(self) -> int:
        """Number of batches per epoch. The last one may be smaller."""
        return -(-sum(self._counts) // self.batch_size)

    @overload
    def batches(self, epochs: int | None = 1, *, places: Literal[False] = False) -> Iterator[Array]: ...

    @overload
    def batches(self, epochs: int | None = 1, *, places: Literal[True]) -> Iterator[tuple[Array, Places]]: ...

    def batches(self, epochs: int | None = 1, *, places: bool = False) -> Iterator[Any]:
        """Yields batches from the current position until `epochs` epochs in total are done, or forever if `epochs` is
        None. With `places=True`, each batch comes with the prompt, position and token of every vector.

        >>> for x, at in store.batches(places=True): fit(x, labels[at.rows])                    # doctest: +SKIP
        """
        while len(self) > 0 and (epochs is None or self.state["epoch"] < epochs):
            for vectors, at in self._epoch(places):
                yield (vectors, Places(*at.T)) if places else vectors
            self.state = self._at(self.state["epoch"] + 1, 0)

    def _epoch(self, places: bool) -> Iterator[tuple[Array, Array]]:
        """Yields vectors, and their places as `[batch, 3]`, or as `[batch, 0]` unless `places` is set."""
        epoch = self.state["epoch"]
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self._pieces))
        chunks = [order[first : first + self.mix] for first in range(0, len(order), self.mix)]
        # Skip whole chunks before the first batch.
        skip, first = self.state["batch"] * self.batch_size, 0
        while first < len(chunks) and skip >= (count := sum(self._counts[file] for file in chunks[first])):
            skip -= count
            first += 1
        rest: Array = np.empty((0, *self.shape), self.dtype)
        rest_at: Array = np.empty((0, 3 if places else 0), np.int64)
        # Each chunk starts with the rest of the previous one, whose size is known in advance.
        before = [0, *itertools.accumulate(sum(self._counts[file] for file in files) for files in chunks)]

        def read(number: int) -> Future[tuple[Array, Array]]:
            lead = before[number] % self.batch_size if number > first else 0
            return pool.submit(self._chunk, epoch, number, chunks[number], lead, places)

        # While one chunk is used, the next two are read and shuffled.
        with ThreadPoolExecutor(AHEAD) as pool:
            coming: deque[Future[tuple[Array, Array]]] = deque()
            following = iter(range(first, len(chunks)))
            for number in itertools.islice(following, AHEAD):
                coming.append(read(number))
            while coming:
                vectors, at = (part[skip:] for part in coming.popleft().result())
                skip = 0
                for number in itertools.islice(following, 1):
                    coming.append(read(number))
                vectors[: len(rest)], at[: len(rest)] = rest, rest_at
                whole = len(vectors) // self.batch_size * self.batch_size
                for begin in range(0, whole, self.batch_size):
                    self.state = self._at(epoch, self.state["batch"] + 1)
                    yield vectors[begin : begin + self.batch_size], at[begin : begin + self.batch_size]
                rest, rest_at = vectors[whole:], at[whole:]
        if len(rest):
            self.state = self._at(epoch, self.state["batch"] + 1)
            yield rest, rest_at

    def _chunk(self, epoch: int, number: int, pieces: Array, lead: int, places: bool) -> tuple[Array, Array]:
        """Reads the vectors of some pieces and returns them shuffled, after `lead` free rows, with their places."""
        parts = [self._vectors(self._pieces[piece]) for piece in pieces]
        count = sum(len(part) for part in parts)
        shuffled = np.empty((lead + count, *self.shape), self.dtype)
        order = np.random.default_rng((self.seed, epoch, number)).permutation(count) + lead
        at = np.empty((lead + count, 3 if places else 0), np.int64)
        begin = 0
        for piece, part in zip(pieces, parts):
            own = order[begin : begin + len(part)]
            shuffled[own] = part
            if places:
                at[own] = self._places(self._pieces[piece])
            begin += len(part)
        return shuffled, at

    def _places(self, piece: _Piece) -> Array:
        """Prompt, position and token of each vector of a piece, `[vector, 3]`."""
        one = piece.file
        if piece.packed is not None:
            at = piece.packed.places(piece.begin, piece.end)
            at[:, 0] += piece.first_row
            return at
        mask = one["attention_mask"].astype(bool)
        positions = one["positions"] if "positions" in one else np.cumsum(mask, axis=1) - 1
        rows = np.broadcast_to(np.arange(len(mask))[:, None] + piece.first_row, mask.shape)
        return np.stack([rows[mask], positions[mask], one["tokens"][mask]], axis=1)

    def _vectors(self, piece: _Piece) -> Array:
        if piece.packed is not None:
            return piece.file.read(self.point, piece.begin, piece.end)
        mask = piece.file["attention_mask"].astype(bool)
        vectors = piece.file.read(self.point)
        # Without padding, the mask would select all vectors.
        return vectors.reshape(-1, *self.shape) if mask.all() else vectors[mask]
