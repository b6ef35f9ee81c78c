"""A model's configuration, with TransformerLens's names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from ._model import HookedTransformer

_ACTIVATIONS = {
    "Gelu": "gelu",
    "GeluNew": "gelu_new",
    "Relu": "relu",
    "Silu": "silu",
    "SoluLn": "solu_ln",
    "QuickGelu": "quick_gelu",
}
_NORMS = {"LayerNorm": "LN", "LayerNormPre": "LNPre", "Rms": "RMS", "RmsPre": "RMSPre", "None": None}
_POSITIONS = {"Learned": "standard", "Alibi": "alibi", "Shortformer": "shortformer", "Rotary": "rotary"}

# Settings of TransformerLens that have no effect in hooklens.
_IGNORED = {
    "checkpoint_index", "checkpoint_label_type", "checkpoint_value", "from_checkpoint", "model_name", "n_params",
    "original_architecture", "tokenizer_name", "tokenizer_prepends_bos", "trust_remote_code",
    "use_attn_in", "use_attn_result", "use_attn_scale", "use_hook_mlp_in", "use_hook_tokens", "use_split_qkv_input",
}

# Settings of TransformerLens with the only values that a new model can have.
_FIXED = {
    "device": ["cpu"],
    "dtype": ["float32", "torch.float32"],
    "init_mode": ["gpt2"],
    "init_weights": ["True"],
    "initializer_range": ["-1", "-1.0"],
    "n_devices": ["1"],
}


class HookedTransformerConfig:
    """The configuration of a model: `model.cfg`, or settings for a new one, `HookedTransformer(cfg)`.

    `raw` is hooklens's own configuration, with every setting.

    >>> HookedTransformerConfig(n_layers=2, d_model=32, n_ctx=16, d_head=8, d_vocab=50, act_fn="relu").n_heads
    4
    """

    _model: HookedTransformer
    n_params: int
    seed: int | None
    model_name: str

    def __init__(
        self,
        n_layers: int,
        d_model: int,
        n_ctx: int,
        d_head: int,
        d_vocab: int,
        n_heads: int = -1,
        d_mlp: int | None = None,
        act_fn: str | None = None,
        d_vocab_out: int = -1,
        normalization_type: str | None = "LN",
        attn_only: bool = False,
        eps: float = 1e-5,
        attention_dir: str = "causal",
        seed: int | None = None,
        **others: Any,
    ) -> None:
        n_heads = d_model // d_head if n_heads == -1 else n_heads
        raw = json.loads(_native.Model.default_config(n_layers, d_model, n_heads, d_vocab, n_ctx))
        raw.update(
            d_head=d_head,
            attn_scale=d_head**0.5,
            d_mlp=4 * d_model if d_mlp is None else d_mlp,
            d_vocab_out=d_vocab if d_vocab_out == -1 else d_vocab_out,
            norm=_named(_NORMS, normalization_type, "normalization_type"),
            attn_only=attn_only,
            eps=eps,
            bidirectional=attention_dir == "bidirectional",
            default_prepend_bos=bool(others.pop("default_prepend_bos", True)),
        )
        if act_fn is not None:
            raw["activation"] = _named(_ACTIVATIONS, act_fn, "act_fn")
        elif not attn_only:
            raise ValueError("a model with MLPs needs act_fn")
        if "attn_scale" in others:
            raw["attn_scale"] = others.pop("attn_scale")
        if not others.get("use_attn_scale", True):
            raw["attn_scale"] = 1.0
        if others.pop("gated_mlp", False):
            raw["gated_mlp"] = True
        kind = others.pop("positional_embedding_type", "standard")
        raw["positional"] = _named(_POSITIONS, kind, "positional_embedding_type")
        if kind == "rotary":
            raise NotImplementedError("rotary models need a config.json: save one and load the folder")
        for name, allowed in _FIXED.items():
            value = others.pop(name, None)
            given = getattr(value, "__name__", str(value))
            if value is not None and value is not False and given not in allowed:
                raise NotImplementedError(f"a new model has {name}={allowed[0]}, not {given}")
        unknown = sorted(name for name, value in others.items() if name not in _IGNORED and value not in (None, False))
        if unknown:
            raise NotImplementedError(
                f"this configuration does not support {', '.join(unknown)}; save a config.json and load the folder"
            )
        self.seed, self.model_name = seed, "custom"
        self._fill(raw)

    @classmethod
    def of(cls, model: HookedTransformer) -> HookedTransformerConfig:
        """The configuration of a model."""
        made = cls.__new__(cls)
        made._model = model
        made.seed, made.model_name = None, model._name
        made._fill(json.loads(model._native.config()))
        native = model._native
        made.device, made.n_params = native.device, native.n_weights()
        made.dtype = model._framework.dtype(native.dtype)
        return made

    def _fill(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.n_layers: int = raw["n_layers"]
        self.d_model: int = raw["d_model"]
        self.n_ctx: int = raw["n_ctx"]
        self.n_heads: int = raw["n_heads"]
        self.d_head: int = raw["d_head"]
        self.d_mlp: int = raw["d_mlp"]
        self.d_vocab: int = raw["d_vocab"]
        self.d_vocab_out: int = raw["d_vocab_out"]
        self.n_key_value_heads: int | None = None if raw["n_kv_heads"] == self.n_heads else raw["n_kv_heads"]
        self.eps: float = raw["eps"]
        self.attn_only: bool = raw["attn_only"]
        self.gated_mlp: bool = raw["gated_mlp"]
        self.attn_scale: float = raw["attn_scale"]
        self.output_logits_soft_cap: float | None = raw["output_logits_soft_cap"]
        self.attn_scores_soft_cap: float | None = raw["attn_scores_soft_cap"]
        self.parallel_attn_mlp: bool = bool(raw["parallel"])
        self.use_normalization_before_and_after: bool = raw["post_norms"]
        self.final_rms: bool = raw["final_rms"]
        self.normalization_type: str | None = _NORMS.get(raw["norm"], raw["norm"])
        kind = raw["positional"]
        kind = kind if isinstance(kind, str) else next(iter(kind))
        self.positional_embedding_type: str = _POSITIONS.get(kind, kind)
        activation = raw["activation"]
        self.act_fn: str = _ACTIVATIONS.get(activation, str(activation))
        self.default_prepend_bos: bool = raw["default_prepend_bos"]
        self.attention_dir = "bidirectional" if raw["bidirectional"] else "causal"
        self.device, self.n_devices = "cpu", 1
        self.dtype: Any = "float32"
        self.use_attn_result = False
        self.use_split_qkv_input = False
        self.use_attn_in = False
        self.use_hook_mlp_in = False
        self.ungroup_grouped_query_attention = False

    def to_dict(self) -> dict[str, Any]:
        """All settings that TransformerLens has, by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "raw"}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"HookedTransformerConfig({settings})"


def _named(names: dict[str, Any], given: Any, setting: str) -> str:
    """Converts TransformerLens's value of a setting to hooklens's name for it."""
    for own, theirs in names.items():
        if theirs == given:
            return own
    raise NotImplementedError(f"{setting} must be one of {', '.join(map(repr, names.values()))}, not {given!r}")
