"""Writes the results of the snippets with TransformerLens to `goldens/`.

    pip install torch==2.9.1 transformer-lens==2.16.1 transformers==4.57.1
    python bindings/python/tests/transformer_lens/make_goldens.py

Nothing is downloaded: the snippets run on the models in `crates/loading/src/embedded`. Before anything is written, the
program checks that TransformerLens computes Hugging Face's logits on the same weights, that every snippet returns the
same results when it runs again, and that results in double precision agree to a tenth of the tolerance, so that rounding
does not decide whether a result is right.
"""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import reference
import run_snippets
import torch
from safetensors.torch import load_file, save_file

PROMPT = "When Mary and John went to the store, John gave a drink to"


@torch.no_grad()
def check_logits():
    from transformer_lens import HookedTransformer

    hf, bias = reference.gpt2("embedded:ioi")
    plain = HookedTransformer.from_pretrained_no_processing("embedded:ioi")
    tokens = plain.to_tokens(PROMPT)
    # One BOS token, added by TransformerLens.
    assert tokens[0].tolist() == [0, *reference.tokenizer("embedded:ioi").encode(PROMPT)]
    expected = hf(tokens).logits + bias
    assert torch.allclose(plain(tokens), expected, atol=1e-4), "TransformerLens and Hugging Face differ"
    processed = HookedTransformer.from_pretrained("embedded:ioi")
    assert torch.allclose(processed(tokens).log_softmax(-1), expected.log_softmax(-1), atol=1e-4)


def computed():
    """Results of every snippet, by snippet and name."""
    return {path.stem: run_snippets.execute(path, "transformer_lens") for path in run_snippets.snippets()}


def split(results):
    """Separates tensors, which are stored as safetensors, from values, which are stored as JSON."""
    tensors, values = {}, {}
    for snippet, own in results.items():
        values[snippet] = {}
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                assert not value.is_complex(), f"{snippet}: {name} is complex"
                kept = value.float() if value.is_floating_point() else value
                tensors[f"{snippet}/{name}"] = kept.contiguous().clone()
            else:
                values[snippet][name] = value
    return tensors, values


def in_double():
    """Results of every snippet in double precision, for the same random numbers."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    randn = torch.randn
    torch.randn = lambda *size, **options: randn(*size, **options, dtype=torch.float32).double()
    torch.Tensor.float = torch.Tensor.double
    reference.install(torch.float64)
    return computed()


def check_stable(results):
    """Fails for results that rounding errors can change by more than a tenth of the tolerance."""
    # In a process of its own, because the precision is a global setting.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        double = pool.submit(in_double).result()
    unstable = [
        f"{snippet}: {text}"
        for snippet, own in double.items()
        for text in run_snippets.differences(results[snippet], own, run_snippets.TOLERANCE / 10)
    ]
    assert not unstable, "these results depend on rounding:\n" + "\n".join(unstable)


def main():
    # The models are so small that threads only slow them down.
    torch.set_num_threads(1)
    reference.install()
    check_logits()
    results = computed()
    for snippet, again in computed().items():
        found = run_snippets.differences(again, results[snippet], 1e-6)
        assert not found, f"{snippet}: not the same when it runs again: {found}"
    check_stable(results)
    tensors, values = split(results)
    run_snippets.VALUES.parent.mkdir(exist_ok=True)
    save_file(tensors, run_snippets.TENSORS)
    run_snippets.VALUES.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    assert load_file(run_snippets.TENSORS).keys() == tensors.keys()
    size = run_snippets.TENSORS.stat().st_size + run_snippets.VALUES.stat().st_size
    print(f"{len(results)} snippets, {len(tensors)} tensors, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
