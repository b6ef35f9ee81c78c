"""Runs every notebook of this folder from a clean kernel and writes its outputs back.

    pip install nbclient nbformat jupyter_client
    python notebooks/run.py [NOTEBOOK ...]
"""

import pathlib
import sys

import nbformat
from nbclient import NotebookClient

folder = pathlib.Path(__file__).parent
for path in map(pathlib.Path, sys.argv[1:] or sorted(folder.glob("*.ipynb"))):
    notebook = nbformat.read(path, as_version=4)
    # No time limit a cell: the first one compiles hooklens.
    NotebookClient(notebook, timeout=None, kernel_name="rust", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)
    print(path, "ran")
