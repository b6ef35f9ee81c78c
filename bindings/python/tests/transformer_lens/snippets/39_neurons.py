# API reference of ActivationCache: neurons, stacks of activations and slices
import torch
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
prompts = [
    "When Emma and Henry went to the river, Henry gave a apple to",
    "When Emma and Henry went to the river, Emma gave a apple to",
]
logits, cache = model.run_with_cache(prompts)
assert list(cache.keys())[0] == "hook_embed"

neurons, labels = cache.stack_neuron_results(layer=2, pos_slice=-1, return_labels=True, neuron_slice=(0, 20))
answers = torch.tensor([model.to_single_token(" Emma"), model.to_single_token(" Henry")])
attributions = cache.logit_attrs(neurons, tokens=answers, incorrect_tokens=answers.flip(0), pos_slice=-1)
top_neurons = [labels[i] for i in attributions.mean(-1).topk(3).indices]

first = cache.apply_slice_to_batch_dim(0)
unbatched = model.run_with_cache(prompts[:1])[1].remove_batch_dim().to("cpu")

results = {
    "labels": labels,
    "attributions": attributions,
    "top_neurons": top_neurons,
    "last_layer": cache.get_neuron_results(3, neuron_slice=[5, 77, 200], pos_slice=-1),
    "decomposed": cache.get_full_resid_decomposition(expand_neurons=True, pos_slice=-1).sum(0),
    "parts": len(cache.get_full_resid_decomposition(expand_neurons=True, pos_slice=-1, return_labels=True)[1]),
    "patterns": cache.stack_activation("pattern")[:, 0, :, -1],
    "mid": cache.stack_activation("resid_mid", layer=2)[:, :, -1],
    "first": first["post", 1][-1, :16],
    "unbatched": unbatched["q", 3][-1],
    "sum_of_squares": sum(value.square().mean() for name, value in unbatched.items() if "mlp_out" in name),
}
