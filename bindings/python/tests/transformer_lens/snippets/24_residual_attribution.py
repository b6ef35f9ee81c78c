# demos/Attribution_Patching_Demo.ipynb, "Residual Stream Patching", "Layer Output Patching" and "Head Output Patching"
from transformer_lens import ActivationCache, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
model.set_use_attn_result(True)
clean_tokens = model.to_tokens("After Peter and Sarah stayed at the river, Peter gave a ring to")
corrupted_tokens = model.to_tokens("After Peter and Sarah stayed at the river, Sarah gave a ring to")
sarah, peter = model.to_single_token(" Sarah"), model.to_single_token(" Peter")


# Hook points that are off by default refuse hooks.
ENABLED = lambda name: not name.endswith(("_input", "attn_in", "mlp_in"))


def activations_and_gradients(tokens):
    values, gradients = {}, {}
    model.add_hook(ENABLED, lambda value, hook: values.update({hook.name: value.detach()}), "fwd")
    model.add_hook(ENABLED, lambda grad, hook: gradients.update({hook.name: grad.detach()}), "bwd")
    last = model(tokens)[0, -1]
    (last[sarah] - last[peter]).backward()
    model.reset_hooks()
    return ActivationCache(values, model), ActivationCache(gradients, model)


clean_cache, _ = activations_and_gradients(clean_tokens)
corrupted_cache, corrupted_grad_cache = activations_and_gradients(corrupted_tokens)


def attribution(stack):
    """Gradient times difference, summed over the batch and d_model."""
    clean, labels = stack(clean_cache, return_labels=True)
    corrupted = stack(corrupted_cache, return_labels=False)
    grad = stack(corrupted_grad_cache, return_labels=False)
    return (grad * (clean - corrupted)).sum(dim=(1, 3)), labels


residual, residual_labels = attribution(lambda cache, **kw: cache.accumulated_resid(-1, incl_mid=True, **kw))
layer_out, layer_labels = attribution(lambda cache, **kw: cache.decompose_resid(-1, **kw))
head_out, head_labels = attribution(lambda cache, **kw: cache.stack_head_results(-1, **kw))

results = {
    "residual": residual,
    "residual_labels": residual_labels,
    "layer_out": layer_out,
    "layer_labels": layer_labels,
    "head_out": head_out,
    "head_labels": head_labels,
}
