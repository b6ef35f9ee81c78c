"""Times llama.cpp, to be run alternately with `hooklens bench --work decode` on the same file.

    pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36
    python benches/compare_llama_cpp.py model.gguf [threads=2] [tokens=32] [prompt=128]

Prints milliseconds per prompt token and per decoded token.
"""

import argparse
import ctypes
import statistics
import time

import llama_cpp

SILENT = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("path")
for name, default in {"threads": 2, "tokens": 32, "prompt": 128}.items():
    parser.add_argument(name, nargs="?", type=int, default=default)
args = parser.parse_args()
path, threads, count, length = args.path, args.threads, args.tokens, args.prompt

llama_cpp.llama_backend_init()
model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
params = llama_cpp.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = length + 128, length, threads, threads
context = llama_cpp.llama_init_from_model(model, params)


def step(ids, first):
    """Runs tokens after those already in the cache. Returns the time in seconds."""
    began = time.perf_counter()
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, first + i, 1, 0
        batch.logits[i] = i == len(ids) - 1
    assert llama_cpp.llama_decode(context, batch) == 0
    llama_cpp.llama_synchronize(context)
    llama_cpp.llama_batch_free(batch)
    return time.perf_counter() - began


prompt = step([3] * length, 0)
step([3], length)
times = [step([3], length + 1 + i) for i in range(count)]
print(f"prompt {prompt / length * 1e3:.1f} ms per token, decoding {statistics.median(times) * 1e3:.1f} ms per token (min {min(times) * 1e3:.1f})")
