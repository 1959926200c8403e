"""Makes the modules of this folder importable: `from stand_in import stand_in`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


from stand_in import Device, stand_in  # noqa: E402  (beside this file)


@pytest.fixture
def device() -> Iterator[Device]:
    with stand_in() as made:
        yield made


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are tiny here: threads of torch would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
