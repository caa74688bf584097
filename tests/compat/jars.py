"""Jars of RocketMQ releases and of Hadoop's daemons, fetched once per user with the Ivy of PySpark.

Run ``python -m tests.compat.jars VERSION`` to fetch a release beforehand (about a minute, 30 to 90 MB).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from reput.config.dialect import DIALECTS
from reput.resend.jars import retrieve

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
"""Releases with a complete set of jars in Maven Central (5.3.4 and 4.9.8, for example, lack the broker's)."""

STORES = tuple(one for row in DIALECTS for one in row.versions if one not in VERSIONS)
"""Releases whose store alone is driven, for what differs between them."""

_INCUBATING = ("4.0.0", "4.1.0")
_EVERY = bool(os.environ.get("REPUT_EVERY_RELEASE"))
# rocketmq-broker brings the store and the client along; the name server is a module of its own.
_MODULES = ("rocketmq-broker", "rocketmq-namesrv")
_HADOOP = "3.5.0"
#: Hadoop's daemons in one jar, and what the ResourceManager needs besides; the client's jars are PySpark's.
_HADOOP_DAEMONS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", _HADOOP),
    ("org.bouncycastle", "bcprov-jdk18on", "1.82"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    ("org.bouncycastle", "bcutil-jdk18on", "1.82"),
)
#: What Spark reads S3 with: of Amazon's SDK what that needs, 19 MB in all, and not its bundle of 686 MB.
_SDK = "2.35.4"
_HADOOP_AWS = (
    ("org.apache.hadoop", "hadoop-aws", _HADOOP),
    *(("software.amazon.awssdk", name, _SDK) for name in ("s3", "s3-transfer-manager", "sts")),
)
_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"
_TIMEOUT = 900.0
#: Seconds before it is tried once more: a registry answers with an error now and then.
_PAUSES = (3.0, 20.0)
#: Organisation, name and version.
_Artifact = tuple[str, str, str]


class JarsUnavailableError(RuntimeError):
    """The jars are neither cached nor can be fetched: no Java, no network, or no such release."""


def tried(*releases: str, more: Sequence[str]) -> list[str]:
    """The releases, or stores of them, that a long test runs with; ``more`` by ``make every`` alone."""
    return [*releases, *(more if _EVERY else ())]


def java_executable() -> Path:
    """The ``java`` of JAVA_HOME, else of PATH.

    Raises:
        JarsUnavailableError: neither has one.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        where = f"JAVA_HOME ({home})" if home else "PATH"
        raise JarsUnavailableError(f"no java in {where}: install Java 17 or 21, or let JAVA_HOME name it")
    return Path(found)


def cache_dir() -> Path:
    """Where the releases are kept: ``$XDG_CACHE_HOME/reput/rocketmq``, else below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "reput" / "rocketmq"


def jars(version: str) -> list[Path]:
    """All jars that a store, a broker, a name server and a client of this release need, sorted by name.

    A release's directory appears by a rename, when it is complete, so what is there is reused.

    Args:
        version: one of :data:`VERSIONS`, or of :data:`STORES`, with the store alone.

    Raises:
        ValueError: reput is not tested against this release.
        JarsUnavailableError: see there.
    """
    if version not in (*VERSIONS, *STORES):
        raise ValueError(
            f"RocketMQ {version} isn't one of the releases tested against: {', '.join(VERSIONS)}"
        )
    target = cache_dir() / version
    modules = _MODULES if version in VERSIONS else ("rocketmq-store",)
    artifact = f"{version}-incubating" if version in _INCUBATING else version
    wanted = [("org.apache.rocketmq", name, artifact) for name in modules]
    # Of 4.0 to 4.3 its name holds a variable that Ivy doesn't fill in.
    _have(f"RocketMQ {version}", target, wanted, excludes=("netty-tcnative",))
    found = sorted(target.glob("*.jar"))
    if not any(jar.name == f"rocketmq-store-{artifact}.jar" for jar in found):
        raise JarsUnavailableError(
            f"{target} lacks rocketmq-store-{artifact}.jar: remove the directory and try again"
        )
    return found


def hadoop_jars() -> list[Path]:
    """The jars of YARN's daemons, for a class path that has PySpark's jars behind them.

    Raises:
        JarsUnavailableError: see there.
    """
    target = cache_dir().parent / "hadoop" / _HADOOP
    _have(f"Hadoop {_HADOOP}", target, _HADOOP_DAEMONS, transitive=False)
    return sorted(target.glob("*.jar"))


def hadoop_aws_jars() -> list[Path]:
    """The jars with which Spark reads and writes ``s3a://``.

    Raises:
        JarsUnavailableError: see there.
    """
    target = cache_dir().parent / "hadoop-aws" / _HADOOP
    # PySpark has the last one itself.
    _have(f"hadoop-aws {_HADOOP}", target, _HADOOP_AWS, excludes=("bundle", "slf4j-api"))
    return sorted(target.glob("*.jar"))


def source_release(version: str) -> Path:
    """The archive of a release's sources, which has scripts and examples that no jar has.

    Raises:
        JarsUnavailableError: see there.
    """
    target = cache_dir().parent / "rocketmq-sources" / version
    artifact = ("org.apache.rocketmq", "rocketmq-all", version)
    _have(f"RocketMQ {version}'s sources", target, [artifact], transitive=False, classifier="source-release")
    (found,) = target.glob("*.zip")
    return found


def class_path(version: str) -> str:
    """The jars of :func:`jars` as one class path, with what DLedger logs through where the broker's don't."""
    found = jars(version)
    if version in STORES:
        found.append(pyspark_jar("slf4j-api-"))
    return os.pathsep.join(map(str, found))


def pyspark_jar(prefix: str) -> Path:
    """The one jar of the installed PySpark whose name starts with this, such as ``"py4j-"``.

    Raises:
        JarsUnavailableError: there is none.
    """
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob(f"{prefix}[0-9]*.jar"))
    if not found:
        raise JarsUnavailableError(f"the installed PySpark has no {prefix}*.jar")
    return found[-1]


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process after the other, so that a release comes over the network once."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without: several may fetch it, and one is used
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _have(
    what: str,
    target: Path,
    artifacts: Sequence[_Artifact],
    *,
    transitive: bool = True,
    excludes: Sequence[str] = (),
    classifier: str = "",
) -> None:
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent):
        if not target.is_dir():  # another process may have been first
            _fetch(what, target, _ivy_module(artifacts, transitive, excludes, classifier))


def _fetch(what: str, target: Path, module: str) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (work / "ivy.xml").write_text(module, encoding="utf-8")
        ivy = [str(java_executable()), "-jar", str(pyspark_jar("ivy-"))]
        for pause in (*_PAUSES, 0.0):
            try:
                run = retrieve(ivy, work, _PATTERN, _TIMEOUT)
            except subprocess.TimeoutExpired as error:
                raise JarsUnavailableError(
                    f"{what} did not arrive in {_TIMEOUT:.0f} s: is Maven Central within reach?"
                ) from error
            if run.returncode == 0:
                break
            time.sleep(pause)
        else:
            tail = "\n".join(run.stdout.splitlines()[-20:])
            raise JarsUnavailableError(
                f"fetching {what} failed (exit code {run.returncode}): "
                f"is Maven Central within reach? Ivy said:\n{tail}"
            )
        try:
            (work / "jars").rename(target)
        except OSError:
            # Another process was faster: its directory is as good as ours.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _ivy_module(
    artifacts: Sequence[_Artifact], transitive: bool, excludes: Sequence[str], classifier: str
) -> str:
    """What Ivy is asked for; with a classifier, archives instead of jars."""
    more = "" if transitive else ' transitive="false"'
    archive = f' type="jar" ext="zip" e:classifier="{classifier}"/></dependency>'
    dependencies = "\n".join(
        f'    <dependency org="{organisation}" name="{name}" rev="{version}" conf="default"{more}'
        + (f'><artifact name="{name}"{archive}' if classifier else "/>")
        for organisation, name, version in artifacts
    )
    left_out = "\n".join(f'    <exclude module="{module}"/>' for module in excludes)
    return (
        '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">\n'
        '  <info organisation="reput" module="oracle"/>\n'
        f"  <dependencies>\n{dependencies}\n{left_out}\n  </dependencies>\n"
        "</ivy-module>\n"
    )


if __name__ == "__main__":
    for release in sys.argv[1:] or VERSIONS:
        print(f"{release}: {len(jars(release))} jars in {cache_dir() / release}")
