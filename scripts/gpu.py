"""Runs the measurements for gpu.sh, which describes the requirements."""

import datetime
import json
import math
import os
import platform
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

torch.set_grad_enabled(False)
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS_EACH", "150"))
BRANCHES, SHARED, NEW = 256, 2048, 64

# `kv` is the number of key-value heads. GPT-2's block has layer norms, learned positions and biases; Llama's has RMS
# norms, rotary embeddings and a gated MLP.
SHAPES = {
    "tiny": dict(kind="llama", layers=2, width=64, heads=4, kv=2, mlp=128, vocabulary=500, context=2304),
    "gpt2": dict(kind="gpt2", layers=12, width=768, heads=12, kv=12, mlp=3072, vocabulary=50257, context=2304),
    "llama-1b": dict(kind="llama", layers=16, width=2048, heads=32, kv=8, mlp=8192, vocabulary=128256, context=4096),
    "llama-8b": dict(kind="llama", layers=32, width=4096, heads=32, kv=8, mlp=14336, vocabulary=128256, context=4096),
}
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensors(shape):
    """Tensor names and shapes, as in Hugging Face's files."""
    d, mlp, vocabulary = shape["width"], shape["mlp"], shape["vocabulary"]
    if shape["kind"] == "gpt2":
        yield "wte.weight", (vocabulary, d)
        yield "wpe.weight", (shape["context"], d)
        for layer in range(shape["layers"]):
            at = f"h.{layer}."
            for name, wide in [("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)), ("mlp.c_fc", (d, mlp)), ("mlp.c_proj", (mlp, d))]:
                yield at + name + ".weight", wide
                yield at + name + ".bias", (wide[1],)
            for norm in ["ln_1", "ln_2"]:
                yield at + norm + ".weight", (d,)
                yield at + norm + ".bias", (d,)
        yield "ln_f.weight", (d,)
        yield "ln_f.bias", (d,)
        return
    kv = shape["kv"] * d // shape["heads"]
    yield "model.embed_tokens.weight", (vocabulary, d)
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}."
        for name, wide in [("q", (d, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, d))]:
            yield f"{at}self_attn.{name}_proj.weight", wide
        for name, wide in [("gate", (mlp, d)), ("up", (mlp, d)), ("down", (d, mlp))]:
            yield f"{at}mlp.{name}_proj.weight", wide
        yield at + "input_layernorm.weight", (d,)
        yield at + "post_attention_layernorm.weight", (d,)
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (vocabulary, d)


def config(shape):
    if shape["kind"] == "gpt2":
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": shape["layers"], "n_embd": shape["width"],
            "n_head": shape["heads"], "n_positions": shape["context"], "vocab_size": shape["vocabulary"],
            "n_inner": shape["mlp"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        }
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": shape["layers"],
        "hidden_size": shape["width"], "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv"],
        "intermediate_size": shape["mlp"], "vocab_size": shape["vocabulary"], "max_position_embeddings": shape["context"],
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    }


def write(shape, dtype, folder):
    """Writes random weights to a safetensors file. Returns their size in bytes."""
    header, end, size = {}, 0, torch.tensor([], dtype=TORCH[dtype]).element_size()
    for name, dims in tensors(shape):
        begin, end = end, end + math.prod(dims) * size
        header[name] = {"dtype": dtype.upper(), "shape": list(dims), "data_offsets": [begin, end]}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(config(shape)))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors(shape):
            norm = len(dims) == 1 and name.endswith("weight")
            values = torch.empty(dims, device=device).normal_(1.0 if norm else 0.0, 0.02, generator=generator)
            file.write(values.to(TORCH[dtype]).cpu().contiguous().view(torch.uint8).numpy().data)
    return end


class Peer:
    """The same model in plain eager PyTorch, with a KV cache that grows like Hugging Face's."""

    def __init__(self, shape, dtype, folder, device):
        self.shape, self.device = shape, device
        raw = (folder / "model.safetensors").read_bytes() if os.path.getsize(folder / "model.safetensors") < 1 << 30 else None
        with open(folder / "model.safetensors", "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
            self.weights = {}
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                if raw is None:
                    file.seek(8 + length + begin)
                data = bytearray(raw[8 + length + begin : 8 + length + end] if raw else file.read(end - begin))
                self.weights[name] = torch.frombuffer(data, dtype=TORCH[dtype]).reshape(entry["shape"]).to(device)
        if shape["kind"] == "llama":
            half = shape["width"] // shape["heads"] // 2
            angles = torch.arange(shape["context"])[:, None] * 500000.0 ** (-torch.arange(half) / half)
            self.cos, self.sin = angles.cos().to(device, TORCH[dtype]), angles.sin().to(device, TORCH[dtype])

    def rotate(self, x, past):
        cos, sin = (table[past : past + x.shape[2]] for table in (self.cos, self.sin))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def norm(self, x, name):
        if self.shape["kind"] == "gpt2":
            return torch.nn.functional.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], 1e-5)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weights[name + ".weight"]

    def attend(self, q, k, v, past):
        queries, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if queries > 1:
            hidden = torch.ones(queries, keys, dtype=torch.bool, device=self.device).triu(past + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    def __call__(self, tokens, cache):
        """Computes logits. `cache` is a list of keys and values by layer, which grows."""
        w, shape = self.weights, self.shape
        past = cache[0][0].shape[2] if cache else 0
        batch, length = tokens.shape
        heads = lambda x, count: x.view(batch, length, count, -1).transpose(1, 2)
        together = lambda z: z.transpose(1, 2).reshape(batch, length, -1)
        linear = torch.nn.functional.linear
        gpt2 = shape["kind"] == "gpt2"
        x = w["wte.weight"][tokens] + w["wpe.weight"][past : past + length] if gpt2 else w["model.embed_tokens.weight"][tokens]
        for layer in range(shape["layers"]):
            at = f"h.{layer}." if gpt2 else f"model.layers.{layer}."
            y = self.norm(x, at + ("ln_1" if gpt2 else "input_layernorm"))
            if gpt2:
                q, k, v = torch.addmm(w[at + "attn.c_attn.bias"], y.view(-1, y.shape[-1]), w[at + "attn.c_attn.weight"]).view(batch, length, -1).chunk(3, -1)
                q, k, v = (heads(part, shape["heads"]) for part in (q, k, v))
            else:
                q, k, v = (linear(y, w[f"{at}self_attn.{name}_proj.weight"]) for name in "qkv")
                q, k, v = heads(q, shape["heads"]), heads(k, shape["kv"]), heads(v, shape["kv"])
                q, k = self.rotate(q, past), self.rotate(k, past)
            if past:
                k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
                cache[layer] = (k, v)
            else:
                cache.append((k, v))
            z = together(self.attend(q, k, v, past))
            if gpt2:
                x = x + z @ w[at + "attn.c_proj.weight"] + w[at + "attn.c_proj.bias"]
                y = self.norm(x, at + "ln_2") @ w[at + "mlp.c_fc.weight"] + w[at + "mlp.c_fc.bias"]
                x = x + torch.nn.functional.gelu(y, approximate="tanh") @ w[at + "mlp.c_proj.weight"] + w[at + "mlp.c_proj.bias"]
            else:
                x = x + linear(z, w[at + "self_attn.o_proj.weight"])
                y = self.norm(x, at + "post_attention_layernorm")
                y = torch.nn.functional.silu(linear(y, w[at + "mlp.gate_proj.weight"])) * linear(y, w[at + "mlp.up_proj.weight"])
                x = x + linear(y, w[at + "mlp.down_proj.weight"])
        x = self.norm(x, "ln_f" if gpt2 else "model.norm")
        return linear(x, w["wte.weight"] if gpt2 else w["lm_head.weight"])

    def row(self, seed, length):
        return [(i * 7919 + seed * 31 + 13) % self.shape["vocabulary"] for i in range(length)]

    def measure(self):
        """Measures times in milliseconds, keyed by the workload names that `hooklens bench` uses."""
        def timed(run):
            run()
            taken = []
            for _ in range(ROUNDS):
                self.wait()
                start = time.perf_counter()
                run()
                self.wait()
                taken.append((time.perf_counter() - start) * 1e3)
            return sorted(taken)[len(taken) // 2]

        rows = lambda seeds, length: torch.tensor([self.row(seed, length) for seed in seeds], device=self.device)
        done = {f"forward, {length} tokens": timed(lambda: self(rows([0], length), [])) for length in (128, 512)}
        prompt = []
        first = self(rows([0], 128), prompt)[:, -1:].argmax(-1)

        def decode():
            token, cache = first, list(prompt)
            for _ in range(32):
                token = self(token, cache)[:, -1:].argmax(-1)

        done["decoding 32 tokens after 128"] = timed(decode)
        return done

    def wait(self):
        if self.device != "cpu":
            torch.cuda.synchronize()


class MemoryWatch:
    """Measures the peak GPU memory in use while a program runs, minus the memory that was in use before."""

    def __enter__(self):
        self.on, self.most = torch.cuda.is_available(), 0
        if self.on:
            self.before = self.used()
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return self

    def used(self):
        free, total = torch.cuda.mem_get_info()
        return total - free

    def watch(self):
        while self.on:
            self.most = max(self.most, self.used() - self.before)
            time.sleep(0.02)

    def __exit__(self, *_):
        self.on = False

    def __str__(self):
        return f"{self.most / 1e9:.1f} GB" if self.most else "-"


class Table:
    """Rows of the table by key, stored between runs of the script."""

    def __init__(self, out):
        self.out, self.kept = Path(out), Path(out + ".json")
        kept = json.loads(self.kept.read_text()) if self.kept.exists() else {"lines": {}, "peers": {}}
        # Times of plain PyTorch in milliseconds, by shape and dtype and by the workload names that `hooklens bench`
        # uses.
        self.lines, self.peers = kept["lines"], kept["peers"]

    def do(self, key, work):
        """Does the work unless an earlier run of the script has done it. A failure also becomes a row."""
        if key in self.lines:
            return
        print(key, flush=True)
        try:
            lines = work()
        except subprocess.TimeoutExpired:
            lines = [[key, f"timed out after {SECONDS:.0f} s", "", "", ""]]
        except Exception as error:
            told = str(error).strip().splitlines() or [type(error).__name__]
            lines = [[key, "failed: " + told[-1].replace("|", "/")[:200], "", "", ""]]
        self.lines[key] = lines
        part = self.kept.with_suffix(".part")
        part.write_text(json.dumps({"lines": self.lines, "peers": self.peers}))
        os.replace(part, self.kept)
        self.draw()

    def draw(self):
        text = f"Run on {datetime.date.today()}: {facts()}\n\n| what | hooklens | PyTorch eager | ratio | GPU memory |\n|---|---|---|---|---|\n"
        text += "".join("| " + " | ".join(line) + " |\n" for lines in self.lines.values() for line in lines)
        part = self.out.with_suffix(".part")
        part.write_text(text)
        os.replace(part, self.out)


def facts():
    cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] or ["no CUDA GPU"]
    return f"{', '.join(cards)}; torch {torch.__version__}, CUDA {torch.version.cuda}; {os.cpu_count()} cores, {platform.machine()}"


def call(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(done.stderr or f"exited with code {done.returncode}")
    return done.stdout


def devices(program):
    """Devices that the program lists, except for those on the CPU."""
    listed = json.loads(call(program, "info", "--devices", "--json"))["devices"]
    wanted = os.environ.get("DEVICES", "").split()
    own = [device for device in listed if (device["name"] in wanted if wanted else device["name"] not in ("flex", "libtorch"))]
    # A GPU that wgpu lists under two names is measured once.
    return [device for device in own if not (device["name"].startswith("wgpu") and any(other["name"].startswith(("vulkan", "metal")) for other in own))]


def parity(program, device, scratch):
    lines = []
    for name, tokens in [("embedded:induction", "0,51,59,9,51,59"), ("embedded:ioi", "1,2,3,4,5,6")]:
        reference = scratch / f"{name.split(':')[1]}.safetensors"
        if not reference.exists():
            call(program, "dump", "--model", name, "--device", "flex", "--tokens", tokens, "--hooks", "*", "--logits", "all", "--out", str(reference))
        for dtype in [dtype for dtype in ("f32", "f16", "bf16") if dtype in device["dtypes"]]:
            done = subprocess.run(
                [program, "parity", "--model", name, "--device", device["name"], "--reference", str(reference), "--dtype", dtype, "--json"],
                capture_output=True, text=True, timeout=SECONDS,
            )
            report = json.loads(done.stdout) if done.stdout.strip().startswith("{") else None
            if report is None:
                raise RuntimeError(done.stderr)
            worst = max(entry["relative"] for entry in report["compared"])
            lines.append([f"{device['name']}, {name} {dtype}: largest difference from the CPU's f32", f"{worst:.1e}", "", "", ""])
    return lines


def speed(program, device, shape, dtype, folder, work, peer):
    with MemoryWatch() as memory:
        said = call(program, "bench", "--model", str(folder), "--device", device, "--dtype", dtype, "--work", work, "--rounds", str(ROUNDS), "--json")
    lines = []
    for timing in json.loads(said)["timings"]:
        ours, theirs = timing["median_ms"], peer.get(timing["name"])
        beside = ["-", "-"] if theirs is None else [f"{theirs:.1f} ms", f"{ours / theirs:.2f}"]
        reserved = timing.get("device_bytes")
        card = f"{reserved / 1e9:.1f} GB reserved" if reserved and not memory.most else str(memory)
        lines.append([f"{device}, {shape} {dtype}: {timing['name']}", f"{ours:.1f} ms", *beside, card])
    return lines


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: gpu.sh OUT PROGRAM...")
    table, programs = Table(sys.argv[1]), sys.argv[2:]
    found = [(program, device) for program in programs for device in devices(program)]
    if not found:
        sys.exit("no device other than the CPU was found; list some in DEVICES")
    for program, device in found:
        types = ", ".join(device["dtypes"])
        table.do(f"{device['name']}", lambda: [[f"{device['name']}: {device['description']}", types, "", "", ""]])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for program, device in found:
            table.do(f"{device['name']} parity", lambda: parity(program, device, scratch))
        place = "cuda" if torch.cuda.is_available() else "cpu"
        for shape in os.environ.get("SHAPES", "gpt2 llama-1b llama-8b").split():
            for dtype in os.environ.get("DTYPES", "f32 f16 bf16").split():
                wanted = [(program, device["name"]) for program, device in found if dtype in device["dtypes"]]
                works = ["forward,decode", "cache", "prefix", "branches"]
                left = [key for _, device in wanted for key in (f"{device} {shape} {dtype} {work}" for work in works) if key not in table.lines]
                if not left:
                    continue
                folder = scratch / f"{shape}-{dtype}"
                folder.mkdir()
                size = write(SHAPES[shape], dtype, folder)
                which = f"{shape} {dtype}"

                def of_peer():
                    table.peers[which] = Peer(SHAPES[shape], dtype, folder, place).measure()
                    said = f"{which}, PyTorch on {place}, weights of {size / 1e9:.1f} GB"
                    return [[f"{said}: {name}", "", f"{taken:.1f} ms", "", ""] for name, taken in table.peers[which].items()]

                table.do(f"{which} PyTorch", of_peer)
                peer = table.peers.get(which, {})
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                for program, device in wanted:
                    for work in works:
                        table.do(f"{device} {shape} {dtype} {work}", lambda: speed(program, device, shape, dtype, folder, work, peer))
                for path in folder.iterdir():
                    path.unlink()
    table.draw()
    print(table.out.read_text())


if __name__ == "__main__":
    main()
