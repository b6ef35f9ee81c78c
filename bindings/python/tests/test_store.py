"""Tests that random batches contain every vector once, and that a saved state resumes at the same position."""

import itertools

import numpy as np
import pytest
from test_load import RESID, ROWS, dumped, run

from hooklens import ActivationStore, load


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return [dumped(folder, "--batch-size", 1, out="a"), dumped(folder, "--batch-size", 2, "--dtype", "f16", out="b")]


def rows(vectors):
    return sorted(map(bytes, np.ascontiguousarray(vectors, dtype=np.float32)))


def every(paths):
    return np.concatenate([vectors.astype(np.float32) for path in paths for vectors in load(path).vectors(RESID)])


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
@pytest.mark.parametrize("mix", [1, 2, 16])
def test_an_epoch_is_every_vector_once(dumps, batch_size, mix):
    store = ActivationStore(dumps, RESID, batch_size=batch_size, mix=mix)
    batches = list(store.batches())
    assert len(batches) == len(store) and {len(batch) for batch in batches[:-1]} <= {batch_size}
    assert store.shape == (64,) and (store.state["epoch"], store.state["batch"]) == (1, 0)
    assert rows(np.concatenate(batches)) == rows(every(dumps))
    assert list(store.batches()) == []


def test_seeds_and_epochs_differ(dumps):
    def made(seed, epochs=1):
        return np.concatenate(list(ActivationStore(dumps[0], RESID, seed=seed, batch_size=4).batches(epochs)))

    one, two = made(0), made(1)
    np.testing.assert_array_equal(one, made(0))
    assert not np.array_equal(one, two) and rows(one) == rows(two)
    first, second = np.split(made(0, 2), 2)
    np.testing.assert_array_equal(first, one)
    assert not np.array_equal(first, second) and rows(first) == rows(second)


@pytest.mark.parametrize("mix", [1, 2, 16])
def test_a_state_goes_on(dumps, mix):
    whole = list(ActivationStore(dumps, RESID, batch_size=3, mix=mix).batches(2))
    for stop in range(len(whole) + 1):
        store = ActivationStore(dumps, RESID, batch_size=3, mix=mix)
        before = list(itertools.islice(store.batches(2), stop))
        later = ActivationStore(dumps, RESID, batch_size=3, mix=mix, state=store.state)
        after = list(later.batches(2))
        assert len(before) + len(after) == len(whole)
        for given, wanted in zip(before + after, whole):
            np.testing.assert_array_equal(given, wanted)


def test_a_state_of_another_store_is_none(dumps):
    state = ActivationStore(dumps, RESID, batch_size=3).state
    for other, words in [
        (dict(batch_size=4), "batch_size: 3 in the state, 4 in this store"),
        (dict(batch_size=3, seed=1), "seed"),
        (dict(batch_size=3, readers=2), "readers"),
    ]:
        with pytest.raises(ValueError, match=words):
            ActivationStore(dumps, RESID, state=state, **other)
    with pytest.raises(ValueError, match="number of vectors"):
        ActivationStore(dumps[:1], RESID, batch_size=3, state=state)
    for batch in [-1, 10**6]:
        with pytest.raises(ValueError, match="there is no batch"):
            ActivationStore(dumps, RESID, batch_size=3, state={"epoch": 0, "batch": batch})
    with pytest.raises(ValueError, match="no dump was given"):
        ActivationStore([], RESID)


def test_readers_share(dumps):
    parts = [list(ActivationStore(dumps, RESID, reader=reader, readers=3).batches()) for reader in range(3)]
    assert rows(np.concatenate(sum(parts, []))) == rows(every(dumps))


def test_what_no_store_is(dumps, tmp_path):
    for arguments, error, words in [
        (dict(point="blocks.0.attn.hook_pattern"), ValueError, "one vector per token"),
        (dict(point="hook_resid_post"), KeyError, RESID),
        (dict(point=RESID, batch_size=0), ValueError, "at least 1"),
        (dict(point=RESID, reader=2, readers=2), ValueError, "no reader 2 of 2"),
    ]:
        with pytest.raises(error, match=words):
            ActivationStore(dumps, **arguments)
    last = dumped(tmp_path, "--positions", "-1", out="last")
    assert len(list(ActivationStore(last, RESID).batches())[0]) == 5


def test_dumps_of_two_models_are_refused(dumps, tmp_path):
    store = ActivationStore(dumps, RESID)
    assert store.model["bos"] == 0 and store.model["identity"] == load(dumps[1]).model["identity"]
    processed = dumped(tmp_path, "--process", "standard", out="processed")
    assert load(processed).model["processing"]["fold_value_biases"] is True
    one = dumped(tmp_path, "--process", "standard", out="processed.safetensors")
    assert load(one).model["identity"] == load(processed).model["identity"]
    for other in (processed, one):
        with pytest.raises(ValueError, match="come from a different model"):
            ActivationStore([dumps[0], other], RESID)
    assert len(list(ActivationStore([processed, one], RESID).batches()))


@pytest.mark.parametrize("side", ["right", "left"])
def test_places_are_those_of_the_files(tmp_path, side):
    labels = {number: row for number, row in enumerate(2 * ROWS)}
    for shard in ("1/2", "2/2"):
        dumped(tmp_path, "--batch-size", 2, "--padding-side", side, "--shard", shard, out="all")
    run("merge", "--out", tmp_path / "all")
    last = dumped(tmp_path, "--batch-size", 2, "--padding-side", side, "--positions=-2..", out="last")
    vectors = {}
    single = load(dumped(tmp_path, "--batch-size", 1, out="single"))
    for row, own in enumerate(single.batches([RESID])):
        for position, vector in enumerate(own[RESID][0]):
            vectors[row, position] = vectors[row + len(ROWS), position] = vector
    store = ActivationStore([tmp_path / "all", last], RESID, batch_size=3, mix=2, seed=1)
    seen = []
    for x, at in store.batches(places=True):
        assert len(x) == len(at.rows) == len(at.positions) == len(at.tokens)
        for vector, row, position, token in zip(x, *at):
            assert labels[row][position] == token
            np.testing.assert_allclose(vector, vectors[row, position], atol=1e-4)
            seen.append((row, position))
    every = [(row, position) for row, ids in enumerate(ROWS) for position in range(len(ids))]
    kept = [(row + len(ROWS), position) for row, ids in enumerate(ROWS) for position in range(len(ids))[-2:]]
    assert sorted(seen) == every + kept
    plain = np.concatenate(list(ActivationStore([tmp_path / "all", last], RESID, batch_size=3, mix=2, seed=1).batches()))
    placed = ActivationStore([tmp_path / "all", last], RESID, batch_size=3, mix=2, seed=1).batches(places=True)
    np.testing.assert_array_equal(plain, np.concatenate([x for x, _ in placed]))
