#!/usr/bin/env bash
# Sets everything up on a fresh machine and runs the main job on the sample corpus.
# usage: scripts/demo.sh [OPTIONS OF gpu-rag demo]      VENV=folder chooses the virtual environment (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
extras=cpu,documents,serve
[ -f "$venv/.gpu-rag-installed" ] && grep -q ' cpu,faiss,dev$' "$venv/.gpu-rag-installed" && extras=cpu,faiss,dev
bash scripts/install.sh "$venv" "$extras"
export PYTHONSAFEPATH=1
exec "$venv/bin/gpu-rag" demo "$@"
