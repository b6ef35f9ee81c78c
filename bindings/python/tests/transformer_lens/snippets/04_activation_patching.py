# demos/Main_Demo.ipynb, "Activation Patching on the Indirect Object Identification Task"
from functools import partial

import torch
import transformer_lens.utils as utils
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
clean = model.to_tokens("After John and Mary went to the store, Mary gave a drink to")
corrupted = model.to_tokens("After John and Mary went to the store, John gave a drink to")
john, mary = (model.to_single_token(name) for name in (" John", " Mary"))


def preference(logits):
    """How much the model prefers John over Mary."""
    return logits[0, -1, john] - logits[0, -1, mary]


clean_logits, clean_cache = model.run_with_cache(clean)
best, worst = preference(clean_logits), preference(model(corrupted))


def restore(resid, hook, pos):
    resid[:, pos] = clean_cache[hook.name][:, pos]
    return resid


recovered = torch.zeros(model.cfg.n_layers, clean.shape[1], device=model.cfg.device)
for layer in range(model.cfg.n_layers):
    name = utils.get_act_name("resid_pre", layer)
    for pos in range(clean.shape[1]):
        logits = model.run_with_hooks(corrupted, fwd_hooks=[(name, partial(restore, pos=pos))])
        recovered[layer, pos] = (preference(logits) - worst) / (best - worst)

results = {"best": best, "worst": worst, "recovered": recovered}
