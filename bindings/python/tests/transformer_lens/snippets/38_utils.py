# API reference of transformer_lens.utils
import contextlib
import io
import re

import torch
import transformer_lens.utils as utils
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
prompt = "When Mary and John went to the store, John gave a drink to"

# `test_prompt` prints. The tokens and ranks are read from its output.
with contextlib.redirect_stdout(io.StringIO()) as printed:
    utils.test_prompt(prompt, " Mary", model, prepend_bos=True)
text = printed.getvalue()
logits = model(prompt)
activation = model.run_with_cache(prompt)[1]["resid_post", 2]

results = {
    "top_tokens": re.findall(r"^Top \d+th token.*Token: \|(.*)\|", text, flags=re.M),
    "rank": re.findall(r"Rank: (\d+)", text),
    "names": [
        utils.get_act_name("resid_pre", 3),
        utils.get_act_name("k", 6, "a"),
        utils.get_act_name("pattern", 2),
        utils.get_act_name("embed"),
        utils.get_act_name("normalized", 27, "ln2"),
        utils.get_act_name("scale4ln1"),
        utils.get_act_name("pre5"),
    ],
    "corner": utils.get_corner(activation),
    "numpy": utils.to_numpy(utils.remove_batch_dim(activation)[-1]),
    "slice": utils.Slice((2, 8, 3)).apply(activation, dim=1),
    "indices": utils.Slice((1, 10, 3)).indices(10),
    "per_token": utils.lm_cross_entropy_loss(logits, model.to_tokens(prompt), per_token=True),
    "greedy": utils.sample_logits(logits[:, -1], temperature=0.0),
    "one_of_one": utils.sample_logits(logits[:, -1], top_k=1),
    "transposed": list(utils.transpose(activation).shape),
    "gelu_new": utils.gelu_new(torch.linspace(-3, 3, 13)),
}
