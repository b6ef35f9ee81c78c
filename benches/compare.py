"""Runs TransformerLens and hooklens in turns on GPT-2 small's shape and prints the ratios.

    pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1 datasets==3.6.0 "huggingface-hub<1" "pyarrow<20"
    cargo bench --bench gpt2_shape --no-run
    python benches/compare.py PATH_OF_THE_BENCH_PROGRAM [ROUNDS]

Both use every core, f32 and random weights. Turns alternate, so that a slow spell of the machine
falls on both; a ratio is the median of hooklens over the median of TransformerLens.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig, HookedTransformerKeyValueCache

program = sys.argv[1]
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5

config = HookedTransformerConfig(
    n_layers=12, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_mlp=3072, d_vocab=50257,
    act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu",
)
model = HookedTransformer(config)
model.eval()
torch.set_grad_enabled(False)


def row(length):
    return torch.tensor([[(i * 7919 + 13) % 50257 for i in range(length)]])


short, long = row(128), row(512)
work = {
    "forward_128": lambda: model(short),
    "forward_512": lambda: model(long),
    "record_all_128": lambda: model.run_with_cache(short),
    "record_resid_post_128": lambda: model.run_with_cache(short, names_filter=lambda n: n.endswith("hook_resid_post")),
}


def decode():
    """Milliseconds to generate 32 tokens behind 128, the prompt's own run left out."""
    cache = HookedTransformerKeyValueCache.init_cache(config, "cpu", 1)
    logits = model(short, past_kv_cache=cache, attention_mask=torch.ones_like(short))
    start = time.perf_counter()
    for _ in range(32):
        token = logits[:, -1:].argmax(-1)
        logits = model(token, past_kv_cache=cache, attention_mask=torch.ones_like(token))
    return (time.perf_counter() - start) * 1e3


theirs = {name: [] for name in [*work, "decode_32_behind_128"]}
ours = {}
for run in work.values():
    run()
for _ in range(rounds):
    for name, run in work.items():
        start = time.perf_counter()
        run()
        theirs[name].append((time.perf_counter() - start) * 1e3)
    theirs["decode_32_behind_128"].append(decode())
    lines = subprocess.run(
        [program], capture_output=True, text=True, check=True, env={**os.environ, "HOOKLENS_BENCH_ROUNDS": "3"}
    ).stdout.splitlines()
    for line in lines:
        if line.startswith("{"):
            result = json.loads(line)
            ours.setdefault(result["work"], []).append(result["median_ms"])

print(f"{'work':24} {'TransformerLens':>16} {'hooklens':>10} {'ratio':>7}   (median ms, {torch.get_num_threads()} threads)")
for name in theirs:
    a, b = statistics.median(theirs[name]), statistics.median(ours[name])
    print(f"{name:24} {a:16.1f} {b:10.1f} {b / a:7.2f}")
