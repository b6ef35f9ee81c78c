"""Writes activations computed by Hugging Face, for comparison with `hooklens parity`.

    pip install torch transformers safetensors
    python scripts/reference_dump.py MODEL --prompt "When Mary and John went" --out reference.safetensors
    hooklens parity --model MODEL --reference reference.safetensors

MODEL is a folder or a hub id of a decoder, an encoder or an encoder-decoder. The file contains the tokens, the residual
stream before each layer, the attention patterns and the logits, in f32, under hooklens's names. If there are
several prompts, they are padded.
"""

import argparse

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", action="append", help="a prompt; may be given several times")
    given.add_argument("--tokens", help='token ids, with rows separated by semicolons: "1,2,3;4,5,6"')
    parser.add_argument("--decoder-tokens", help="token ids for the decoder of an encoder-decoder (default: its start token)")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def rows(text):
    return torch.tensor([[int(token) for token in row.split(",")] for row in text.split(";")])


def tokenized(args):
    if args.tokens:
        return rows(args.tokens), None
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    given = tokenizer(args.prompt, return_tensors="pt", padding=len(args.prompt) > 1, padding_side="right")
    return given["input_ids"], given["attention_mask"]


def streams(prefix, hidden, patterns):
    """Residual stream before each layer and attention patterns. The last element of `hidden` is the output of the
    final norm layer, so it is left out.
    """
    named = {f"{prefix}.{layer}.hook_resid_pre": x for layer, x in enumerate(hidden[:-1])}
    return named | {f"{prefix}.{layer}.attn.hook_pattern": x for layer, x in enumerate(patterns)}


@torch.no_grad()
def main():
    args = arguments()
    config = AutoConfig.from_pretrained(args.model)
    architecture = (config.architectures or [""])[0]
    if config.is_encoder_decoder:
        kind = AutoModelForSeq2SeqLM
    elif "CausalLM" in architecture or "LMHead" in architecture:
        kind = AutoModelForCausalLM
    else:
        kind = AutoModelForMaskedLM if "MaskedLM" in architecture or "PreTraining" in architecture else AutoModel
    model = kind.from_pretrained(args.model, attn_implementation="eager", dtype=torch.float32).eval()
    tokens, mask = tokenized(args)
    inputs = dict(input_ids=tokens, output_hidden_states=True, output_attentions=True)
    if mask is not None:
        inputs["attention_mask"] = mask
    dump = dict(tokens=tokens)
    if mask is not None and (mask == 0).any():
        dump["attention_mask"] = mask
    if config.is_encoder_decoder:
        start = torch.full((len(tokens), 1), config.decoder_start_token_id or config.bos_token_id or 0)
        written = rows(args.decoder_tokens) if args.decoder_tokens else start
        out = model(decoder_input_ids=written, use_cache=False, **inputs)
        dump |= dict(decoder_tokens=written) | streams("encoder", out.encoder_hidden_states, out.encoder_attentions)
        dump |= streams("decoder", out.decoder_hidden_states, out.decoder_attentions)
        dump |= {f"decoder.{i}.cross_attn.hook_pattern": x for i, x in enumerate(out.cross_attentions)}
    else:
        out = model(**inputs)
        dump |= streams("blocks", out.hidden_states, out.attentions)
    if "logits" in out:
        dump["logits"] = out.logits
    save_file({name: x.contiguous().clone() for name, x in dump.items()}, args.out)
    print(f"{args.out}: {len(dump)} tensors")


if __name__ == "__main__":
    main()
