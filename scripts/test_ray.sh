#!/usr/bin/env bash
# Tests models on the workers of a real local Ray: replies and bits, killed workers, signals, the small packaged models.
# usage: scripts/test_ray.sh [PYTEST OPTIONS]      VENV=folder: the virtual environment of scripts/test.sh (default .venv)
# Ray (75 MB to download) goes into an environment of its own, VENV-ray, which sees the packages of the other one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
own=${RAY_VENV:-$venv-ray}
if [ ! -x "$venv/bin/python" ]; then
    bash scripts/install.sh "$venv" cpu,faiss,dev
fi
if [ ! -x "$own/bin/python" ]; then
    "$venv/bin/python" -m venv "$own"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mine=$("$own/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$packages')" >"$mine/zz_shared.pth" # after our own: ray's needs win
fi
"$own/bin/python" -m pip install --quiet --disable-pip-version-check "ray>=2.60"
export PYTHONSAFEPATH=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export RAY_worker_niceness=${RAY_worker_niceness:-0} # Ray would let workers wait behind all else on a busy machine
exec "$own/bin/python" -m pytest tests/cluster --durations=10 "$@"
