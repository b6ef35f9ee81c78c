# demos/Head_Detector_Demo.ipynb, "Using Head Detector For Premade Heads" and "... for Custom Heads"
# Model: induction
import torch
from transformer_lens import HookedTransformer
from transformer_lens.head_detector import detect_head, get_previous_token_head_detection_pattern

model = HookedTransformer.from_pretrained(MODEL)
prompt = "king drum sun star moon king drum sun star moon"

previous = detect_head(model, prompt, "previous_token_head")
duplicate = detect_head(model, prompt, "duplicate_token_head", exclude_current_token=True)
induction = detect_head(model, prompt, "induction_head", exclude_bos=True)
absolute = detect_head(model, prompt, "induction_head", error_measure="abs")

# A detection pattern of our own: attention to the token two positions back.
n = model.to_tokens(prompt).shape[-1]
two_back = torch.diag(torch.ones(n - 2), -2)
custom = detect_head(model, prompt, two_back, heads=[(0, 1), (1, 0), (1, 3)])
# TransformerLens ignores `heads` for a list of texts, so none are given.
several = detect_head(model, [prompt, "fox cat dog fox cat dog fox"], "induction_head")

results = {
    "previous": previous,
    "duplicate": duplicate,
    "induction": induction,
    "absolute": absolute,
    "custom": custom,
    "several": several,
    "pattern": get_previous_token_head_detection_pattern(model.to_tokens(prompt).cpu()),
}
