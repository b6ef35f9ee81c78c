#!/usr/bin/env bash
# Measures hooklens on this machine's devices: device information, parity, speed compared with plain PyTorch, branches
# after a shared prefix, memory, and the cost of hooks. Writes one Markdown table. If interrupted, run it again; it
# skips finished measurements.
#
#     scripts/gpu.sh OUT PROGRAM...        as in: scripts/gpu.sh gpu.md ./hooklens-libtorch ./hooklens-vulkan
#
# Needs the programs (`cargo build --release --features libtorch` or `vulkan`, `strip`), Python with torch, and a
# driver, but no Rust and no network. Environment: SHAPES="gpt2 llama-1b llama-8b", DTYPES="f32 f16 bf16",
# DEVICES="libtorch:cuda:0 ..." (default: all devices that the programs list, except the CPU's), ROUNDS=3,
# SECONDS_EACH=150 for each measurement, PYTHON=python3.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
# Let programs find this LibTorch, even if they were linked against a LibTorch in another place.
torch="$("$python" -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')"
export LD_LIBRARY_PATH="$torch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$python" "$here/gpu.py" "$@"
