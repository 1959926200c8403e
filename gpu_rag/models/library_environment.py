"""The environment variables that the libraries of models read at their import."""

from __future__ import annotations

import os

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait do not spin
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


def prepare_environment() -> None:
    """Sets what nobody has set. Call it before torch or transformers are imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
