"""Tests that dumps written by the program are read correctly."""

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hooklens

PROGRAM = os.environ.get("HOOKLENS_PROGRAM") or shutil.which("hooklens") or "hooklens"
RESID, PATTERN, SCORES = "blocks.1.hook_resid_post", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_attn_scores"
ROWS = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11, 12], [13], [14, 15, 16]]


def run(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True)


def dumped(folder, *more, out="out", packed=False):
    """Dumps prompts of the command line, which are padded, or of a file."""
    prompts = ["--tokens", ";".join(",".join(map(str, row)) for row in ROWS)]
    if packed:
        prompts = ["--prompts", folder / "prompts.jsonl"]
        prompts[1].write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    hooks = f"{RESID},{PATTERN},{SCORES}"
    run("dump", "--model", "embedded:induction", *prompts, "--hooks", hooks, "--no-share-prefix", *more, "--out", folder / out)
    return folder / out


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Dumps each prompt on its own, as a reference for the other dumps."""
    folder = tmp_path_factory.mktemp("single")
    return hooklens.load(dumped(folder, "--batch-size", 1))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("size", [2, 5])
def test_files_are_joined(tmp_path, single, side, size):
    dump = hooklens.load(dumped(tmp_path, "--batch-size", size, "--padding-side", side))
    assert dump.rows == 5 and dump.names == sorted([RESID, PATTERN, SCORES])
    assert dump.tokens.shape == (5, 6) and dump.mask.dtype == bool
    assert [list(row[mask]) for row, mask in zip(dump.tokens, dump.mask)] == ROWS
    x, pattern = dump[RESID], np.asarray(dump[PATTERN])
    assert x.shape == (5, 6, 64) and pattern.shape == (5, 4, 6, 6) and x.dtype == np.float32
    for row, ids in enumerate(ROWS):
        own = slice(6 - len(ids), None) if side == "left" else slice(len(ids))
        alone = next(batch for number, batch in enumerate(single.batches([RESID, PATTERN])) if number == row)
        np.testing.assert_allclose(x[row][own], alone[RESID][0], atol=1e-5)
        np.testing.assert_allclose(pattern[row][:, own, own], alone[PATTERN][0], atol=1e-5)
    # Rows and slices equal those of the whole array.
    whole = np.asarray(x)
    for index in (2, -1, slice(1, 4), slice(None, None, 2), slice(4, 2), (3, slice(0, 2)), (slice(1, 3), 0), [0, 4], (), True, (0, [1, 2])):
        np.testing.assert_array_equal(x[index], whole[index])
    with pytest.raises(IndexError):
        x[5]
    assert not dump.tokens[~dump.mask].any()
    # Padding is zero, and minus infinity in scores.
    assert not whole[~dump.mask].any()
    padding = np.broadcast_to(~dump.mask[:, None, None, :], np.asarray(dump[SCORES]).shape)
    assert np.isneginf(np.asarray(dump[SCORES])[padding]).all()
    vectors = np.concatenate(list(dump.vectors(RESID)))
    np.testing.assert_array_equal(vectors, whole[dump.mask])
    assert vectors.shape == (sum(map(len, ROWS)), 64)


def test_one_file_and_types(tmp_path, single):
    for kind, within in (("bf16", 1e-2), ("f16", 1e-3), ("f32", 1e-6)):
        dump = hooklens.load(dumped(tmp_path, "--dtype", kind, out=f"{kind}.safetensors"))
        x = np.asarray(dump[RESID])
        np.testing.assert_allclose(x[0, :4], np.asarray(single[RESID])[0, :4], atol=within * abs(x).max())
        assert dump[RESID].dtype == (np.float16 if kind == "f16" else np.float32)
    torch = pytest.importorskip("torch")
    dump = hooklens.load(tmp_path / "bf16.safetensors")
    made = dump[RESID].to_torch()
    assert made.dtype == torch.bfloat16
    np.testing.assert_array_equal(made.float().numpy(), np.asarray(dump[RESID]))
    assert torch.isneginf(dump[SCORES].to_torch()[1, 0, 0, -1])


def test_shards_and_what_is_not_complete(tmp_path, single):
    for shard in ("1/2", "2/2"):
        dumped(tmp_path, "--batch-size", 1, "--shard", shard, out="all")
    with pytest.raises(FileNotFoundError, match="hooklens merge"):
        hooklens.load(tmp_path / "all")
    run("merge", "--out", tmp_path / "all")
    dump = hooklens.load(tmp_path / "all")
    np.testing.assert_array_equal(np.asarray(dump[RESID]), np.asarray(single[RESID]))
    assert dump.settings["model"] == "embedded:induction" and len(dump.files) == 5
    # This looks like an interrupted dump. Only the listed files are read.
    folder = tmp_path / "half"
    shutil.copytree(single.files[0].path.parent, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    lines = [json.dumps(one) for one in manifest["shards"][:3]]
    (folder / "shards.jsonl").write_text("\n".join(lines) + "\n" + lines[0][:20])
    (folder / "manifest.json").write_text(json.dumps(manifest | {"complete": False, "shards": []}))
    with pytest.warns(hooklens.Incomplete, match="3 of 5"):
        assert hooklens.load(folder).rows == 3


def test_latents(tmp_path):
    prompts = ["When Mary and John went to the store", "Mary gave a drink", "John"]
    for out, size in (("one", 3), ("each", 1)):
        run("dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--hooks", "*hook_sae_acts_post", "--batch-size",
            size, "--out", tmp_path / out, "--prompt", *prompts)  # fmt: skip
    one, each = (hooklens.load(tmp_path / out) for out in ("one", "each"))
    (name,) = one.names
    latents, apart = one[name], each[name]
    assert isinstance(latents, hooklens.Latents) and latents.shape == apart.shape
    dense = latents.dense()
    np.testing.assert_array_equal(np.asarray(latents), dense)
    assert "nonzero" in repr(latents) and len(repr(latents)) < 200
    np.testing.assert_allclose(dense, apart.dense(), atol=1e-4)
    assert (dense != 0).sum() == len(latents.values) > 0
    indices, values = latents.at(0, 2)
    np.testing.assert_array_equal(dense[0, 2][indices], values)
    assert (dense[0, 2] != 0).sum() == len(indices)
    np.testing.assert_array_equal(next(one.batches([name]))[name], dense)
    torch = pytest.importorskip("torch")
    made = latents.to_torch().to_dense().numpy()
    np.testing.assert_array_equal(made.reshape(dense.shape), dense)
    run("dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--hooks", "*hook_sae_acts_post", "--dtype", "bf16",
        "--out", tmp_path / "bf16", "--prompt", *prompts)  # fmt: skip
    narrow = hooklens.load(tmp_path / "bf16")[name]
    assert narrow.to_torch().dtype == torch.bfloat16 and narrow.values.dtype == np.float32
    with pytest.raises(ValueError, match="sparse latents"):
        hooklens.ActivationStore(tmp_path / "one", name)


def test_what_is_no_dump(tmp_path, single):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        hooklens.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no manifest.json"):
        hooklens.load(tmp_path)
    for content in (b"", b"\x00" * 7, b"\xff" * 16, b"\x02" + b"\x00" * 7 + b"{]", b"\x02" + b"\x00" * 7 + b"[]"):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="not a .safetensors file"):
            hooklens.load(tmp_path / "bad.safetensors")
    path = tmp_path / "cut.safetensors"
    path.write_bytes(Path(single.files[0].path).read_bytes()[:-4])
    with pytest.raises(ValueError, match="truncated"):
        hooklens.load(path)
    with pytest.raises(KeyError, match="hook_resid_post"):
        single["hook_resid_post"]
    sound = json.loads((Path(single.files[0].path).parent / "manifest.json").read_text())
    folder = tmp_path / "damaged"
    folder.mkdir()
    cut = {name: value for name, value in sound.items() if name != "shards"}
    for content, words in [
        (b"", "is not a manifest"),
        (b"\xff\xfe", "is not a manifest"),
        (json.dumps(cut).encode(), "`shards` is null"),
        (json.dumps(sound | {"settings": None}).encode(), "`settings` is null"),
        (json.dumps(sound | {"shards": [{"rows": 1}]}).encode(), "has no file name"),
        (json.dumps(sound | {"version": 99}).encode(), "has version 99"),
    ]:
        (folder / "manifest.json").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            hooklens.load(folder)
    weights = tmp_path / "model.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(ValueError, match="is not a dump"):
        hooklens.load(weights)


def test_numbers_are_read_when_they_are_used(single, monkeypatch):
    dump = hooklens.load(single.files[0].path.parent)
    mapped = []
    monkeypatch.setattr(np, "memmap", lambda path, *rest, own=np.memmap, **more: (mapped.append(path), own(path, *rest, **more))[1])
    x = dump[RESID]
    assert x.shape and x.dtype and x.ndim == 3 and not mapped
    x[3]
    assert mapped == [dump.files[3].path]
    # Only files in use are open. A dump that was read from can be pickled for a worker, because it stores only file
    # names.
    list(dump.vectors(RESID)), dump.tokens
    assert len(pickle.dumps(dump)) < 20_000
    assert len([entry for entry in os.listdir("/proc/self/fd")] if os.path.isdir("/proc/self/fd") else []) < 100


def test_points_without_a_row_a_token(tmp_path, single):
    for name, words in ((PATTERN, "one vector per token"), (SCORES, "one vector per token")):
        with pytest.raises(ValueError, match=words):
            list(single.vectors(name))
    # In this case, there are as many heads as positions.
    run("dump", "--model", "embedded:induction", "--tokens", "1,2,3,4;5", "--hooks", "*hook_pattern", "--out", tmp_path / "same")
    with pytest.raises(ValueError, match="one vector per token"):
        list(hooklens.load(tmp_path / "same").vectors(PATTERN))


def test_mixtures(tmp_path):
    model = Path(__file__).parents[3] / "tests/fixtures/mixtral"
    common = ["dump", "--model", model, "--tokens", "1,2,3;4,5;6;7,1,1,2", "--hooks", "*expert*", "--no-share-prefix"]
    for size in (1, 2):
        run(*common, "--batch-size", size, "--out", tmp_path / str(size))
    one, two = (hooklens.load(tmp_path / str(size)) for size in (1, 2))
    name = "blocks.0.mlp.hook_expert_indices"
    assert two[name].shape == one[name].shape == (4, 4, 2)
    np.testing.assert_array_equal(np.asarray(one[name])[one.mask], np.asarray(two[name])[two.mask])
    batches = list(two.batches())
    routed = [name for name in two.names if ".experts." in name]
    assert routed and all(name in batch for batch in batches for name in routed)
    with pytest.raises(ValueError, match="expert"):
        two[routed[0]]


def test_manifests_describe_the_dump(tmp_path):
    dump = hooklens.load(dumped(tmp_path, "--positions=-2..", "--batch-size", 2))
    one = hooklens.load(dumped(tmp_path, "--positions=-2..", out="one.safetensors"))
    for own in (dump, one):
        assert own.settings["hooks"] == [RESID, PATTERN, SCORES] and own.settings["prefix_tokens"] == []
        assert "prompts" not in own.manifest
        assert own.manifest["hooklens"] and own.model["name"] == "embedded:induction"
        assert set(own.token_texts) == {token for row in ROWS for token in row} and own.token_texts[1] == "red"
        for name in own.names:
            assert own.manifest["tensors"][name]["shape"] == list(own[name].shape)
        assert own.manifest["tensors"][PATTERN]["axes"] == ["batch", "head", "query", "key"]
        np.testing.assert_array_equal(np.asarray(own["positions"])[2], [4, 5])


def test_dumps_of_earlier_versions_are_read():
    dump = hooklens.load(Path(__file__).parents[3] / "tests/fixtures/earlier/dump-4")
    assert dump.names == [PATTERN, RESID] and dump.rows == 5 and dump.token_texts == {}
    assert dump.settings["hooks"] == [RESID, PATTERN] and dump.settings["batch_size"] == 2
    assert dump.model["fingerprint"] == "f709bcc51033ff751a62183d0ad461d7" and "weights" not in dump.settings
    tokens = [list(row[mask]) for row, mask in zip(dump.tokens, dump.mask)]
    assert tokens == [row[-2:] for row in ROWS]
