"""Times the Python package, alternating with the same calls in Rust, and measures the cost of a hook and a recording.

    pip install wheels/hooklens-*.whl torch
    cargo build --release --bench python_bindings
    python benches/python_bindings.py MODEL target/release/deps/python_bindings-* [--tokens 256] [--rounds 3]

MODEL is a folder or a name; RESULTS.md has the times for GPT-2's shape.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

PYTHON = """
import json, sys, time
import numpy as np
from hooklens import HookedTransformer
model = HookedTransformer.from_pretrained(sys.argv[1])
tokens, repeats = int(sys.argv[2]), int(sys.argv[3])
ids = lambda shift: np.array([[(at * 31 + shift) % model.cfg.d_vocab for at in range(tokens)]])
def timed(work):
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds
clean, corrupted = ids(0), ids(7)
recording = timed(lambda: model.run_with_cache(clean))
sweep = timed(lambda: model.patching(clean, corrupted, answer=11, wrong=13).sweep("attn_head_out_all_pos"))
print(json.dumps({"recording": recording, "sweep": sweep}))
"""


def run(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def against_rust(given):
    """Prints the seconds that the same work takes from Python and from Rust, in alternating runs."""
    arguments = [given.model, str(given.tokens), str(given.repeats)]
    found = {"python": {"recording": [], "sweep": []}, "rust": {"recording": [], "sweep": []}}
    for _ in range(given.rounds):
        for side, command in (("rust", [given.program]), ("python", [sys.executable, "-c", PYTHON])):
            for name, seconds in run([*command, *arguments]).items():
                found[side][name] += seconds
    for name in ("recording", "sweep"):
        python, rust = (statistics.median(found[side][name]) for side in ("python", "rust"))
        print(f"{name}: Python {python:.4f} s, Rust {rust:.4f} s, ratio {python / rust:.3f}")


def empty_hook(torch):
    """Prints the microseconds that an empty hook adds to a run."""
    if torch:
        import torch as framework

        framework.set_grad_enabled(False)
        from hooklens.torch import HookedTransformer
    else:
        from hooklens import HookedTransformer
    model = HookedTransformer.from_pretrained("embedded:ioi")
    ids = model.to_tokens("When Mary and John went to the store, John gave a drink to")
    # All hooks are at one point, so that the run computes the same with and without them.
    names = ["blocks.1.hook_resid_pre"] * 100

    def empty(x, hook):
        pass

    def median(hooks):
        seconds = []
        for _ in range(300):
            start = time.perf_counter()
            model.run_with_hooks(ids, fwd_hooks=hooks)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    without, with_hooks = median([]), median([(name, empty) for name in names])
    kind = "torch" if torch else "NumPy"
    print(f"empty hook, {kind}: {(with_hooks - without) / len(names) * 1e6:.1f} us ({len(names)} hooks at one point)")


def gigabyte(torch):
    """Prints whether a recording of a gigabyte becomes arrays without a copy, and the time that this takes."""
    from hooklens import HookedTransformer, HookedTransformerConfig

    sizes = {"n_layers": 2, "d_model": 1024, "n_ctx": 64, "d_head": 64, "d_mlp": 64, "d_vocab": 100}
    cfg = HookedTransformerConfig(**sizes, act_fn="relu")
    if torch:
        from hooklens.torch import HookedTransformer  # noqa: F811
    model = HookedTransformer(cfg)
    ids = np.arange(512 * 64).reshape(512, 64) % 100
    points = ("hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
    names = [f"blocks.{layer}.{point}" for layer in range(2) for point in points]
    _, cache = model.run_with_cache(ids, names_filter=names, return_type=None)
    start = time.perf_counter()
    arrays = [cache[name] for name in names]
    seconds = time.perf_counter() - start
    address = (lambda x: x.data_ptr()) if torch else (lambda x: x.ctypes.data)
    equal = all(address(array) == cache._native.get(name).address for array, name in zip(arrays, names))
    size = sum(cache._native.get(name).nbytes for name in names) / 1e9
    kind = "torch" if torch else "NumPy"
    print(f"recording of {size:.2f} GB to {kind}: pointers equal: {equal}, {seconds * 1e3:.2f} ms")


def imported():
    """Prints the seconds of `import hooklens`, alone and with the native module, in a new Python process."""
    program = "import time; t = time.perf_counter(); import hooklens; a = time.perf_counter() - t; hooklens.HookedTransformer"
    program += "; b = time.perf_counter() - t; import sys; print(a, b, 'torch' in sys.modules)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split() for _ in range(5)]
    bare = "import time; t = time.perf_counter(); import numpy; print(time.perf_counter() - t)"
    numpy = [float(subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True).stdout) for _ in range(5)]
    print(
        f"import hooklens: {statistics.median(float(run[0]) for run in runs):.3f} s, with the native module "
        f"{statistics.median(float(run[1]) for run in runs):.3f} s, of which NumPy {statistics.median(numpy):.3f} s; "
        f"torch loaded: {runs[0][2]}"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("program", help="the Rust benchmark program")
    arguments.add_argument("--tokens", type=int, default=256)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    imported()
    for torch in (False, True):
        empty_hook(torch)
    against_rust(given)
    for torch in (False, True):
        gigabyte(torch)


if __name__ == "__main__":
    main()
