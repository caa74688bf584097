"""Files of Maven Central that reput needs at times: fetched once per user, with hashes that are known before.

Ivy, which comes with PySpark, fetches them. They are compared with their hashes each time that they are used.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from reput.caches import JARS, can_write, own_directory, user_directory
from reput.errors import SparkError
from reput.spark.java import java, spark_home
from reput.store.places import beside
from reput.store.reading import unreadable

#: Where an environment that `reput pack` made has Delta Lake's jars.
PACKED_JARS = Path(sys.prefix, "jars")
_DELTA = "4.4.0"
#: Delta's own jar, by the line of Spark; and what it needs and Spark hasn't, 12 MB in all. With the rest of
#: what its POM names they would be 33 of 87 MB, among them a second Hadoop.
_OF_LINE = {
    "4.0": "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
    "4.1": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "4.2": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
}
_OF_ALL = {
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
_TIMEOUT_SECONDS = 600.0
#: Seconds before it is tried once more: a registry answers with an error now and then.
_PAUSES = (2.0, 8.0)
_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"


def delta_jars(*, fetch: bool = True) -> list[Path]:
    """Delta Lake's jars for the installed Spark: those packed with this environment, else the user's.

    Args:
        fetch: those that aren't there; without it they are only named.

    Raises:
        SparkError: they can't be fetched, or aren't what they should be.
    """
    line = "4.2"
    with suppress(PackageNotFoundError):
        line = ".".join(version("pyspark").split(".")[:2])
    hashes = {f"delta-spark_{line}_2.13": _OF_LINE.get(line, ""), **_OF_ALL}
    hashes = {f"io.delta:{artifact}:{_DELTA}": digest for artifact, digest in hashes.items()}
    packed = [PACKED_JARS / _name(one) for one in hashes]
    if packed[0].is_file():
        return packed
    place = f"delta/{line}"
    if not fetch:  # and make no directory for them
        user = user_directory()
        return [(_cache() if user is None else user / JARS) / place / _name(one) for one in hashes]
    return fetched(
        place,
        "Delta Lake",
        hashes,
        "Run `reput pack` where it is: its archive has them in jars/ (docs/catalog.md)",
    )


def fetched(place: str, what: str, hashes: Mapping[str, str], otherwise: str) -> list[Path]:
    """Files of Maven Central, in the order of their hashes.

    Args:
        place: where they are kept, below the user's cache.
        what: they are, for an error.
        hashes: the SHA-256 of each by ``group:artifact:version``, with ``:classifier`` where it has one.
        otherwise: what to do where they can't be fetched.

    Raises:
        SparkError: they can't be fetched, or aren't what they should be.
    """
    target = _cache() / place
    if not target.is_dir():
        _fetch(what, hashes, target, otherwise)
    return [_checked(what, target, one, expected) for one, expected in hashes.items()]


def pyspark_jar(prefix: str) -> Path:
    """The jar of the installed PySpark whose name starts with this, such as ``py4j-``.

    Raises:
        SparkError: there is none.
    """
    jars = spark_home(own=True) / "jars"
    found = sorted(jars.glob(f"{prefix}[0-9]*.jar"))
    if not found:
        raise SparkError("a jar is missing", expected=f"{prefix}….jar of PySpark", found="none", path=jars)
    return found[-1]


def java_command() -> str:
    """The Java of JAVA_HOME, else of PATH, whatever its version.

    Raises:
        SparkError: there is none.
    """
    found, _ = java()
    if found is None:
        raise SparkError(
            "there is no Java, and this needs one",
            expected="Java 8 or later",
            found="none on PATH, and no JAVA_HOME with one",
            next_step="Install it, or let JAVA_HOME name one",
        )
    return found


def retrieve(
    ivy: Sequence[str], work: Path, timeout: float = _TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Have Ivy bring what ``ivy.xml`` in a directory asks for into ``jars`` there; stdout has all it says.

    It is tried three times.

    Args:
        ivy: the command that starts it.
        timeout: seconds, for one time.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    words = ("-m2compatible", "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"))
    for pause in (*_PAUSES, None):
        done = subprocess.run(
            [*ivy, *words, "-types", "jar", "bundle", "-retrieve", f"{work}/jars/{_PATTERN}"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        if not done.returncode or pause is None:
            break
        time.sleep(pause)
    return done


def _name(coordinates: str) -> str:
    """The name of a file, as Ivy's pattern makes it."""
    return f"{'-'.join(coordinates.split(':')[1:])}.jar"


def _checked(what: str, directory: Path, coordinates: str, expected: str) -> Path:
    path = directory / _name(coordinates)
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        found = "no file"
    except OSError as error:
        raise unreadable(f"a file of {what}", path, error) from error
    if found != expected:
        raise SparkError(
            f"a file of {what} isn't what it should be",
            path=path,
            expected=f"SHA-256 {expected}",
            found=found,
            next_step=f"Remove {directory}, and run the command again",
        )
    return path


def _cache() -> Path:
    if (user := user_directory()) is not None and can_write(user / JARS):
        return user / JARS
    own = own_directory()
    if own is None:
        raise SparkError("there is no place to keep what is fetched", next_step="Set TMPDIR")
    return own / JARS


def _fetch(what: str, hashes: Mapping[str, str], target: Path, otherwise: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with beside(target, directory=True, wait=True) as work:
        if target.is_dir():
            return  # another process fetched it meanwhile
        (work / "ivy.xml").write_text(_module(hashes), encoding="utf-8")
        command = [java_command(), "-jar", str(pyspark_jar("ivy-"))]
        try:
            done = retrieve(command, work)
            said = f"exit code {done.returncode}: {_last(done.stdout)}" if done.returncode else None
        except subprocess.TimeoutExpired:
            said = f"nothing after {_TIMEOUT_SECONDS:.0f} s"
        if said is not None:
            raise SparkError(
                f"{what} can't be fetched",
                expected="Maven Central within reach",
                found=said,
                next_step=otherwise,
            )
        for coordinates, expected in hashes.items():
            _checked(what, work / "jars", coordinates, expected)
        (work / "jars").rename(target)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if "UNRESOLVED" in line or "rror" in line), (lines or [""])[-1]
    )


def _module(hashes: Mapping[str, str]) -> str:
    dependencies = ""
    for one in hashes:
        group, name, revision, *classifier = one.split(":")
        which = f' m:classifier="{classifier[0]}"' if classifier else ""
        dependencies += (
            f'<dependency org="{group}" name="{name}" rev="{revision}" conf="default" transitive="false">'
            f'<artifact name="{name}" type="jar" ext="jar"{which}/></dependency>'
        )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="reput" module="fetched"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
