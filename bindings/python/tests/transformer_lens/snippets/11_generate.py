# demos/Main_Demo.ipynb, "Generating Text"
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
prompt = "When Mary and John went to the store, John gave a drink to"

text = model.generate(prompt, max_new_tokens=4, do_sample=False, prepend_bos=True, verbose=False)
cold = model.generate(prompt, max_new_tokens=4, temperature=0.0, verbose=False)
uncached = model.generate(prompt, max_new_tokens=4, do_sample=False, use_past_kv_cache=False, verbose=False)
tokens = model.generate(model.to_tokens(prompt), max_new_tokens=6, do_sample=False, stop_at_eos=False, verbose=False)
as_tokens = model.generate(prompt, max_new_tokens=3, do_sample=False, return_type="tokens", verbose=False)

# Prompts of equal length, as one batch.
batch = model.generate(
    model.to_tokens([prompt, prompt.replace("store", "park").replace("John gave", "Mary gave")]),
    max_new_tokens=3,
    do_sample=False,
    verbose=False,
)

results = {
    "text": text,
    "cold": cold,
    "uncached": uncached,
    "tokens": tokens,
    "as_tokens": as_tokens,
    "batch": model.to_string(batch),
}
