"""Writes a model of Llama 3's shapes with random weights, tensor by tensor: nothing is held in memory.

    python benches/random_llama.py 8b FOLDER [--dtype bfloat16]

Needs numpy only. Sizes are those of Llama 3.2 1B and 3B and Llama 3.1 8B.
"""

import argparse
import json
import pathlib
import struct

import numpy

SIZES = {
    "1b": dict(hidden=2048, layers=16, heads=32, kv_heads=8, mlp=8192, head=64, tied=True, factor=32.0),
    "3b": dict(hidden=3072, layers=28, heads=24, kv_heads=8, mlp=8192, head=128, tied=True, factor=32.0),
    "8b": dict(hidden=4096, layers=32, heads=32, kv_heads=8, mlp=14336, head=128, tied=False, factor=8.0),
}
VOCABULARY = 128256

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("size", choices=SIZES)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
args = parser.parse_args()
size = SIZES[args.size]

shapes = {"model.embed_tokens.weight": (VOCABULARY, size["hidden"]), "model.norm.weight": (size["hidden"],)}
if not size["tied"]:
    shapes["lm_head.weight"] = (VOCABULARY, size["hidden"])
for layer in range(size["layers"]):
    wide, narrow = size["heads"] * size["head"], size["kv_heads"] * size["head"]
    for part, shape in {
        "input_layernorm": (size["hidden"],), "post_attention_layernorm": (size["hidden"],),
        "self_attn.q_proj": (wide, size["hidden"]), "self_attn.k_proj": (narrow, size["hidden"]),
        "self_attn.v_proj": (narrow, size["hidden"]), "self_attn.o_proj": (size["hidden"], wide),
        "mlp.gate_proj": (size["mlp"], size["hidden"]), "mlp.up_proj": (size["mlp"], size["hidden"]),
        "mlp.down_proj": (size["hidden"], size["mlp"]),
    }.items():  # fmt: skip
        shapes[f"model.layers.{layer}.{part}.weight"] = shape

config = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=size["hidden"], num_hidden_layers=size["layers"],
    num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"], head_dim=size["head"], intermediate_size=size["mlp"],
    vocab_size=VOCABULARY, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu",
    tie_word_embeddings=size["tied"], attention_bias=False, mlp_bias=False, torch_dtype=args.dtype,
    rope_scaling=dict(rope_type="llama3", factor=size["factor"], low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
)  # fmt: skip
args.folder.mkdir(parents=True, exist_ok=True)
(args.folder / "config.json").write_text(json.dumps(config, indent=1))

# One long row of normal numbers, read from another place for each tensor: speed does not depend on the values.
width = 2 if args.dtype == "bfloat16" else 4
numbers = (numpy.random.default_rng(0).standard_normal(1 << 24, dtype=numpy.float32) * 0.02).view(numpy.uint32)
row = (numbers >> 16).astype(numpy.uint16) if width == 2 else numbers
one = numpy.full(size["hidden"], 0x3F80 if width == 2 else 0x3F800000, row.dtype)

header, end = {}, 0
for name, shape in shapes.items():
    count = int(numpy.prod(shape))
    header[name] = {"dtype": "BF16" if width == 2 else "F32", "shape": shape, "data_offsets": [end, end + count * width]}
    end += count * width
text = json.dumps(header).encode()
text += b" " * (-len(text) % 64)
with open(args.folder / "model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for number, shape in enumerate(shapes.values()):
        if len(shape) == 1:
            file.write(one.tobytes())
            continue
        left, start = int(numpy.prod(shape)), number * 7919 * 31 % len(row)
        while left > 0:
            part = row[start : start + left]
            file.write(part.tobytes())
            left, start = left - len(part), 0
print(f"{sum(int(numpy.prod(s)) for s in shapes.values()):,} parameters, {end:,} bytes")
