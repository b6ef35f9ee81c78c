"""Times edge attribution and faithfulness curves of EAP-IG, MIB and TransformerLens 4.3, for comparison with hooklens.

    python -m venv venv && venv/bin/pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1 datasets==3.6.0 "huggingface-hub<1" "pyarrow<20"
    python -m venv venv4 && venv4/bin/pip install torch==2.9.1 transformer-lens==4.3.0 transformers==5.23.0
    git clone https://github.com/hannamw/MIB-circuit-track && git -C MIB-circuit-track checkout b759df34433c9e31043ba9e02908ce0bf20e894f
    git clone https://github.com/hannamw/EAP-IG && git -C EAP-IG checkout 7af394a5662de8b23ad6154716a0cd3993d447a3
    export MIB_CIRCUIT_TRACK=MIB-circuit-track EAP_IG=EAP-IG
    venv/bin/python benches/circuits.py make FOLDER [--pairs 128] [--tokens 15] [--seed 0]
    venv/bin/python benches/circuits.py attribute FOLDER --pairs N [--batch-size 20] [--steps 5]
    venv/bin/python benches/circuits.py curve FOLDER --pairs N [--batch-size 20] [--intervention patching]
    venv4/bin/python benches/circuits.py transformer-lens-4 FOLDER --pairs N [--percentages 0.001,0.01,1]

`make` writes random weights with GPT-2 small's shape (standard deviation 0.02 with smaller output projections, as
transformers initializes them, and tied embeddings) as `config.json` and `model.safetensors`, and random pairs as
`pairs.jsonl`, which `hooklens attribute --pairs` reads: prompts of 15 ids, 5 of which differ in the corrupted prompt.
The metric is the logit difference at the last position.

`attribute` runs `eap.attribute.attribute` with "EAP-IG-inputs". It writes the scores to FOLDER/circuit.json
(`Graph.to_json`), which `curve` and `transformer-lens-4` read. `curve` runs MIB's `evaluate_area_under_curve`: ten
circuits, the empty circuit and the plain run. `attribute` and `curve` use token ids, without a tokenizer or a BOS
token, and run on the CPU instead of CUDA.

`transformer-lens-4` calls `faithfulness` for the same circuits (the edges at every position) and each pair, since it
takes one pair at a time. Each call also runs the corrupted prompt twice, the clean prompt, and the circuit without each
of the four classes of edges. It does not prune the circuits, which changes nothing if activations are patched.
`faithfulnesses` are computed from the mean metrics, as MIB does, and agree with those of `curve`.

Each command except `make` prints one line of JSON. `seconds` is the time of the calls named above, with the model
loaded and after one untimed run of the model. `cpu_seconds` is the CPU time that all threads spent in them; if it is
less than `seconds`, other programs took the cores. `peak_mb` is the maximum resident memory in that time, `loaded_mb`
the memory before, and `extra_mb` the difference.
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
import types
from functools import partial
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import numpy as np
import torch
import transformers

PERCENTAGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # evaluate_area_under_curve's


def make(args):
    torch.manual_seed(args.seed)
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(args.folder)
    (args.folder / "generation_config.json").unlink(missing_ok=True)
    draw = np.random.default_rng(args.seed)
    with open(args.folder / "pairs.jsonl", "w") as file:
        for _ in range(args.pairs):
            clean = draw.integers(0, 50257, args.tokens)
            corrupted = clean.copy()
            corrupted[draw.choice(args.tokens, min(5, args.tokens), replace=False)] = draw.integers(0, 50257, min(5, args.tokens))
            answer, wrong = draw.choice(50257, 2, replace=False).tolist()
            line = dict(clean=clean.tolist(), corrupted=corrupted.tolist(), answer=answer, wrong=wrong)
            file.write(json.dumps(line) + "\n")


def read_pairs(args):
    lines = (args.folder / "pairs.jsonl").read_text().splitlines()
    assert args.pairs <= len(lines), f"pairs.jsonl has {len(lines)} pairs"
    return [json.loads(line) for line in lines[: args.pairs]]


def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1e3


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(run):
    """The result of `run`, and its time and memory."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    loaded, start, cpu = status("VmRSS"), time.perf_counter(), cpu_seconds()
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        made = run()
    figures = dict(seconds=time.perf_counter() - start, cpu_seconds=cpu_seconds() - cpu, peak_mb=status("VmHWM"), loaded_mb=loaded)
    figures["extra_mb"] = figures["peak_mb"] - loaded
    return made, {name: round(value, 3 if "seconds" in name else 0) for name, value in figures.items()}


def say(args, figures, **more):
    about = {name: value for name, value in vars(args).items() if name not in ("folder", "seed")}
    print(json.dumps(about | figures | more))


def reference(args):
    """Prepares EAP-IG and MIB to run on the CPU with token ids, and loads the model."""
    sys.path[:0] = [os.environ["MIB_CIRCUIT_TRACK"], os.environ["EAP_IG"] + "/src"]
    # This module chooses colors for drawings and needs matplotlib.
    sys.modules["eap.visualization"] = types.SimpleNamespace(get_color=None, generate_random_color=None)
    import eap.attribute
    import eap.evaluate
    import eap.utils
    from MIB_circuit_track.dataset import collate_EAP
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    def tokens_as_given(model, prompts, max_length=None):
        tokens = torch.tensor(prompts)
        mask = torch.ones_like(tokens)
        return tokens, mask, mask.sum(1), tokens.shape[1]

    for module in (eap.attribute, eap.evaluate, eap.utils):
        module.tokenize_plus = tokens_as_given
    zeros = torch.zeros
    torch.zeros = lambda *args, **kwargs: zeros(*args, **kwargs | {"device": "cpu"})

    hf = transformers.GPT2LMHeadModel.from_pretrained(args.folder)
    c = hf.config
    config = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_ctx=c.n_positions, n_heads=c.n_head, d_head=c.n_embd // c.n_head,
        d_mlp=4 * c.n_embd, d_vocab=c.vocab_size, act_fn=c.activation_function, eps=c.layer_norm_epsilon, normalization_type="LN",
        device="cpu", init_weights=False,
    )  # fmt: skip
    model = HookedTransformer(config).eval()
    none = dict.fromkeys(("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases"), False)
    model.load_and_process_state_dict(convert_gpt2_weights(hf, config), **none)
    # As in MIB's run_evaluation.py.
    for flag in ("use_split_qkv_input", "use_attn_result", "use_hook_mlp_in", "ungroup_grouped_query_attention"):
        setattr(model.cfg, flag, True)
    pairs = [(pair["clean"], pair["corrupted"], [pair["answer"], pair["wrong"]]) for pair in read_pairs(args)]
    with torch.inference_mode():
        model(torch.tensor([pairs[0][0]]))
    return model, torch.utils.data.DataLoader(pairs, batch_size=args.batch_size, collate_fn=collate_EAP)


def attribute(args):
    model, loader = reference(args)
    from eap.attribute import attribute
    from eap.graph import Graph
    from MIB_circuit_track.metrics import get_metric

    graph = Graph.from_model(model)
    metric = partial(get_metric("logit_diff", "ioi"), mean=True, loss=True)
    _, figures = timed(lambda: attribute(model, graph, loader, metric, "EAP-IG-inputs", ig_steps=args.steps))
    graph.to_json(args.folder / "circuit.json")
    say(args, figures)


def curve(args):
    model, loader = reference(args)
    from eap.graph import Graph
    from MIB_circuit_track.evaluation import evaluate_area_under_curve
    from MIB_circuit_track.metrics import get_metric

    graph = Graph.from_json(args.folder / "circuit.json")
    metric = partial(get_metric("logit_diff", "ioi"), mean=False, loss=False)
    values, figures = timed(
        lambda: evaluate_area_under_curve(model, graph, loader, metric, intervention=args.intervention, intervention_dataloader=loader)
    )
    counts, under, from_1, _, faithfulnesses = values
    say(args, figures, cpr=under, cmd=from_1, weighted_edge_counts=counts, faithfulnesses=faithfulnesses)


def bridge(args):
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:  # the bridge does not open a model without a tokenizer
        words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        special = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "a")
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return TransformerBridge.boot_transformers(str(args.folder), device="cpu", dtype=torch.float32, tokenizer=tokenizer).eval()


def transformer_lens_4(args):
    from transformer_lens.tools.analysis.attribution_patching import Node, faithfulness

    model = bridge(args)
    pairs = read_pairs(args)
    scores = {name: edge["score"] for name, edge in json.loads((args.folder / "circuit.json").read_text())["edges"].items()}
    ranked = sorted(scores, key=lambda name: abs(scores[name]), reverse=True)

    def node(name, reads, position):
        """The node that EAP-IG calls `input`, `m0` or `a0.h1`, or, as a receiver, `m0`, `a0.h1<q>` or `logits`."""
        if name in ("input", "logits"):
            return Node("embed", position) if name == "input" else Node("logits", position, layer=model.cfg.n_layers - 1)
        if name[0] == "m":
            return Node("mlp_in" if reads else "mlp_out", position, layer=int(name[1:]))
        layer, head = name[1:].split("<")[0].split(".h")
        return Node(f"{name[-2]}_input" if reads else "attn_head_out", position, layer=int(layer), head=int(head))

    def everywhere(edges):
        ends = [edge.split("->") for edge in edges]
        return [(node(a, False, at), node(b, True, at)) for at in range(len(pairs[0]["clean"])) for a, b in ends]

    circuits = [everywhere(ranked[: int(percentage * len(ranked))]) for percentage in args.percentages]
    examples = [(torch.tensor([pair["clean"]]), torch.tensor([pair["corrupted"]]), pair["answer"], pair["wrong"]) for pair in pairs]

    def measure():
        return [
            [faithfulness(model, clean, bad, lambda logits: logits[0, -1, a] - logits[0, -1, b], circuit) for clean, bad, a, b in examples]
            for circuit in circuits
        ]

    with torch.no_grad():
        model(examples[0][0])
    results, figures = timed(measure)
    faithfulnesses = []
    for of_circuit in results:
        gap = sum(x.full_metric - x.corrupt_metric for x in of_circuit)
        faithfulnesses.append(sum(x.recovered * (x.full_metric - x.corrupt_metric) for x in of_circuit) / gap)
    say(args, figures, faithfulnesses=faithfulnesses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "attribute", "curve", "transformer-lens-4"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=20, help="MIB's default is 20")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--intervention", default="patching", choices=["patching", "zero", "mean", "mean-positional"])
    parser.add_argument("--percentages", type=lambda text: [float(x) for x in text.split(",")], default=PERCENTAGES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    commands = {"make": make, "attribute": attribute, "curve": curve, "transformer-lens-4": transformer_lens_4}
    commands[args.command](args)


if __name__ == "__main__":
    main()
