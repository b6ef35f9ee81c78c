# API reference of HookedTransformer, "to_tokens" and "forward": padding of texts of different lengths
import torch
import transformer_lens.utils as utils
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL, default_padding_side="left")
prompts = [
    "When Mary and John went to the store, John gave a drink to",
    "After lunch Tom and Anna went to the park in the morning, Anna gave a ball to",
    "Lucy gave a ring to",
]
tokens = model.to_tokens(prompts)
logits, cache = model.run_with_cache(tokens)
loss = model(tokens, return_type="loss")

# On the right, the logits at the last token of each prompt are those of the prompt alone.
right = model.to_tokens(prompts, padding_side="right")
lengths = [len(model.to_str_tokens(prompt)) for prompt in prompts]
right_logits = model(prompts, padding_side="right")[torch.arange(3), torch.tensor(lengths) - 1]

# A mask of our own leaves out the second name.
single = model.to_tokens(prompts[0])
mask = torch.ones_like(single)
mask[0, 4] = 0

results = {
    "tokens": tokens,
    "logits": logits[:, -1],
    "loss": loss,
    "pattern": cache["pattern", 2][2, :, -6:],
    "right": right,
    "right_logits": right_logits,
    "mask": utils.get_attention_mask(model.tokenizer, tokens, prepend_bos=True),
    "masked_logits": model(single, attention_mask=mask)[0, -1],
}
