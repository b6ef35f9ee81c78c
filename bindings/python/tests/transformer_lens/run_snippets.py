"""Runs TransformerLens snippets on `hooklens.torch` and compares their results with TransformerLens's.

    pip install torch numpy safetensors einops pandas
    python bindings/python/tests/transformer_lens/run_snippets.py            # all
    python bindings/python/tests/transformer_lens/run_snippets.py 07 copying # whose names contain one of these

Every file in `snippets/` is a program as a user of TransformerLens 2.16.1 writes it: it uses a global `MODEL`, the name
of a model, and assigns a dictionary `results`. Only its import lines are changed before it runs: `transformer_lens`
becomes `hooklens.torch`, or the value of `HOOKLENS_SNIPPETS_MODULE`. With `HOOKLENS_SNIPPETS_MODULE=transformer_lens`,
TransformerLens itself is tested, which checks this program and the stored results.

A tensor is right if its shape is equal and no element differs by more than 1e-4 of the largest stored value. Numbers
are compared in the same way; integers, booleans and strings exactly.
"""

import contextlib
import io
import json
import math
import os
import re
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
TENSORS, VALUES = HERE / "goldens" / "tensors.safetensors", HERE / "goldens" / "values.json"
TOLERANCE = 1e-4

# Snippets that raise an error instead, with a pattern of its message. The message must name the replacement. At most
# four snippets may be listed.
REPLACED: dict[str, str] = {
    "12_toy_hook_points": "register_forward_hook.*docs/own_models.md",
    "30_train": "model.set_weight",
}
MAX_REPLACED = 4


def module():
    return os.environ.get("HOOKLENS_SNIPPETS_MODULE", "hooklens.torch")


def snippets():
    """Paths of the snippets, in order."""
    return sorted((HERE / "snippets").glob("[0-9][0-9]_*.py"))


def with_module(source, name):
    """Replaces TransformerLens in import lines by another module."""
    plain_import = re.compile(r"^(\s*)import transformer_lens$", flags=re.MULTILINE)
    source = plain_import.sub(rf"\1import {name} as transformer_lens", source)
    return re.sub(r"^(\s*(?:from|import) )transformer_lens(?=[.\s])", rf"\g<1>{name}", source, flags=re.MULTILINE)


def model_of(source):
    """Name of the model that a snippet runs on: `# Model: NAME` in its header, or else `ioi`."""
    named = re.search(r"^# Model: (\w+)$", source, flags=re.MULTILINE)
    return f"embedded:{named[1] if named else 'ioi'}"


def execute(path, name):
    """Executes a snippet on a module and returns its results. What it prints is discarded."""
    import torch

    source = path.read_text()
    program = compile(with_module(source, name), str(path), "exec")
    scope = {"__name__": "__main__", "MODEL": model_of(source)}
    grad = torch.is_grad_enabled()
    try:
        with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as stack:
            for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
                stack.enter_context(redirect(io.StringIO()))
            exec(program, scope)
    finally:
        torch.set_grad_enabled(grad)
    return {key: plain(value) for key, value in scope["results"].items()}


def plain(value):
    """Converts a result to a detached tensor, a list, or a Python value. A list of floats becomes a tensor."""
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(element, float) for element in value):
        return torch.tensor(value)
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    return value


def load_goldens():
    """Stored results, by snippet and name."""
    from safetensors.torch import load_file

    goldens = json.loads(VALUES.read_text())
    for key, tensor in load_file(TENSORS).items():
        snippet, name = key.split("/", 1)
        goldens[snippet][name] = tensor
    return goldens


def difference(got, golden, tolerance=TOLERANCE):
    """Describes how a result differs from the stored result; `None` if it does not."""
    import torch

    if isinstance(golden, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"is a {type(got).__name__}, expected a tensor"
        if got.shape != golden.shape:
            return f"has shape {list(got.shape)}, expected {list(golden.shape)}"
        if got.is_complex() != golden.is_complex() or got.is_floating_point() != golden.is_floating_point():
            return f"has dtype {got.dtype}, expected {golden.dtype}"
        if not golden.is_floating_point():
            wrong = int((got != golden).sum())
            return f"differs in {wrong} of {golden.numel()} elements" if wrong else None
        return distance(got.double(), golden.double(), tolerance)
    if isinstance(golden, float):
        if not isinstance(got, (int, float)):
            return f"is a {type(got).__name__}, expected a number"
        return distance(torch.tensor(float(got)).double(), torch.tensor(golden).double(), tolerance)
    if type(got) is not type(golden) or got != golden:
        return f"is {got!r}, expected {golden!r}"
    return None


def distance(got, golden, tolerance):
    """Describes how far a tensor is from the stored tensor, relative to the largest stored value."""
    finite = golden.isfinite()
    if not (equal(got[~finite], golden[~finite]) and bool(got[finite].isfinite().all())):
        return "differs in its infinite or undefined elements"
    if not finite.any():
        return None
    largest = golden[finite].abs().max().item()
    error = (got[finite] - golden[finite]).abs().max().item()
    if error <= tolerance * largest:
        return None
    relative = error / largest if largest else math.inf
    return f"differs by {error:.2e}, {relative:.2e} of the largest value {largest:.3g}"


def equal(a, b):
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def differences(results, golden, tolerance=TOLERANCE):
    """Describes every difference between the results of a snippet and the stored results."""
    found = [f"{name} is missing" for name in golden if name not in results]
    found += [f"{name} has no stored result" for name in results if name not in golden]
    for name in golden:
        if name in results and (text := difference(results[name], golden[name], tolerance)) is not None:
            found.append(f"{name} {text}")
    return found


def run(path, goldens, name=None):
    """Runs a snippet. Returns `right`, `replaced`, `wrong` or `error`, and a description."""
    try:
        found = differences(execute(path, name or module()), goldens[path.stem])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A panic of Rust code is not an Exception.
        pattern = REPLACED.get(path.stem)
        if pattern is not None and re.search(pattern, str(error)):
            return "replaced", str(error)
        return "error", traceback.format_exc()
    if path.stem in REPLACED:
        return "wrong", "runs, so remove it from REPLACED" if not found else "\n".join(found)
    return ("wrong", "\n".join(found)) if found else ("right", "")


def prepare(name):
    """Lets TransformerLens load the embedded models, if TransformerLens itself is tested."""
    if name == "transformer_lens":
        import reference
        import torch

        # The models are so small that threads only slow TransformerLens down.
        torch.set_num_threads(1)
        reference.install()


def summary(outcomes):
    counts = {kind: list(outcomes).count(kind) for kind in ("right", "replaced", "wrong", "error")}
    rest = ", ".join(f"{counts[kind]} {kind}" for kind in ("replaced", "wrong", "error") if counts[kind])
    return f"right {counts['right']} of {len(outcomes)}" + (f" ({rest})" if rest else "")


def main(words):
    prepare(module())
    goldens = load_goldens()
    outcomes = []
    for path in snippets():
        if words and not any(word in path.stem for word in words):
            continue
        start = time.perf_counter()
        outcome, text = run(path, goldens)
        outcomes.append(outcome)
        print(f"{outcome:8} {path.stem} ({time.perf_counter() - start:.2f} s)")
        if text:
            print("    " + text.strip().replace("\n", "\n    "))
    print(summary(outcomes))
    return 0 if outcomes and set(outcomes) <= {"right", "replaced"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
