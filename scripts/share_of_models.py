"""Reports what fraction of models hooklens loads, given a count for each architecture.

    python scripts/share_of_models.py target/release/hooklens architectures.json [--missing 40]

The second file has a count for each architecture: {"LlamaForCausalLM": 4312, ...}. `--missing` lists the most frequent
architectures that are not loaded. Unlisted architectures, which hooklens loads if they differ from Llama only in name,
count as not loaded.
"""

import argparse
import json
import subprocess


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the hooklens program")
    parser.add_argument("counts")
    parser.add_argument("--missing", type=int, default=0, metavar="N")
    args = parser.parse_args()
    told = subprocess.run([args.program, "info", "--families", "--json"], capture_output=True, text=True, check=True)
    known = {name for family in json.loads(told.stdout)["families"] for name in family["architectures"]}
    with open(args.counts) as file:
        counts = json.load(file)
    loaded, all_models = sum(n for name, n in counts.items() if name in known), sum(counts.values())
    print(f"{loaded} of {all_models} models: {loaded / all_models:.1%}, {len(known)} architectures")
    rest = sorted((n, name) for name, n in counts.items() if name not in known)[::-1]
    for n, name in rest[: args.missing]:
        print(f"{n:6}  {name}")


if __name__ == "__main__":
    main()
