"""Writes a randomly initialized model of a Llama 3 shape, tensor by tensor, so that it need not fit in memory.

    python benches/random_llama.py 8b FOLDER [--dtype bfloat16]
    python benches/random_llama.py 8b FOLDER --gguf q4_k        # FOLDER/model.gguf, without a vocabulary

Needs only numpy. Sizes are those of Llama 3.2 1B and 3B and Llama 3.1 8B and, as GGUF only, of GPT-2 (`gpt2`). In a
`q4_k` GGUF file, embedding and unembedding are `q6_k`, as in most published files.
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
    "gpt2": dict(hidden=768, layers=12, heads=12, kv_heads=12, mlp=3072, head=64, tied=True, factor=1.0),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("size", choices=SIZES)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
parser.add_argument("--gguf", choices=["q8_0", "q4_0", "q4_k"])
args = parser.parse_args()
size = SIZES[args.size]
VOCABULARY = 50257 if args.size == "gpt2" else 128256
if args.size == "gpt2" and not args.gguf:
    parser.error("gpt2 is written as GGUF; for safetensors see compare_models.py --random gpt2")

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



def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def field(name, value):
    """A metadata field of a GGUF file: a string, a float or an integer."""
    kinds = {str: (8, lambda v: text(v)), float: (6, lambda v: struct.pack("<f", v)), int: (4, lambda v: struct.pack("<I", v))}
    number, write = kinds[type(value)]
    return text(name) + struct.pack("<I", number) + write(value)


def gpt2_shapes():
    """GPT-2's tensors, with ggml's names."""
    wide, mlp = size["hidden"], size["mlp"]
    found = {"token_embd.weight": (VOCABULARY, wide), "position_embd.weight": (1024, wide)}
    found |= {"output_norm.weight": (wide,), "output_norm.bias": (wide,)}
    for layer in range(size["layers"]):
        norms = {"attn_norm": (wide,), "ffn_norm": (wide,)}
        maps = {"attn_qkv": (3 * wide, wide), "attn_output": (wide, wide), "ffn_up": (mlp, wide), "ffn_down": (wide, mlp)}
        for part, shape in (norms | maps).items():
            found |= {f"blk.{layer}.{part}.weight": shape, f"blk.{layer}.{part}.bias": shape[:1]}
    return found


def write_gguf():
    if args.size == "gpt2":
        shapes.clear()
        shapes.update(gpt2_shapes())
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for layer in range(size["layers"]):
        names |= {f"model.layers.{layer}.{own}": f"blk.{layer}.{ggml}" for own, ggml in parts.items()}
    # Type id, values per block, bytes per block, and offsets of the block's scales.
    kinds = {"q8_0": (8, 32, 34, [0]), "q4_0": (2, 32, 18, [0]), "q4_k": (12, 256, 144, [0, 2]), "q6_k": (14, 256, 210, [208])}
    fields = {
        "general.architecture": "llama", "llama.block_count": size["layers"], "llama.context_length": 131072,
        "llama.embedding_length": size["hidden"], "llama.feed_forward_length": size["mlp"],
        "llama.attention.head_count": size["heads"], "llama.attention.head_count_kv": size["kv_heads"],
        "llama.attention.key_length": size["head"], "llama.attention.value_length": size["head"],
        "llama.rope.dimension_count": size["head"], "llama.rope.freq_base": 500000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": VOCABULARY, "tokenizer.ggml.model": "no_vocab",
    }  # fmt: skip
    if args.size == "gpt2":
        of_llama = ("llama.rope", "llama.attention.head_count_kv", "llama.attention.layer_norm_rms")
        fields = {name.replace("llama.", "gpt2."): value for name, value in fields.items() if not name.startswith(of_llama)}
        fields |= {"general.architecture": "gpt2", "gpt2.context_length": 1024, "gpt2.attention.layer_norm_epsilon": 1e-5}
    infos, data, end = b"", [], 0
    for name, shape in shapes.items():
        plain = len(shape) == 1 or "position" in name
        wide = args.gguf if args.gguf != "q4_k" or "layers" in name or "blk" in name else "q6_k"
        number, values, of_block, scales = (0, 1, 4, None) if plain else kinds[wide]
        count = int(numpy.prod(shape)) // values * of_block
        infos += text(names.get(name.removesuffix(".weight"), name.removesuffix(".weight")) + ".weight" * name.endswith(".weight")) + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", number, end)
        data.append((count, of_block, scales))
        end += -(-count // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields)) + b"".join(field(*one) for one in fields.items()) + infos
    scale, least = (numpy.frombuffer(numpy.float16(number).tobytes(), numpy.uint8) for number in (2e-4, 1.5e-3))
    with open(args.folder / "model.gguf", "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32))
        for count, of_block, scales in data:
            if scales is None:
                block = numpy.frombuffer(numpy.ones(count // 4, numpy.float32).tobytes(), numpy.uint8)
            else:
                block = numpy.random.default_rng(0).integers(0, 256, (4096, of_block), numpy.uint8)
                for at in scales:
                    block[:, at : at + 2] = scale
                if of_block == 144:
                    # Minimums are 7.5 times the scales, so that the weights have a mean near zero.
                    block[:, 2:4] = least
                    block[:, 8:12] = block[:, 4:8]
                    block[:, 12:16] = block[:, 12:16] % 16 * 17
                block = block.reshape(-1)
            left = count
            while left > 0:
                file.write(block[:left].tobytes())
                left -= len(block)
            file.write(b"\0" * (-count % 32))
    print(f"{sum(int(numpy.prod(s)) for s in shapes.values()):,} parameters, {end:,} bytes")


if args.gguf:
    args.folder.mkdir(parents=True, exist_ok=True)
    write_gguf()
    raise SystemExit

config = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=size["hidden"], num_hidden_layers=size["layers"],
    num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"], head_dim=size["head"], intermediate_size=size["mlp"],
    vocab_size=VOCABULARY, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu",
    tie_word_embeddings=size["tied"], attention_bias=False, mlp_bias=False, torch_dtype=args.dtype,
    rope_scaling=dict(rope_type="llama3", factor=size["factor"], low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
)  # fmt: skip
args.folder.mkdir(parents=True, exist_ok=True)
(args.folder / "config.json").write_text(json.dumps(config, indent=1))

# One long row of normally distributed random numbers, read from a different offset for each tensor. Speed does not
# depend on the values.
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
