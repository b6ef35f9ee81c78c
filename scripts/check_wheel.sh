#!/usr/bin/env bash
# Builds the Python wheel, installs it into a fresh environment, and runs the module's tests and types there:
# `scripts/check_wheel.sh [PYTHON]`. With torch in the environment of PYTHON the tests of `to_torch` run too.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"$python" -m venv --system-site-packages "$work/build"
"$work/build/bin/pip" install --quiet --retries 10 "maturin>=1.9,<2" pytest mypy
"$work/build/bin/maturin" build --release --locked --quiet --out "$work/wheels"
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet --retries 10 "$work"/wheels/*.whl
# A fresh environment has the program and the module, and needs nothing else.
"$work/fresh/bin/hooklens" info --model embedded:induction >/dev/null
(cd "$work" && fresh/bin/python -m hooklens --version && fresh/bin/python -c "import hooklens; print(hooklens.__all__)")
"$work/build/bin/pip" install --quiet --no-deps "$work"/wheels/*.whl
HOOKLENS_PROGRAM="$work/build/bin/hooklens" "$work/build/bin/python" -m pytest -q -p no:cacheprovider
"$work/build/bin/python" -m mypy --cache-dir "$work/mypy"
echo "wheel: ok, $(basename "$work"/wheels/*.whl)"
