#!/usr/bin/env bash
# Prints the section of CHANGELOG.md about a version, or the unreleased changes if it has none:
# `scripts/release_notes.sh 0.2.0`.
set -euo pipefail
cd "$(dirname "$0")/.."
version="$1"
grep -q "^## $version\b" CHANGELOG.md || version="Unreleased"
notes="$(awk -v title="## $version" 'index($0, title) == 1 { inside = 1; next } /^## / { inside = 0 } inside' CHANGELOG.md)"
[ -n "${notes//[[:space:]]/}" ] || { echo "CHANGELOG.md has no entries for $version" >&2; exit 1; }
printf '%s\n' "$notes"
