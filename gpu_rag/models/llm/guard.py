"""Run a command in this process group, and end the whole group with it or with the process that started this one.

usage: python guard.py PARENT COMMAND...      Uses the standard library alone, so it starts at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

GRACE_S = 5.0  # for the command to end by itself, once it is told to
PR_SET_PDEATHSIG = 1


class Ended(Exception):
    """The parent is gone, or has asked for the end."""


def end_with_parent(number: int) -> None:
    """Have the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended


def main(parent: int, command: list[str]) -> None:
    """Run the command. Never returns: the group is killed, this process too."""
    child = None
    try:
        signal.signal(signal.SIGTERM, _end)
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            raise Ended
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: end_with_parent(signal.SIGKILL))
        print(f"the server ended with status {child.wait()}", flush=True)
    except Ended:
        if child is not None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
    finally:
        sys.stdout.flush()
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
