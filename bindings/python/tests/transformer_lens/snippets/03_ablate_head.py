# demos/Main_Demo.ipynb, "Hooks: Intervening on Activations"
from functools import partial

from transformer_lens import HookedTransformer, utils
from transformer_lens.hook_points import HookPoint

model = HookedTransformer.from_pretrained(MODEL)
tokens = model.to_tokens("While Lucy and Paul stayed at the office, Paul passed a coin to Lucy.")
shapes = []


def zero_values(v, hook: HookPoint, head):
    shapes.append(list(v.shape))
    v[:, :, head] = 0.0
    return v


baseline = model(tokens, return_type="loss").item()
ablated = {}
for layer, head in ((0, 1), (1, 2), (3, 0)):
    hook = (utils.get_act_name("v", layer), partial(zero_values, head=head))
    ablated[f"L{layer}H{head}"] = model.run_with_hooks(tokens, return_type="loss", fwd_hooks=[hook]).item()

results = {
    "baseline": baseline,
    **ablated,
    "afterwards": model(tokens, return_type="loss").item(),
    "shapes": shapes,
}
