# demos/Tracr_to_Transformer_Lens_Demo.ipynb, "Tracr to TransformerLens Converter"
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

cfg = HookedTransformerConfig(
    n_layers=2,
    d_model=24,
    n_ctx=10,
    d_head=6,
    n_heads=4,
    d_vocab=12,
    d_vocab_out=9,
    d_mlp=32,
    act_fn="relu",
    attention_dir="bidirectional",
    normalization_type=None,
)
model = HookedTransformer(cfg)

torch.manual_seed(0)
sd = {
    "embed.W_E": torch.randn(12, 24),
    "pos_embed.W_pos": torch.randn(10, 24),
    "unembed.W_U": torch.randn(24, 9) / 5,
    "unembed.b_U": torch.zeros(9),
}
for l in range(cfg.n_layers):
    for name in ("W_Q", "W_K", "W_V"):
        sd[f"blocks.{l}.attn.{name}"] = torch.randn(4, 24, 6) / 5
        sd[f"blocks.{l}.attn.b_{name[-1]}"] = torch.randn(4, 6) / 10
    sd[f"blocks.{l}.attn.W_O"] = torch.randn(4, 6, 24) / 5
    sd[f"blocks.{l}.attn.b_O"] = torch.zeros(24)
    sd[f"blocks.{l}.mlp.W_in"] = torch.randn(24, 32) / 5
    sd[f"blocks.{l}.mlp.b_in"] = torch.randn(32) / 10
    sd[f"blocks.{l}.mlp.W_out"] = torch.randn(32, 24) / 5
    sd[f"blocks.{l}.mlp.b_out"] = torch.zeros(24)
model.load_state_dict(sd, strict=False)

logits, cache = model.run_with_cache(torch.tensor([[1, 7, 3, 3, 11]]))
results = {
    "logits": logits,
    "pattern": cache["pattern", 1],
    "post": cache["blocks.0.mlp.hook_post"],
    "cached": list(cache.keys()),
    "d_vocab_out": model.cfg.d_vocab_out,
}
