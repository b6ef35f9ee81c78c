# demos/SVD_Interpreter_Demo.ipynb
import torch
from transformer_lens import HookedTransformer, SVDInterpreter

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained(MODEL, center_writing_weights=False, fold_ln=False)
svd_interpreter = SVDInterpreter(model)
all_tokens = [model.to_str_tokens(torch.tensor([i]))[0] for i in range(model.cfg.d_vocab)]

vectors = {
    "OV": svd_interpreter.get_singular_vectors("OV", layer_index=2, head_index=1, num_vectors=4),
    "w_in": svd_interpreter.get_singular_vectors("w_in", layer_index=1, num_vectors=4),
    "w_out": svd_interpreter.get_singular_vectors("w_out", layer_index=3, num_vectors=4),
}
# The sign of a singular vector is arbitrary.
vectors = {name: matrix.abs() for name, matrix in vectors.items()}

results = {
    "all_tokens": all_tokens[:6],
    **vectors,
    "top": [all_tokens[i] for i in vectors["OV"][:, 0, 0].topk(5).indices],
}
