"""Tests that packed dumps are read like padded dumps of the same prompts."""

import itertools
import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from test_load import PATTERN, RESID, ROWS, SCORES, dumped, run

import hooklens
from hooklens import ActivationStore, _store

pytest.importorskip("safetensors")
RAGGED = re.compile(r"hook_(pattern|attn_scores|rot_k)$")
# Files of some rows each, and the order in which each file's rows are stored.
ORDERS = {0: [1, 0], 2: [0, 2, 1]}


def save(path, tensors):
    """Writes a file. Tensors of torch are stored as bf16, which NumPy does not have."""
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    if all(isinstance(value, np.ndarray) for value in tensors.values()):
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
        return
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    every = {name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value for name, value in tensors.items()}
    save_torch({name: value.contiguous() for name, value in every.items()}, path)


def pack(dump, folder, orders=ORDERS, bf16=False, first=0, names=None, complete=True, **more):
    """Writes the rows of a padded dump as packed files. `orders` has the stored order of rows for each first row."""
    lengths, positions = dump.mask.sum(1), np.asarray(dump["positions"]) if "positions" in dump.files[0] else None
    axes = {name: entry["axes"] for name, entry in dump.manifest["tensors"].items()}
    entries = []
    for number, (begin, order) in enumerate(orders.items()):
        stored = [begin + row for row in order]

        def joined(values):
            return np.concatenate([values[row, : lengths[row]] for row in stored])

        offsets = np.cumsum([0, *lengths[stored]]).astype(np.int64)
        tensors = {
            "tokens": joined(dump.tokens).astype(np.int32),
            "positions": (joined(positions) if positions is not None else np.concatenate([np.arange(lengths[row]) for row in stored])),
            "row_offsets": offsets,
            "prompt_numbers": np.array(order, np.int64),
        }
        tensors["positions"] = tensors["positions"].astype(np.int32)
        for name in names or dump.names:
            point = dump[name]
            if isinstance(point, hooklens.Latents):
                found = [point.at(row, at) for row in stored for at in range(lengths[row])]
                tensors |= {
                    f"{name}.indices": np.concatenate([own for own, _ in found]).astype(np.int32),
                    f"{name}.values": np.concatenate([own for _, own in found]),
                    f"{name}.offsets": np.cumsum([0, *(len(own) for own, _ in found)]).astype(np.int64),
                    f"{name}.shape": np.array([offsets[-1], point.shape[2]]),
                }
                continue
            values = np.asarray(point)
            if RAGGED.search(name):
                whole = [values[row][own_slices(axes[name], lengths[row], dump, row)] for row in stored]
                tensors[name] = np.concatenate([own.reshape(-1) for own in whole])
                tensors[f"{name}.shapes"] = np.array([own.shape for own in whole], np.int64)
            elif axes[name][1] == "1":
                tensors[name] = values[stored, 0]
            else:
                tensors[name] = joined(values)
        if bf16:
            torch = pytest.importorskip("torch")
            floats = [name for name, value in tensors.items() if value.dtype == np.float32]
            tensors |= {name: torch.from_numpy(tensors[name]).bfloat16() for name in floats}
        file = f"part-{number:05}.safetensors"
        save(folder / file, tensors)
        entries.append({"file": file, "first_row": first + begin, "rows": len(order), "tokens": int(offsets[-1])})
    manifest = dump.manifest | {"version": 6, "layout": "packed", "shards": entries, "complete": complete}
    (folder / "manifest.json").write_text(json.dumps(manifest | more))
    return folder


def own_slices(axes, length, dump, row):
    """The part of a row that is not padding. Keys precede the kept positions."""
    last = int(np.asarray(dump["positions"])[row].max()) + 1 if "positions" in dump.files[0] else length
    sizes = {"pos": last, "query": length, "key": last}
    return tuple(slice(sizes.get(axis)) for axis in axes[1:])


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module", params=[[], ["--positions=-2.."], ["--positions", "-1"]], ids=["all", "two", "last"])
def padded(tmp_path_factory, request):
    return hooklens.load(dumped(tmp_path_factory.mktemp("padded"), "--batch-size", 2, "--logits", "last", *request.param))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return hooklens.load(dumped(tmp_path_factory.mktemp("whole"), "--batch-size", 2, "--logits", "last"))


def test_points_are_padded(tmp_path, padded):
    packed = hooklens.load(pack(padded, tmp_path))
    assert packed.names == padded.names == sorted([RESID, PATTERN, SCORES, "logits"]) and packed.rows == 5
    assert packed.tokens.dtype == padded.tokens.dtype and packed.mask.dtype == bool
    same(packed.tokens, padded.tokens)
    same(packed.mask, padded.mask)
    same(packed["attention_mask"], padded["attention_mask"])
    assert packed["attention_mask"].dtype == padded["attention_mask"].dtype
    if "positions" in padded.files[0]:
        same(packed["positions"], padded["positions"])
    for name in padded.names:
        a, b = packed[name], padded[name]
        assert a.shape == b.shape and a.dtype == b.dtype and a.ndim == b.ndim and len(a) == len(b) and repr(a) == repr(b)
        expected = np.asarray(b)
        same(a, expected)
        for index in (2, -1, slice(1, 4), slice(None, None, 2), slice(4, 2), (3, slice(0, 2)), (slice(1, 3), 0), [4, 0, 0], (), True,
                      (0, [0]), ([3, -1], 0), np.arange(5) % 2 == 0, slice(None, None, -1), ...):  # fmt: skip
            same(a[index], expected[index])
        for wrong in (5, [5], np.ones(4, bool)):
            with pytest.raises(IndexError):
                a[wrong]
    for name in [name for name in padded.names if name not in (PATTERN, SCORES)]:
        try:
            expected = np.concatenate(list(padded.vectors(name)))
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error)[:40])):
                list(packed.vectors(name))
        else:
            same(np.concatenate(list(packed.vectors(name))), expected)
    with pytest.raises(ValueError, match="one vector per token"):
        list(packed.vectors(PATTERN))
    with pytest.raises(KeyError, match="did you mean"):
        packed["hook_resid_post"]


def test_batches_are_in_order(tmp_path, whole, monkeypatch):
    packed = hooklens.load(pack(whole, tmp_path))
    files = list(packed.batches())
    assert [len(batch.tokens) for batch in files] == [2, 3]
    monkeypatch.setattr("hooklens._packed._BATCH_ROWS", 2)
    batches = list(packed.batches())
    assert [batch.tokens.shape for batch in batches] == [(2, 4), (2, 6), (1, 3)]
    for every in (files, batches):
        assert [list(row[mask]) for batch in every for row, mask in zip(batch.tokens, batch.mask)] == ROWS
        first = 0
        for batch in every:
            rows, width = batch.tokens.shape
            own = slice(first, first + rows)
            assert set(batch) == set(whole.names) and batch.mask.dtype == bool and batch.tokens.dtype == np.int64
            same(batch[RESID], whole[RESID][own, :width])
            same(batch[PATTERN], whole[PATTERN][own, :, :width, :width])
            same(batch[SCORES], whole[SCORES][own, :, :width, :width])
            same(batch["logits"], whole["logits"][own])
            first += rows
    monkeypatch.setattr("hooklens._packed._BATCH_TOKENS", 0)
    monkeypatch.setattr("hooklens._packed._BATCH_ROWS", 64)
    # The padded tokens of a batch are not more than the tokens of a file.
    assert [batch.tokens.shape for batch in packed.batches([RESID])] == [(1, 4), (1, 2), (1, 6), (2, 3)]
    assert set(next(packed.batches(RESID))) == {RESID}
    same(next(packed.batches(["positions"]))["positions"], [[0, 1, 2, 3]])


def test_types(tmp_path, whole):
    torch = pytest.importorskip("torch")
    packed = hooklens.load(pack(whole, tmp_path, bf16=True))
    x = packed[RESID]
    assert x.dtype == np.float32 and x.to_torch().dtype == torch.bfloat16
    wanted = torch.from_numpy(np.asarray(whole[RESID])).bfloat16()
    assert torch.equal(x.to_torch(), wanted) and torch.isneginf(packed[SCORES].to_torch()[1, 0, 0, -1])
    same(x, wanted.float().numpy())
    same(np.concatenate(list(packed.vectors(RESID))), wanted[torch.from_numpy(whole.mask)].float().numpy())
    assert sum(len(batch) for batch in ActivationStore(tmp_path, RESID).batches()) == 16


def test_values_are_read_when_they_are_used(tmp_path, whole, monkeypatch):
    pack(whole, tmp_path)
    mapped, own = [], np.memmap
    monkeypatch.setattr(np, "memmap", lambda path, *rest, **more: (mapped.append((path, more["shape"])), own(path, *rest, **more))[1])
    packed = hooklens.load(tmp_path)
    x = packed[RESID]
    assert x.shape == (5, 6, 64) and x.dtype and x.ndim == 3 and len(packed) and packed.rows == 5 and not mapped
    x[3], x[4], x[[3]]
    assert {path for path, _ in mapped} == {packed.files[1].path}
    assert len(mapped) == 2 + 3, "the index of a file is read once"
    list(packed.vectors(RESID)), packed.tokens
    assert packed._packed[0]._index is not None and pickle.loads(pickle.dumps(packed))._packed[0]._index is None
    same(pickle.loads(pickle.dumps(x)), whole[RESID])


def test_merged_and_incomplete_dumps(tmp_path, whole):
    # Files of a merged dump are in subfolders, and may be listed in any order.
    pack(whole, tmp_path / "all")
    manifest = json.loads((tmp_path / "all/manifest.json").read_text())
    for number, one in enumerate(manifest["shards"]):
        (tmp_path / f"all/shards/{number}").mkdir(parents=True)
        os.rename(tmp_path / "all" / one["file"], tmp_path / f"all/shards/{number}/part-00000.safetensors")
        one["file"] = f"shards/{number}/part-00000.safetensors"
    (tmp_path / "all/manifest.json").write_text(json.dumps(manifest | {"shards": manifest["shards"][::-1]}))
    merged = hooklens.load(tmp_path / "all")
    same(merged[SCORES], whole[SCORES])
    assert merged.first_rows == [0, 2]
    # An interrupted dump lists its files in a log. Points are padded to its longest row.
    lines = [json.dumps(one) for one in manifest["shards"]]
    for more in ({}, {"tensors": {}}):
        (tmp_path / "all/shards.jsonl").write_text(lines[0] + "\n" + lines[1][:20])
        (tmp_path / "all/manifest.json").write_text(json.dumps(manifest | {"complete": False, "shards": []} | more))
        with pytest.warns(hooklens.Incomplete, match="2 of 5"):
            half = hooklens.load(tmp_path / "all")
        assert half.rows == 2 and half[PATTERN].shape == (2, 4, 4, 4) and half[RESID].shape == (2, 4, 64) and half["logits"].shape[1] == 1
        same(half[RESID], whole[RESID][:2, :4])
        same(half.mask, whole.mask[:2, :4])
    (tmp_path / "all/shards.jsonl").write_text("")
    with pytest.warns(hooklens.Incomplete, match="0 of 5"):
        empty = hooklens.load(tmp_path / "all")
    assert empty.tokens.shape == empty.mask.shape == (0, 0) and list(empty.batches()) == []
    # A single file can be read on its own.
    one = hooklens.load(tmp_path / "all/shards/1/part-00000.safetensors")
    same(one[RESID], whole[RESID][2:])
    same(one["logits"], whole["logits"][2:])


def test_latents(tmp_path, monkeypatch):
    prompts = ["When Mary and John went to the store", "Mary gave a drink", "John"]
    run("dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--hooks", "*hook_sae_acts_post", "--batch-size", 3, "--out",
        tmp_path / "padded", "--prompt", *prompts)  # fmt: skip
    wanted = hooklens.load(tmp_path / "padded")
    packed = hooklens.load(pack(wanted, tmp_path / "packed", {0: [1, 0], 2: [0]}))
    (name,) = wanted.names
    assert packed.names == [name]
    a, b = packed[name], wanted[name]
    assert a.shape == b.shape and repr(a) == repr(b)
    for field in ("offsets", "indices", "values"):
        same(getattr(a, field), getattr(b, field))
    same(a, b)
    dense = np.concatenate([np.pad(batch[name], ((0, 0), (0, b.shape[1] - batch[name].shape[1]), (0, 0))) for batch in packed.batches()])
    same(dense, b)
    with pytest.raises(ValueError, match="sparse latents"):
        ActivationStore(tmp_path / "packed", name)
    with pytest.raises(ValueError, match="sparse latents"):
        list(packed.vectors(name))
    torch = pytest.importorskip("torch")
    narrow = hooklens.load(pack(wanted, tmp_path / "bf16", {0: [2, 0, 1]}, bf16=True))[name]
    assert narrow.to_torch().dtype == torch.bfloat16 and narrow.values.dtype == np.float32
    same(narrow.indices, b.indices)


@pytest.mark.parametrize("positions", [[], ["--positions=-2.."]])
def test_mixtures_and_rotated_keys(tmp_path, positions):
    model = Path(__file__).parents[3] / "tests/fixtures/mixtral"
    run("dump", "--model", model, "--tokens", "1,2,3;4,5;6;7,1,1,2;5", "--hooks", "*hook_expert*,*hook_rot_k", "--no-share-prefix",
        "--batch-size", 2, "--out", tmp_path / "padded", *positions)  # fmt: skip
    wanted = hooklens.load(tmp_path / "padded")
    packed = hooklens.load(pack(wanted, tmp_path / "packed"))
    for name in wanted.names:
        same(packed[name], wanted[name])
    for name in [name for name in wanted.names if "hook_expert" in name]:
        same(np.concatenate(list(packed.vectors(name))), np.concatenate(list(wanted.vectors(name))))


@pytest.mark.parametrize("positions", [[], ["--positions=-2.."]])
def test_stores(tmp_path, monkeypatch, positions):
    monkeypatch.setattr(_store, "_PIECE", 3 * 64 * 4)
    padded = dumped(tmp_path, "--batch-size", 2, *positions, out="padded")
    pack(hooklens.load(padded), tmp_path / "packed")

    def vectors(*names, **more):
        found = {}
        for x, at in ActivationStore([tmp_path / name for name in names], RESID, batch_size=4, **more).batches(places=True):
            for vector, *place in zip(x, *at):
                assert tuple(place) not in found
                found[tuple(place)] = vector
        return found

    wanted = vectors("padded")
    for more in ({}, {"mix": 1}, {"mix": 2, "seed": 3}):
        found = vectors("packed", **more)
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[at], wanted[at]) for at in wanted)
    # Packed and padded dumps may be mixed, and readers divide the pieces.
    assert len(vectors("packed", "padded")) == 2 * len(wanted)
    assert {at[0] for at in vectors("packed", "padded")} == set(range(10))
    assert sum(len(vectors("packed", reader=reader, readers=3)) for reader in range(3)) == len(wanted)
    whole = list(ActivationStore(tmp_path / "packed", RESID, batch_size=3, mix=2).batches(2))
    for stop in range(len(whole) + 1):
        store = ActivationStore(tmp_path / "packed", RESID, batch_size=3, mix=2)
        before = list(itertools.islice(store.batches(2), stop))
        after = list(ActivationStore(tmp_path / "packed", RESID, batch_size=3, mix=2, state=store.state).batches(2))
        for given, own in zip(before + after, whole, strict=True):
            same(given, own)
    for point, error, words in [(PATTERN, ValueError, "one vector per token"), ("hook_resid_post", KeyError, RESID)]:
        with pytest.raises(error, match=words):
            ActivationStore(tmp_path / "packed", point)


def test_shards_number_prompts_of_the_whole_dump(tmp_path, whole):
    packed = pack(whole, tmp_path, first=10, rows=15, part={"index": 3, "of": 3}, part_rows=5)
    same(hooklens.load(packed)[RESID], whole[RESID])
    rows = np.concatenate([at.rows for _, at in ActivationStore(packed, RESID).batches(places=True)])
    assert set(rows) == set(range(10, 15))


def test_damaged_files(tmp_path, whole):
    from safetensors.numpy import load_file

    folder = pack(whole, tmp_path)
    path, manifest = folder / "part-00001.safetensors", json.loads((folder / "manifest.json").read_text())
    sound = load_file(path)
    for name, value, words in [
        ("row_offsets", np.array([0, 6, 5, 10]), "`row_offsets`"),
        ("row_offsets", np.array([0, 6, 10, 11]), "`row_offsets`"),
        ("row_offsets", np.array([0, 10]), "shape of `row_offsets`"),
        ("prompt_numbers", np.array([0, 0, 1]), "not a permutation"),
        ("prompt_numbers", np.array([0, 1, 3]), "not a permutation"),
        ("positions", np.zeros(3, np.int32), "shape of `positions`"),
        ("prompt_numbers", None, "no `prompt_numbers`"),
        (RESID, np.zeros((4, 64), np.float32), "the shape of `blocks.1.hook_resid_post`"),
        (f"{PATTERN}.shapes", np.ones((3, 3), np.int64), "do not fit"),
        (f"{PATTERN}.shapes", np.ones((2, 3), np.int64), "has shape"),
    ]:
        changed = {own: data for own, data in (sound | {name: value}).items() if data is not None}
        save(path, changed)
        with pytest.raises(ValueError, match=words):
            dump = hooklens.load(folder)
            dump[RESID][4], dump[PATTERN][4]
    save(path, sound)
    short = manifest["tensors"] | {RESID: manifest["tensors"][RESID] | {"shape": [5, 4, 64]}}
    for more, words in [
        ({"tensors": short}, "has rows of shape"),
        ({"version": 7}, "has version 7, but this module reads versions up to 6"),
        ({"version": "6"}, "`version` is"),
        ({"layout": "tiled"}, "layout"),
    ]:
        (folder / "manifest.json").write_text(json.dumps(manifest | more))
        with pytest.raises(ValueError, match=words):
            np.asarray(hooklens.load(folder)[RESID])


@pytest.mark.parametrize("more", [[], ["--file-size", "5kB"], ["--batch-size", 2, "--logits", "last"], ["--positions=-2.."]])
def test_the_programs_own_files(tmp_path, more):
    padded = hooklens.load(dumped(tmp_path, *more, out="one.safetensors"))
    packed = hooklens.load(dumped(tmp_path, *more, out="packed", packed=True))
    assert packed.manifest["layout"] == "packed" and packed.rows == 5
    assert packed.manifest["prompts"] == {"files": [str(tmp_path / "prompts.jsonl")]}
    # A single file has a cheaper hash of the model, if there is one.
    assert packed.manifest["model"].items() >= padded.manifest["model"].items()
    if "--positions=-2.." not in more:
        assert packed.manifest["token_texts"] == padded.manifest["token_texts"]
    assert packed.names == padded.names
    np.testing.assert_array_equal(packed.tokens, padded.tokens)
    np.testing.assert_array_equal(packed.mask, padded.mask)
    for name in packed.names:
        assert packed.manifest["tensors"][name] == padded.manifest["tensors"][name]
        assert packed[name].shape == padded[name].shape
        np.testing.assert_allclose(np.asarray(packed[name]), np.asarray(padded[name]), atol=1e-4)
    vectors = [np.concatenate(list(dump.vectors(RESID))) for dump in (packed, padded)]
    np.testing.assert_allclose(*vectors, atol=1e-4)
