"""Times one layer with GPT-2 small's shape over long prompts, alternating with Hugging Face's sdpa attention.

    pip install torch==2.9.1 transformers==4.57.1
    cargo bench --bench long --no-run
    python benches/compare_long.py PATH_OF_THE_BENCH_PROGRAM [--tokens 8192,32768] [--rounds 3]

Both use every core and compute in f32. Hugging Face computes no logits, and hooklens only those of the last position,
for a vocabulary of 1,000 tokens. A ratio is hooklens's median time divided by Hugging Face's.
"""

import argparse
import re
import statistics
import subprocess
import time

import torch
from transformers import GPT2Config, GPT2Model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("--tokens", default="8192,32768")
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()

torch.set_grad_enabled(False)


def ours(tokens):
    said = subprocess.run([args.program, "attention", str(tokens)], capture_output=True, text=True, check=True).stdout
    return float(re.search(r"([\d.]+) s,", said)[1])


def theirs(model, tokens):
    prompt = torch.tensor([[(i * 7919 + 13) % 1000 for i in range(tokens)]])
    start = time.perf_counter()
    model(prompt, use_cache=False)
    return time.perf_counter() - start


for tokens in map(int, args.tokens.split(",")):
    config = GPT2Config(n_layer=1, vocab_size=1000, n_positions=tokens, attn_implementation="sdpa")
    model = GPT2Model(config).eval()
    theirs(model, 64)
    times = [(ours(tokens), theirs(model, tokens)) for _ in range(args.rounds)]
    own, other = (statistics.median(column) for column in zip(*times))
    print(f"{tokens} tokens: hooklens {own:.2f} s, Hugging Face {other:.2f} s, ratio {own / other:.2f}", flush=True)
