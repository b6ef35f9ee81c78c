"""Runs notebooks, each in a new kernel, one after the other, and stores their outputs in them.

    pip install nbclient nbformat jupyter_client
    python notebooks/run.py [--check] [NOTEBOOK ...]

Without names, it runs all notebooks in this folder and in checks/. With --check, nothing is written. hooklens is
compiled once for all notebooks, in EVCXR_TMPDIR or in the system's temporary folder. python.ipynb needs the Python
package in the environment that runs this script.
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
    """Removes what differs from run to run: execution times, and the division of text output into pieces."""
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
    # No time limit per cell: the first one compiles hooklens.
    resources = {"metadata": {"path": str(path.parent)}}
    kernel = notebook.metadata.kernelspec.name
    client = NotebookClient(notebook, timeout=None, startup_timeout=600, kernel_name=kernel, resources=resources)
    outputs = lambda: [output for cell in notebook.cells for output in cell.get("outputs", [])]
    try:
        client.execute()
        # evcxr prints panics and errors that `?` returned, but does not report them as the cell's error.
        printed = [output.get("text", "") for output in outputs() if output.get("name") == "stderr"]
        if printed:
            raise CellExecutionError("a cell printed an error", "stderr", printed[0])
    except CellExecutionError:
        # Print what the kernel reported: the compiler's errors, or a panic.
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
    # One build folder, outside any cargo workspace. Kernels that share it must not run at the same time.
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
