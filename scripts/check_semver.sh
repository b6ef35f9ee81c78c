#!/usr/bin/env bash
# Checks that API changes fit the version number: `scripts/check_semver.sh [REVISION]` compares with the last release's
# tag, or with any commit. Only default features are checked, because others need native libraries or downloads.
# The crates that `hooklens` re-exports are checked, too, because a check of `hooklens` does not see their items.
set -euo pipefail
cd "$(dirname "$0")/.."
baseline="${1:-$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || true)}"
if [ -z "$baseline" ]; then
  echo "semver: no release to compare with"
  exit
fi
command -v cargo-semver-checks >/dev/null || cargo install --quiet --locked cargo-semver-checks
packages=()
for name in "" -analysis -data -features -hooks -loading -model -plot; do
  packages+=(--package "hooklens$name")
done
cargo semver-checks --baseline-rev "$baseline" --default-features "${packages[@]}"
echo "semver: ok, compared with $baseline"
