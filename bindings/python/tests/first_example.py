"""The first example of the guide, for a fresh environment with the wheel alone."""

from hooklens import HookedTransformer

model = HookedTransformer.from_pretrained("embedded:ioi")
logits, cache = model.run_with_cache("When Mary and John went to the store, John gave a drink to")
answer = model.to_single_str_token(logits[0, -1].argmax())
assert answer == "Mary", answer
assert cache["pattern", 1].shape == (1, 4, 15, 15)
print(f"{model}: {answer}")
