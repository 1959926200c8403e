"""Progress bars on stderr: rate, time left, LLM tokens. Plain lines where stderr is no terminal."""

from __future__ import annotations

import time


class Bars:
    """Progress of a build (gpu_rag.index.build.Progress) or of a run of questions. A context manager."""

    def __init__(self) -> None:
        from rich.console import Console  # imported here, so that `--help` stays quick
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[tokens]}"),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bars.add_task("", rate="", tokens="", visible=False)
        self._name, self._unit, self._done, self._tokens, self._since = "", "", 0, 0, 0.0

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """A stage begins, or learns its total."""
        if stage != self._name:
            self._name, self._done, self._tokens, self._since = stage, 0, 0, time.perf_counter()
            self._task = self._bars.add_task(stage, rate="", tokens="")
        self._unit = unit
        self._bars.update(self._task, total=total)

    def advance(self, n: int, tokens: int = 0) -> None:
        """n more units are done, with this many LLM tokens."""
        self._done += n
        self._tokens += tokens
        if self._live:
            spent = f"{self._tokens:,} tokens" if self._tokens else ""
            self._bars.update(self._task, advance=n, rate=self._rate(), tokens=spent)

    def finish(self, stage: str, skipped: bool) -> None:
        """A stage is done, or was up to date."""
        if stage == self._name:
            self._bars.update(self._task, total=self._done, completed=self._done)
        if not self._live and (skipped or self._done):
            detail = "up to date" if skipped else f"{self._done:,} {self._unit} {self._rate()}"
            tokens = f", {self._tokens:,} LLM tokens" if self._tokens and not skipped else ""
            self._console.print(f"{stage}: {detail}{tokens}", highlight=False)
        self._name = ""

    def _rate(self) -> str:
        seconds = time.perf_counter() - self._since
        return f"{self._done / seconds:,.0f} {self._unit}/s" if seconds > 0 else ""
