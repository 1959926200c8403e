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
unset PYTHONDONTWRITEBYTECODE # else each command that a test starts compiles hundreds of files
bin="$venv/bin"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/lint-imports"
"$bin/mypy" & # beside the tests: it takes a minute or more, and one core
mypy=$!
if [ -n "${CI:-}" ]; then select="slow or not slow"; else select="not slow"; fi
"$bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$select" --durations=15 "$@" || failed=$?
wait "$mypy" || { echo "test.sh: mypy failed, see above" >&2 && exit 1; }
exit "${failed:-0}"
