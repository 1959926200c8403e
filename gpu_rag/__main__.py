"""The `gpu-rag` command, also as `python -m gpu_rag`."""

import signal
from typing import NoReturn


def program() -> NoReturn:
    """Run the command of this process, and exit. Ctrl-C while its modules load ends it at once, without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not if ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpu_rag.cli import main

    signal.signal(signal.SIGINT, before)
    main.program()


if __name__ == "__main__":
    program()
