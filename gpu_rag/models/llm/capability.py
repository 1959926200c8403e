"""Capability of a model: whether it is trusted to extract and to judge.

Models well below a billion parameters keep to a schema but invent entities and validate at random. They may write short
answers and do routine work. The rule depends only on size; `capable=` overrides it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from gpu_rag.errors import ModelError

CAPABLE_PARAMETERS = 1e9

_SIZE = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


def parameters_in_name(name: str) -> float | None:
    """Size in a model's name: "Qwen2.5-7B" 7e9, "8x7B" 56e9, "135M" 135e6; None if there is none."""
    match = _SIZE.search(name)
    if match is None:
        return None
    experts, number, unit = match.groups()
    return float(number) * (1e9 if unit.lower() == "b" else 1e6) * int(experts or 1)


def is_capable(name: str, n_parameters: float | None = None) -> bool:
    """Whether a model may extract and judge: at least 1e9 parameters.

    n_parameters: counted from the weights; None reads the size from the name. A model of unknown size is taken as
    capable: it is behind a server that someone chose to run.
    """
    size = parameters_in_name(name) if n_parameters is None else n_parameters
    return size is None or size >= CAPABLE_PARAMETERS


def stored_parameters(folder: Path) -> int | None:
    """Number of parameters in the .safetensors files of a model folder; None if there are none. Raises ModelError."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError("the weights cannot be read", given=f"{path}: {error}") from error
    return total or None
