#!/usr/bin/env bash
# Packs the crates as they are published, unpacks them elsewhere, installs the program from there and runs it:
# `scripts/check_packages.sh`. Until the crates are published they name each other by path.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cargo package --workspace --exclude hooklens-fuzz --allow-dirty --no-verify --quiet
version="$(cargo metadata --no-deps --format-version 1 | grep -o '"name":"hooklens","version":"[^"]*"' | cut -d'"' -f8)"
for crate in hooklens hooklens-hooks hooklens-kernels; do
  tar -xzf "$target/package/$crate-$version.crate" -C "$work"
done
# Nothing of the checkout is at hand there. What the workspace has built already need not be built again.
cd "$work/hooklens-$version"
CARGO_TARGET_DIR="$target" cargo install --locked --quiet --path . --root "$work/installed" \
  --config "patch.crates-io.hooklens-hooks.path='$work/hooklens-hooks-$version'" \
  --config "patch.crates-io.hooklens-kernels.path='$work/hooklens-kernels-$version'"
cd "$work"
installed/bin/hooklens dump --model embedded:induction --prompt "red fox blue red" --hooks "*hook_pattern" --out patterns.safetensors
installed/bin/hooklens doctor
installed/bin/hooklens man --out man >/dev/null
echo "packages: ok, $(stat -c %s "$target/package/hooklens-$version.crate") bytes of hooklens"
