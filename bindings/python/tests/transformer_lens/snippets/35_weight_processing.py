# docs/source/content/special_cases.md and demos/Main_Demo.ipynb, "Folding LayerNorm (For the Curious)"
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
processed = HookedTransformer.from_pretrained(MODEL)
plain = HookedTransformer.from_pretrained_no_processing(MODEL)
folded = HookedTransformer.from_pretrained(
    MODEL, fold_ln=True, center_writing_weights=False, center_unembed=False, fold_value_biases=False
)
refactored = HookedTransformer.from_pretrained(MODEL, refactor_factored_attn_matrices=True)
tokens = plain.to_tokens("When Mark and Emma stayed at the school, Emma handed a apple to")
logits, cache = plain.run_with_cache(tokens)
_, processed_cache = processed.run_with_cache(tokens)

results = {
    "norms": [m.cfg.normalization_type for m in (processed, plain, folded)],
    "logits": logits,
    "processed_logits": processed(tokens),
    "folded_logits": folded(tokens),
    "refactored_log_probs": refactored(tokens).log_softmax(-1),
    "ln1_w": plain.blocks[0].ln1.w,
    "ln_final_b": plain.ln_final.b,
    "normalized": cache["normalized", 1, "ln2"][0, -1],
    "processed_normalized": processed_cache["normalized", 1, "ln2"][0, -1],
    "b_V": [plain.blocks[1].attn.b_V.norm().item(), folded.blocks[1].attn.b_V.norm().item()],
    "b_O": processed.blocks[1].attn.b_O,
    "W_K": refactored.W_K[0, 0] @ refactored.W_K[0, 0].T,
}
