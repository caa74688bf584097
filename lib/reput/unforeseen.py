"""What ends a command that nothing of reput foresees, in a line like any other error.

It loads next to nothing: what keeps a command from loading the rest is said by it, too.
"""

from __future__ import annotations

import os
import traceback
from contextlib import suppress
from pathlib import Path

from reput.errors import ReputError, SparkError
from reput.next_command import install_step
from reput.rocksdb.installed import PACKAGE, not_installed
from reput.store.system_errors import shortage

#: What comes with ``reput[spark]`` and not with reput alone.
_OF_SPARK = frozenset(
    {
        "delta",
        "deltalake",
        "elftools",
        "packaging",
        "pandas",
        "prometheus_client",
        "py4j",
        "pyarrow",
        "pyspark",
    }
)
#: Set to anything, such an error shows its stack trace, too, and Spark's JVM all that it says.
TRACEBACK = "REPUT_TRACEBACK"


def unforeseen(error: BaseException, path: Path | None = None) -> ReputError:
    """What ran out, or else what was raised, and where.

    Args:
        path: the store, where it is one of several.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_SPARK:
        return without_spark(str(error.name))
    if isinstance(error, ModuleNotFoundError) and error.name == PACKAGE:
        return not_installed(path)
    if os.environ.get(TRACEBACK):
        with suppress(OSError, ValueError):  # nobody may read stderr any more
            traceback.print_exception(error)
    return shortage(error) or ReputError(
        "reput failed in a way that it doesn't foresee",
        path=path,
        found=f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}{_place(error)}",
        next_step=f"Run it again with {TRACEBACK}=1 in the environment, and report what it shows",
    )


def without_spark(module: str) -> ReputError:
    """Why reput can't do what needs Spark where it was installed alone."""
    return SparkError(
        "this needs Spark, and reput was installed without it",
        expected="reput[spark]",
        found=f"no module {module}",
        next_step=install_step("spark"),
    )


def _place(error: BaseException) -> str:
    """The line that raised it, and reput's own line that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    package = Path(__file__).parent
    last = frames[-1]
    ours = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(package)), last)
    through = "" if ours is last else f", called by {ours.filename} line {ours.lineno}"
    return f" ({last.filename} line {last.lineno}{through})"
