# demos/Attribution_Patching_Demo.ipynb, "Attention Attribution"
import einops
import torch
from transformer_lens import ActivationCache, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
model.set_use_attn_result(True)
tokens = model.to_tokens([f"When John and Mary went to the store, {name} gave a ball to" for name in ("John", "Mary")])
john, mary = model.to_single_token(" John"), model.to_single_token(" Mary")


def metric(logits):
    diff = logits[:, -1, mary] - logits[:, -1, john]
    return (diff[0] - diff[1]) / 2


def enabled(name):
    # Hook points that are off by default refuse hooks.
    return not name.endswith(("_input", "attn_in", "mlp_in"))


def forward_and_backward(tokens):
    caches = {"fwd": {}, "bwd": {}}
    for direction, store in caches.items():

        def save(value, hook, store=store):
            store[hook.name] = value.detach()

        model.add_hook(enabled, save, direction)
    value = metric(model(tokens))
    value.backward()
    model.reset_hooks()
    return value.item(), *(ActivationCache(store, model) for store in caches.values())


value, cache, grad_cache = forward_and_backward(tokens)
swapped_value, _, swapped_grad_cache = forward_and_backward(tokens.flip(0))

attention = torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])
gradient = torch.stack([grad_cache["pattern", layer] for layer in range(model.cfg.n_layers)])
attribution = einops.rearrange(attention * gradient, "layer batch head dest src -> batch layer head dest src")

results = {
    "values": [value, swapped_value],
    "cached": [len(cache), len(grad_cache)],
    "attribution": attribution[0],
    "resid_grad": swapped_grad_cache["resid_pre", 1],
    "final_grad": grad_cache["ln_final.hook_normalized"][:, -1],
}
