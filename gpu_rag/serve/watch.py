"""A thread that lets a server follow its index: after a build it answers from the new one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from gpu_rag.engine import Engine
from gpu_rag.errors import GpuRagError
from gpu_rag.index.manifest import FILE, Manifest
from gpu_rag.models.set import ModelSet
from gpu_rag.serve.live import READY, Live

PAUSE_S = 0.5


class Watch:
    """Looks at the manifest of an index until `stop`, and replaces the engine of `live` after a change.

    open_engine(models): an engine over the index as it is now. say(line): called with a line for each replacement, and
    for an index that cannot be opened; the server goes on with the old one then.
    """

    def __init__(self, folder: Path, live: Live, open_engine: Callable[[ModelSet], Engine], say: Callable[[str], None]):
        self._folder, self._live, self._open_engine, self._say = folder, live, open_engine, say
        self._end, self._failed = threading.Event(), ""
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a replacement that has begun is finished first."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = None
        while not self._end.wait(PAUSE_S):
            try:
                status = os.stat(self._folder / FILE)
                now = status.st_ino, status.st_mtime_ns, status.st_size
                if now != seen and self._live.state == READY:
                    self._follow()
                    seen, self._failed = now, ""
            except (GpuRagError, OSError) as error:  # for example a build that replaces its files: look again
                if str(error) != self._failed:
                    self._say(f"the changed index cannot be opened: {error}")
                self._failed = str(error)

    def _follow(self) -> None:
        digest = Manifest.read(self._folder).without_stale().digest()
        if digest != self._live.engine.index.manifest.digest():
            self._live.replace(self._open_engine(self._live.engine.models))
            self._say(f"the index has changed: {digest[:12]} answers from now on")
