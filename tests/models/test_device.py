"""The device and the number format that a model gets, with torch.cuda answering as the GPUs of each case would."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from gpu_rag.errors import BadInput, MissingBackend
from gpu_rag.models.device import check_device, choose_dtype


@pytest.fixture
def capabilities(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Major compute capability by number of the device: two GPUs, the second without bfloat16 instructions."""
    majors, current = {0: 9, 1: 7}, [0]

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        before = current[0]
        current[0] = device.index if device.index is not None else before
        yield
        current[0] = before

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or majors[current[0]] >= 8

    for name, answer in {
        "is_available": lambda: True, "device_count": lambda: len(majors), "device": on,
        "is_bf16_supported": is_bf16_supported,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, answer)
    return majors


def test_a_device_that_is_not_there_is_refused(capabilities: dict[int, int]) -> None:
    assert check_device("cuda") == torch.device("cuda") and check_device("cuda:1").index == 1
    with pytest.raises(BadInput, match="no such CUDA device; given cuda:2; expected a number below 2"):
        check_device("cuda:2")


def test_without_a_gpu_cuda_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingBackend, match="no CUDA device was found"):
        check_device("cuda:0")


def test_bfloat16_is_taken_where_the_gpu_computes_in_it(capabilities: dict[int, int]) -> None:
    """torch alone says yes of every GPU, since it can emulate the format, and asks the current device only."""
    assert choose_dtype(torch.device("cuda")) == choose_dtype(torch.device("cuda:0")) == torch.bfloat16
    assert choose_dtype(torch.device("cuda:1")) == torch.float16
    capabilities[0] = 7
    assert choose_dtype(torch.device("cuda")) == torch.float16
    assert choose_dtype(torch.device("cuda:1"), "bfloat16") == torch.bfloat16
