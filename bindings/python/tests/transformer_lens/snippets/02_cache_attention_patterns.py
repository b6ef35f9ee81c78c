# demos/Main_Demo.ipynb, "Caching all Activations"
import torch
from transformer_lens import ActivationCache, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
text = "After Anna and Tom walked to the park, Tom handed a book to Anna."
tokens = model.to_tokens(text)
logits, cache = model.run_with_cache(tokens, remove_batch_dim=True)
assert isinstance(cache, ActivationCache)

attention_pattern = cache["pattern", 0, "attn"]
str_tokens = model.to_str_tokens(text)
most_attended = [str_tokens[i] for i in attention_pattern[0].argmax(dim=-1)]

# Only what is needed for the first layer is computed here.
hook_name = "blocks.0.attn.hook_pattern"
_, small_cache = model.run_with_cache(tokens, remove_batch_dim=True, stop_at_layer=1, names_filter=[hook_name])
assert torch.equal(small_cache[hook_name], attention_pattern)

results = {
    "logits": logits,
    "attention_pattern": attention_pattern,
    "str_tokens": str_tokens,
    "most_attended": most_attended,
    "small_cache": list(small_cache.keys()),
    "cached": len(cache),
    "scores": cache["blocks.3.attn.hook_attn_scores"],
    "scale": cache["scale", 2, "ln1"],
    "last_mlp": cache["post", -1, "mlp"],
    "embed": cache["embed"],
}
