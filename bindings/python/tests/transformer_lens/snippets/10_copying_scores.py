# demos/Main_Demo.ipynb, "Medium Example: Eigenvalue Copying Scores"
import transformer_lens.utils as utils
from transformer_lens import HookedTransformer

model = HookedTransformer.from_pretrained(MODEL)

OV_circuit_all_heads = model.OV
print(OV_circuit_all_heads)
eigenvalues = OV_circuit_all_heads.eigenvalues
OV_copying_score = eigenvalues.sum(dim=-1).real / eigenvalues.abs().sum(dim=-1)

full_OV_circuit = model.embed.W_E @ OV_circuit_all_heads @ model.unembed.W_U
full_eigenvalues = full_OV_circuit.eigenvalues
full_OV_copying_score = full_eigenvalues.sum(dim=-1).real / full_eigenvalues.abs().sum(dim=-1)

# How strongly one head raises the logit of every token that it attends to.
one_head = full_OV_circuit[3, 0]

results = {
    "shape": list(OV_circuit_all_heads.shape),
    "eigenvalues_shape": list(eigenvalues.shape),
    "is_complex": eigenvalues.is_complex(),
    "OV_copying_score": utils.to_numpy(OV_copying_score),
    "full_shape": list(full_OV_circuit.shape),
    "full_OV_copying_score": full_OV_copying_score,
    "head_diagonal": one_head.AB.diagonal(),
    "norms": OV_circuit_all_heads.norm(),
    "singular_values": OV_circuit_all_heads[1].S,
}
