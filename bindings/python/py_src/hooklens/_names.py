"""Short names of hook points, as in TransformerLens: `("pattern", 3)` is `blocks.3.attn.hook_pattern`."""

from __future__ import annotations

import re

_ATTENTION = {"k", "v", "q", "z", "rot_k", "rot_q", "result", "pattern", "attn_scores"}
_MLP = {"pre", "post", "mid", "pre_linear"}
_NORM = {"scale", "normalized"}
_KINDS = {"a": "attn", "m": "mlp", "b": "", "block": "", "blocks": "", "attention": "attn"}
_ALIASES = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_mid": "mid",
    "mlp_post": "post",
}


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """The full name of a hook point.

    >>> get_act_name("k", 6, "a"), get_act_name("pre", 2), get_act_name("k6"), get_act_name("embed")
    ('blocks.6.attn.hook_k', 'blocks.2.mlp.hook_pre', 'blocks.6.attn.hook_k', 'hook_embed')
    >>> get_act_name("scale", 4, "ln1"), get_act_name("normalized"), get_act_name("scale4ln1")
    ('blocks.4.ln1.hook_scale', 'ln_final.hook_normalized', 'blocks.4.ln1.hook_scale')
    """
    if ("." in name or name.startswith("hook_")) and layer is None and layer_type is None:
        return name
    short = re.fullmatch(r"([a-z_]+)(\d+)([a-z]?.*)", name)
    if short is not None:
        name = short[1]
        layer = int(short[2]) if layer is None else layer
        layer_type = short[3] or layer_type
    if layer_type in _KINDS:
        layer_type = _KINDS[layer_type]
    name = _ALIASES.get(name, name)
    if name in _ATTENTION:
        layer_type = "attn"
    elif name in _MLP:
        layer_type = "mlp"
    full = "" if layer is None else f"blocks.{layer}."
    full += f"{layer_type}." if layer_type else ""
    full += f"hook_{name}"
    if name in _NORM and layer is None:
        full = f"ln_final.{full}"
    return full
