"""The jars of RocketMQ's Java client: an operator's own, or fetched once per user from Maven Central.

Fetched ones are compared with the hashes in ``client_jars.json`` each time that they are used. Ivy, which
comes with PySpark, fetches them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from reput.caches import CLIENT, can_write, own_directory, user_directory
from reput.errors import SettingsError, SparkError
from reput.spark.java import java
from reput.store.reading import unreadable
from reput.store.temporary import beside

_LOCK = Path(__file__).with_name("client_jars.json")
_TIMEOUT_SECONDS = 600


def known() -> dict[str, dict[str, str]]:
    """By release, the SHA-256 of each jar, by ``group:artifact:version``."""
    found: dict[str, dict[str, str]] = json.loads(_LOCK.read_text(encoding="utf-8"))
    return found


def client_jars(directory: Path | None, release: str | None) -> list[Path]:
    """The jars for a class path.

    Args:
        directory: where they are, such as a broker's ``lib/``; None to fetch them.
        release: the broker's, where they are fetched.

    Raises:
        SettingsError: there are none in the directory, or it isn't known which to fetch.
        SparkError: they can't be fetched, or aren't what they should be.
    """
    if directory is not None:
        try:
            found = sorted(path for path in directory.iterdir() if path.suffix == ".jar")
        except OSError as error:
            raise unreadable("the client's directory", directory, error) from error
        if not any(path.name.startswith("rocketmq-client-") for path in found):
            raise SettingsError(
                "--client has no RocketMQ client",
                expected=f"a directory with rocketmq-client-….jar, such as a broker's lib/: {directory}",
                found="no such jar",
            )
        return found
    releases = known()
    if release not in releases:
        raise SettingsError(
            "it isn't known which client to send with",
            expected=f"--client DIR, such as the broker's lib/, or --rocketmq-version {', '.join(releases)}",
            found="neither" if release is None else f"--rocketmq-version {release}",
            next_step="A client of another 4.9 or 5.x release works with the broker, too.",
        )
    return _fetched(release, releases[release])


def pyspark_jar(prefix: str) -> Path:
    """The jar of the installed PySpark whose name starts with this, such as ``py4j-``.

    Raises:
        SparkError: there is none.
    """
    spec = find_spec("pyspark")
    jars = Path("/" if spec is None or spec.origin is None else spec.origin).parent / "jars"
    found = sorted(jars.glob(f"{prefix}[0-9]*.jar"))
    if not found:
        raise SparkError(
            "the Java client can't be run", expected=f"{prefix}….jar of PySpark", found="none", path=jars
        )
    return found[-1]


def java_command() -> str:
    """The Java that runs the client.

    Raises:
        SparkError: there is none.
    """
    found, _ = java()
    if found is None:
        raise SparkError(
            "there is no Java, and RocketMQ's client needs one",
            expected="Java 8 or later",
            found="none on PATH, and no JAVA_HOME with one",
            next_step="Install it, or let JAVA_HOME name one",
        )
    return found


def _fetched(release: str, hashes: dict[str, str]) -> list[Path]:
    target = _cache() / release
    if not target.is_dir():
        _fetch(release, hashes, target)
    return [_checked(target, coordinates, expected) for coordinates, expected in hashes.items()]


def _checked(directory: Path, coordinates: str, expected: str) -> Path:
    _, artifact, version = coordinates.split(":")
    path = directory / f"{artifact}-{version}.jar"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        found = "no file"
    except OSError as error:
        raise unreadable("a jar of the client", path, error) from error
    if found != expected:
        raise SparkError(
            "a jar of the client isn't what it should be",
            path=path,
            expected=f"SHA-256 {expected}",
            found=found,
            next_step=f"Remove {directory}, and run the command again",
        )
    return path


def _cache() -> Path:
    if (user := user_directory()) is not None and can_write(user / CLIENT):
        return user / CLIENT
    own = own_directory()
    if own is None:
        raise SparkError(
            "there is no place to keep the client's jars",
            next_step="Give --client, or set TMPDIR",
        )
    return own / CLIENT


def _fetch(release: str, hashes: dict[str, str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with beside(target, directory=True, wait=True) as work:
        if target.is_dir():
            return  # another process fetched it meanwhile
        (work / "ivy.xml").write_text(_module(hashes), encoding="utf-8")
        command = [java_command(), "-jar", str(pyspark_jar("ivy-"))]
        try:
            done = retrieve(command, work, "[artifact]-[revision].[ext]", _TIMEOUT_SECONDS)
            said = f"exit code {done.returncode}: {_last(done.stdout)}" if done.returncode else None
        except subprocess.TimeoutExpired:
            said = f"nothing after {_TIMEOUT_SECONDS} s"
        if said is not None:
            raise SparkError(
                f"the client of RocketMQ {release} can't be fetched",
                expected="Maven Central within reach",
                found=said,
                next_step="Give --client DIR with the broker's lib/ instead",
            )
        for coordinates, expected in hashes.items():
            _checked(work / "jars", coordinates, expected)
        (work / "jars").rename(target)


def retrieve(
    ivy: Sequence[str], work: Path, pattern: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Have Ivy bring what ``ivy.xml`` in a directory asks for into ``jars`` there; stdout has all it says.

    Args:
        ivy: the command that starts it.
        pattern: how Ivy names a jar.
        timeout: seconds.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    words = ("-m2compatible", "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"))
    return subprocess.run(
        [*ivy, *words, "-types", "jar", "bundle", "-retrieve", f"{work}/jars/{pattern}"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
    )


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if "UNRESOLVED" in line or "rror" in line), (lines or [""])[-1]
    )


def _module(hashes: dict[str, str]) -> str:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default" transitive="false"/>'
        for group, name, version in (one.split(":") for one in hashes)
    )
    return (
        '<ivy-module version="2.0"><info organisation="reput" module="client"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
