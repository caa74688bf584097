"""An archive of Java's classes, with which Spark's JVM starts in half the time (class-data sharing).

``reput doctor --class-archive make`` makes it, for one user, one Java and one Spark. It is used only if these
are the same and its checksum is right; otherwise the JVM starts without it. :data:`VARIABLE` names
another directory for it than the user's cache; ``off`` turns it off.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reput.caches import CLASSES, is_mine_alone, own_directory, user_directory
from reput.errors import SparkError
from reput.spark.java import is_installed, java, spark_home
from reput.store.system import free_bytes, human

VARIABLE, OFF = "REPUT_CLASS_ARCHIVE", "off"
#: What decides the JVM's class path and options, besides Java and Spark themselves.
_VARIABLES = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)
#: Bytes: one has some 155 MB, and is written beside the one that it replaces.
_ROOM = 400 << 20
#: A maker that was killed leaves its unfinished file; none takes as long as this.
_ABANDONED_SECONDS = 3600.0
_MAKE_SECONDS = 600.0
#: Ends the name of what an archive was when its checksum was right.
_SEEN = ".seen"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive for one Java and one Spark is, or would be."""

    stem: Path  # of its path; what follows is its checksum, or the ``.json`` of its facts
    facts: dict[str, str]  # what it holds for

    def path(self) -> Path | None:
        """The archive; None if there is none that is whole.

        A JVM that maps one that was cut short crashes. And it is code: no directory or file is taken that
        somebody else can write to.
        """
        if not is_mine_alone(self.stem.parent):
            return None
        for path in self.versions():
            with suppress(OSError):
                if is_mine_alone(path) and self._is_whole(path):
                    return path
        return None

    def _is_whole(self, path: Path) -> bool:
        """Whether its bytes are those that its name says; they are read once after each change.

        What a file was when it was read is kept beside it. Whoever writes to it later, or cuts it short,
        changes its ctime, which can't be set back.
        """
        seen = path.with_suffix(_SEEN)
        at = path.stat()
        now = f"{at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}"
        with suppress(OSError):
            if is_mine_alone(seen) and seen.read_text(encoding="ascii") == now:
                return True
        if not path.stem.endswith(_checksum(path)):
            return False
        with suppress(OSError):
            part = seen.with_name(f"{seen.name}.{os.getpid()}.part")
            part.touch(mode=0o600)
            part.write_text(now, encoding="ascii")
            part.replace(seen)
        return True

    def versions(self) -> list[Path]:
        """All files that may be the archive."""
        return sorted(self.stem.parent.glob(f"{self.stem.name}-*.jsa"))


def find() -> ClassArchive | None:
    """The archive for the Java and the Spark that a session would start; None where there can't be one."""
    place, facts = _directory(), _facts()
    # A JVM takes a colon for the end of a first file's name, and its options come as one quoted string.
    if place is None or facts is None or set(str(place)) & set(':"\\\n'):
        return None
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return ClassArchive(place / f"spark-{key}", facts)


def java_options() -> str:
    """The JVM's options for a start with the archive; empty if there is none."""
    found = find()
    path = None if found is None else found.path()
    # A JVM that doesn't take it prints why, if it isn't told not to.
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto -Xlog:cds*=off -Xlog:class+path=off' if path else ""


def make() -> None:
    """Make the archive, by a rebuild of the demonstration's store in a process of its own (half a minute).

    Two at once don't disturb each other, nor runs that use the archive of before.

    Raises:
        SparkError: there can't be one, or it didn't come about.
    """
    found = find()
    if found is None:
        raise SparkError(
            "an archive of Java's classes can't be made here",
            expected="Java, Spark, and a directory of your own without colon or quote in its path",
            found=f"{VARIABLE}={named}" if (named := os.environ.get(VARIABLE)) else "not all of them",
            next_step=f"Let {VARIABLE} name a directory, or do without: only starts take longer",
        )
    place = found.stem.parent
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
        _tidy(place)
        room = free_bytes(place)
    except OSError as error:
        raise SparkError(
            "an archive of Java's classes can't be made here",
            path=place,
            found=error.strerror or str(error),
            next_step=f"Let {VARIABLE} name a directory of your own, or do without: only starts take longer",
        ) from error
    if room < _ROOM:
        raise SparkError(
            "there is no room for an archive of Java's classes",
            path=place,
            expected=f"{human(_ROOM)} free",
            found=human(room),
            next_step=f"Free some, or let {VARIABLE} name another directory",
        )
    part = place / f"{found.stem.name}.{os.getpid()}.part"
    said = _train(part)
    try:
        if not part.is_file():
            raise SparkError(
                "Java has made no archive of its classes",
                path=place,
                found=said or "nothing",
                next_step="Go on without: only starts take longer",
            )
        part.chmod(0o600)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        before = found.versions()
        found.stem.with_suffix(".json").write_text(json.dumps(found.facts, indent=1), encoding="utf-8")
        made = part.replace(f"{found.stem}-{_checksum(part)}.jsa")
        for path in set(before) - {made}:
            path.unlink(missing_ok=True)
            path.with_suffix(_SEEN).unlink(missing_ok=True)
    finally:
        part.unlink(missing_ok=True)


def remove() -> int:
    """Remove all archives of this user; returns the bytes that this frees."""
    place = _directory()
    files = [] if place is None or not place.is_dir() else [*place.glob("spark-*")]
    freed = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink(missing_ok=True)
    return freed


def _train(part: Path) -> str:
    """Let a JVM put what it has loaded into ``part`` when it ends; returns the last that it says."""
    options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} "-XX:ArchiveClassesAtExit={part}"'
    environment = {**os.environ, VARIABLE: OFF, "SPARK_SUBMIT_OPTS": options}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reput.demo"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAKE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_MAKE_SECONDS:.0f} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        part.unlink(missing_ok=True)
    return lines[-1] if lines else ""


def _tidy(place: Path) -> None:
    """Remove what killed makers have left, and archives whose Java or Spark is gone."""
    for file in place.glob("spark-*.part"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()
    for file in place.glob("spark-*.json"):
        with suppress(OSError, ValueError, KeyError):
            facts = json.loads(file.read_text(encoding="utf-8"))
            if not (Path(facts["java"]).exists() and Path(facts["spark"]).exists()):
                for archive in ClassArchive(file.with_suffix(""), facts).versions():
                    archive.unlink()
                    archive.with_suffix(_SEEN).unlink(missing_ok=True)
                file.unlink()


def _directory() -> Path | None:
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    if named:
        return Path(named).absolute()
    if (user := user_directory()) is not None:
        own = user / CLASSES
        there = next(path for path in (own, *own.parents) if path.exists())
        if os.access(there, os.W_OK | os.X_OK):
            return own
    temporary = own_directory()
    return None if temporary is None else temporary / CLASSES


def _facts() -> dict[str, str] | None:
    """What an archive holds for: a change of any of it makes another one."""
    program, _ = java()
    if program is None or not is_installed():
        return None
    home, spark = Path(program).resolve().parents[1], spark_home()
    try:
        return {
            "java": program,
            "java_files": _fingerprint(
                [home / "release", home / "lib" / "modules", *home.glob("lib/server/*")]
            ),
            "spark": str(spark),
            "jars": _fingerprint((spark / "jars").iterdir()),
            "conf": _fingerprint(Path(os.environ.get("SPARK_CONF_DIR") or spark / "conf").glob("*")),
            **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        }
    except OSError:
        return None


def _checksum(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:16]


def _fingerprint(files: Iterable[Path]) -> str:
    """Of files by name, size and time."""
    seen = [(str(file), file.stat()) for file in sorted(files) if file.is_file()]
    return hashlib.sha256(
        repr([(name, at.st_size, at.st_mtime_ns) for name, at in seen]).encode()
    ).hexdigest()
