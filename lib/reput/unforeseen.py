"""What ends a command that nothing of reput foresees, in a line like any other error.

It loads next to nothing: what keeps a command from loading the rest is said by it, too.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from reput.errors import ReputError, SparkError
from reput.rocksdb.reader import PACKAGE, not_installed
from reput.store.system import shortage
from reput.words import install_step

#: What comes with ``reput[spark]`` and not with reput alone.
_OF_SPARK = frozenset(
    {
        "delta",
        "deltalake",
        "pandas",
        "prometheus_client",
        "py4j",
        "pyarrow",
        "pyspark",
    }
)
#: Set to anything, such an error shows its stack trace, too, and Spark's JVM all that it says.
TRACEBACK = "REPUT_TRACEBACK"
UNFORESEEN = "reput failed in a way that it doesn't foresee"
REPORT = f"Run it again with {TRACEBACK}=1 in the environment, and report what it shows"
_STACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)*)(\S.*)")
_FRAME = re.compile(r'^ +File "(.+)", line ([0-9]+)', re.MULTILINE)


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
    said = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    what = ": ".join([type(error).__name__, *([said] if said else [])])
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return shortage(error) or ReputError(UNFORESEEN, path=path, found=what + _place(frames), next_step=REPORT)


def raised_elsewhere(text: str) -> str | None:
    """What a Python process raised, and where, by the last stack in a text; None without one."""
    stacks = _STACK.findall(text)
    if not stacks:
        return None
    frames, what = stacks[-1]
    return f"{what.strip()}{_place(_FRAME.findall(frames))}"


def without_spark(module: str) -> ReputError:
    """Why reput can't do what needs Spark where it was installed alone, or beside an older Spark."""
    # Of spark-submit's PySpark no package may be installed, or another one.
    version = getattr(sys.modules.get("pyspark"), "__version__", None)
    if module.startswith("pyspark.") and version is not None:
        return SparkError(
            "reput isn't made for this Spark",
            expected=f"Spark 4.0.1 to 4.2, which have {module}",
            found=f"Spark {version}",
            next_step="Give another Spark; what needs none goes on: check, mend, report, dump, query",
        )
    return SparkError(
        "this needs Spark's packages, and reput was installed without them",
        expected="reput[spark]",
        found=f"no module {module}",
        next_step=install_step("spark"),
    )


def _place(frames: Sequence[tuple[str, object]]) -> str:
    """The file and line that raised it, and reput's own that led there, of all from the outermost on."""
    if not frames:
        return ""
    file, line = frames[-1]
    own = f"/{Path(__file__).parent.name}/"  # another host may have it elsewhere
    ours = next((frame for frame in reversed(frames) if own in frame[0]), frames[-1])
    through = "" if ours is frames[-1] else f", called by {ours[0]} line {ours[1]}"
    return f" ({file} line {line}{through})"
