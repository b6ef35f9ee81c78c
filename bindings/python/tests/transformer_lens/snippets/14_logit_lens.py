# demos/Exploratory_Analysis_Demo.ipynb, "Logit Lens"
import torch
from transformer_lens import ActivationCache, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
prompts = [
    "When Emma and Peter went to the river, Peter handed a letter to",
    "When Emma and Peter went to the river, Emma handed a letter to",
]
emma, peter = model.tokens_to_residual_directions(
    torch.tensor([model.to_single_token(" Emma"), model.to_single_token(" Peter")])
)
directions = torch.stack([emma - peter, peter - emma])
logits, cache = model.run_with_cache(prompts)


def logit_diffs(stack, cache: ActivationCache):
    """Mean logit difference of every component at the last position."""
    return (cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1) * directions).sum(-1).mean(-1)


accumulated, labels = cache.accumulated_resid(layer=-1, incl_mid=True, pos_slice=-1, return_labels=True)

# The usual logit lens: the final layer norm and the unembedding, applied after every layer.
lens = [model.unembed(model.ln_final(cache["resid_post", layer])) for layer in range(model.cfg.n_layers)]
top_tokens = [model.to_single_str_token(logits[0, -1].argmax().item()) for logits in lens]

results = {
    "labels": labels,
    "accumulated": accumulated,
    "logit_diffs": logit_diffs(accumulated, cache),
    "to_layer_two": cache.accumulated_resid(layer=2, pos_slice=(-3, None)),
    "scaled": cache.accumulated_resid(layer=-1, apply_ln=True, pos_slice=-1),
    "lens": torch.stack(lens)[:, :, -1],
    "top_tokens": top_tokens,
}
