"""Compares hooklens with tiny random versions of every causal and sequence-to-sequence model in transformers.

    pip install torch transformers safetensors
    python scripts/sweep_families.py target/release/hooklens                 # one line per model: equal, refused, different
    python scripts/sweep_families.py target/release/hooklens --vary 300      # random settings for the equal ones

Each model is built from its configuration class with small sizes, gets random weights (including norms and biases), and
is saved. Then `hooklens parity` compares its logits. `refused` is followed by the reason why hooklens does not load the
model, and `not built` means that the installed transformers itself can't build the model at such a size. The exit code
is 1 if any model is different. `--json FILE` saves the outcomes.
"""

import argparse
import collections
import inspect
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
warnings.simplefilter("ignore")

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, TOKENS = 97, 9
# Small values for the sizes in configurations.
SIZES = dict(
    hidden_size=32, d_model=32, n_embd=32, embed_dim=32, dim=32, width=32, model_dim=32, embedding_size=32,
    word_embed_proj_dim=32,
    num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2, encoder_layers=2, decoder_layers=2, num_decoder_layers=2,
    num_encoder_layers=2, n_head=4, n_heads=4, num_attention_heads=4, num_heads=4, encoder_attention_heads=4,
    decoder_attention_heads=4, num_decoder_attention_heads=4, num_encoder_attention_heads=4, num_key_value_heads=2,
    num_kv_heads=2, head_dim=8, d_kv=8, kv_channels=8, intermediate_size=40, ffn_dim=40, d_ff=40, n_inner=40, encoder_ffn_dim=40,
    decoder_ffn_dim=40, ffn_hidden_size=40, moe_intermediate_size=12, shared_expert_intermediate_size=20, vocab_size=VOCABULARY,
    max_position_embeddings=64, n_positions=64, n_ctx=64, max_seq_len=64, num_experts=4, num_local_experts=4, n_routed_experts=4,
    moe_num_experts=4, num_experts_per_tok=2, moe_k=2, n_group=2, topk_group=1, n_shared_experts=1, q_lora_rank=12, kv_lora_rank=12,
    qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, first_k_dense_replace=1, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, decoder_start_token_id=1, sliding_window=5, window_size=5, attention_window=4, rotary_dim=4,
    original_max_position_embeddings=64, vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8,
    decoder_vocab_size=VOCABULARY, n_mels=8, chunk_size=8, expand_ratio=2, state_size=8, ssm_state_size=8,
    moe_num_shared_experts=1, moe_topk=2, num_shared_experts=1, dense_intermediate_size=40, mlp_hidden_size=40,
)  # fmt: skip
# Overrides of the sizes above, by model type. None keeps the configuration class's default.
OWN = {
    "dots1": dict(n_group=1, topk_group=1, n_shared_experts=1),
    "hunyuan_v1_dense": dict(head_dim=8),
    "hunyuan_v1_moe": dict(head_dim=8, moe_topk=2),
    "ministral": dict(head_dim=8),
    "nemotron": dict(num_key_value_heads=2),
    "deepseek_v2": dict(head_dim=None, num_key_value_heads=4),
    "deepseek_v3": dict(head_dim=None, num_key_value_heads=4),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "phi3": dict(original_max_position_embeddings=64),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, clip_qkv=8.0), ffn_config=dict(ffn_hidden_size=40, moe_num_experts=4, moe_top_k=2)),
    "gpt_oss": dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False)),
}
GEMMA4 = dict(
    global_head_dim=12, num_global_key_value_heads=1, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2,
    top_k_experts=2, final_logit_softcapping=5.0,
)  # fmt: skip
# For models with recurrent state: one recurrent layer, then one attention layer.
NETS = dict(
    layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
    linear_value_head_dim=8,
)  # fmt: skip
OWN |= {name: NETS for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")}
OWN["granitemoehybrid"] = dict(
    layer_types=["mamba", "attention"], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=6, position_embedding_type="rope",
    shared_intermediate_size=20,
)  # fmt: skip
OWN |= {"gemma4_text": GEMMA4 | dict(num_kv_shared_layers=2), "gemma4_unified_text": GEMMA4}
# The configuration contains one configuration per stack, without their classes.
OWN["t5gemma"] = {stack: {name: SIZES[name] for name in (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "max_position_embeddings", "sliding_window", "vocab_size", "pad_token_id", "bos_token_id", "eos_token_id",
)} for stack in ("encoder", "decoder")}  # fmt: skip
# Settings that a forward pass on token ids does not use, or that would change the kind of model.
NOT_VARIED = re.compile(
    r"use_cache|output_|return_dict|is_(encoder_)?decoder|chunk_size|torchscript|tie_encoder|cross_attention|gradient|use_bfloat16|"
    r"tf_legacy|pruned|_attn_|remove_invalid|early_stopping|do_sample|use_mamba|reorder|upcast|return_|scale_attn_by|training"
)
ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh", "relu2", "quick_gelu", "tanh"]
ROTATIONS = [
    None,
    dict(rope_type="linear", factor=3.0),
    dict(rope_type="dynamic", factor=2.0),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
]


def families():
    """Model types with their text class, causal models first."""
    for names in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        yield from names.items()


def accepted(kind):
    """Names of the fields that a configuration takes."""
    names = set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "__dataclass_fields__", {}))
    return names | set(getattr(kind, "attribute_map", {}))


def held(config, name, default):
    """A configuration's value, or the default if layers have different values, which transformers signals with an error
    of its own.
    """
    try:
        return getattr(config, name, default)
    except (RuntimeError, ValueError):
        return default


def tiny_fields(kind):
    """Small sizes for the fields of this configuration and of its sub-configurations."""
    known = accepted(kind)
    fields = {name: value for name, value in SIZES.items() if name in known}
    own = kind()
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if name in known and (part := type(getattr(own, name, None))) and hasattr(part, "model_type"):
            fields[name] = tiny_fields(part)
    # Grouped queries only in families whose default configuration sets a number of key-value heads.
    if held(own, "num_key_value_heads", 0) is None:
        fields.pop("num_key_value_heads", None)
    # Settings that disable a feature are kept.
    for name in ("sliding_window", "q_lora_rank", "n_inner", "n_shared_experts", "topk_group", "n_group", "head_dim"):
        if name in fields and held(own, name, 0) is None:
            fields.pop(name)
    if "layer_types" in known and getattr(own, "layer_types", None):
        kinds = list(dict.fromkeys(own.layer_types))
        fields["layer_types"] = (kinds * 2)[:2]
    fields |= OWN.get(kind.model_type, {})
    return {name: value for name, value in fields.items() if value is not None}


def tiny(model_type, changes):
    kind = CONFIG_MAPPING[model_type]
    return kind(**tiny_fields(kind) | changes)


@torch.no_grad()
def randomize(model):
    for name, x in model.named_parameters():
        # Sinusoidal embeddings are not weights, so they are not saved.
        if not x.requires_grad:
            continue
        *_, module, kind = ["", *name.split(".")]
        norm = kind in ("weight", "w", "scale") and ("ln" in module or "norm" in module.lower())
        x.copy_(norm + 0.2 * torch.randn(x.shape))
    for name, x in model.named_buffers():
        if name.endswith("layer_scalar"):
            x.copy_(1.0 + 0.2 * torch.randn(x.shape))


@torch.no_grad()
def outcome(program, model_type, name, changes, seed):
    """One of `equal`, `refused`, `different` or `not built`, with the reason."""
    torch.manual_seed(seed)
    try:
        config = tiny(model_type, changes)
        kind = getattr(transformers, name)
        # Parts without small settings keep their full size, so count parameters before they take memory.
        with torch.device("meta"):
            if sum(x.numel() for x in kind(config).parameters()) > 20_000_000:
                return "not built", "larger than 20 million weights"
        try:
            # Falcon's `eager` adds ALiBi's biases twice.
            attention = "sdpa" if model_type == "falcon" else "eager"
            model = kind._from_config(config, attn_implementation=attention)
        except ValueError:
            model = kind(config)
        # Apertus keeps parameters of its activation in bf16, whatever the dtype of the rest.
        model.float().eval()
        randomize(model)
        tokens = torch.randint(3, VOCABULARY, (2, TOKENS))
        dump = dict(tokens=tokens)
        if config.is_encoder_decoder:
            dump["decoder_tokens"] = torch.randint(3, VOCABULARY, (2, 4))
            out = model(input_ids=tokens, decoder_input_ids=dump["decoder_tokens"], use_cache=False)
        else:
            out = model(input_ids=tokens, use_cache=False)
        logits = out.logits if "logits" in out else out[0]
        if not logits.isfinite().all():
            return "not built", "transformers' logits are not finite"
        dump["logits"] = logits
    except Exception as error:
        return "not built", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
        except Exception as error:
            return "not built", f"not saved: {type(error).__name__}: {error}"[:150]
        reference = Path(folder, "reference.safetensors")
        save_file({key: value.contiguous().clone() for key, value in dump.items()}, reference)
        command = [program, "parity", "--model", folder, "--reference", str(reference), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 0:
        worst = max(one["relative"] for one in json.loads(done.stdout)["compared"])
        return "equal", f"{worst:.0e}"
    if done.stdout.startswith("{"):
        return "different", done.stderr.strip().splitlines()[0]
    why = " ".join(done.stderr.replace(folder, "MODEL").split()).removeprefix("error: ")
    return "refused", why.split("; supported ")[0][:220]


def varied(model_type, chance):
    """Random changes to a configuration's booleans, activation, epsilon, rotary settings and heads."""
    own, changes = CONFIG_MAPPING[model_type](), {}
    known = accepted(type(own))
    for name in sorted(known):
        value = held(own, name, None)
        if isinstance(value, bool) and not NOT_VARIED.search(name) and chance.random() < 0.3:
            changes[name] = not value
        elif re.search(r"act(ivation)?(_fn|_function)?$", name) and isinstance(value, str) and chance.random() < 0.5:
            changes[name] = chance.choice(ACTIVATIONS)
        elif re.search(r"eps(ilon)?$", name) and isinstance(value, float):
            changes[name] = chance.choice([1e-3, 1e-5, 1e-6])
    if "rope_scaling" in known and chance.random() < 0.5:
        changes["rope_scaling"] = chance.choice(ROTATIONS)
    elif "rope_parameters" in known and chance.random() < 0.5:
        kind = chance.choice(ROTATIONS) or dict(rope_type="default")
        changes["rope_parameters"] = dict(kind, rope_theta=chance.choice([100.0, 10000.0]))
    if "rope_theta" in known and chance.random() < 0.5:
        changes["rope_theta"] = chance.choice([50.0, 500000.0])
    if "num_key_value_heads" in known and chance.random() < 0.5:
        changes["num_key_value_heads"] = chance.choice([1, 2, 4])
    if "num_attention_heads" in known and chance.random() < 0.3:
        changes |= dict(num_attention_heads=2, num_key_value_heads=1) if "num_key_value_heads" in known else dict(num_attention_heads=2)
    if "sliding_window" in known and chance.random() < 0.3:
        changes["sliding_window"] = chance.choice([None, 3, 6])
    if "partial_rotary_factor" in known and chance.random() < 0.3:
        changes["partial_rotary_factor"] = chance.choice([0.5, 1.0])
    # Google's files say `gelu` but mean the tanh approximation, which hooklens uses; transformers 4.57 does not.
    if model_type == "gemma" and changes.get("hidden_act") == "gelu":
        del changes["hidden_act"]
    return changes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the hooklens program")
    parser.add_argument("--vary", type=int, metavar="N", help="test N random configurations of the families that agree")
    parser.add_argument("--only", action="append", help="a model type; may be given several times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    told, counts = [], collections.Counter()

    def tell(name, changes, kind, why, show=True):
        counts[kind] += 1
        told.append(dict(architecture=name, changes=changes, outcome=kind, why=why))
        if show:
            print(f"{kind:<10} {name:<42} {why}{f'   {changes}' if changes else ''}", flush=True)

    chosen = [(kind, name) for kind, name in families() if not args.only or kind in args.only]
    equal = []
    for model_type, name in chosen:
        kind, why = outcome(args.program, model_type, name, {}, zlib.crc32(name.encode()) + args.seed)
        tell(name, {}, kind, why, show=args.vary is None)
        equal += [(model_type, name)] if kind == "equal" else []
    print(f"{transformers.__version__}: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    if args.vary:
        counts.clear()
        chance = random.Random(args.seed)
        while counts["equal"] + counts["refused"] + counts["different"] < args.vary:
            model_type, name = chance.choice(equal)
            changes = varied(model_type, chance)
            kind, why = outcome(args.program, model_type, name, changes, chance.randrange(1 << 30))
            tell(name, changes, kind, why, show=kind == "different")
        print(f"{args.vary} configurations: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(1 if any(one["outcome"] == "different" for one in told) else 0)


if __name__ == "__main__":
    main()
