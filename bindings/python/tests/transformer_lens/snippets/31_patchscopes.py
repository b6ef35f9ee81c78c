# demos/Patchscopes_Generation_Demo.ipynb, "Patchscopes Pipeline" and "Generation with Patching"
import torch
from transformer_lens import HookedTransformer
from transformer_lens.utils import get_act_name

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
source_prompt = "After Alice and Mark met at the river, Mark handed a letter to"
target_prompt = "When Mary and John went to the store, John gave a drink to"
_, source_cache = model.run_with_cache(source_prompt)


def feed_source_representation(source_rep, target_layer, target_position):
    def resid_hook(target_rep, hook):
        target_rep[:, target_position, :] = source_rep
        return target_rep

    return [(get_act_name("resid_pre", target_layer), resid_hook)]


source_position = model.get_token_position(" Alice", source_prompt)
target_position = model.get_token_position(" Mary", target_prompt)
hooks = feed_source_representation(source_cache["resid_pre", 1][:, source_position], 1, target_position)

# One token at a time, with the patch applied in every step.
tokens = model.to_tokens(target_prompt)
for _ in range(3):
    with model.hooks(fwd_hooks=hooks):
        logits = model(tokens)
    tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)

plain = model.to_tokens(target_prompt)
results = {
    "patched_text": model.to_string(tokens[0, 1:]),
    "patched_logits": model.run_with_hooks(plain, fwd_hooks=hooks)[0, -1],
    "plain_logits": model(plain)[0, -1],
    "patched_top": model.to_str_tokens(model.run_with_hooks(plain, fwd_hooks=hooks)[0, -1].topk(3).indices),
}
