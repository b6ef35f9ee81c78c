# demos/Exploratory_Analysis_Demo.ipynb, "Heads" and "Decomposing Heads"
import torch
from transformer_lens import HookedTransformer, utils

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
names = ("Lucy", "David")
tokens = model.to_tokens([f"When Lucy and David went to the garden, {name} gave a ring to" for name in names])
ids = torch.tensor([model.to_single_token(" " + name) for name in names], device=tokens.device)


def score(logits):
    """Mean logit of the name that is mentioned once minus that of the name that is repeated."""
    last = logits[:, -1, ids]
    return ((last[0, 1] - last[0, 0]) + (last[1, 0] - last[1, 1])) / 2


clean_logits, clean_cache = model.run_with_cache(tokens)
swapped = tokens.flip(0)
clean, corrupted = score(clean_logits), score(model(swapped, return_type="logits"))


def patch(name, layer, head):
    def hook_fn(value, hook):
        # The heads are the second axis of patterns, and the third axis of vectors.
        index = (slice(None), head) if name == "attn" else (slice(None), slice(None), head)
        value[index] = clean_cache[hook.name][index]
        return value

    logits = model.run_with_hooks(swapped, fwd_hooks=[(utils.get_act_name(name, layer, "attn"), hook_fn)])
    return (score(logits) - corrupted) / (clean - corrupted)


heads = [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]
results = {
    "clean": clean,
    "corrupted": corrupted,
    **{name: torch.stack([patch(name, *head) for head in heads]) for name in ("z", "q", "v", "attn")},
}
