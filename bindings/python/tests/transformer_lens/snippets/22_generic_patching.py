# API reference of transformer_lens.patching, "generic_activation_patch" and "get_act_patch_resid_pre"
import torch
from transformer_lens import HookedTransformer
from transformer_lens.patching import generic_activation_patch, get_act_patch_resid_pre, layer_pos_patch_setter

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL)
clean_tokens = model.to_tokens("When Kate and Simon went to the office, Simon passed a hat to")
corrupted_tokens = model.to_tokens("When Kate and Simon went to the office, Kate passed a hat to")
_, clean_cache = model.run_with_cache(clean_tokens)


def metric(logits):
    log_probs = logits[0, -1].log_softmax(-1)
    return log_probs[model.to_single_token(" Kate")] - log_probs[model.to_single_token(" Simon")]


mlp_out = generic_activation_patch(
    model,
    corrupted_tokens,
    clean_cache,
    metric,
    patch_setter=layer_pos_patch_setter,
    activation_name="mlp_out",
    index_axis_names=("layer", "pos"),
)


def neuron_setter(corrupted_activation, index, clean_activation):
    # Patches a quarter of the neurons of a layer, which is not one of the patches that the library provides.
    _, part = index
    corrupted_activation[:, :, part::4] = clean_activation[:, :, part::4]
    return corrupted_activation


neurons, index_df = generic_activation_patch(
    model,
    corrupted_tokens,
    clean_cache,
    metric,
    patch_setter=neuron_setter,
    activation_name="post",
    index_axis_names=("layer", "head"),
    return_index_df=True,
)

results = {
    "resid_pre": get_act_patch_resid_pre(model, corrupted_tokens, clean_cache, metric),
    "mlp_out": mlp_out,
    "neurons": neurons,
    "columns": list(index_df.columns),
    "layers": [int(layer) for layer in index_df["layer"]],
}
