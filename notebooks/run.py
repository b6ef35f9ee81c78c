"""Runs notebooks from a clean kernel, one after the other, and writes their outputs back.

    pip install nbclient nbformat jupyter_client
    python notebooks/run.py [--check] [NOTEBOOK ...]

All notebooks of this folder and those of checks/, unless some are named. With --check nothing is written. hooklens is
compiled once for all of them, into EVCXR_TMPDIR or the system's folder for temporary files. python.ipynb needs the
Python package in the environment that runs this.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = pathlib.Path(__file__).resolve().parent


def tidy(cell):
    """What would differ from run to run and says nothing: times, and how the text came in pieces."""
    cell.metadata.pop("execution", None)
    whole = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and whole and whole[-1].get("name") == output.name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    if cell.cell_type == "code":
        cell.outputs = whole


def run(path, write):
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    # No time limit a cell: the first one compiles hooklens.
    resources = {"metadata": {"path": str(path.parent)}}
    kernel = notebook.metadata.kernelspec.name
    client = NotebookClient(notebook, timeout=None, startup_timeout=600, kernel_name=kernel, resources=resources)
    outputs = lambda: [output for cell in notebook.cells for output in cell.get("outputs", [])]
    try:
        client.execute()
        # The kernel goes on after a panic, so that one is no error of the cell.
        if any("panicked at" in output.get("text", "") for output in outputs()):
            raise CellExecutionError("a panic", "panic", "a cell panicked")
    except CellExecutionError:
        # What the kernel said of the cell: the compiler's errors, or a panic.
        for output in outputs():
            if output.output_type == "error" or output.get("name") == "stderr":
                print(output.get("text", "\n".join(output.get("traceback", []))), file=sys.stderr)
        raise
    if write:
        for cell in notebook.cells:
            tidy(cell)
        nbformat.write(notebook, path)
    print(f"{path.name}: {time.monotonic() - began:.0f} s, {path.stat().st_size / 1e3:.0f} kB", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing")
    arguments.add_argument("notebooks", nargs="*", type=pathlib.Path, metavar="NOTEBOOK")
    given = arguments.parse_args()
    # One folder for what is compiled, outside any cargo workspace. Kernels that share it must not run at the same time.
    os.environ.setdefault("EVCXR_TMPDIR", str(pathlib.Path(tempfile.gettempdir()) / "hooklens-notebooks"))
    pathlib.Path(os.environ["EVCXR_TMPDIR"]).mkdir(parents=True, exist_ok=True)
    failed = []
    for path in given.notebooks or [*sorted(FOLDER.glob("*.ipynb")), *sorted(FOLDER.glob("checks/*.ipynb"))]:
        try:
            run(path.resolve(), not given.check)
        except CellExecutionError as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed.append(path.name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
