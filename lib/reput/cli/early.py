"""What a command begins before it is loaded, and how its process will end."""

from __future__ import annotations

import sys
from pathlib import Path

from reput.spark import ahead


def begin_early() -> None:
    """Start the JVM of the command that this process is, while the command loads."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    is_script = main is not None and main == sys.argv[0] and Path(main).name == "reput"
    if is_script or sys.orig_argv[1:3] == ["-m", "reput.cli"]:
        ahead.is_command = True
        ahead.begin(sys.argv[1:])
