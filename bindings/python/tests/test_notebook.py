"""Runs the notebook's cells."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[3] / "notebooks/python.ipynb"


def test_notebook_runs():
    pytest.importorskip("pandas", reason="the notebook needs pandas")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code" and "spliced = " not in cell["source"])
    scope = {"__name__": "notebook"}
    for cell in code:
        exec(compile(cell, "a cell", "exec"), scope)
    assert scope["circuit"] and scope["nodes"].shape[0] > 100
