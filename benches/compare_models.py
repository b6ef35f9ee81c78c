"""Runs Hugging Face, TransformerLens and `hooklens bench` alternately on the same weights and prints time ratios.

    pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1 datasets==3.6.0 "huggingface-hub<1" "pyarrow<20"
    cargo build --release
    python benches/compare_models.py FOLDER [--program target/release/hooklens] [--rounds 3] [--device flex,libtorch] [--peers cpu]
        [--work forward,decode] [--dtype file,bf16] [--peer-dtype bfloat16] [--peer NAME[=PYTHON]]...

FOLDER contains a model. TransformerLens is included if the model has GPT-2's architecture. `python
benches/compare_models.py --random gpt2 FOLDER` first writes random weights with GPT-2 small's shape there, and
`--random llama-1b` writes weights with the shape of Llama 3.2 1B in bf16. All libraries use every core. hooklens
computes in each dtype given by `--dtype`, where `file` means f32 arithmetic on weights as stored in the files; the
other libraries compute in f32 unless `--peer-dtype` is given. A ratio is hooklens's median time divided by the other
library's. Hugging Face neither records nor patches activations, so it is left out of those workloads. Several devices
for hooklens are measured alternately, too; `--peers cuda` puts the other libraries on the GPU.

`--peer` chooses the other libraries: `hugging-face`, `transformer-lens` (2.16.1) and `transformer-lens-4` (4.3's
`TransformerBridge`, for every architecture that it has). The two versions of TransformerLens need two environments, so a
peer may run in another environment, whose interpreter is given after the peer's name. To compare with both:

    python -m venv venv4 && venv4/bin/pip install torch==2.9.1 transformer-lens==4.3.0 transformers==5.23.0
    python benches/compare_models.py FOLDER --peer transformer-lens --peer transformer-lens-4=venv4/bin/python

transformers must be 5.23.0: with 5.24.0, 4.3 ignores key-value caches.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder")
parser.add_argument("--program", default="target/release/hooklens")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--device", default="flex", help="devices for hooklens, separated by commas")
parser.add_argument("--peers", default="cpu", help="device for the other libraries: cpu or cuda")
parser.add_argument("--work", default="forward,cache,gradients,decode,prefix,patch", help="as in hooklens bench")
parser.add_argument("--dtype", default="file", help="dtypes for hooklens, separated by commas: file, f32, bf16, f16")
parser.add_argument("--peer-dtype", default="float32", help="dtype for the other libraries, as named in torch")
parser.add_argument("--peer", action="append", help="a library to compare with: hugging-face, transformer-lens, transformer-lens-4")
parser.add_argument("--random", choices=["gpt2", "llama-1b"])
parser.add_argument("--serve", help=argparse.SUPPRESS)  # time this peer's workloads as named on standard input
args = parser.parse_args()

torch.set_grad_enabled(False)
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
if args.random == "llama-1b":
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=scaling,
        tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(args.folder)
elif args.random:
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(args.folder)
hf = AutoModelForCausalLM.from_pretrained(args.folder, attn_implementation="eager", dtype=getattr(torch, args.peer_dtype)).to(args.peers).eval()
vocabulary = hf.config.vocab_size


def row(seed, length):
    return [(i * 7919 + seed * 31 + 13) % vocabulary for i in range(length)]


short, long = torch.tensor([row(0, 128)], device=args.peers), torch.tensor([row(0, 512)], device=args.peers)
suffixes = torch.tensor([row(seed, 8) for seed in range(1, 33)], device=args.peers)


def since(start):
    if args.peers != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def timed(run):
    start = time.perf_counter()
    run()
    return since(start)


def hf_decode():
    out = hf(short, past_key_values=DynamicCache(), use_cache=True)
    start = time.perf_counter()
    for _ in range(32):
        token = out.logits[:, -1:].argmax(-1)
        out = hf(token, past_key_values=out.past_key_values, use_cache=True)
    return since(start)


def hf_prefix():
    cache = hf(torch.tensor([row(0, 256)], device=args.peers), past_key_values=DynamicCache(), use_cache=True).past_key_values
    start = time.perf_counter()
    cache.batch_repeat_interleave(32)
    hf(suffixes, past_key_values=cache, use_cache=True)
    return since(start)


FORWARD = ["forward, 128 tokens", "forward, 512 tokens"]
RECORD, DECODE = "recording every point, 128 tokens", "decoding 32 tokens after 128"
GRADIENTS = [f"gradients of every resid_pre, {n} tokens" for n in (16, 128, 512)]
PREFIX, PATCH = "32 x 8 tokens after 256 shared", f"patching {hf.config.num_hidden_layers} x 16 resid_pre"


def hugging_face():
    return {
        FORWARD[0]: lambda: timed(lambda: hf(short, use_cache=False)),
        FORWARD[1]: lambda: timed(lambda: hf(long, use_cache=False)),
        DECODE: hf_decode,
        PREFIX: hf_prefix,
    }


def of_both_versions(tl, patching):
    """Workloads that are the same in TransformerLens 2.16.1 and 4.3."""
    layers = hf.config.num_hidden_layers

    def patch():
        _, clean = tl.run_with_cache(torch.tensor([row(0, 16)], device=args.peers))
        metric = lambda logits: logits[0, -1, 0]
        return timed(lambda: patching.get_act_patch_resid_pre(tl, torch.tensor([row(1, 16)], device=args.peers), clean, metric))

    def gradients(length):
        tokens, seen = torch.tensor([row(0, length)], device=args.peers), {}

        def keep(value, hook):
            seen[hook.name] = value.detach()

        def track(value, hook):
            return value.requires_grad_(True)

        with torch.set_grad_enabled(True):
            start = time.perf_counter()
            points = [f"blocks.{layer}.hook_resid_pre" for layer in range(layers)]
            with tl.hooks(fwd_hooks=[("hook_embed", track)] + [(p, keep) for p in points], bwd_hooks=[(p, lambda g, hook: keep(g, hook)) for p in points]):
                tl(tokens)[0, -1, 0].backward()
            took = since(start)
        assert len(seen) == layers, seen.keys()
        return took

    for parameter in tl.parameters():
        parameter.requires_grad_(False)  # otherwise, the gradients of weights would be computed, too
    return {
        **{name: lambda n=n: gradients(n) for name, n in zip(GRADIENTS, (16, 128, 512))},
        FORWARD[0]: lambda: timed(lambda: tl(short)),
        FORWARD[1]: lambda: timed(lambda: tl(long)),
        RECORD: lambda: timed(lambda: tl.run_with_cache(short)),
        PATCH: patch,
    }


def transformer_lens():
    from transformer_lens import HookedTransformer, HookedTransformerConfig, HookedTransformerKeyValueCache, patching
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    c = hf.config
    config = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_ctx=c.n_positions, d_head=c.n_embd // c.n_head, n_heads=c.n_head,
        d_mlp=c.n_inner or 4 * c.n_embd, d_vocab=c.vocab_size, act_fn=c.activation_function, normalization_type="LN",
        eps=c.layer_norm_epsilon, device=args.peers,
    )  # fmt: skip
    tl = HookedTransformer(config).eval()
    tl.load_state_dict(convert_gpt2_weights(hf, config), strict=False)

    def decode():
        cache = HookedTransformerKeyValueCache.init_cache(config, args.peers, 1)
        logits = tl(short, past_kv_cache=cache, attention_mask=torch.ones_like(short))
        start = time.perf_counter()
        for _ in range(32):
            token = logits[:, -1:].argmax(-1)
            logits = tl(token, past_kv_cache=cache, attention_mask=torch.ones_like(token))
        return since(start)

    def prefix():
        cache = HookedTransformerKeyValueCache.init_cache(config, args.peers, 1)
        tl(torch.tensor([row(0, 256)], device=args.peers), past_kv_cache=cache, attention_mask=torch.ones(1, 256, dtype=torch.int, device=args.peers))
        start = time.perf_counter()
        for entry in cache:
            entry.past_keys, entry.past_values = entry.past_keys.repeat(32, 1, 1, 1), entry.past_values.repeat(32, 1, 1, 1)
        cache.previous_attention_mask = cache.previous_attention_mask.expand(32, -1)
        cache.freeze()
        tl(suffixes, past_kv_cache=cache, attention_mask=torch.ones(32, 8, dtype=torch.int, device=args.peers))
        return since(start)

    return of_both_versions(tl, patching) | {DECODE: decode, PREFIX: prefix}


def transformer_lens_4():
    from tokenizers import Tokenizer, models
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:  # the bridge does not open a model without a tokenizer
        special = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "a")
        words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(args.folder, device=args.peers, dtype=hf.dtype, tokenizer=tokenizer).eval()

    def cached(tokens, cache=None):
        return bridge(tokens, return_type="logits_and_cache", past_key_values=cache)

    _, filled = cached(short)
    assert filled.get_seq_length() == short.shape[1], "this version of transformers does not fill the bridge's cache"

    def decode():
        logits, cache = cached(short)
        start = time.perf_counter()
        for _ in range(32):
            logits, cache = cached(logits[:, -1:].argmax(-1), cache)
        return since(start)

    def prefix():
        _, cache = cached(torch.tensor([row(0, 256)], device=args.peers))
        start = time.perf_counter()
        cache.batch_repeat_interleave(32)
        cached(suffixes, cache)
        return since(start)

    return of_both_versions(bridge, patching) | {DECODE: decode, PREFIX: prefix}


def elsewhere(name, python):
    """A peer in another interpreter, which times a workload whenever it is sent the workload's name."""
    command = [python, __file__, args.folder, "--serve", name, "--peers", args.peers, "--peer-dtype", args.peer_dtype]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(request):
        print(request, file=child.stdin, flush=True)
        answer = child.stdout.readline()
        if not answer:
            sys.exit(f"{name} in {python} ended with code {child.wait()}")
        return json.loads(answer)

    return {work: lambda work=work: ask(work) for work in ask("")}


makers = {"hugging-face": hugging_face, "transformer-lens": transformer_lens, "transformer-lens-4": transformer_lens_4}
if args.serve:
    workloads, answers = makers[args.serve](), sys.stdout
    sys.stdout = sys.stderr  # what libraries print must not mix with the answers
    for line in sys.stdin:
        request = line.rstrip("\n")
        print(json.dumps(workloads[request]() if request else list(workloads)), file=answers, flush=True)
    sys.exit()
wanted = args.peer or ["hugging-face"] + (["transformer-lens"] if hf.config.model_type == "gpt2" else [])
peers = {}
for peer in wanted:
    name, _, python = peer.partition("=")
    if name not in makers:
        sys.exit(f"--peer {name}: expected one of {', '.join(makers)}")
    peers[name] = elsewhere(name, python) if python else makers[name]()

kinds = {"forward": FORWARD, "cache": [RECORD], "gradients": GRADIENTS, "decode": [DECODE], "prefix": [PREFIX], "patch": [PATCH]}
chosen = [name for kind in args.work.split(",") for name in kinds[kind]]
peers = {peer: {name: run for name, run in work.items() if name in chosen} for peer, work in peers.items()}
theirs = {peer: {name: [] for name in work} for peer, work in peers.items()}
ours = {(device, dtype): {} for device in args.device.split(",") for dtype in args.dtype.split(",")}
for number in range(args.rounds + 1):
    for peer, work in peers.items():
        for name, run in work.items():
            if name == PATCH and number not in (0, 1):
                continue  # a sweep takes long, and one run is enough
            took = run()
            if number > 0:  # the first round is a warm-up
                theirs[peer][name].append(took)
    for (device, dtype), times in ours.items() if number > 0 else []:
        command = [args.program, "bench", "--model", args.folder, "--rounds", "3", "--json", "--device", device]
        command += ["--work", args.work] + (["--dtype", dtype] if dtype != "file" else [])
        said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for timing in said["timings"]:
            times.setdefault(timing["name"], []).append(timing["median_ms"])
        missing = {name for work in peers.values() for name in work} - set(times)
        if missing:
            sys.exit(f"hooklens bench did not report {', '.join(sorted(missing))}; it reported {', '.join(times)}")

for (device, dtype), times in ours.items():
    where = f"hooklens on {device} ({dtype}), the others on {args.peers} ({args.peer_dtype})"
    print(f"median ms, {torch.get_num_threads()} threads, {where}")
    print(f"{'':38} {'hooklens':>10}" + "".join(f" {peer:>18} {'ratio':>6}" for peer in peers))
    for name, taken in times.items():
        mine = statistics.median(taken)
        line = f"{name:38} {mine:10.1f}"
        for peer in peers:
            others = theirs[peer].get(name)
            line += f" {statistics.median(others):18.1f} {mine / statistics.median(others):6.2f}" if others else " " * 26
        print(line)
