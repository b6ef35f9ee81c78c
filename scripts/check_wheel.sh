#!/usr/bin/env bash
# Builds the Python wheel, installs it into a fresh environment, and tests the module and its types:
# `scripts/check_wheel.sh PYTHON`. Requirements (maturin, pytest, mypy, table readers, the wheel) are installed into
# the environment of PYTHON; if it has torch, the tests of `to_torch` run, too.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$(command -v "${1:-python3}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"$python" -m pip install --quiet --retries 10 "maturin>=1.9,<2" pytest mypy einops pandas pandas-stubs duckdb polars \
  pyarrow datasets
PATH="$(dirname "$python"):$PATH" scripts/build_wheel.sh "$work/wheels"
# The wheel may be at most 40 MB.
size="$(wc -c <"$(echo "$work"/wheels/*.whl)")"
if [ "$size" -gt 40000000 ]; then
  echo "the wheel is $size bytes; the limit is 40000000" >&2
  exit 1
fi
# In a fresh environment, the wheel must install and run with NumPy as its only dependency.
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet --retries 10 "$work"/wheels/*.whl
"$work/fresh/bin/hooklens" info --model embedded:induction >/dev/null
(cd "$work" && fresh/bin/python -m hooklens --version && fresh/bin/python "$OLDPWD/bindings/python/tests/first_example.py")
"$python" -m pip install --quiet --no-deps --force-reinstall "$work"/wheels/*.whl
cd bindings/python
HOOKLENS_PROGRAM="$work/fresh/bin/hooklens" "$python" -m pytest -q -p no:cacheprovider
"$python" -m mypy --cache-dir "$work/mypy"
# The stubs in the repository must equal those generated from the native module.
PATH="$(dirname "$python"):$PATH" maturin generate-stubs --profile release --features stubs --out "$work/stubs" --quiet
diff "$work/stubs/hooklens/_native.pyi" py_src/hooklens/_native.pyi
echo "wheel: ok, $(basename "$work"/wheels/*.whl), $size bytes"
