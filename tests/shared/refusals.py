"""What a call is refused with."""

from __future__ import annotations

from collections.abc import Callable

from gpu_rag.errors import BadInput


def refusal(call: Callable[[], object]) -> str:
    """What the call is refused with, "" where it is not."""
    try:
        call()
    except BadInput as error:
        return str(error)
    return ""
