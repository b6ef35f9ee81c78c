# demos/Activation_Patching_in_TL_Demo.ipynb, induction on random repeated tokens
# Model: induction
import torch
import transformer_lens.patching as patching
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
attn_only = HookedTransformer.from_pretrained(MODEL)
device, length = attn_only.cfg.device, 12
torch.manual_seed(0)
first, second = (torch.randint(1, 63, (4, length)).to(device) for _ in range(2))
bos = torch.full((4, 1), attn_only.tokenizer.bos_token_id, device=device)
clean_tokens = torch.cat([bos, first, first], dim=1)
corrupted_tokens = torch.cat([bos, first, second], dim=1)


def repetition(logits):
    """Mean log probability of the first tokens, where the clean prompt repeats them."""
    log_probs = logits[:, -length:-1].log_softmax(-1)
    return log_probs.gather(-1, first[:, 1:, None]).mean()


clean_logits, clean_cache = attn_only.run_with_cache(clean_tokens)
arguments = (attn_only, corrupted_tokens, clean_cache, repetition)

results = {
    "baselines": [repetition(clean_logits).item(), repetition(attn_only(corrupted_tokens)).item()],
    "every_head": patching.get_act_patch_attn_head_all_pos_every(*arguments),
    "pattern_by_pos": patching.get_act_patch_attn_head_pattern_by_pos(*arguments),
}
