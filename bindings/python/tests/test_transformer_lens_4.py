"""The driver for TransformerLens 4 agrees with TransformerLens 4 itself: `TransformerBridge.boot_transformers` on the
same weights.

The models are the tiny ones in `tests/fixtures` of the repository. Needs TransformerLens 4 and transformers 5.23; later
versions of transformers break generation with a key-value cache in TransformerLens 4.3.
"""

import gc
import importlib.metadata
import math
import os
import struct
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

try:
    _version = importlib.metadata.version("transformer_lens")
except importlib.metadata.PackageNotFoundError:
    _version = "0"
if int(_version.split(".")[0]) < 4:
    pytest.skip("needs transformer_lens 4 or later", allow_module_level=True)

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.driver_protocol import Driver, validate_driver
from transformer_lens.model_bridge.remote_bridge import RemoteBridge
from transformer_lens.model_bridge.sources._bridge_builder import (
    build_bridge_config_from_hf,
    configure_tokenizer,
)

from hooklens import HookedTransformer, HookedTransformerConfig
from hooklens.torch import HookedTransformer as TorchTransformer
from hooklens.transformer_lens_4 import HooklensDriver, boot_hooklens

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
FAMILIES = [
    "gpt2", "llama3", "gemma2", "qwen3", "mistral-window", "neox-parallel", "gptj", "opt", "phi", "mixtral", "granite",
    "cohere", "gguf/qwen2.gguf",
]  # fmt: skip
TOKENS = torch.tensor([[3, 7, 1, 9, 4, 2], [5, 5, 8, 11, 20, 6]])
TOLERANCE = 1e-4

# Activations that TransformerLens 4.3 computes differently: attention of GPT-J and OPT is computed by transformers, so
# its scores are the pattern and edits of both have no effect; transformers flattens the rows of OPT's second norm.
THEIRS_DIFFER = {
    "gptj": ("hook_attn_scores",),
    "opt": ("hook_attn_scores", "ln2.hook_scale", "ln2.hook_normalized"),
}
NOT_EDITABLE = {"gptj": ("hook_pattern",), "opt": ("hook_pattern",)}

pytestmark = pytest.mark.filterwarnings("ignore")
each_family = pytest.mark.parametrize("family", FAMILIES)
one_family = pytest.mark.parametrize("family", ["llama3"])


@pytest.fixture(scope="module", autouse=True)
def settings():
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    # The models are too small for several threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("transformer_lens_4")


@lru_cache
def tokenizer():
    """The bridge needs a tokenizer, which the tiny models lack: words that are the ids themselves."""
    words = Tokenizer(models.WordLevel({str(id): id for id in range(50)}, unk_token="1"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "1", "bos_token": "0", "eos_token": "0", "pad_token": "0"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


@lru_cache
def theirs(family, folder):
    """TransformerLens's own bridge."""
    words = folder / "tokenizer"
    if not words.exists():
        tokenizer().save_pretrained(words)
    source = save_qwen2(FIXTURES / family, folder) if family.endswith(".gguf") else FIXTURES / family
    # The bridge loads the tokenizer again, from where it was saved.
    loaded = transformers.AutoTokenizer.from_pretrained(words)
    options = {"device": "cpu", "dtype": torch.float32, "tokenizer": loaded}
    return TransformerBridge.boot_transformers(str(source), **options).eval()


@lru_cache
def ours(family):
    return boot_hooklens(FIXTURES / family)


def difference(a, b):
    """Largest difference, relative to the largest value. Scores of masked keys do not count."""
    assert a.shape == b.shape, (a.shape, b.shape)
    a, b = (torch.where(x < -1e30, 0.0, x.double()) for x in (a, b))
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def layer_points(bridge):
    """Names of the hook points of one layer that an intervention can change without a flag."""
    gated = ("hook_result", "_input", "hook_attn_in", "hook_mlp_in", "hook_expert_indices")
    names = [name for name in bridge._driver.supported_hook_points if name.startswith("blocks.0.")]
    return sorted(name for name in names if not name.endswith(gated))


# Same results.


@each_family
def test_driver_is_valid(family):
    driver = ours(family)._driver
    validate_driver(driver, after_bridge_construction=True)
    assert isinstance(driver, Driver)
    assert not any(driver.supports(feature) for feature in ("gradients", "parameters", "intervention_callbacks"))


@each_family
def test_activations(family, folder):
    logits, cache = theirs(family, folder).run_with_cache(TOKENS)
    our_logits, our_cache = ours(family).run_with_cache(TOKENS)
    assert difference(our_logits, logits) < TOLERANCE
    common = [name for name in our_cache.keys() if name in cache.keys()]
    common = [name for name in common if not name.endswith(THEIRS_DIFFER.get(family, ()))]
    found = {name: difference(our_cache[name], cache[name]) for name in common}
    assert max(found.values()) < TOLERANCE, {name: value for name, value in found.items() if value >= TOLERANCE}
    # TransformerLens's names and aliases, and nothing that it computes only if a flag is set.
    assert len(common) > 50
    expected = ["embed.hook_out", "hook_embed", "blocks.1.hook_in", "blocks.1.attn.q.hook_out", "blocks.1.attn.hook_q"]
    assert set(expected) <= found.keys()
    assert not any(name.endswith(("hook_result", "hook_q_input", "hook_mlp_in")) for name in our_cache.keys())


def specifications(name, width, pos):
    """Interventions on a hook point, with the same operations as functions."""
    value = torch.linspace(-1, 1, width) + (2 if name.endswith("hook_scale") else 0)
    # Attention has the axes batch, head, query and key.
    at = [slice(None), slice(None), slice(None)] if name.endswith(("scores", "pattern")) else [slice(None), slice(None)]
    at[-1] = slice(None) if pos is None else [pos] if isinstance(pos, int) else pos
    at = tuple(at)

    def suppress(x):
        x[at] = 0

    def scale(x):
        x[at] *= -0.5

    def add(x):
        x[at] += value

    def replace(x):
        x[at] = value

    made = [
        ({"op": "add", "value": value.numpy()}, add),
        ({"op": "set", "value": value}, replace),
        ({"op": "scale", "factor": -0.5}, scale),
        ({"op": "suppress"}, suppress),
    ]
    # Scores of masked keys would be finite, and a scale of zero would divide.
    made = made[:1] if name.endswith("scores") else made[:3] if name.endswith("hook_scale") else made
    return [(spec if pos is None else {**spec, "pos": pos}, function) for spec, function in made]


@each_family
def test_interventions(family, folder):
    bridge, own = theirs(family, folder), ours(family)
    plain, cache = bridge.run_with_cache(TOKENS)
    points = bridge.hook_dict
    skipped = (*THEIRS_DIFFER.get(family, ()), *NOT_EDITABLE.get(family, ()))
    positions = [None, 2, [0, -1]]
    thorough = {"blocks.0.hook_in", "blocks.0.attn.hook_z", "blocks.0.hook_mlp_out"}
    runs = 0
    for number, name in enumerate(["hook_embed", "embed.hook_out", *layer_points(own)]):
        if name not in cache.keys() or name.endswith(skipped):
            continue
        specs = [spec for pos in positions for spec in specifications(name, cache[name].shape[-1], pos)]
        # Most names are tested with only one of the specifications, in turn.
        for spec, function in specs if name in thorough else [specs[5 * number % len(specs)]]:

            def edit(activation, hook, function=function):
                activation = activation.clone()
                function(activation)
                return activation

            points[name].add_hook(edit)
            expected = bridge(TOKENS)
            points[name].remove_hooks()
            assert difference(own.forward(TOKENS, intervene={name: spec}), expected) < TOLERANCE, (name, spec)
            # Layer norms undo some of the edits.
            assert difference(expected, plain) > 1e-3 or name.endswith(("mid", "ln2.hook_in")), (name, spec)
            runs += 1
    assert runs > 50


@each_family
def test_interventions_and_recordings_together(family, folder):
    bridge, own = theirs(family, folder), ours(family)
    names = ["blocks.0.hook_attn_out", "blocks.1.hook_resid_post", "blocks.0.hook_resid_post"]
    hooks = [("blocks.0.attn.hook_z", lambda z, hook: z * 0), ("blocks.1.hook_mlp_out", lambda out, hook: out + 1)]
    with bridge.hooks(fwd_hooks=hooks):
        logits, cache = bridge.run_with_cache(TOKENS, names_filter=names)
    edits = {"blocks.0.attn.hook_z": {"op": "suppress"}, "blocks.1.hook_mlp_out": {"op": "add", "value": 1}}
    our_logits, our_cache = own.run_with_cache(TOKENS, names_filter=names, intervene=edits)
    assert difference(our_logits, logits) < TOLERANCE
    assert sorted(our_cache.keys()) == sorted(names)
    assert max(difference(our_cache[name], cache[name]) for name in names) < TOLERANCE
    # Interventions end with the run.
    assert difference(own.forward(TOKENS), bridge(TOKENS)) < TOLERANCE


@each_family
def test_generation(family, folder):
    bridge, driver = theirs(family, folder), ours(family)._driver
    options = {"do_sample": False, "stop_at_eos": False, "return_type": "tokens", "verbose": False}
    expected = bridge.generate(TOKENS, max_new_tokens=6, **options)
    result = driver.forward(TOKENS, max_new_tokens=6)
    assert result.new_tokens.tolist() == expected[:, TOKENS.shape[1] :].tolist()
    assert difference(result.logits, bridge(TOKENS)) < TOLERANCE
    assert driver.forward(TOKENS).new_tokens is None


@each_family
@pytest.mark.parametrize("pos", [None, 2])
def test_generation_with_interventions(family, folder, pos):
    bridge, driver = theirs(family, folder), ours(family)._driver
    name = "blocks.0.hook_mlp_out"

    def edit(out, hook):
        out = out.clone()
        out[:, slice(None) if pos is None else [pos]] *= -4
        return out

    tokens = TOKENS
    for _ in range(5):
        logits = bridge.run_with_hooks(tokens, fwd_hooks=[(name, edit)])
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    spec = {"op": "scale", "factor": -4} if pos is None else {"op": "scale", "factor": -4, "pos": pos}
    made = driver.forward(TOKENS, max_new_tokens=5, intervene={name: spec}).new_tokens
    assert made.tolist() == tokens[:, TOKENS.shape[1] :].tolist()
    # One position.
    last = driver.forward(TOKENS[:, :1], max_new_tokens=2, intervene={name: {**spec, "pos": 0}}).new_tokens
    assert last.shape == (2, 2)


@each_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(family, folder, side):
    bridge, own = theirs(family, folder), ours(family)
    mask = torch.ones_like(TOKENS)
    mask[1, :2] = 0
    mask = mask if side == "left" else mask.flip(1)
    real = mask.bool()
    names = ["blocks.1.hook_resid_post", "blocks.0.attn.hook_z"]
    logits, cache = bridge.run_with_cache(TOKENS, attention_mask=mask, names_filter=names)
    our_logits, our_cache = own.run_with_cache(TOKENS, attention_mask=mask, names_filter=names)
    assert difference(our_logits[real], logits[real]) < TOLERANCE
    for name in names:
        assert difference(our_cache[name][real], cache[name][real]) < TOLERANCE
    assert difference(our_logits[real], own.forward(TOKENS)[real]) > 1e-3 or side == "right"
    for per_token in (False, True):
        options = {"attention_mask": mask, "return_type": "loss", "loss_per_token": per_token}
        loss, our_loss = bridge(TOKENS, **options), own.forward(TOKENS, **options)
        scored = (real[:, 1:] & real[:, :-1]) if per_token else ...
        assert difference(our_loss[scored], loss[scored]) < TOLERANCE
    # Each row continues as it does alone.
    made = own._driver.forward(TOKENS, attention_mask=mask, max_new_tokens=4).new_tokens
    alone = [own._driver.forward(row[kept][None], max_new_tokens=4).new_tokens[0] for row, kept in zip(TOKENS, real)]
    assert made.tolist() == [row.tolist() for row in alone]


@each_family
def test_losses(family, folder):
    bridge, own = theirs(family, folder), ours(family)
    assert difference(own.forward(TOKENS, return_type="loss"), bridge(TOKENS, return_type="loss")) < TOLERANCE
    logits, loss = own.forward(TOKENS, return_type="both")
    assert difference(logits, bridge(TOKENS)) < TOLERANCE
    assert difference(loss, bridge(TOKENS, return_type="loss")) < TOLERANCE
    assert own.forward(TOKENS, return_type=None) is None


# TransformerLens's own adapters.


@lru_cache
def with_adapter(family, folder):
    """A bridge with the adapter and tokenizer of `boot_transformers`."""
    config = theirs(family, folder).original_model.config
    cfg = build_bridge_config_from_hf(config, config.architectures[0], family, torch.float32)
    adapter = ArchitectureAdapterFactory.select_architecture_adapter(cfg)
    assert type(adapter) is type(theirs(family, folder).adapter)
    words = configure_tokenizer(transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"), adapter.cfg)
    return RemoteBridge(adapter, words, HooklensDriver(FIXTURES / family))


@each_family
def test_adapter_of_transformer_lens(family, folder):
    bridge, own = theirs(family, folder), with_adapter(family, folder)
    text = "3 7 1 9 4 2"
    logits, cache = bridge.run_with_cache(text)
    our_logits, our_cache = own.run_with_cache(text)
    assert own.to_tokens(text).tolist() == bridge.to_tokens(text).tolist()
    assert difference(our_logits, logits) < TOLERANCE
    common = [name for name in our_cache.keys() if name in cache.keys()]
    common = [name for name in common if not name.endswith(THEIRS_DIFFER.get(family, ()))]
    assert len(common) > 50
    assert max(difference(our_cache[name], cache[name]) for name in common) < TOLERANCE
    seen = []
    own.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.hook_attn_out", lambda out, hook: seen.append(out))])
    _, cache = bridge.run_with_cache(TOKENS, names_filter="blocks.1.hook_attn_out")
    assert difference(seen[0], cache["blocks.1.hook_attn_out"]) < TOLERANCE


@one_family
def test_text(family, folder):
    for prepend_bos in (True, False):
        text = "3 7 1 9 4 2"
        bridge = boot_hooklens(FIXTURES / family, transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"))
        expected = theirs(family, folder)
        assert bridge.to_tokens(text).tolist() == expected.to_tokens(text).tolist()
        tokens = expected.to_tokens(text, prepend_bos=prepend_bos)
        assert bridge.to_tokens(text, prepend_bos=prepend_bos).tolist() == tokens.tolist()
        logits, _ = bridge.run_with_cache(text, prepend_bos=prepend_bos)
        assert difference(logits, expected(tokens)) < TOLERANCE


# Flags, inputs, memory.


@one_family
def test_flags(family, folder):
    bridge = boot_hooklens(FIXTURES / family)
    name = "blocks.0.attn.hook_result"
    with pytest.warns(UserWarning, match="gated"):
        assert name not in bridge.run_with_cache(TOKENS, names_filter=[name])[1].keys()
    bridge.cfg.use_attn_result = True
    for names in (None, [name]):
        recorded = bridge.run_with_cache(TOKENS, names_filter=names)[1][name]
        assert recorded.shape == (2, 6, bridge.cfg.n_heads, bridge.cfg.d_model)
        assert difference(recorded.sum(2), bridge.run_with_cache(TOKENS)[1]["blocks.0.hook_attn_out"]) < TOLERANCE


@one_family
def test_inputs(family):
    driver = ours(family)._driver
    expected = driver.forward(TOKENS).logits
    for ids in (TOKENS.numpy(), TOKENS.tolist(), TOKENS.int()):
        assert torch.equal(driver.forward(ids).logits, expected)
    assert torch.equal(driver.forward(TOKENS[0]).logits, driver.forward(TOKENS[:1]).logits)
    assert driver.forward(TOKENS, return_logits=False, capture=("hook_embed",)).logits is None


@one_family
def test_loaded_models(family):
    for kind in (HookedTransformer, TorchTransformer):
        model = kind.from_pretrained_no_processing(FIXTURES / family)
        model.add_hook("hook_embed", lambda embed, hook: embed * 0)
        bridge = boot_hooklens(model)
        assert torch.equal(bridge.forward(TOKENS), ours(family).forward(TOKENS))
        bridge.close()
        assert model(TOKENS.numpy()).shape == (2, 6, bridge.cfg.d_vocab)  # still the caller's


@one_family
def test_results_are_independent(family):
    own = ours(family)
    logits, cache = own.run_with_cache(TOKENS)
    kept = {name: cache[name].clone() for name in cache.keys()}
    cache["blocks.0.hook_resid_pre"].zero_()
    again, cache = own.run_with_cache(TOKENS)
    assert torch.equal(again, logits)
    assert all(torch.equal(cache[name], value) for name, value in kept.items())


@one_family
def test_logits_have_no_gradient(family):
    with torch.enable_grad():
        assert not ours(family).forward(TOKENS).requires_grad


def resident():
    """Memory of this process, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_close_releases_memory(folder):
    # 50 MiB of weights.
    cfg = HookedTransformerConfig(n_layers=4, d_model=512, n_ctx=16, d_head=64, d_vocab=50, act_fn="relu", seed=0)
    HookedTransformer(cfg).save_pretrained(folder / "large")
    gc.collect()
    gc.disable()
    try:
        left = []
        for _ in range(5):
            bridge = boot_hooklens(folder / "large")
            bridge.forward(TOKENS)
            bridge.close()
            bridge.close()
            left.append(resident())
    finally:
        gc.enable()
    assert left[-1] - left[0] < 50, left
    with pytest.raises(RuntimeError, match="closed"):
        bridge.forward(TOKENS)


# Features that the protocol does not support.


@one_family
def test_unsupported(family):
    bridge = ours(family)
    own = "hooklens.torch.HookedTransformer"
    for name, value in [("start_at_layer", 1), ("past_key_values", ()), ("inputs_embeds", TOKENS), ("position_ids", 0)]:
        with pytest.raises(NotImplementedError, match=f"{name}; use {own}"):
            bridge.forward(TOKENS, **{name: value})
    for name in ("stop_at_layer", "incl_bwd", "fwd_hooks", "bwd_hooks"):
        with pytest.raises(NotImplementedError, match=f"{name}; use {own}"):
            bridge._driver.forward(TOKENS, **{name: 1})
    with pytest.raises(NotImplementedError, match=f"function.*{own}.run_with_hooks"):
        bridge.forward(TOKENS, intervene={"hook_embed": lambda x: x})
    # Errors that the bridge itself raises.
    for attempt in (
        lambda: bridge.forward(TOKENS, stop_at_layer=1),
        lambda: bridge.run_with_cache(TOKENS, incl_bwd=True),
        lambda: bridge.run_with_hooks(TOKENS, bwd_hooks=[("hook_embed", lambda x, hook: x)]),
    ):
        with pytest.raises(NotImplementedError):
            attempt()


@one_family
def test_wrong_arguments(family):
    bridge = ours(family)
    for spec, message in (
        ("suppress", "needs 'op', one of suppress, scale, add, set"),
        ({"op": "double"}, "needs 'op', one of suppress, scale, add, set"),
        ({"op": "scale"}, "op 'scale' needs 'factor'"),
        ({"op": "set"}, "op 'set' needs 'value'"),
        ({"op": "suppress", "pos": 1.5}, "'pos' must be an integer or a list of integers"),
    ):
        with pytest.raises(ValueError, match=message):
            bridge.forward(TOKENS, intervene={"hook_embed": spec})
    with pytest.raises(KeyError, match="hook_resid_pre"):
        bridge.forward(TOKENS, intervene={"blocks.0.hook_resid_pree": {"op": "suppress"}})
    with pytest.raises(KeyError, match="blocks.9.hook_in"):
        bridge._driver.forward(TOKENS, capture=("blocks.9.hook_in",))
    with pytest.raises(IndexError):
        bridge.forward(TOKENS, intervene={"hook_embed": {"op": "suppress", "pos": 6}})
    with pytest.raises(ValueError, match="attention_mask must have the shape of input_ids"):
        bridge.forward(TOKENS, attention_mask=torch.ones(2, 1, 6, 6))
    with pytest.raises(ValueError, match="needs input_ids"):
        bridge._driver.forward()


@pytest.mark.parametrize("family", ["gpt2"])
def test_names_with_another_meaning(family, folder):
    bridge, name = ours(family), "blocks.0.ln1.hook_normalized"
    for attempt in (
        lambda: bridge.forward(TOKENS, intervene={name: {"op": "suppress"}}),
        lambda: bridge._driver.forward(TOKENS, capture=(name,)),
        lambda: bridge.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda x, hook: None)]),
    ):
        with pytest.raises(NotImplementedError, match="hook_normalized"):
            attempt()
    # In TransformerLens 4, the same activation is `ln1.hook_out`.
    own = HookedTransformer.from_pretrained_no_processing(FIXTURES / family).run_with_cache(TOKENS.numpy())[1][name]
    _, cache = theirs(family, folder).run_with_cache(TOKENS)
    assert difference(torch.tensor(own), cache["blocks.0.ln1.hook_out"]) < TOLERANCE
    assert difference(torch.tensor(own), cache[name]) > 0.01


# The GGUF file's weights for transformers.


def read_gguf(path):
    """The tensors of a GGUF file in float32, by name. Only the types of the file that is used here."""
    data, at = path.read_bytes(), 0

    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return found[0]

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length : at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind, count = take("I"), take("Q")
            return [value(kind) for _ in range(count)]
        return take("BbHhIif?  Qqd"[kind])

    assert data[:4] == b"GGUF"
    at = 8
    n_tensors, n_settings = take("Q"), take("Q")
    for _ in range(n_settings):
        text(), value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name, n_axes = text(), take("I")
        shape = [take("Q") for _ in range(n_axes)][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    start = math.ceil(at / 32) * 32
    tensors = {}
    for name, shape, kind, offset in infos:
        count, begin = math.prod(shape), start + offset
        if kind == 0:
            values = np.frombuffer(data, np.float32, count, begin)
        else:
            assert kind == 8, f"{name} has type {kind}"  # Q8_0: blocks of a scale and 32 values
            blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("values", "i1", 32)]), count // 32, begin)
            values = blocks["scale"].astype(np.float32)[:, None] * blocks["values"]
        tensors[name] = torch.tensor(values).reshape(shape)
    return tensors


def save_qwen2(path, folder):
    """Saves the file's weights as transformers' Qwen 2, whose settings are those of `tests/fixtures/gguf_files.py`."""
    config = transformers.Qwen2Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64,
        max_position_embeddings=64, vocab_size=320, bos_token_id=1, eos_token_id=0, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, rms_norm_eps=1e-3, tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    parts = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk": "model.layers",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    tensors = read_gguf(path).items()
    state = {".".join(parts.get(part, part) for part in name.split(".")): value for name, value in tensors}
    model = transformers.Qwen2ForCausalLM(config)
    lost = model.load_state_dict(state, strict=False)
    assert set(lost.missing_keys) <= {"lm_head.weight"} and not lost.unexpected_keys, lost
    model.tie_weights()
    golden = load_file(path.with_suffix(".safetensors"))
    assert difference(model.eval()(golden["ids"]).logits, golden["logits"]) < TOLERANCE
    model.save_pretrained(folder / path.stem)
    return folder / path.stem
