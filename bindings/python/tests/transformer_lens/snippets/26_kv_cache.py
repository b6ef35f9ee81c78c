# API reference of transformer_lens.past_key_value_caching, "HookedTransformerKeyValueCache"
import torch
from transformer_lens import HookedTransformer, HookedTransformerKeyValueCache

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
prefix = model.to_tokens("When Mary and John went to the store,")

kv_cache = HookedTransformerKeyValueCache.init_cache(model.cfg, model.cfg.device, prefix.shape[0])
prefix_logits = model(prefix, past_kv_cache=kv_cache)

# While the cache is frozen, several continuations reuse the same prefix.
kv_cache.freeze()
logits = {}
for name in ("John", "Mary"):
    new_tokens = model.to_tokens(f"{name} gave a drink to", prepend_bos=False)
    logits[name] = model(new_tokens, past_kv_cache=kv_cache)
frozen_length = kv_cache[0].past_keys.shape[1]

kv_cache.unfreeze()
_, cache = model.run_with_cache(model.to_tokens("John gave", prepend_bos=False), past_kv_cache=kv_cache)
next_logits = model(model.to_tokens("a drink", prepend_bos=False), past_kv_cache=kv_cache)

results = {
    "prefix_logits": prefix_logits[:, -1],
    **logits,
    "frozen_length": frozen_length,
    "length": kv_cache[0].past_keys.shape[1],
    "past_values": kv_cache[2].past_values[:, -2:],
    "pattern": cache["pattern", 1],
    "next_logits": next_logits,
    "previous_attention_mask": kv_cache.previous_attention_mask,
}
