#!/usr/bin/env bash
# Packages an already built program with its shell completions, man pages and licenses: `scripts/archive.sh TARGET
# FOLDER` writes FOLDER/hooklens-VERSION-TARGET.tar.gz (.zip on Windows).
set -euo pipefail
cd "$(dirname "$0")/.."
target="$1"
mkdir -p "$2"
folder="$(cd "$2" && pwd)"
ending=""
[[ "$target" != *windows* ]] || ending=".exe"
program="target/$target/release/hooklens$ending"
[ -e "$program" ] || program="target/release/hooklens$ending"
version="$("$program" --version | cut -d' ' -f2)"
name="hooklens-$version-$target"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/$name"/{completions,man}
cp "$program" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$work/$name"
for shell in bash elvish fish powershell zsh; do
  "$program" completions "$shell" >"$work/$name/completions/hooklens.$shell"
done
"$program" man --out "$work/$name/man"
if [ -n "$ending" ]; then
  (cd "$work" && 7z a -bso0 "$folder/$name.zip" "$name")
else
  tar -czf "$folder/$name.tar.gz" -C "$work" "$name"
fi
