# demos/Exploratory_Analysis_Demo.ipynb, "Head Attribution" and "Attention Analysis"
import einops
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
prompts = [
    "When Mark and Alice stayed at the station, Alice gave a apple to",
    "When Mark and Alice stayed at the station, Mark gave a apple to",
]
answer_tokens = torch.tensor([[9, 10], [10, 9]], device=model.cfg.device)
assert model.to_string(answer_tokens[0]) == "Mark Alice"
tokens = model.to_tokens(prompts)
_, cache = model.run_with_cache(tokens)
directions = model.tokens_to_residual_directions(answer_tokens)
logit_diff_directions = directions[:, 0] - directions[:, 1]

per_head_residual, labels = cache.stack_head_results(layer=-1, pos_slice=-1, return_labels=True)
scaled = cache.apply_ln_to_stack(per_head_residual, layer=-1, pos_slice=-1)
per_head_logit_diffs = einops.rearrange(
    torch.einsum("cbd,bd->c", scaled, logit_diff_directions) / len(prompts),
    "(layer head_index) -> layer head_index",
    layer=model.cfg.n_layers,
    head_index=model.cfg.n_heads,
)

top_heads = torch.topk(per_head_logit_diffs.flatten(), k=3).indices
patterns = []
for head in top_heads:
    layer, head_index = head.item() // model.cfg.n_heads, head.item() % model.cfg.n_heads
    patterns.append(cache["attn", layer][0, head_index])

cache.compute_head_results()
results = {
    "labels": labels,
    "per_head_residual": per_head_residual,
    "per_head_logit_diffs": per_head_logit_diffs,
    "top_heads": [labels[head] for head in top_heads],
    "patterns": torch.stack(patterns, dim=0),
    "head_result": cache["result", 3][:, -1],
    "remainder": cache.stack_head_results(layer=2, pos_slice=-1, incl_remainder=True)[-1],
}
