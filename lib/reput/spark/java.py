"""The Java that Spark will start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from reput.errors import SparkError
from reput.unforeseen import without_spark

#: The first Java that Spark 4 runs on.
LEAST_JAVA = 17
_VERSION = re.compile(r'version\s*=?\s*"(?:1\.)?([0-9]+)', re.IGNORECASE)


def java() -> tuple[str | None, int | None]:
    """The Java that Spark will start, and its major version; None for what isn't known."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", "java")) if home else "java")  # of a Path 3.11 gives one
    return path, None if path is None else _java_version(path)


def is_submitted() -> bool:
    """Whether spark-submit started this process, and so chose master and JVM."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def is_connect() -> bool:
    """Whether a session is Spark Connect's: the environment asks for that, or PySpark has made one here."""
    return "SPARK_REMOTE" in os.environ or "SPARK_CONNECT_MODE_ENABLED" in os.environ


def refuse_connect() -> None:
    """Refuse Spark Connect where tasks are placed and stopped, and a batch's state is this process's.

    Raises:
        SparkError: sessions are Spark Connect's.
    """
    if is_connect():
        remote = os.environ.get("SPARK_REMOTE")
        raise SparkError(
            "over Spark Connect only sources, SQL and notebooks work",
            expected="a session of Spark's own",
            found="one of Spark Connect" if remote is None else f"SPARK_REMOTE={remote}",
            next_step="Unset SPARK_REMOTE, in a process without Spark Connect",
        )


def is_installed() -> bool:
    """Whether Spark came with reput: ``reput[spark]``."""
    try:
        return find_spec("pyspark") is not None
    except ModuleNotFoundError:
        return False


def spark_home(*, own: bool = False) -> Path:
    """Where Spark is: what SPARK_HOME names, else the installed PySpark; with ``own`` that in any case."""
    spec = find_spec("pyspark")
    named = None if own else os.environ.get("SPARK_HOME")
    return Path(named or ("" if spec is None or spec.origin is None else Path(spec.origin).parent))


def check_spark(*, own: bool = False) -> None:
    """Check that Spark is there with its jars, and a Java that is new enough; under spark-submit it runs.

    Args:
        own: whether PySpark's own jars will be used, whatever SPARK_HOME names.

    Raises:
        SparkError: it isn't.
    """
    refuse_connect()
    if is_submitted():
        return
    if not is_installed():
        raise without_spark("pyspark")
    check_jars(own=own)
    home = os.environ.get("JAVA_HOME")
    found, version = java()
    expected = f"Java {LEAST_JAVA} or later (17 and 21 are known to work)"
    next_step = (
        f"Install it (on Debian and Ubuntu: openjdk-{LEAST_JAVA}-jre-headless), or let JAVA_HOME name one"
    )
    if found is None:
        raise SparkError(
            "there is no Java, and Spark needs one",
            path=home,
            expected=expected,
            found="no bin/java in JAVA_HOME" if home else "no java on PATH, and no JAVA_HOME",
            next_step=next_step,
        )
    if version is None or version < LEAST_JAVA:
        raise SparkError(
            "Spark can't run on this Java",
            path=found,
            expected=expected,
            found="a Java of unknown version" if version is None else f"Java {version}",
            next_step=next_step,
        )


def check_jars(*, own: bool = False) -> None:
    """Check that Spark's jars are there, which `reput pack` leaves to the cluster, and of PySpark's line.

    Args:
        own: as for `check_spark`.

    Raises:
        SparkError: they aren't; PySpark would end the process, or fail in the middle of the JVM's start.
    """
    home = spark_home(own=own)
    if not any((home / name).is_dir() for name in ("jars", "assembly")):
        raise SparkError(
            "there are no jars of Spark",
            path=home / "jars",
            next_step="Let SPARK_HOME name a Spark, or use an environment packed with --with-spark "
            "(docs/cluster.md)",
        )
    for jar in (home / "jars").glob("spark-core_*.jar"):
        check_version(jar.stem.split("-", 2)[2], home)


def check_version(found: str, home: Path | None = None) -> None:
    """Check that a Spark is of the line of the PySpark that was installed with reput.

    A cluster's spark-submit puts its own PySpark before that. In an image of Spark's none may be installed.

    Args:
        home: where it is; None for one that runs.

    Raises:
        SparkError: it isn't.
    """
    with suppress(PackageNotFoundError):
        installed = version("pyspark")
        if installed.split(".")[:2] != found.split(".")[:2]:
            raise SparkError(
                "reput isn't made for this Spark",
                path=home,
                expected=f"Spark {'.'.join(installed.split('.')[:2])}",
                found=found,
                next_step="Give another Spark, or a reput for this one",
            )


def _java_version(java: str) -> int | None:
    """The major version; from the file beside the JVM, which is read faster than a JVM starts."""
    release = Path(java).resolve().parents[1] / "release"
    try:
        found = _VERSION.search(release.read_text(errors="replace"))
    except OSError:
        found = None
    if found is None:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _VERSION.search(done.stderr + done.stdout)
    return None if found is None else int(found[1])
