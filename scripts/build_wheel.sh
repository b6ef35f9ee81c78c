#!/usr/bin/env bash
# Builds the Python wheel, with the native module and the program: `scripts/build_wheel.sh OUT [TARGET]`. Needs maturin.
set -euo pipefail
out="$(mkdir -p "$1" && cd "$1" && pwd)"
cd "$(dirname "$0")/.."
target=(${2:+--target "$2"})

# maturin builds the module; the program is added as a script.
cargo build --release --locked --package hooklens-cli --features arrow,object-stores "${target[@]}"
built="${CARGO_TARGET_DIR:-target}${2:+/$2}/release"
scripts=bindings/python/hooklens.data/scripts
rm -rf "$scripts"
mkdir -p "$scripts"
for program in hooklens hooklens.exe; do
  if [ -f "$built/$program" ]; then cp "$built/$program" "$scripts/"; fi
done
if command -v strip >/dev/null && [ -z "${2:-}" ]; then strip "$scripts"/*; fi
(cd bindings/python && maturin build --release --locked --strip --out "$out" "${target[@]}")
rm -rf "$scripts"
