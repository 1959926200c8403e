"""Model folders loaded by transformers; downloads nothing and runs no code of the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_rag.errors import ModelError, needing
from gpu_rag.models.device import room_for

needing_transformers = partial(needing, "running a model needs the cpu extra", "pip install 'gpu-rag[cpu]'")


@contextmanager
def quiet_progress() -> Iterator[None]:
    """Hide the progress bars of transformers for loading and saving weights."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def load_tokenizer(folder: Path) -> Any:
    """Fast tokenizer in `folder`. Raises MissingBackend, ModelError."""
    with needing_transformers():
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("the tokenizer could not be loaded", given=f"{folder}: {error}") from error


def load_model(kind: str, auto_class: str, folder: Path, device: torch.device, no_room: str, **options: Any) -> Any:
    """Load the model in `folder` on `device`, for inference. kind: for messages; auto_class: transformers' class for
    it.

    no_room: advice if the device has too little memory. options: of from_pretrained. Raises MissingBackend, ModelError.
    """
    with needing_transformers():
        import transformers
    try:
        with quiet_progress():
            load = getattr(transformers, auto_class).from_pretrained
            model = load(folder, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the {kind} model could not be loaded", given=f"{folder}: {error}") from error
    with room_for(str(folder), no_room):
        return model.to(device).eval()
