# demos/Main_Demo.ipynb, "Factored Matrix Class", "Basic Examples"
import torch
from transformer_lens import FactoredMatrix

torch.manual_seed(50)
A = torch.randn(5, 2)
B = torch.randn(2, 5)
AB = A @ B
AB_factor = FactoredMatrix(A, B)

C = torch.randn(5, 300)
ABC_factor = AB_factor @ C
left = torch.randn(3, 5) @ AB_factor
assert torch.isclose(AB_factor.AB, AB).all()
even = AB_factor.make_even()

results = {
    "norm": AB_factor.norm(),
    "dimensions": [AB_factor.ldim, AB_factor.mdim, AB_factor.rdim],
    "eigenvalues": AB_factor.eigenvalues.abs().sort().values,
    "singular_values": AB_factor.S,
    "reconstructed": AB_factor.U @ AB_factor.S.diag() @ AB_factor.Vh.T,
    "ABC_norm": ABC_factor.norm(),
    "ABC_type": type(ABC_factor).__name__,
    "ABC_dimensions": [ABC_factor.ldim, ABC_factor.mdim, ABC_factor.rdim],
    "left": left.AB,
    "vector": AB_factor @ torch.arange(5.0),
    "row": AB_factor[2].AB,
    "column": AB_factor[:, 1].AB,
    "transposed": AB_factor.T.AB,
    "twice": (2 * AB_factor).AB,
    "even": even.A.norm() / even.B.norm(),
    "product": (AB_factor @ AB_factor).AB,
}
