# demos/Main_Demo.ipynb, "Loading and Running Models"
import torch
import transformer_lens
import transformer_lens.utils as utils
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
device = utils.get_device()
model: transformer_lens.HookedTransformer = HookedTransformer.from_pretrained(MODEL, device=device)

text = "When Mary and John went to the store, John gave a drink to Mary."
loss = model(text, return_type="loss")
print("Model loss:", loss)

loss_per_token = model(text, return_type="loss", loss_per_token=True)
logits, mean_loss = model(text, return_type="both")
tokens = model.to_tokens(text)
predicted = logits.argmax(dim=-1).squeeze()[:-1]
true_tokens = tokens.squeeze()[1:]

results = {
    "loss": loss,
    "loss_per_token": loss_per_token,
    "mean_loss": mean_loss,
    "logits": logits,
    "by_hand": utils.lm_cross_entropy_loss(logits, tokens),
    "correct": (predicted == true_tokens).float().mean(),
    "accuracy": utils.lm_accuracy(logits, tokens, per_token=True),
}
