#!/usr/bin/env bash
# Tests the Triton kernels without a GPU: under Triton's interpreter, then compiled for sm_90 (not run).
# usage: scripts/test_triton.sh [PYTEST OPTIONS]      VENV=folder: the virtual environment of scripts/test.sh (default .venv)
# TRITON: its version; default 3.7.1, which users of torch 2.13 get. torch 2.11 brings 3.6.0.
# Triton (about 190 MB to download, 650 MB unpacked) goes into a folder beside it, VENV-triton, or TRITON_TARGET, and
# with it the numpy of the CUDA environment: this Triton's interpreter cannot read loop bounds with numpy 2.4.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
target=${TRITON_TARGET:-$venv-triton}
packages=("triton==${TRITON:-3.7.1}" numpy==2.3.5)
if [ "$(cat "$target/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf "$target"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$target" "${packages[@]}"
    echo "${packages[*]}" >"$target/.installed"
fi
export PYTHONPATH=$target PYTHONSAFEPATH=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
TRITON_INTERPRET=1 "$venv/bin/python" -m pytest -m triton tests/triton "$@"
exec "$venv/bin/python" -m pytest -m triton tests/triton/test_triton_compile.py "$@"
