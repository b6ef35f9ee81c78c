"""Trains a dictionary with SAELens on stored activations and prints quality and time, for comparison with hooklens.

    pip install torch==2.9.1 sae-lens==6.54.12 transformer-lens==3.2.1 safetensors==0.8.0
    python benches/saelens_train.py --data activations.safetensors --d-sae 256 --k 8 --tokens 1000000 --save FOLDER
        [--batch 1024] [--lr 3e-4] [--seed 0] [--threads 2] [--architecture batchtopk] [--repeat 3]

The data file contains two f32 tensors, `train` [N, d] and `test` [M, d]. SAELens's own SAETrainer trains SAELens's own
class on batches of `train`, which is reshuffled for each pass, so only the optimization is timed: no model runs.
Everything that the options here do not set is SAELens's default: Adam (0.9, 0.999), no warm-up or decay of the learning
rate, gradients clipped to norm 1, decoder rows initialized to norm 0.1, coefficients of 1 for AuxK, L0 and L1, and
activations that are not normalized (`normalize_activations` is "none" in every class). One default does not suit short
runs: a latent counts as dead after 1000 steps without firing. Here it is a tenth of all steps, and at most 1000;
`--dead-window 1000` restores SAELens's value. `--k` is for batchtopk, topk and matryoshka. `--coefficient` is for the
others: the coefficient of the L0 loss for jumprelu, and of the L1 loss for standard and gated.

The inference model is saved to FOLDER, loaded again and evaluated on `test`, with sums in f64: explained variance is one
minus the sum of squared errors over the sum of squared distances from the mean, `l0` the mean number of active latents,
and `dead` the fraction of latents that never fire. `seconds` is the time of `fit`; with `--repeat`, the minimum of
several runs from the same seed. Measure on an idle machine: if another program needs a core, two torch threads take
many times as long, and `--threads 1` is steadier.
"""

import argparse
import json
import os
import time

os.environ["TQDM_DISABLE"] = "1"

import sae_lens
import torch
from safetensors.torch import load_file
from sae_lens.config import LoggingConfig, SAETrainerConfig
from sae_lens.registry import get_sae_training_class
from sae_lens.saes.sae import SAE
from sae_lens.training.sae_trainer import SAETrainer

COEFFICIENTS = {"jumprelu": "l0_coefficient", "standard": "l1_coefficient", "gated": "l1_coefficient"}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True, help="a safetensors file with `train` and `test`")
parser.add_argument("--d-sae", type=int, required=True)
parser.add_argument("--k", type=int, default=8)
parser.add_argument("--tokens", type=int, default=1_000_000)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--architecture", choices=["batchtopk", "topk", "matryoshka", *COEFFICIENTS], default="batchtopk")
parser.add_argument("--save", required=True, help="output folder for the inference model")
parser.add_argument("--coefficient", type=float, help="coefficient of the sparsity loss, if there is one (SAELens: 1)")
parser.add_argument("--widths", help="matryoshka widths, as 1,2,3 (default: an eighth, a quarter, a half, all)")
parser.add_argument("--dead-window", type=int, help="steps until a latent counts as dead (default: a tenth of all, at most 1000)")
parser.add_argument("--warm-up", type=int, default=0, help="steps of linear learning-rate warm-up")
parser.add_argument("--decay", type=int, default=0, help="steps of linear learning-rate decay at the end")
parser.add_argument("--normalize", default="none", help="value of normalize_activations")
parser.add_argument("--repeat", type=int, default=1, help="train this many times and report the shortest time")
args = parser.parse_args()

torch.set_num_threads(args.threads)
data = load_file(args.data)
steps = args.tokens // args.batch


def batches(train):
    """Endless shuffled batches. An incomplete batch at the end of a pass is dropped."""
    while True:
        order = torch.randperm(len(train))
        for first in range(0, len(train) - args.batch + 1, args.batch):
            yield train[order[first : first + args.batch]]


def settings():
    """SAELens's configuration of the dictionary: its defaults, except for the options given."""
    _, kind = get_sae_training_class("matryoshka_batchtopk" if args.architecture == "matryoshka" else args.architecture)
    own = {}
    if args.architecture not in COEFFICIENTS:
        own["k"] = args.k
    elif args.coefficient is not None:
        own[COEFFICIENTS[args.architecture]] = args.coefficient
    if args.architecture == "matryoshka":
        widths = args.widths.split(",") if args.widths else [args.d_sae // 8, args.d_sae // 4, args.d_sae // 2, args.d_sae]
        own["matryoshka_widths"] = [int(width) for width in widths]
    return kind(d_in=data["train"].shape[1], d_sae=args.d_sae, normalize_activations=args.normalize, **own)


def trained():
    torch.manual_seed(args.seed)
    config = settings()
    sae = get_sae_training_class(config.architecture())[0](config)
    plan = SAETrainerConfig(
        total_training_samples=steps * args.batch,
        train_batch_size_samples=args.batch,
        lr=args.lr,
        lr_end=args.lr / 10,
        lr_warm_up_steps=args.warm_up,
        lr_decay_steps=args.decay,
        dead_feature_window=args.dead_window or min(1000, max(1, steps // 10)),
        logger=LoggingConfig(log_to_wandb=False),
    )
    trainer = SAETrainer(cfg=plan, sae=sae, data_provider=batches(data["train"]))
    began = time.perf_counter()
    trainer.fit()
    return sae, plan, time.perf_counter() - began


seconds = []
for _ in range(args.repeat):
    sae, plan, took = trained()
    seconds.append(took)
sae.save_inference_model(args.save)

inference = SAE.load_from_disk(args.save)
test = data["test"]
wrong, firing = 0.0, torch.zeros(args.d_sae, dtype=torch.float64)
with torch.no_grad():
    for rows in test.split(4096):
        acts = inference.encode(rows)
        wrong += (rows.double() - inference.decode(acts).double()).pow(2).sum().item()
        firing += (acts != 0).double().sum(0)
spread = (test.double() - test.double().mean(0)).pow(2).sum().item()
report = {
    "explained_variance": round(1 - wrong / spread, 6),
    "l0": round(firing.sum().item() / len(test), 3),
    "dead": round((firing == 0).double().mean().item(), 4),
    "seconds": round(min(seconds), 3),
    "steps": steps,
    "architecture": args.architecture,
    "saved_as": inference.cfg.architecture(),
    "d_sae": args.d_sae,
    "k": None if args.architecture in COEFFICIENTS else args.k,
    "coefficient": None if args.architecture not in COEFFICIENTS else getattr(sae.cfg, COEFFICIENTS[args.architecture]),
    "tokens": args.tokens,
    "batch": args.batch,
    "lr": args.lr,
    "warm_up": args.warm_up,
    "decay": args.decay,
    "dead_window": plan.dead_feature_window,
    "normalize_activations": args.normalize,
    "seed": args.seed,
    "threads": args.threads,
    "all_seconds": [round(took, 3) for took in seconds],
    "sae_lens": sae_lens.__version__,
    "torch": torch.__version__,
}
print(json.dumps(report))
