# API reference of HookedRootModule, "run_with_cache(incl_bwd=True)", "add_caching_hooks" and "get_caching_hooks"
import torch
from transformer_lens import HookedTransformer, utils

model = HookedTransformer.from_pretrained(MODEL)
tokens = model.to_tokens("While Julia and Frank walked to the station, Frank passed a book to Julia.")

# Gradients of the loss with respect to activations.
loss, cache = model.run_with_cache(
    tokens, return_type="loss", incl_bwd=True, names_filter=lambda name: "resid" in name or "pattern" in name
)
saliency = cache["blocks.0.hook_resid_pre_grad"].norm(dim=-1)

# The same, for a metric other than the loss.
model.reset_hooks()
store = model.add_caching_hooks(["blocks.1.attn.hook_z", "blocks.2.mlp.hook_post"], incl_bwd=True)
logits = model(tokens[:, :-2])
logits[0, -1, model.to_single_token(" Julia")].backward()
model.reset_hooks()

kept, fwd, bwd = model.get_caching_hooks(names_filter=utils.get_act_name("mlp_out", 0), incl_bwd=True)
with model.hooks(fwd_hooks=fwd, bwd_hooks=bwd):
    model(tokens, return_type="loss").backward()

# A backward hook can replace the gradient.
stopped = {}
with model.hooks(
    bwd_hooks=[
        ("blocks.1.hook_mlp_out", lambda grad, hook: (torch.zeros_like(grad),)),
        ("blocks.0.hook_resid_post", lambda grad, hook: stopped.update(grad=grad.clone())),
    ]
):
    model(tokens, return_type="loss").backward()

results = {
    "loss": loss,
    "keys": sorted(key for key in cache.keys() if ".1." in key),
    "saliency": saliency,
    "pattern_grad": cache["blocks.3.attn.hook_pattern_grad"],
    "z_grad": store["blocks.1.attn.hook_z_grad"],
    "post": store["blocks.2.mlp.hook_post"][0, -1],
    "post_grad": store["blocks.2.mlp.hook_post_grad"][0, -1],
    "mlp_out_grad": kept["blocks.0.hook_mlp_out_grad"],
    "stopped_grad": stopped["grad"],
}
