"""Loads the embedded models into TransformerLens 2.16.1."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[4] / "crates" / "loading" / "src" / "embedded"


def folder(name):
    return FOLDER / name.removeprefix("embedded:")


def config(name):
    """Configuration of an embedded model, as TransformerLens names its fields."""
    fields = json.loads((folder(name) / "config.json").read_text())
    kept = {key: value for key, value in fields.items() if key not in ("architectures", "bos_token_id")}
    return kept | {"original_architecture": fields["architectures"][0]}


def weights(name):
    """Weights of an embedded model. They are stored under TransformerLens's names."""
    from safetensors.torch import load_file

    return load_file(folder(name) / "model.safetensors")


def tokenizer(name):
    """Tokenizer of an embedded model. One token begins, ends and pads sequences, as in GPT-2."""
    from transformers import PreTrainedTokenizerFast

    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<bos>")
    # TransformerLens loads a tokenizer again unless `add_bos_token` is set. This tokenizer ignores it, so
    # TransformerLens prepends the token itself.
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder(name) / "tokenizer.json"), name_or_path=name, add_bos_token=True, **special
    )


def install(dtype=None):
    """Lets `HookedTransformer.from_pretrained("embedded:NAME")` load the embedded models, in `dtype` by default.

    `from_pretrained` itself and the processing of weights remain TransformerLens's.
    """
    import torch
    import transformer_lens.loading_from_pretrained as loading
    from transformer_lens import HookedTransformer, HookedTransformerConfig, utils

    if hasattr(loading, "hooklens_installed"):
        return
    loading.hooklens_installed = True
    official, converted, state_dict = (
        loading.get_official_model_name,
        loading.convert_hf_model_config,
        loading.get_pretrained_state_dict,
    )

    def embedded(name):
        return name.startswith("embedded:")

    def stored(name, cfg, hf_model=None, dtype=torch.float32, **kwargs):
        if not embedded(name):
            return state_dict(name, cfg, hf_model, dtype=dtype, **kwargs)
        # Causal masks are buffers that every model creates for itself.
        return {key: tensor.to(dtype) for key, tensor in weights(name).items()}

    loading.get_official_model_name = lambda name: name if embedded(name) else official(name)
    loading.convert_hf_model_config = lambda name, **kwargs: (
        config(name) if embedded(name) else converted(name, **kwargs)
    )
    loading.get_pretrained_state_dict = stored

    # `generate` makes its attention mask from zeros instead of the tokens, so that with a tokenizer that pads with token
    # 0, everything counts as padding. GPT-2 pads with another token; here, no token is padding during `generate`.
    generate = HookedTransformer.generate

    def generate_unpadded(self, *args, **kwargs):
        masked, utils.get_attention_mask = utils.get_attention_mask, lambda _, tokens, __: torch.ones_like(tokens)
        try:
            return generate(self, *args, **kwargs)
        finally:
            utils.get_attention_mask = masked

    HookedTransformer.generate = generate_unpadded

    original = HookedTransformer.from_pretrained.__func__

    def from_pretrained(cls, model_name, *args, **kwargs):
        if embedded(model_name):
            kwargs.setdefault("tokenizer", tokenizer(model_name))
            if dtype is not None:
                kwargs.setdefault("dtype", dtype)
        return original(cls, model_name, *args, **kwargs)

    HookedTransformer.from_pretrained = classmethod(from_pretrained)
    if dtype is not None:
        created = HookedTransformerConfig.__init__
        HookedTransformerConfig.__init__ = lambda self, *args, **kwargs: created(
            self, *args, **{"dtype": dtype} | kwargs
        )


def gpt2(name):
    """Hugging Face's GPT-2 with the weights of an embedded model, and the bias of its logits, which GPT-2 lacks."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    fields, stored = config(name), weights(name)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=fields["d_vocab"],
            n_positions=fields["n_ctx"],
            n_embd=fields["d_model"],
            n_layer=fields["n_layers"],
            n_head=fields["n_heads"],
            n_inner=fields["d_mlp"],
            activation_function=fields["act_fn"],
            layer_norm_epsilon=fields["eps"],
            tie_word_embeddings=False,
        )
    ).eval()
    renamed = {
        "transformer.wte.weight": stored["embed.W_E"],
        "transformer.wpe.weight": stored["pos_embed.W_pos"],
        "transformer.ln_f.weight": stored["ln_final.w"],
        "transformer.ln_f.bias": stored["ln_final.b"],
        "lm_head.weight": stored["unembed.W_U"].T,
    }
    for layer in range(fields["n_layers"]):
        of, to = f"blocks.{layer}.", f"transformer.h.{layer}."
        for ours, theirs in (("ln1", "ln_1"), ("ln2", "ln_2")):
            renamed[f"{to}{theirs}.weight"] = stored[f"{of}{ours}.w"]
            renamed[f"{to}{theirs}.bias"] = stored[f"{of}{ours}.b"]
        joined = [stored[f"{of}attn.W_{x}"].permute(1, 0, 2).flatten(1) for x in "QKV"]
        renamed[f"{to}attn.c_attn.weight"] = torch.cat(joined, dim=1)
        renamed[f"{to}attn.c_attn.bias"] = torch.cat([stored[f"{of}attn.b_{x}"].flatten() for x in "QKV"])
        renamed[f"{to}attn.c_proj.weight"] = stored[f"{of}attn.W_O"].flatten(0, 1)
        renamed[f"{to}attn.c_proj.bias"] = stored[f"{of}attn.b_O"]
        for ours, theirs in (("in", "c_fc"), ("out", "c_proj")):
            renamed[f"{to}mlp.{theirs}.weight"] = stored[f"{of}mlp.W_{ours}"]
            renamed[f"{to}mlp.{theirs}.bias"] = stored[f"{of}mlp.b_{ours}"]
    model.load_state_dict(renamed)
    return model, stored["unembed.b_U"]
