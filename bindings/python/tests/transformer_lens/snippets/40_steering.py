# API reference of HookedTransformer, "forward": `start_at_layer` and `stop_at_layer`; steering by activation addition
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
layer, coefficient = 2, 3.0
hook_name = f"blocks.{layer}.hook_resid_pre"


def residual(prompt):
    return model(prompt, stop_at_layer=layer)


# The vector from one name to the other, at the position of the second name.
steering_vector = (
    residual("When Mary and John went to the store, John gave a drink to")
    - residual("When Mary and John went to the store, Mary gave a drink to")
)[:, 11]
prompt = "When Lucy and Paul went to the store, Lucy gave a drink to"
tokens = model.to_tokens(prompt)


def steer(resid_pre, hook):
    resid_pre[:, 11] += coefficient * steering_vector
    return resid_pre


steered_logits = model.run_with_hooks(tokens, fwd_hooks=[(hook_name, steer)])
with model.hooks(fwd_hooks=[(hook_name, lambda x, hook: x + 0.5 * steering_vector)]):
    generated = model.generate(tokens, max_new_tokens=3, do_sample=False, verbose=False)

# The rest of the forward pass, from a residual stream that was edited outside of the model.
resid, own_cache = model.run_with_cache(tokens, stop_at_layer=layer)
resid = resid.clone()
resid[:, 11] += coefficient * steering_vector
resumed = model(resid, start_at_layer=layer)
mean = model.run_with_cache(tokens)[1]["mlp_out", 1].mean(dim=1, keepdim=True)
mean_ablated = model.run_with_hooks(
    tokens, return_type="loss", fwd_hooks=[("blocks.1.hook_mlp_out", lambda x, hook: mean.expand_as(x))]
)

results = {
    "steering_vector": steering_vector,
    "steered_logits": steered_logits[0, -1],
    "resumed": resumed[0, -1],
    "generated": model.to_string(generated[0]),
    "last_key": list(own_cache.keys())[-1],
    "embed": list(model(tokens, stop_at_layer=0).shape),
    "unembedded": model.unembed(model.ln_final(model(tokens, stop_at_layer=-1)))[0, -1],
    "mean_ablated": mean_ablated,
}
