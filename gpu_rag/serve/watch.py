"""A thread that follows the index of a server: after a build, the server answers from the new index."""

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

PAUSE_S = 0.5  # between two looks at the manifest


class Watch:
    """Checks the manifest of an index until `stop`, and replaces the engine of `live` after a change.

    open_engine(models): opens an engine over the index as it is now. say(line): called for each replacement, and if the
    index cannot be opened; the server then keeps the old one.
    """

    def __init__(self, folder: Path, live: Live, open_engine: Callable[[ModelSet], Engine], say: Callable[[str], None]):
        self._folder, self._live, self._open_engine, self._say = folder, live, open_engine, say
        self._end, self._last_error = threading.Event(), ""
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a replacement that has begun is finished first."""
        self._end.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()

    def _watch(self) -> None:
        seen = None
        while not self._end.wait(PAUSE_S):
            try:
                status = os.stat(self._folder / FILE)
                now = status.st_ino, status.st_mtime_ns, status.st_size
                if now != seen and self._live.state == READY:
                    self._follow()
                    seen, self._last_error = now, ""
            except (GpuRagError, OSError) as error:  # a build may be replacing the files: try again
                if str(error) != self._last_error:
                    self._say(f"the changed index cannot be opened: {error}")
                self._last_error = str(error)

    def _follow(self) -> None:
        """Replace the engine if the index has another content than that of the engine."""
        digest = Manifest.read(self._folder).without_stale().digest()
        if digest != self._live.engine.index.manifest.digest():
            self._live.replace(self._open_engine(self._live.engine.models))
            self._say(f"the index has changed: {digest[:12]} answers from now on")
