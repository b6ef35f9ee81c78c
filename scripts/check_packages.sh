#!/usr/bin/env bash
# Packages the crates as if to publish them, unpacks the packages elsewhere, installs the program from there and runs
# it: `scripts/check_packages.sh`. Until the crates are published, they refer to each other by path.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cargo package --workspace --exclude hooklens-fuzz --allow-dirty --no-verify --quiet
version="$(cargo metadata --no-deps --format-version 1 | grep -o '"name":"hooklens","version":"[^"]*"' | cut -d'"' -f8)"
patches=()
for archive in "$target"/package/hooklens*-"$version".crate; do
  tar -xzf "$archive" -C "$work"
  crate="$(basename "$archive" "-$version.crate")"
  patches+=(--config "patch.crates-io.$crate.path='$work/$crate-$version'")
done
# The unpacked crates do not refer to the checkout. With the optimization levels of the workspace, this build and others
# of the program with these features reuse each other's libraries.
mkdir "$work/.cargo"
sed -n '/^\[profile/,$p' Cargo.toml >"$work/.cargo/config.toml"
cd "$work/hooklens-cli-$version"
CARGO_TARGET_DIR="$target" cargo install --locked --quiet --features arrow,object-stores --path . --root "$work/installed" "${patches[@]}"
cd "$work"
installed/bin/hooklens dump --model embedded:induction --prompt "red fox blue red" --hooks "*hook_pattern" --out patterns.safetensors
installed/bin/hooklens doctor
installed/bin/hooklens man --out man >/dev/null
echo "packages: ok, hooklens is $(stat -c %s "$target/package/hooklens-$version.crate") bytes"
