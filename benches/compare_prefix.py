"""Measures the time and memory of suffixes after a frozen prefix in TransformerLens and in hooklens.

    pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1 datasets==3.6.0 "huggingface-hub<1" "pyarrow<20"
    cargo bench --bench cache --no-run
    python benches/compare_prefix.py PATH_OF_THE_BENCH_PROGRAM

Runs 32 suffixes of 8 tokens after a prefix of 256, with GPT-2 small's shape in f32 and logits at every position.
TransformerLens requires one cache row per batch row. Its prefix is therefore either repeated, as if it had been run at
that batch size, or expanded as a view (a trick that users may know), which each layer then copies. Memory is the peak
minus the memory of the loaded model.
"""

import re
import resource
import subprocess
import sys
import time

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig, HookedTransformerKeyValueCache



def theirs(how):
    torch.set_grad_enabled(False)
    config = HookedTransformerConfig(
        n_layers=12, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_mlp=3072, d_vocab=50257,
        act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu",
    )
    model = HookedTransformer(config).eval()
    model(torch.tensor([[1, 2, 3]]))
    before = resident()
    cache = HookedTransformerKeyValueCache.init_cache(config, "cpu", 1)
    model(torch.tensor([row(0, 256)]), past_kv_cache=cache, attention_mask=torch.ones(1, 256, dtype=torch.int))
    for entry in cache:
        for part in ("past_keys", "past_values"):
            one = getattr(entry, part)
            setattr(entry, part, one.repeat(32, 1, 1, 1) if how == "repeated" else one.expand(32, -1, -1, -1))
    cache.previous_attention_mask = cache.previous_attention_mask.expand(32, -1)
    cache.freeze()
    suffixes = torch.tensor([row(seed, 8) for seed in range(1, 33)])
    ones = torch.ones(32, 8, dtype=torch.int)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model(suffixes, past_kv_cache=cache, attention_mask=ones)
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before
    print(f"TransformerLens, {how}: peak {peak:.0f} MB above the model; suffixes {min(times) * 1e3:.0f} ms")


def row(seed, length):
    return [(i * 7919 + seed * 31 + 13) % 50257 for i in range(length)]


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1e3


def figures(command):
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    print(said)
    return [int(re.search(f"{word} (\\d+)", said)[1]) for word in ("peak", "suffixes")]


if sys.argv[1] in ("repeated", "expanded"):
    theirs(sys.argv[1])
else:
    ours = figures([sys.argv[1], "forked"])
    for how in ("repeated", "expanded"):
        other = figures([sys.executable, __file__, how])
        print(f"  ratio of hooklens: memory {ours[0] / other[0]:.2f}, time {ours[1] / other[1]:.2f}")
