"""A driver for TransformerLens 4: its bridge, with models that hooklens runs.

    from hooklens.transformer_lens_4 import HooklensDriver, boot_hooklens
    bridge = boot_hooklens("model.gguf")                       # or RemoteBridge(adapter, tokenizer, HooklensDriver(...))
    logits, cache = bridge.run_with_cache(tokens)
    bridge.forward(tokens, intervene={"blocks.3.hook_mlp_out": {"op": "scale", "factor": 0.0}})

The protocol has neither gradients nor hooks that edit; for those, use `hooklens.torch.HookedTransformer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ._model import HookedTransformer

_OPERATIONS = ("suppress", "scale", "add", "set")


class HooklensDriver:
    """Runs a model of hooklens for TransformerLens 4. See its `model_bridge.driver_protocol`.

    `model` is a name or path for `HookedTransformer.from_pretrained_no_processing`, or a loaded model. Interventions
    are `{"op": "suppress"}`, `{"op": "scale", "factor": x}`, `{"op": "add", "value": x}` and
    `{"op": "set", "value": x}`, with `"pos"` for some positions; values are numbers or arrays that fit the activation.
    """

    # Edits are specifications, and there is no backward pass.
    _supported_features: frozenset[str] = frozenset()
    provides_sequence_logits = True

    def __init__(self, model: str | Path | HookedTransformer, tokenizer: Any = None) -> None:
        if not isinstance(model, HookedTransformer):
            model = HookedTransformer.from_pretrained_no_processing(model)
        self._model: HookedTransformer | None = model
        self.tokenizer = tokenizer
        self.bridge_config = _bridge_config(model)
        self.architecture = self.bridge_config.architecture
        self.supported_hook_points = frozenset(model.hook_dict)
        self.non_fireable_hook_points: frozenset[str] = frozenset()

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
        """One forward pass over ids, `[batch, pos]` or `[pos]`. With `max_new_tokens` above 1, also continues them
        greedily, with the interventions in every step."""
        from transformer_lens.model_bridge.driver_protocol import ForwardResult

        if self._model is None:
            raise RuntimeError("this driver is closed")
        if input_ids is None:
            raise ValueError("HooklensDriver needs input_ids")
        ignored = {"use_past_kv_cache", "use_cache", "output_attentions", "output_hidden_states", "past_key_values"}
        unknown = sorted(name for name, value in others.items() if name not in ignored and value is not None)
        if unknown:
            raise NotImplementedError(f"HooklensDriver does not support {', '.join(unknown)}")
        ids = _host(input_ids)
        ids = ids[None] if ids.ndim == 1 else ids
        hooks = [(name, _edit(self._model, name, given)) for name, given in (intervene or {}).items()]
        mask = None if attention_mask is None else _host(attention_mask).reshape(ids.shape)
        with self._model.hooks(hooks):
            captured: dict[str, Any] = {}
            options: dict[str, Any] = {"attention_mask": mask, "return_type": "logits" if return_logits else None}
            if capture:
                logits, cache = self._model.run_with_cache(ids, names_filter=list(capture), **options)
                captured = dict(cache)
            else:
                logits = self._model.forward(ids, **options)
            new_tokens = None
            if max_new_tokens > 1:
                if mask is not None and not mask.all():
                    raise NotImplementedError("generation after a masked input: generate row by row")
                whole = self._model.generate(
                    ids, max_new_tokens=max_new_tokens, do_sample=False, stop_at_eos=False, return_type="tokens"
                )
                new_tokens = whole[:, ids.shape[1] :]
        return ForwardResult(logits=logits, captured=captured, new_tokens=new_tokens)

    def supports(self, feature: str) -> bool:
        """None of the protocol's features: no gradients, weights or callbacks."""
        return feature in self._supported_features

    def close(self) -> None:
        """Releases the model."""
        self._model = None


def boot_hooklens(model: str | Path | HookedTransformer, tokenizer: Any = None) -> Any:
    """A `RemoteBridge` for a model. `tokenizer` is one of transformers; without it, the bridge takes ids only."""
    from transformer_lens.model_bridge.remote_bridge import RemoteBridge

    driver = HooklensDriver(model, tokenizer)
    adapter = SimpleNamespace(cfg=driver.bridge_config, component_mapping={})
    return RemoteBridge(adapter, tokenizer, driver)


def _bridge_config(model: HookedTransformer) -> Any:
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
        normalization_type=cfg.normalization_type,
        attn_only=cfg.attn_only,
        gated_mlp=cfg.gated_mlp,
        model_name=cfg.model_name,
        architecture="HooklensForCausalLM",
        default_prepend_bos=cfg.default_prepend_bos,
    )


def _host(values: Any) -> Any:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _edit(model: HookedTransformer, name: str, given: Any) -> Any:
    """A hook for an intervention."""
    if name not in model.hook_dict:
        model._hooks.check(name)
    if callable(given):
        raise NotImplementedError(
            f"the intervention on {name} is a function; this protocol takes specifications ({', '.join(_OPERATIONS)}). "
            "For functions, use hooklens.torch.HookedTransformer.run_with_hooks"
        )
    operation = given.get("op") if isinstance(given, Mapping) else None
    if operation not in _OPERATIONS:
        raise ValueError(f"the intervention on {name} needs 'op', one of {', '.join(_OPERATIONS)}; given {given!r}")
    needed = {"scale": "factor", "add": "value", "set": "value"}.get(operation)
    if needed is not None and needed not in given:
        raise ValueError(f"the intervention on {name}: op {operation!r} needs {needed!r}")
    value = None if needed is None else _host(given[needed])
    pos = given.get("pos")
    if pos is not None and ".attn.hook_pattern" in name:
        raise NotImplementedError(f"positions of {name} are queries and keys: intervene without 'pos'")
    where: Any = slice(None) if pos is None else (slice(None), [pos] if isinstance(pos, int) else list(pos))

    def edit(activation: Any, hook: Any) -> Any:
        if operation == "suppress":
            activation[where] = 0
        elif operation == "scale":
            activation[where] *= value
        elif operation == "add":
            activation[where] += value
        else:
            activation[where] = value
        return activation

    return edit
