#!/usr/bin/env bash
# Installs vLLM into an environment of its own and runs the tests of real engines: about four minutes on two cores.
# usage: scripts/test_vllm.sh [PYTEST OPTIONS]      VENV=folder chooses the virtual environment (default .venv-vllm)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv-vllm}
bash scripts/install_vllm.sh "$venv"
export PYTHONSAFEPATH=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"$venv/bin/python" -m pip install --quiet "pytest>=8.4" "pytest-timeout>=2.4"
exec "$venv/bin/python" -m pytest -m vllm tests/vllm --durations=10 "$@"
