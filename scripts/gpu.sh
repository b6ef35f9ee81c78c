#!/usr/bin/env bash
# What hooklens does on this machine's devices: facts, parity, speed beside plain PyTorch, branches behind a shared prefix,
# memory, hooks on and off. One Markdown table; run again, it goes on where it was cut.
#
#     scripts/gpu.sh OUT PROGRAM...        as in: scripts/gpu.sh gpu.md ./hooklens-libtorch ./hooklens-vulkan
#
# Needs the programs (`cargo build --release --features libtorch` or `vulkan`, `strip`), Python with torch, and a driver:
# no Rust, no network. Environment: SHAPES="gpt2 llama-1b llama-8b", DTYPES="f32 f16 bf16", DEVICES="libtorch:cuda:0 ..."
# (all that the programs list, but the CPU's), ROUNDS=3, SECONDS_EACH=150 for each measurement, PYTHON=python3.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
# A program that was linked to one place's LibTorch finds another's.
torch="$("$python" -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')"
export LD_LIBRARY_PATH="$torch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$python" "$here/gpu.py" "$@"
