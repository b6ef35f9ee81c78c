# demos/Attribution_Patching_Demo.ipynb, "Path Attribution Patching"
import torch
from transformer_lens import ActivationCache, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
model.set_use_attn_result(True)
clean_tokens = model.to_tokens("When Tom and Clara went to the garden, Tom sold a book to")
corrupted_tokens = model.to_tokens("When Tom and Clara went to the garden, Clara sold a book to")


def metric(logits):
    return logits[0, -1, model.to_single_token(" Clara")] - logits[0, -1, model.to_single_token(" Tom")]


def caches(tokens):
    cache, grad_cache = {}, {}
    fwd = lambda act, hook: cache.__setitem__(hook.name, act.detach())
    bwd = lambda act, hook: grad_cache.__setitem__(hook.name, act.detach())
    everything = lambda name: "_input" not in name
    with model.hooks(fwd_hooks=[(everything, fwd)], bwd_hooks=[(everything, bwd)]):
        metric(model(tokens)).backward()
    return ActivationCache(cache, model), ActivationCache(grad_cache, model)


clean_cache, _ = caches(clean_tokens)
corrupted_cache, corrupted_grad_cache = caches(corrupted_tokens)
n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads


def head_input_grad(name, layer):
    """Gradient with respect to a head's input, with the scale of the layer norm held constant."""
    attn = model.blocks[layer].attn
    weights = {"q": attn.W_Q, "k": attn.W_K, "v": attn.W_V}[name]
    scale = corrupted_cache["scale", layer, "ln1"].squeeze(-1)
    return torch.einsum("bphe,bp,hde->bphd", corrupted_grad_cache[name, layer], 1 / scale, weights)


grads = torch.stack([torch.stack([head_input_grad(n, l) for l in range(n_layers)]) for n in ("q", "k", "v")])
diff = clean_cache.stack_head_results(-1) - corrupted_cache.stack_head_results(-1)
diff = diff.reshape(n_layers, n_heads, *diff.shape[1:])
path_attr = torch.einsum("xlbphd,mgbpd->xlhmgp", grads, diff)
layers = torch.arange(n_layers, device=path_attr.device)
later = layers[:, None] > layers
path_attr = torch.where(later[None, :, None, :, None, None], path_attr, torch.zeros_like(path_attr))

results = {"path_attr": path_attr.sum(-1), "value_grad": grads[2, 1, 0, -1]}
