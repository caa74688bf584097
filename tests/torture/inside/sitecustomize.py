"""Read by every Python process whose PYTHONPATH names this directory: driver, daemons and workers."""

import faulthandler
import os
import signal

if "REPUT_TORTURE_DOOM" in os.environ:
    from tests.torture.steps import doom

    # Where a tail is that doesn't come on.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    doom(os.environ["REPUT_TORTURE_DOOM"])
