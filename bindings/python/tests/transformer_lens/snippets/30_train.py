# demos/Grokking_Demo.ipynb, "Model Training"
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

p = 7
cfg = HookedTransformerConfig(
    n_layers=1,
    n_heads=2,
    d_model=16,
    d_head=8,
    d_mlp=32,
    act_fn="relu",
    normalization_type=None,
    d_vocab=p + 1,
    d_vocab_out=p,
    n_ctx=3,
    init_weights=True,
    device="cpu",
    seed=999,
)
model = HookedTransformer(cfg)
torch.manual_seed(0)
with torch.no_grad():
    for name, param in sorted(model.named_parameters()):
        if "b_" in name:
            # The demo trains without biases.
            param.zero_()
            param.requires_grad = False
        else:
            param.copy_(torch.randn(param.shape) / param.shape[-1] ** 0.5)

a, b = torch.meshgrid(torch.arange(p), torch.arange(p), indexing="ij")
dataset = torch.stack([a.flatten(), b.flatten(), torch.full((p * p,), p)], dim=1)
labels = (dataset[:, 0] + dataset[:, 1]) % p
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0, betas=(0.9, 0.98))

losses = []
for epoch in range(20):
    log_probs = model(dataset)[:, -1].log_softmax(dim=-1)
    loss = -log_probs.gather(dim=-1, index=labels[:, None]).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()

results = {"losses": losses, "W_E": model.W_E, "logits": model(dataset[:10])[:, -1]}
