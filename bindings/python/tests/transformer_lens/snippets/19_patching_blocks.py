# demos/Activation_Patching_in_TL_Demo.ipynb, "Activation Patching Per Block"
import torch
import transformer_lens.patching as patching
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
prompts, right, wrong = [], [], []
for text, names in (
    ("When John and Mary went to the store, {} gave a ball to", (" John", " Mary")),
    ("When Tom and Emma walked to the park, {} gave a ball to", (" Tom", " Emma")),
):
    for subject, answer in (names, names[::-1]):
        prompts.append(text.format(subject.strip()))
        right.append(model.to_single_token(answer))
        wrong.append(model.to_single_token(subject))
clean_tokens = model.to_tokens(prompts)
corrupted_tokens = clean_tokens[[1, 0, 3, 2]]
rows = torch.arange(len(prompts))
_, clean_cache = model.run_with_cache(clean_tokens)


def logit_diff(logits):
    return (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()


best, worst = (logit_diff(model(tokens)).item() for tokens in (clean_tokens, corrupted_tokens))


def metric(logits):
    return (logit_diff(logits) - worst) / (best - worst)


results = {
    "baselines": [best, worst],
    "every_block": patching.get_act_patch_block_every(model, corrupted_tokens, clean_cache, metric),
}
