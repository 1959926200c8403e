#!/usr/bin/env bash
# Installs what tests need and runs all checks: format, lint, types, layers, tests.
# usage: scripts/test.sh [PYTEST OPTIONS]      VENV=folder chooses the virtual environment (default .venv)
# Long tests are run when CI is set, or with: scripts/test.sh -m "slow or not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
bash scripts/install.sh "$venv" cpu,faiss,dev
export PYTHONSAFEPATH=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
bin="$venv/bin"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports"
if [ -n "${CI:-}" ]; then select="slow or not slow"; else select="not slow"; fi
exec "$bin/python" -m pytest -n 2 --dist loadfile -m "$select" --durations=15 "$@"
