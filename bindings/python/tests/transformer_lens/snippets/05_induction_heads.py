# demos/Main_Demo.ipynb, "Hooks: Accessing Activations"
# Model: induction
import einops
import torch
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
length = 30
torch.manual_seed(50)
tokens = torch.randint(1, model.cfg.d_vocab, (10, length)).to(model.cfg.device)
tokens = einops.repeat(tokens, "batch pos -> batch (2 pos)")

# The loss drops where the tokens repeat.
log_probs = model.loss_fn(model(tokens), tokens, per_token=True)
loss_by_position = einops.reduce(log_probs, "batch pos -> pos", "mean")

scores = {name: torch.zeros(model.cfg.n_layers, model.cfg.n_heads) for name in ("previous", "duplicate", "induction")}
offsets = {"previous": 1, "duplicate": length, "induction": length - 1}


def measure(pattern, hook):
    for name, offset in offsets.items():
        stripe = pattern.diagonal(offset=-offset, dim1=-2, dim2=-1)
        scores[name][hook.layer()] = einops.reduce(stripe, "batch head pos -> head", "mean").detach().cpu()


nothing = model.run_with_hooks(tokens, return_type=None, fwd_hooks=[(lambda name: name.endswith("pattern"), measure)])
assert nothing is None

results = {"loss_by_position": loss_by_position, **scores, "attn_only": model.cfg.attn_only}
