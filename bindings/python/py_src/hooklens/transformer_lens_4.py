"""A driver for TransformerLens 4: its `RemoteBridge`, with models that hooklens runs.

    from hooklens.transformer_lens_4 import HooklensDriver, boot_hooklens
    bridge = boot_hooklens("model.gguf")  # or RemoteBridge(adapter, tokenizer, HooklensDriver("model.gguf"))
    logits, cache = bridge.run_with_cache(tokens)
    bridge.forward(tokens, intervene={"blocks.3.hook_mlp_out": {"op": "scale", "factor": 0.0}})

Hook points have the names and meanings that they have in TransformerLens 4: both `blocks.0.attn.q.hook_out` and
`blocks.0.attn.hook_q`, for example. The protocol has neither gradients nor hooks that edit; for those, use
`hooklens.torch.HookedTransformer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ._model import HookedTransformer
from .torch import HookedTransformer as TorchTransformer

_OPERATIONS = {"suppress": None, "scale": "factor", "add": "value", "set": "value"}

# TransformerLens 4's names of hook points, and hooklens's names of the same points.
_NAMES = {"embed.hook_out": "hook_embed", "pos_embed.hook_out": "hook_pos_embed"}
# The same for points in a layer, without the prefix `blocks.<layer>.`
_LAYER_NAMES = {
    "hook_in": "hook_resid_pre",
    "hook_out": "hook_resid_post",
    "attn.q.hook_out": "attn.hook_q",
    "attn.k.hook_out": "attn.hook_k",
    "attn.v.hook_out": "attn.hook_v",
    "attn.o.hook_in": "attn.hook_z",
    "attn.hook_out": "hook_attn_out",
    "mlp.hook_in": "mlp.hook_in",
    "mlp.in.hook_out": "mlp.hook_pre",
    "mlp.out.hook_in": "mlp.hook_post",
    "mlp.hook_out": "mlp.hook_out",
    # Edits of these two change only what the MLP reads, not the residual stream.
    "ln2.hook_in": "hook_mlp_in",
    "hook_resid_mid": "hook_mlp_in",
}
_GATED_MLP = {"mlp.gate.hook_out": "mlp.hook_pre", "mlp.in.hook_out": "mlp.hook_pre_linear"}
_OUTPUT_NORMS = {"ln1_post.hook_out": "hook_attn_out", "ln2_post.hook_out": "hook_mlp_out"}

# Hook points that are computed only if a flag is set: `cfg.use_attn_result` and others.
_FLAGS = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}

# Arguments of a run that have no effect in hooklens.
_IGNORED = {"use_cache", "use_past_kv_cache", "output_attentions", "output_hidden_states"}
_REPLACEMENT = "hooklens.torch.HookedTransformer"
_REPLACEMENTS = {
    "stop_at_layer": f"{_REPLACEMENT}.forward(tokens, stop_at_layer=...)",
    "start_at_layer": f"{_REPLACEMENT}.forward(residual, start_at_layer=...)",
    "inputs_embeds": f"{_REPLACEMENT}.forward(residual, start_at_layer=0)",
    "past_key_values": f"{_REPLACEMENT}.forward(tokens, past_kv_cache=...)",
    "past_kv_cache": f"{_REPLACEMENT}.forward(tokens, past_kv_cache=...)",
    "incl_bwd": f"{_REPLACEMENT}.run_with_cache(tokens, incl_bwd=True)",
    "fwd_hooks": f"{_REPLACEMENT}.run_with_hooks(tokens, fwd_hooks=...)",
    "bwd_hooks": f"{_REPLACEMENT}.run_with_hooks(tokens, bwd_hooks=...)",
    "prepend_bos": "bridge.to_tokens(text, prepend_bos=...)",
}


class HooklensDriver:
    """Runs a model of hooklens for TransformerLens 4. See its `model_bridge.driver_protocol`.

    `model` is a name or path for `HookedTransformer.from_pretrained_no_processing`, or a loaded model, whose own hooks
    do not run here.

    Interventions are `{"op": "suppress"}`, `{"op": "scale", "factor": x}`, `{"op": "add", "value": x}` and
    `{"op": "set", "value": x}`; values are numbers or arrays that fit the activation. With `"pos"`, a position or a
    list of positions, they change only these. For attention scores and patterns, these are query positions.
    """

    # Edits are specifications, and there is no backward pass.
    _supported_features: frozenset[str] = frozenset()
    provides_sequence_logits = True

    def __init__(self, model: str | Path | HookedTransformer, tokenizer: Any = None) -> None:
        if isinstance(model, HookedTransformer):
            # A separate wrapper of the same weights, with torch tensors and without the model's hooks.
            own = TorchTransformer(model._native, name=model._name)
        else:
            own = TorchTransformer.from_pretrained_no_processing(model)
        self._model: TorchTransformer | None = own
        self._points, different = _points(own)
        self.tokenizer = tokenizer
        self.bridge_config = _bridge_config(own)
        self.architecture = self.bridge_config.architecture
        self.supported_hook_points = frozenset(self._points)
        self.non_fireable_hook_points = frozenset(different)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Any = None,
        *,
        capture: tuple[str, ...] = (),
        intervene: Mapping[str, Any] | None = None,
        max_new_tokens: int = 1,
        return_logits: bool = True,
        attention_mask: Any = None,
        **others: Any,
    ) -> Any:
        """One forward pass over ids, `[batch, pos]` or `[pos]`.

        With `max_new_tokens` above 1, also continues the rows greedily, past end-of-sequence tokens: `new_tokens` of
        the result is `[batch, max_new_tokens]`. Interventions apply in every step; those with `"pos"` apply to the
        prompt. `RemoteBridge.forward` does not return `new_tokens`: call the driver.
        """
        from transformer_lens.model_bridge.driver_protocol import ForwardResult

        model = self._model
        if model is None:
            raise RuntimeError("this driver is closed; make a new HooklensDriver")
        for name, value in others.items():
            if value is not None and name not in _IGNORED:
                instead = _REPLACEMENTS.get(name, f"{_REPLACEMENT}.forward")
                raise NotImplementedError(f"HooklensDriver does not support {name}; use {instead}")
        if input_ids is None:
            raise ValueError("HooklensDriver needs input_ids, [batch, pos]")
        ids = torch.as_tensor(input_ids).detach().cpu()
        ids = ids[None] if ids.ndim == 1 else ids
        mask = None if attention_mask is None else torch.as_tensor(attention_mask).detach().cpu()
        if mask is not None and mask.shape not in (ids.shape, ids.shape[1:]):
            raise ValueError(
                f"attention_mask must have the shape of input_ids, {tuple(ids.shape)}, not {tuple(mask.shape)}"
            )
        mask = None if mask is None else mask.bool().expand(ids.shape)
        names = self._requested(capture)
        options: dict[str, Any] = {"attention_mask": mask, "return_type": "logits" if return_logits else None}
        captured: dict[str, Any] = {}
        with model.hooks(self._edits(intervene)):
            if names:
                points = list(dict.fromkeys(self._points[name][0] for name in names))
                logits, cache = model.run_with_cache(ids, names_filter=points, **options)
                captured = {name: cache[self._points[name][0]] for name in names if self._points[name][0] in cache}
            else:
                logits = model.forward(ids, **options)
        new_tokens = None
        if max_new_tokens > 1:
            with model.hooks(self._edits(intervene)):
                rows = model._native.generate(
                    ids.tolist(),
                    mask=None if mask is None else mask.tolist(),
                    max_new_tokens=max_new_tokens,
                    stop_at_eos=False,
                    hooks=model._native_hooks("fwd"),
                )
            new_tokens = torch.tensor([new for new, _, _ in rows])
        return ForwardResult(logits=logits, captured=captured, new_tokens=new_tokens)

    def supports(self, feature: str) -> bool:
        """Whether a feature of the protocol is supported. No feature is: not gradients, weights or callbacks."""
        return feature in self._supported_features

    def close(self) -> None:
        """Releases the model. Later runs raise RuntimeError."""
        if self._model is not None:
            # The wrapper is part of a reference cycle; the weights must not wait for the garbage collector.
            del self._model._native
            self._model = None

    def _requested(self, capture: tuple[str, ...]) -> list[str]:
        """The names to record. A bridge without a filter requests all hook points, whether their flags are set or
        not."""
        for name in capture:
            self._check(name)
        flags = {name: _FLAGS[name.rpartition(".")[2]] for name in self._points if name.endswith(tuple(_FLAGS))}
        if not flags.keys() <= set(capture):
            return list(capture)
        return [name for name in capture if name not in flags or getattr(self.bridge_config, flags[name])]

    def _edits(self, intervene: Mapping[str, Any] | None) -> list[tuple[str, Callable[..., Any]]]:
        """Hooks for interventions."""
        edits = []
        for name, given in (intervene or {}).items():
            self._check(name)
            edits += [(point, _edit(name, given)) for point in self._points[name]]
        return edits

    def _check(self, name: str) -> None:
        if name in self.non_fireable_hook_points:
            raise NotImplementedError(
                f"{name} means something else in TransformerLens 4; for hooklens's meaning, use {_REPLACEMENT}"
            )
        if name not in self._points:
            assert self._model is not None
            self._model._hooks.check(name)
            raise KeyError(f"{name} cannot be used through TransformerLens 4; use {_REPLACEMENT}")


def boot_hooklens(model: str | Path | HookedTransformer, tokenizer: Any = None) -> Any:
    """A `RemoteBridge` for a model. `tokenizer` is a transformers tokenizer; without it, the bridge takes ids only."""
    from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
    from transformer_lens.model_bridge.remote_bridge import RemoteBridge
    from transformer_lens.model_bridge.sources._bridge_builder import configure_tokenizer

    driver = HooklensDriver(model)
    adapter = ArchitectureAdapter(driver.bridge_config)
    adapter.component_mapping = {}
    if tokenizer is not None:
        driver.tokenizer = tokenizer = configure_tokenizer(tokenizer, driver.bridge_config)
    return RemoteBridge(adapter, tokenizer, driver)


def _points(model: TorchTransformer) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """hooklens's hook points for each name in TransformerLens 4: the first is recorded, and all are edited. Also the
    names that exist in both, but with different meanings."""
    cfg, raw = model.cfg, model.cfg.raw
    points: dict[str, tuple[str, ...]] = {name: (name,) for name in model.hook_dict}
    layer_norm = cfg.normalization_type in ("LN", "LNPre")

    def is_different(name: str) -> bool:
        module, _, hook = name.rpartition(".")
        last = module.rpartition(".")[2]
        if hook == "hook_normalized" and last.startswith("ln"):
            # TransformerLens 4 has this hook before the weights of a layer norm are applied, hooklens after.
            return layer_norm and not (last == "ln_final" and cfg.final_rms)
        # These have different layouts or, for `hook_expert_weights`, include only the experts in use.
        return last in ("q_norm", "k_norm") or hook == "hook_expert_weights"

    different = {name for name in points if is_different(name)}
    names, layers = dict(_NAMES), dict(_LAYER_NAMES)
    if raw["post_embedding_norm"]:
        names = {"embed_ln.hook_out": "hook_embed"}
    if layer_norm:
        layers.update({f"{norm}.hook_out": f"{norm}.hook_normalized" for norm in ("ln1", "ln2")})
    if "ln_final.hook_normalized" in different:
        names["ln_final.hook_out"] = "ln_final.hook_normalized"
    if cfg.gated_mlp:
        layers.update(_GATED_MLP)
    if cfg.use_normalization_before_and_after:
        del layers["attn.hook_out"]
        layers.update(_OUTPUT_NORMS)
    scale = raw["embed_scale"]
    multiplied = scale is not None and not math.isclose(scale, cfg.d_model**0.5, rel_tol=0.01)
    if multiplied or cfg.positional_embedding_type == "alibi":
        # hooklens folds Granite's output multiplier into weights; TransformerLens 4 adds the stream to Bloom's outputs.
        del layers["attn.hook_out"], layers["mlp.hook_out"]
    for layer in range(cfg.n_layers):
        names.update({f"blocks.{layer}.{theirs}": f"blocks.{layer}.{ours}" for theirs, ours in layers.items()})
    known = set(model.hook_names())
    points.update({theirs: (ours,) for theirs, ours in names.items() if ours in known})
    if cfg.parallel_attn_mlp and _shares_norm(model):
        # TransformerLens 4 has one norm, hooklens has two with the same weights.
        points = {name: own for name, own in points.items() if ".ln2." not in name}
        for name, own in points.items():
            if ".ln1." in name:
                points[name] = (*own, own[0].replace(".ln1.", ".ln2."))
        if "ln_final.hook_out" in points and not model._weight("ln_final.b").any():
            # Cohere, whose norms have no biases: hooklens folds its logit scale into the final norm's weights.
            del points["ln_final.hook_out"]
    return {name: own for name, own in points.items() if name not in different}, different


def _shares_norm(model: TorchTransformer) -> bool:
    """Whether attention and MLP of parallel layers read the output of one norm."""
    weights = [f"blocks.0.{norm}.w" for norm in ("ln1", "ln2")]
    if not set(weights) <= set(model._native.weight_names()):
        return False
    first, second = (model._weight(name) for name in weights)
    return bool((first == second).all())


def _bridge_config(model: TorchTransformer) -> Any:
    from transformer_lens.config import TransformerBridgeConfig

    cfg = model.cfg
    return TransformerBridgeConfig(
        d_model=cfg.d_model,
        d_head=cfg.d_head,
        n_layers=cfg.n_layers,
        n_ctx=cfg.n_ctx,
        n_heads=cfg.n_heads,
        d_vocab=cfg.d_vocab,
        d_vocab_out=cfg.d_vocab_out,
        d_mlp=cfg.d_mlp,
        n_key_value_heads=cfg.n_key_value_heads,
        act_fn=cfg.act_fn,
        eps=cfg.eps,
        normalization_type=cfg.normalization_type,
        final_rms=cfg.final_rms,
        attn_only=cfg.attn_only,
        gated_mlp=cfg.gated_mlp,
        parallel_attn_mlp=cfg.parallel_attn_mlp,
        positional_embedding_type=cfg.positional_embedding_type,
        attention_dir=cfg.attention_dir,
        model_name=cfg.model_name,
        dtype=cfg.dtype,
        architecture="HooklensForCausalLM",
        default_prepend_bos=cfg.default_prepend_bos,
    )


def _edit(name: str, given: Any) -> Callable[..., Any]:
    """A hook for an intervention."""
    if callable(given):
        raise NotImplementedError(
            f"the intervention on {name} is a function; this protocol takes specifications ({', '.join(_OPERATIONS)}). "
            f"For functions, use {_REPLACEMENT}.run_with_hooks"
        )
    operation = given.get("op") if isinstance(given, Mapping) else None
    if operation not in _OPERATIONS:
        raise ValueError(f"the intervention on {name} needs 'op', one of {', '.join(_OPERATIONS)}; given {given!r}")
    needed = _OPERATIONS[operation]
    if needed is not None and needed not in given:
        raise ValueError(f"the intervention on {name}: op {operation!r} needs {needed!r}")
    value = 0 if needed is None else torch.as_tensor(given[needed]).detach().cpu()
    pos = given.get("pos")
    where = _where(name, pos)
    prompt_edited = False

    def edit(activation: Any, hook: Any) -> Any:
        nonlocal prompt_edited
        if pos is not None and prompt_edited:
            return None  # a generated token, after the prompt
        prompt_edited = True
        if operation == "scale":
            activation[where] *= value
        elif operation == "add":
            activation[where] += value
        else:
            activation[where] = value
        return activation

    return edit


def _where(name: str, pos: Any) -> Any:
    """Index of positions of an activation."""
    if pos is None:
        return ...
    positions = [pos] if isinstance(pos, int) else pos
    if not isinstance(positions, (list, tuple)) or not all(type(at) is int for at in positions):
        raise ValueError(f"the intervention on {name}: 'pos' must be an integer or a list of integers, not {pos!r}")
    if ".mlp.experts." in name or name.endswith("hook_expert_indices"):
        raise NotImplementedError(f"{name} has no position axis: intervene without 'pos'")
    every = slice(None)
    if name.endswith(("hook_attn_scores", "hook_pattern")):
        return every, every, list(positions)
    return every, list(positions)
