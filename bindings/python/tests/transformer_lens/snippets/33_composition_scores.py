# API reference of HookedTransformer, "all_composition_scores", "QK", "W_E_pos" and "accumulated_bias"
# Model: induction
import torch
from transformer_lens import FactoredMatrix, HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)
scores = {mode: model.all_composition_scores(mode) for mode in ("Q", "K", "V")}

# Which previous position does every head of the first layer attend to, by position alone?
QK = FactoredMatrix(model.W_Q[0], model.W_K[0].transpose(-2, -1))
pos_by_pos = model.W_pos @ QK @ model.W_pos.T
pattern = (pos_by_pos.AB / model.cfg.d_head**0.5).tril().softmax(dim=-1)

# The full OV circuit of a head copies tokens if its diagonal holds the largest element of each column.
full_OV = model.W_E @ model.W_V[1, 0] @ model.W_O[1, 0] @ model.W_U
copies = (full_OV.argmax(dim=0) == torch.arange(model.cfg.d_vocab, device=full_OV.device)).float().mean()

results = {
    "labels": model.all_head_labels(),
    **scores,
    "pos_by_pos": pos_by_pos[1].AB[:12, :12],
    "previous": pattern.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1),
    "copies": copies,
    "full_OV": full_OV.diagonal(),
    "W_E_pos": list(model.W_E_pos.shape),
    "QK": model.QK[1, 2].AB,
    "block_OV": model.blocks[1].attn.OV[3].norm(),
    "accumulated_bias": model.accumulated_bias(2, include_mlp_biases=False),
}
