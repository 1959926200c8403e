"""A clock for the drivers that passes when a test says so."""

import pytest

from gpu_rag.runtime import batches, core, rounds, service, streaming


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        """Let seconds pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the drivers, in place of that of a machine which may be busy."""
    made = Clock()
    for module in (batches, core, rounds, service, streaming):
        monkeypatch.setattr(module, "perf_counter", lambda: made.now)
    return made
