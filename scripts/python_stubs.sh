#!/usr/bin/env bash
# Writes the stubs of the native Python module, `bindings/python/py_src/hooklens/_native.pyi`. Needs maturin.
set -euo pipefail
cd "$(dirname "$0")/../bindings/python"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
maturin generate-stubs --profile release --features stubs --out "$work"
cp "$work/hooklens/_native.pyi" py_src/hooklens/_native.pyi
