#!/usr/bin/env bash
# Whether what changed in the API fits the version's number: `scripts/check_semver.sh [REVISION]` compares with the last release's
# tag, or with any commit. Default features alone, as others need native libraries or downloads. `hooklens` re-exports what is
# public in `hooklens-hooks`, of which a check of `hooklens` would see nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
baseline="${1:-$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || true)}"
if [ -z "$baseline" ]; then
  echo "semver: no release to compare with"
  exit
fi
command -v cargo-semver-checks >/dev/null || cargo install --quiet --locked cargo-semver-checks
cargo semver-checks --baseline-rev "$baseline" --default-features --package hooklens --package hooklens-hooks
echo "semver: fits, beside $baseline"
