# API reference of HookedTransformer, "set_use_split_qkv_input" and "set_use_hook_mlp_in"
from functools import partial

import torch
from transformer_lens import HookedTransformer, utils

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
model.set_use_attn_result(True)
model.set_use_split_qkv_input(True)
model.set_use_hook_mlp_in(True)
clean_tokens = model.to_tokens("When Laura and James worked at the market, James gave a coin to")
corrupted_tokens = model.to_tokens("When Laura and James worked at the market, Laura gave a coin to")
answer, other = model.to_single_token(" Laura"), model.to_single_token(" James")
clean_logits, clean_cache = model.run_with_cache(clean_tokens)
corrupted_logits, corrupted_cache = model.run_with_cache(corrupted_tokens)


def add_difference(value, hook, difference, head=None):
    if head is None:
        return value + difference
    value[:, :, head] += difference
    return value


def path_patch(sender, receiver_name, receiver_head=None):
    """Logit difference if the receiver alone reads the sender's output on the corrupted prompt."""
    layer, head = sender
    difference = corrupted_cache["result", layer][:, :, head] - clean_cache["result", layer][:, :, head]
    hook = partial(add_difference, difference=difference, head=receiver_head)
    logits = model.run_with_hooks(clean_tokens, fwd_hooks=[(receiver_name, hook)])
    return logits[0, -1, answer] - logits[0, -1, other]


def to_heads(name):
    return torch.stack(
        [
            torch.stack([path_patch((1, head), utils.get_act_name(name, 2), receiver) for receiver in range(4)])
            for head in range(4)
        ]
    )


results = {
    "clean": clean_logits[0, -1, answer] - clean_logits[0, -1, other],
    "q": to_heads("q_input"),
    "k": to_heads("k_input"),
    "v": to_heads("v_input"),
    "mlp": torch.stack([path_patch((1, head), "blocks.2.hook_mlp_in") for head in range(4)]),
    "q_input": clean_cache["q_input", 2][0, -1],
}
