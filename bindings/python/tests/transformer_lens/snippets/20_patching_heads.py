# demos/Activation_Patching_in_TL_Demo.ipynb, "attn_head_out Activation Patching" over all positions and by position
import einops
import torch
from transformer_lens import HookedTransformer, patching

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
clean_tokens = model.to_tokens(["When Anna and Paul met at the station, Paul handed a book to"])
corrupted_tokens = model.to_tokens(["When Anna and Paul met at the station, Anna handed a book to"])
answer, other = model.to_single_token(" Anna"), model.to_single_token(" Paul")
clean_logits, clean_cache = model.run_with_cache(clean_tokens)


def metric(logits):
    return logits[0, -1, answer] - logits[0, -1, other]


all_pos = patching.get_act_patch_attn_head_out_all_pos(model, corrupted_tokens, clean_cache, metric)
by_pos = patching.get_act_patch_attn_head_out_by_pos(model, corrupted_tokens, clean_cache, metric)
by_pos = einops.rearrange(by_pos, "layer pos head -> (layer head) pos")

results = {
    "labels": [f"{token} {i}" for i, token in enumerate(model.to_str_tokens(clean_tokens[0]))],
    "heads": model.all_head_labels(),
    "all_pos": all_pos,
    "by_pos": by_pos,
    "pattern": patching.get_act_patch_attn_head_pattern_all_pos(model, corrupted_tokens, clean_cache, metric),
}
