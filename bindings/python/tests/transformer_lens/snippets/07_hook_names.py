# demos/Main_Demo.ipynb, "Activation + Hook Names"
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
prompt = "When Henry and Julia worked at the market, Julia sold a hat to"
shapes = {}


def note_shape(value, hook):
    shapes[hook.name] = tuple(value.shape)


def first_layer_or_outside(name):
    return "blocks." not in name or name.startswith("blocks.0.")


model.run_with_hooks(prompt, return_type=None, fwd_hooks=[(first_layer_or_outside, note_shape)])
_, cache = model.run_with_cache(prompt)

results = {
    "num_tokens": model.to_tokens(prompt).shape[1],
    "fired": [f"{name} {shape}" for name, shape in shapes.items()],
    "cached": [name for name in cache if first_layer_or_outside(name)],
}
