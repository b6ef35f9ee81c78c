"""Compares `hooklens.torch` with TransformerLens 2.16.1 on snippets from its documentation (see `run_snippets.py`)."""

import pytest

pytest.importorskip("torch", reason="the snippets need PyTorch")
pytest.importorskip("einops", reason="the snippets need einops")
pytest.importorskip("safetensors", reason="the stored results need safetensors")

import run_snippets


@pytest.fixture(scope="module")
def goldens():
    run_snippets.prepare(run_snippets.module())
    return run_snippets.load_goldens()


@pytest.mark.parametrize("path", run_snippets.snippets(), ids=lambda path: path.stem)
def test_snippet(path, goldens, record_property):
    outcome, text = run_snippets.run(path, goldens)
    record_property("outcome", outcome)
    if outcome not in ("right", "replaced"):
        pytest.fail(text, pytrace=False)


def test_goldens_belong_to_the_snippets(goldens):
    names = [path.stem for path in run_snippets.snippets()]
    assert len(names) == 40
    assert sorted(goldens) == names
    assert set(run_snippets.REPLACED) <= set(names)
    assert len(run_snippets.REPLACED) <= run_snippets.MAX_REPLACED


def test_comparison_finds_wrong_results():
    import torch

    golden = torch.tensor([[1.0, -2.0], [float("-inf"), 0.0]])
    assert run_snippets.difference(golden + 1.9e-4, golden) is None
    assert "differs by" in run_snippets.difference(golden + 2.1e-4, golden)
    assert "shape" in run_snippets.difference(golden[0], golden)
    assert "infinite" in run_snippets.difference(golden.nan_to_num(), golden)
    assert "a float" in run_snippets.difference(1.0, golden)
    assert run_snippets.difference(["a", 1], ["a", 1]) is None
    assert "expected" in run_snippets.difference(["a", 2], ["a", 1])
    assert "differs in 1" in run_snippets.difference(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert run_snippets.differences({"a": 1}, {"b": 1}) == ["b is missing", "a has no stored result"]


def test_errors_that_name_the_replacement(tmp_path, monkeypatch):
    path = tmp_path / "01_error.py"
    path.write_text("raise NotImplementedError('use train_model instead')")
    assert run_snippets.run(path, {})[0] == "error"
    monkeypatch.setitem(run_snippets.REPLACED, path.stem, "train_model")
    assert run_snippets.run(path, {})[0] == "replaced"
    monkeypatch.setitem(run_snippets.REPLACED, path.stem, "another")
    assert run_snippets.run(path, {})[0] == "error"
    path.write_text("results = {}")
    assert run_snippets.run(path, {path.stem: {}})[0] == "wrong"


def test_only_import_lines_change():
    source = 'import transformer_lens\nfrom transformer_lens.hook_points import HookPoint\nx = "transformer_lens"\n'
    changed = "import hooklens.torch as transformer_lens\nfrom hooklens.torch.hook_points import HookPoint\n"
    assert run_snippets.with_module(source, "hooklens.torch") == changed + 'x = "transformer_lens"\n'
