"""Sweeping resid_pre in TransformerLens and in hooklens.

    pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1 datasets==3.6.0 "huggingface-hub<1" "pyarrow<20"
    cargo bench --bench patching --no-run
    python benches/compare_patching.py PATH_OF_THE_BENCH_PROGRAM

GPT-2 small's shape, f32, 12 layers by 16 positions; the two prompts differ in every token, so that no patch is
one by what is there already. The two take turns.
"""

import re
import subprocess
import sys
import time

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig, patching

ROUNDS = 2


def row(seed):
    return torch.tensor([[(i * 7919 + seed * 31 + 13) % 50257 for i in range(16)]])


def figures(command):
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(ms) for name, ms in re.findall(r"^(.*) (\d+) ms$", said, re.M)}


torch.set_grad_enabled(False)
config = HookedTransformerConfig(
    n_layers=12, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_mlp=3072, d_vocab=50257,
    act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu",
)
model = HookedTransformer(config).eval()
_, clean = model.run_with_cache(row(0))
theirs, ours = [], []
for _ in range(ROUNDS):
    start = time.perf_counter()
    patching.get_act_patch_resid_pre(model, row(1), clean, lambda logits: logits[0, -1, 17] - logits[0, -1, 42])
    theirs.append((time.perf_counter() - start) * 1e3)
    ours.append(figures([sys.argv[1]])["patching resid_pre"])
print(f"TransformerLens {min(theirs):.0f} ms, hooklens {min(ours):.0f} ms: {min(ours) / min(theirs):.3f} of the time")
