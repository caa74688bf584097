"""What a command begins before it is loaded, and how its process will end."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from reput.spark import ahead


def begin_early() -> None:
    """Start the JVM of the command that this process is, while the command loads."""
    _open_streams()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    # Python makes the first of the two absolute, and not the second.
    is_script = main is not None and Path(main).name == "reput" and Path(sys.argv[0]).absolute() == Path(main)
    if is_script or sys.orig_argv[1:3] == ["-m", "reput.cli"]:
        # Loading leaves hardly any garbage, and the collector would look for it 250 times.
        gc.set_threshold(100_000)
        ahead.is_command = True
        ahead.begin(sys.argv[1:])


def _open_streams() -> None:
    """Have closed streams go nowhere: else a file gets the number of one, and with it what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
