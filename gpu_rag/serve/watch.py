"""A thread that follows the index of a server: after a build, the server answers from the new index."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_rag.engine import Engine
from gpu_rag.errors import GpuRagError
from gpu_rag.index.manifest import FILE, Manifest
from gpu_rag.serve.keys import file_status
from gpu_rag.serve.live import READY, ServedIndex

PAUSE_S = 0.5  # between two checks of the manifest
MAX_PAUSE_S = 60.0  # between two attempts to open an index that cannot be opened


class Watch:
    """Checks the manifest of an index until `stop`, and replaces the engine of `live` after a change.

    say(line): called for each replacement, and once for a manifest whose index cannot be opened; the server then keeps
    the old one, and tries again after growing pauses.
    """

    def __init__(self, folder: Path, live: ServedIndex, say: Callable[[str], None]):
        self._folder, self._live, self._say = folder, live, say
        self._end = threading.Event()
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
        seen: object = None
        failed: object = None
        pause_s = next_s = 0.0
        while not self._end.wait(PAUSE_S):
            self._live.release()
            now = file_status(self._folder / FILE)
            if now == seen or self._live.thread.state != READY or (now == failed and time.monotonic() < next_s):
                continue
            try:
                seen = now if self._follow() else seen
            except (GpuRagError, OSError) as error:  # a build may be replacing the files: try again
                if now != failed:
                    self._say(f"the changed index cannot be opened: {error}")
                pause_s = min(2 * pause_s, MAX_PAUSE_S) if now == failed else PAUSE_S
                failed, next_s = now, time.monotonic() + pause_s

    def _follow(self) -> bool:
        """Replace the engine if the index has other content than the engine. False if it cannot be replaced now."""
        digest, engine = Manifest.read(self._folder).without_stale().digest(), self._live.engine
        if digest == engine.index.manifest.digest():
            return True
        index = type(engine.index).open(self._folder, device=engine.models.device)
        is_replaced = self._live.replace(Engine(index, engine.settings, engine.models))
        if is_replaced:
            self._say(f"the index has changed: {digest[:12]} answers from now on")
        return is_replaced
