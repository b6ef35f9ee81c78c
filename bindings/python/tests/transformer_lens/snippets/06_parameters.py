# demos/Main_Demo.ipynb, "Parameter Names" and "Folding LayerNorm (For the Curious)"
import torch
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)

shapes = []
for name, param in model.named_parameters():
    if name.startswith("blocks.0.") or not name.startswith("blocks"):
        shapes.append(f"{name} {tuple(param.shape)}")

unembed_bias = model.unembed.b_U
bias_values, bias_indices = unembed_bias.sort(descending=True)
john_bias = model.unembed.b_U[model.to_single_token(" John")]
mary_bias = model.unembed.b_U[model.to_single_token(" Mary")]
state_dict = model.state_dict()

results = {
    "shapes": sorted(shapes),
    "largest": [model.to_string(index) for index in bias_indices[:5]],
    "smallest": [model.to_string(index) for index in bias_indices[-5:]],
    "bias_values": bias_values,
    "prob_ratio": torch.exp(john_bias - mary_bias).item(),
    "W_Q": model.W_Q[2, 1],
    "W_O": model.blocks[0].attn.W_O[3],
    "b_V": list(model.b_V.shape),
    "W_in": model.W_in[1, :, :8],
    "b_out": model.blocks[3].mlp.b_out,
    "W_E": model.W_E[model.to_single_token(" Mary")],
    "W_pos": model.pos_embed.W_pos[:4],
    "W_U": state_dict["unembed.W_U"][:, :10],
    "config": [model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model, model.cfg.d_head, model.cfg.d_mlp],
    "names": [model.cfg.act_fn, model.cfg.normalization_type, model.cfg.positional_embedding_type],
}
