# demos/Exploratory_Analysis_Demo.ipynb, "Indirect Object Identification" and "Direct Logit Attribution"
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(
    MODEL, center_unembed=True, center_writing_weights=True, fold_ln=True, refactor_factored_attn_matrices=False
)
templates = {
    "When John and Mary went to the store, {} gave the ring to": ("Mary", "John"),
    "When Tom and James went to the park, {} gave the ball to": ("Tom", "James"),
    "After Laura and Simon met at the office, {} gave the hat to": ("Laura", "Simon"),
}
prompts, pairs = [], []
for template, names in templates.items():
    for right, wrong in (names, names[::-1]):
        prompts.append(template.format(wrong))
        pairs.append([model.to_single_token(" " + name) for name in (right, wrong)])
pairs = torch.tensor(pairs, device=model.cfg.device)

logits, cache = model.run_with_cache(model.to_tokens(prompts, prepend_bos=True))
per_prompt = -logits[:, -1].gather(-1, pairs).diff(dim=-1).squeeze(-1)

# The same differences, from the final residual stream and the unembedding.
directions = model.tokens_to_residual_directions(pairs)
directions = directions[:, 0] - directions[:, 1]
final = cache["resid_post", -1][:, -1]
scaled = cache.apply_ln_to_stack(final, layer=-1, pos_slice=-1)

results = {
    "prompt_length": len(model.to_str_tokens(prompts[0])),
    "per_prompt": per_prompt,
    "average": per_prompt.mean(),
    "directions": directions,
    "scaled": scaled,
    "by_hand": torch.einsum("bd,bd->b", scaled, directions),
    "by_string": model.tokens_to_residual_directions(" Mary"),
}
