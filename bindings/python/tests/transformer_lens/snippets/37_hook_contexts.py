# API reference of HookedRootModule, "hooks", "add_hook", "add_perma_hook" and "reset_hooks"
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
tokens = model.to_tokens("When Alice and Peter met at the school, Peter gave a letter to")
calls = []


def last(value=None):
    return model(tokens)[0, -1]


def zero_head(z, hook):
    calls.append(f"zero {hook.name} {hook.layer()}")
    z[:, :, 1] = 0.0
    return z


def double(z, hook):
    calls.append(f"double {hook.name}")
    hook.ctx["norm"] = z.norm()
    return 2 * z


plain = last()
with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", zero_head)]):
    inside = last()
    with model.hooks(fwd_hooks=[("blocks.2.attn.hook_z", double)]):
        nested = last()

model.add_hook("blocks.2.attn.hook_z", double)
model.add_hook("blocks.2.attn.hook_z", zero_head, prepend=True)
both = last()
norm = model.blocks[2].attn.hook_z.ctx["norm"]
model.reset_hooks()

model.add_perma_hook("blocks.0.hook_mlp_out", lambda x, hook: x - x.mean(dim=1, keepdim=True))
model.reset_hooks()
permanent = last()
model.reset_hooks(including_permanent=True)

results = {
    "plain": plain,
    "inside": inside,
    "nested": nested,
    "both": both,
    "norm": norm,
    "permanent": permanent,
    "after_reset": last(),
    "calls": calls,
    "named": model.hook_dict["blocks.3.attn.hook_pattern"].name,
    "hook_points": len(model.hook_dict),
}
