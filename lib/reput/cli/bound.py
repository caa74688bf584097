"""``python -m reput.cli.bound``: ``reput``, which ends when its stdin closes.

That is when the process that started it has ended. It is interrupted, so that it removes what is temporary.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from reput.cli.process import GRACE_SECONDS, INTERRUPTED


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from reput.cli import main
    from reput.spark import ahead

    ahead.is_command = False  # of a fork of one: who forked it is told how it ends
    main()
