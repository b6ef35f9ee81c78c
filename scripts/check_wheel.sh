#!/usr/bin/env bash
# Builds the Python wheel, installs it into a fresh environment, and tests the module and its types:
# `scripts/check_wheel.sh PYTHON`. Requirements (maturin, pytest, mypy, readers of tables, the wheel) are installed into
# the environment of PYTHON; if it has torch, the tests of `to_torch` run, too.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$(command -v "${1:-python3}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"$python" -m pip install --quiet --retries 10 "maturin>=1.9,<2" pytest mypy duckdb polars pyarrow datasets
"$python" -m maturin build --release --locked --quiet --out "$work/wheels"
# In a fresh environment, the wheel must install and run with NumPy as its only dependency.
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet --retries 10 "$work"/wheels/*.whl
"$work/fresh/bin/hooklens" info --model embedded:induction >/dev/null
(cd "$work" && fresh/bin/python -m hooklens --version && fresh/bin/python -c "import hooklens; print(hooklens.__all__)")
"$python" -m pip install --quiet --no-deps --force-reinstall "$work"/wheels/*.whl
HOOKLENS_PROGRAM="$work/fresh/bin/hooklens" "$python" -m pytest -q -p no:cacheprovider
"$python" -m mypy --cache-dir "$work/mypy"
echo "wheel: ok, $(basename "$work"/wheels/*.whl)"
