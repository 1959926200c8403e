"""Text of pages that are pictures, by RapidOCR (extra `ocr`). Called only in the process of `parse_worker`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from gpu_rag.machine import usable_cores

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

LIBRARY = "rapidocr"
INSTALL = "pip install 'gpu-rag[ocr]' reads them"
_PIXELS = 2000  # length of the longer side: 170 dots per inch of A4, and the maximum that RapidOCR does not shrink
_THREADS = 4  # each takes address space, which the worker limits


def _no_limits() -> None:
    pass


begin_page: Callable[[], object] = _no_limits  # the worker sets a function that gives each page its own time


def can_read() -> bool:
    """Whether the extra `ocr` is installed."""
    return all(map(importlib.util.find_spec, (LIBRARY, "onnxruntime")))


def page_text(page: PdfPage) -> str:
    """Text of a page, from top to bottom, with a line break after each line; "" if no text is found. Columns side by
    side are not told apart."""
    begin_page()
    picture = page.render(scale=_PIXELS / max(1, *page.get_size())).to_numpy()
    return "\n".join(_engine()(picture).txts or ())


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    threads = min(_THREADS, usable_cores())
    return RapidOCR(params={"Global.log_level": "critical", "EngineConfig.onnxruntime.intra_op_num_threads": threads})
