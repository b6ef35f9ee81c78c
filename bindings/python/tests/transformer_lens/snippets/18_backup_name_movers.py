# demos/Exploratory_Analysis_Demo.ipynb, "Backup Name Mover Heads"
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
tokens = model.to_tokens("After Kate and Henry worked at the market, Henry sold a coin to")
direction = model.W_U[:, model.to_single_token(" Kate")] - model.W_U[:, model.to_single_token(" Henry")]


def per_head_logit_diffs(cache):
    heads = cache.stack_head_results(layer=-1, pos_slice=-1)
    heads = cache.apply_ln_to_stack(heads, layer=-1, pos_slice=-1)
    return (heads[:, 0] @ direction).reshape(model.cfg.n_layers, model.cfg.n_heads)


original_logits, cache = model.run_with_cache(tokens)
original = per_head_logit_diffs(cache)
top_layer, top_head = divmod(original.flatten().argmax().item(), model.cfg.n_heads)


def ablate(z, hook):
    z[:, -1, top_head] = 0
    return z


# The hook stays on the model until `run_with_cache` resets all hooks at its end.
model.blocks[top_layer].attn.hook_z.add_hook(ablate)
ablated_logits, ablated_cache = model.run_with_cache(tokens)
ablated = per_head_logit_diffs(ablated_cache)

results = {
    "top": [top_layer, top_head],
    "original": original,
    "ablated": ablated,
    "ablated_logits": ablated_logits[0, -1],
    "logits_afterwards": model(tokens)[0, -1],
    "scales": torch.stack([cache["ln_final.hook_scale"][0, -1], ablated_cache["ln_final.hook_scale"][0, -1]]),
}
