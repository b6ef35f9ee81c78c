# demos/Main_Demo.ipynb, "Dealing with tokens" and "Gotcha: `prepend_bos`"
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
text = "Mary went to the store. John went to the park."
multi_text = ["Mary went to the store.", "Mary went to the store in the morning after lunch."]
tokens = model.to_tokens(text)
probs = model(text).softmax(dim=-1)

ioi_prompt = "When Clara and Mary went to the store, Mary gave a letter to"
mary, clara = model.to_single_token(" Mary"), model.to_single_token(" Clara")
diffs = []
for prepend_bos in (True, False):
    logits = model(ioi_prompt, prepend_bos=prepend_bos)
    diffs.append(logits[0, -1, clara] - logits[0, -1, mary])

results = {
    "str_tokens": model.to_str_tokens(text),
    "tokens": tokens,
    "without_bos": model.to_tokens(text, prepend_bos=False),
    "multi": model.to_tokens(multi_text),
    "probability": probs[0, -1, model.to_single_token(" After")].item(),
    "string": model.to_string(tokens.squeeze()),
    "strings": model.to_string(tokens),
    "single": model.to_string(25),
    "with_bos": model.get_token_position(" store", "Mary went to the store"),
    "position_without_bos": model.get_token_position(" store", "Mary went to the store", prepend_bos=False),
    "first": model.get_token_position(" went", text, mode="first"),
    "last": model.get_token_position(" went", text, mode="last"),
    "of_tokens": model.get_token_position(model.to_single_token(" park"), tokens),
    "shapes": [list(model("Mary met", prepend_bos=bos).shape) for bos in (True, False)],
    "single_str_token": model.to_single_str_token(clara),
    "several": model.to_str_tokens(multi_text),
    "diffs": torch.stack(diffs),
}
