# demos/Exploratory_Analysis_Demo.ipynb, "Layer Attribution"
import torch
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
prompt = "When Sarah and Frank walked to the school, Frank passed a ball to"
logits, cache = model.run_with_cache(prompt)

per_layer_residual, labels = cache.decompose_resid(layer=-1, pos_slice=-1, return_labels=True)
scaled = cache.apply_ln_to_stack(per_layer_residual, layer=-1, pos_slice=-1)
directions = model.tokens_to_residual_directions(torch.tensor([model.to_single_token(n) for n in (" Sarah", " Frank")]))
per_layer_logit_diffs = scaled[:, 0] @ (directions[0] - directions[1])

# `logit_attrs` applies the layer norm and the unembedding in one call.
attributions = cache.logit_attrs(per_layer_residual, tokens=" Sarah", incorrect_tokens=" Frank", pos_slice=-1)

attn_only, attn_labels = cache.decompose_resid(layer=2, mode="attn", return_labels=True)
resid_mid, _ = cache.decompose_resid(layer=2, mlp_input=True, pos_slice=-1, return_labels=True)
parts, part_labels = cache.get_full_resid_decomposition(expand_neurons=False, pos_slice=-1, return_labels=True)

results = {
    "labels": labels,
    "per_layer_residual": per_layer_residual,
    "per_layer_logit_diffs": per_layer_logit_diffs,
    "attributions": attributions,
    "one_token": cache.logit_attrs(per_layer_residual, tokens=model.to_single_token(" Sarah"), pos_slice=-1),
    "attn_labels": attn_labels,
    "attn_only": attn_only[:, :, -1],
    "resid_mid": resid_mid.sum(0),
    "part_labels": part_labels,
    "parts": parts,
}
