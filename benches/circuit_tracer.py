"""Times circuit-tracer's attribution on a random model of GPT-2 small's width, for comparison with hooklens.

    pip install torch==2.9.1 circuit-tracer==0.5.0 transformer-lens==3.2.1 transformers==4.57.3 safetensors==0.8.0
    python benches/circuit_tracer.py make FOLDER
    python benches/circuit_tracer.py run FOLDER --tokens 64 [--max-nodes 1024] [--batch-size 256] [--threads 2] [--seed 0]

`make` writes 0.8 GB: a model with Llama's architecture (12 layers, d_model 768, 12 heads, d_mlp 3072, 8192 tokens, f32)
as `config.json` and `model.safetensors`, prompts as FOLDER/prompt_TOKENS.txt for hooklens, and, in FOLDER/transcoders,
a set of transcoders with 4096 ReLU latents per layer, from `ln2.hook_normalized` to `hook_mlp_out`. About 25 to 60
latents fire at each position. The transcoders' outputs have about the norm of the MLPs' outputs, but do not approximate
them.

`run` prints one line of JSON. `seconds` is the time of `circuit_tracer.attribute` alone, with the model loaded and
after an untimed call for a prompt of 16 tokens and 16 nodes. `cpu_seconds` is the CPU time that all threads spent in
it; if it is less than `seconds`, other programs took the cores. `peak_mb` is the maximum resident memory during the
timed call, `loaded_mb` the memory after loading, and `extra_mb` the difference. Decoders are read from the file when
needed, which is the default. `active` is the number of active latents, and `nodes` the number of all nodes in the
graph. Prompts are random tokens: 1, which is a special token to circuit-tracer, followed by NumPy's
default_rng(seed).integers(2, 8192, tokens - 1). A prompt of 256 tokens takes more than 24 GB in batches of 256, and
about 16 GB in batches of 64.
"""

import argparse
import json
import logging
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from unittest import mock

sys.path.pop(0)  # otherwise, this file would be imported instead of the package with the same name
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
warnings.simplefilter("ignore")

import numpy as np
import torch
from safetensors.torch import save_file

LAYERS, WIDTH, HEADS, MLP, VOCABULARY, LATENTS, ACTIVE, BOS = 12, 768, 12, 3072, 8192, 4096, 32, 1
HOOKS = ("ln2.hook_normalized", "hook_mlp_out")


def make(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=4096, rms_norm_eps=1e-5,
        bos_token_id=BOS, eos_token_id=2, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder, max_shard_size="4GB")
    (folder / "generation_config.json").unlink()

    for tokens in (16, 64, 256, 2300):
        (folder / f"prompt_{tokens}.txt").write_text(",".join(map(str, prompt(tokens, 0).tolist())))

    # Record the activations that the transcoders read and that the MLPs write, on random prompts.
    inputs, outputs = [], []

    def keep(module, given, made):
        inputs.append(given[0])
        outputs.append(made)

    for block in model.model.layers:
        block.mlp.register_forward_hook(keep)
    prompts = torch.randint(2, VOCABULARY, (64, 64))
    prompts[:, 0] = BOS
    with torch.no_grad():
        model(prompts)
    (folder / "transcoders").mkdir(exist_ok=True)
    for layer in range(LAYERS):
        x, out = (value[layer][:, 1:].flatten(0, 1) for value in (inputs, outputs))  # norm weights are 1, so the input is the normalized stream
        encoder = torch.randn(LATENTS, WIDTH) / WIDTH**0.5
        ordered = (x @ encoder.T).sort(dim=0, descending=True).values
        cut = ordered[round(len(x) * ACTIVE / LATENTS)]
        mean_square = (ordered - cut).relu().pow(2).sum(1).mean()
        decoder = torch.randn(LATENTS, WIDTH) * out.norm(dim=-1).mean() / (mean_square * WIDTH) ** 0.5
        state = dict(W_enc=encoder, b_enc=-cut, W_dec=decoder, b_dec=torch.zeros(WIDTH))
        save_file({name: value.contiguous() for name, value in state.items()}, folder / f"transcoders/layer_{layer}.safetensors")
    settings = f"model_name: {folder.name}\nmodel_kind: transcoder_set\nfeature_input_hook: {HOOKS[0]}\n"
    (folder / "transcoders/config.yaml").write_text(settings + f"feature_output_hook: {HOOKS[1]}\nscan: random\n")


class Tokenizer:
    """A stand-in for a tokenizer, with the methods that attribution needs."""

    all_special_ids = [BOS]
    bos_token_id = pad_token_id = eos_token_id = BOS
    padding_side, vocab_size = "right", VOCABULARY

    def decode(self, tokens):
        return " ".join(str(token) for token in np.atleast_1d(np.asarray(tokens)))


def load(folder):
    from circuit_tracer.replacement_model.replacement_model_transformerlens import TransformerLensReplacementModel
    from circuit_tracer.utils import hf_utils
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    c = hf.config
    config = HookedTransformerConfig(
        n_layers=c.num_hidden_layers, d_model=c.hidden_size, n_ctx=c.max_position_embeddings, n_heads=c.num_attention_heads,
        d_head=c.hidden_size // c.num_attention_heads, d_vocab=c.vocab_size, d_mlp=c.intermediate_size, act_fn=c.hidden_act,
        eps=c.rms_norm_eps, normalization_type="RMS", gated_mlp=True, positional_embedding_type="rotary",
        rotary_dim=c.hidden_size // c.num_attention_heads, rotary_base=c.rope_theta, rotary_adjacent_pairs=False,
        device="cpu",
    )  # fmt: skip
    model = TransformerLensReplacementModel(config).eval()
    steps = "fold_ln center_writing_weights center_unembed fold_value_biases".split()
    model.load_and_process_state_dict(convert_llama_weights(hf, config), **dict.fromkeys(steps, False))
    model.tokenizer = Tokenizer()
    tokens = prompt(16, 0)
    with torch.no_grad():
        assert (model(tokens) - hf(tokens[None]).logits).abs().max() < 1e-4, "TransformerLens differs from transformers"

    place = folder / "transcoders"
    with (
        mock.patch.object(hf_utils, "hf_hub_download", lambda repo_id, filename, **_: str(place / filename)),
        mock.patch.object(hf_utils, "snapshot_download", lambda *_, **__: str(place)),
    ):
        transcoders, _ = hf_utils.load_transcoder_from_hub("random/transcoders", use_cache=False)
    model._configure_replacement_model(transcoders)
    return model


def prompt(count, seed):
    return torch.tensor([BOS, *np.random.default_rng(seed).integers(2, VOCABULARY, count - 1).tolist()])


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak(threading.Thread):
    """Maximum resident memory of this process while it runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.largest, self.stopped = resident(), threading.Event()

    def run(self):
        while not self.stopped.wait(0.01):
            self.largest = max(self.largest, resident())


def run(folder, args):
    import ctypes
    import gc

    from circuit_tracer import attribute

    torch.set_num_threads(args.threads)
    model = load(folder)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    loaded = resident()
    attribute(prompt(16, args.seed + 1), model, batch_size=16, max_feature_nodes=16)
    gc.collect()

    peak = Peak()
    peak.start()
    tokens, settings = prompt(args.tokens, args.seed), dict(batch_size=args.batch_size, max_feature_nodes=args.max_nodes)
    start, start_cpu = time.perf_counter(), time.process_time()
    graph = attribute(tokens, model, verbose=args.verbose, **settings)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    peak.stopped.set()
    peak.join()
    report = {
        "program": "circuit-tracer",
        "tokens": args.tokens,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "active": len(graph.active_features),
        "selected": len(graph.selected_features),
        "nodes": len(graph.adjacency_matrix),
        "loaded_mb": round(loaded),
        "peak_mb": round(peak.largest),
        "extra_mb": round(peak.largest - loaded),
        "max_nodes": args.max_nodes,
        "batch_size": args.batch_size,
        "threads": args.threads,
        "seed": args.seed,
        "torch": torch.__version__,
    }
    print(json.dumps(report), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("folder", type=Path)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--tokens", type=int, required=True)
    running.add_argument("--max-nodes", type=int, default=1024)
    running.add_argument("--batch-size", type=int, default=256)
    running.add_argument("--threads", type=int, default=2)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--verbose", action="store_true", help="circuit-tracer's own messages and progress")
    args = parser.parse_args()
    if not getattr(args, "verbose", False):
        logging.disable(logging.WARNING)
        os.environ["TQDM_DISABLE"] = "1"
    if args.command == "make":
        args.folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(2)
        make(args.folder)
    else:
        run(args.folder, args)


if __name__ == "__main__":
    main()
