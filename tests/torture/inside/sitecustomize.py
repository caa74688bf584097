"""Read by every Python process whose PYTHONPATH names this directory: driver, daemons and workers."""

import os

if "REPUT_TORTURE_DOOM" in os.environ:
    from tests.torture.steps import doom

    doom(os.environ["REPUT_TORTURE_DOOM"])
