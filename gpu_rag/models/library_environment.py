"""Environment variables that the model libraries read at import."""

from __future__ import annotations

import os

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads do not spin
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


def prepare_environment() -> None:
    """Set the variables that are not set yet. Call it before importing torch or transformers."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
