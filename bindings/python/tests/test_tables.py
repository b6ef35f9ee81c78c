"""Tests that tables can be read by other programs."""

import json
import subprocess

import numpy as np
import pytest
from test_load import PROGRAM, RESID, ROWS, run

import hooklens

FEATURES = json.loads(subprocess.run([PROGRAM, "doctor", "--json"], check=True, capture_output=True).stdout)["features"]
pytestmark = pytest.mark.skipif("arrow" not in FEATURES, reason="the program is built without the feature arrow")
COUNT = sum(map(len, ROWS))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder of tables, and the same data as safetensors."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    common = ["dump", "--model", "embedded:induction", "--prompts", folder / "prompts.jsonl", "--hooks", f"{RESID},blocks.0.attn.hook_z"]
    common += ["--batch-size", 2, "--no-share-prefix"]
    run(*common, "--tables", "--out", folder / "tables")
    run(*common, "--out", folder / "tensors")
    return folder / "tables", np.concatenate(list(hooklens.load(folder / "tensors").vectors(RESID)))


def check(rows, vectors, wanted):
    assert [tuple(row) for row in rows] == [(n, at, token) for n, row in enumerate(ROWS) for at, token in enumerate(row)]
    np.testing.assert_array_equal(np.array(list(vectors), dtype=np.float32), wanted)


def test_polars(tables):
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(tables[0] / "*.parquet").sort("prompt", "position")
    assert frame.schema[RESID] == polars.Array(polars.Float32, 64)
    assert frame.schema["blocks.0.attn.hook_z"] == polars.Array(polars.Float32, 64)
    check(frame.select("prompt", "position", "token").rows(), frame[RESID].to_list(), tables[1])


def test_duckdb(tables):
    duckdb = pytest.importorskip("duckdb")
    asked = f"""SELECT prompt, position, token, "{RESID}" FROM '{tables[0]}/*.parquet' ORDER BY prompt, position"""
    rows = duckdb.sql(asked).fetchall()
    check([row[:3] for row in rows], [row[3] for row in rows], tables[1])


def test_datasets(tables, tmp_path):
    datasets = pytest.importorskip("datasets")
    files = sorted(map(str, tables[0].glob("*.parquet")))
    read = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert len(read) == COUNT and read.features[RESID].length == 64
    read = read.sort(["prompt", "position"])
    check(zip(read["prompt"], read["position"], read["token"]), read[RESID], tables[1])


def test_tables_are_no_tensors(tables):
    with pytest.raises(ValueError, match="tables"):
        hooklens.load(tables[0])


def test_latents_and_halves(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    prompt = "When Mary and John went to the store"
    common = ["dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--prompt", prompt]
    run(*common, "--hooks", "*hook_sae_acts_post", "--tables", "--dtype", "f16", "--out", tmp_path / "tables")
    run(*common, "--hooks", "*hook_sae_acts_post", "--dtype", "f16", "--out", tmp_path / "tensors")
    dump = hooklens.load(tmp_path / "tensors")
    (name,) = dump.names
    read = parquet.read_table(tmp_path / "tables" / "shard-00000.parquet")
    for at in range(dump.tokens.shape[1]):
        indices, values = dump[name].at(0, at)
        assert read[f"{name}.indices"][at].as_py() == list(indices)
        np.testing.assert_array_equal(np.array(read[f"{name}.values"][at].as_py(), np.float16), values)


def test_what_no_table_holds(tmp_path):
    common = [PROGRAM, "dump", "--model", "embedded:induction", "--prompt", "red fox", "--tables"]
    for more, words in [
        (["--hooks", "*hook_pattern", "--out", "out"], "one row per token"),
        (["--hooks", "z0", "--dtype", "bf16", "--out", "out"], "not bf16"),
        (["--hooks", "z0", "--out", "out.safetensors"], "not a single file"),
        (["--hooks", "z0", "--logits", "last", "--out", "out"], "logits of the last token"),
    ]:
        done = subprocess.run([*common, *more], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert not list(tmp_path.iterdir())
