"""Jars of RocketMQ releases and of Hadoop's daemons, fetched once per user with the Ivy of PySpark.

`make jars` fetches all that `make test` needs; a test fetches none. ``python -m tests.compat.jars VERSION``
fetches a release, in about a minute.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from reput.config.dialect import DIALECTS
from reput.spark.jars import delta_jars, retrieve
from tests.levels import PROOF

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
"""Releases with a complete set of jars in Maven Central (4.9.8, for example, lacks the broker's)."""

UNPUBLISHED = ("4.9.6", "5.1.2", "5.3.4")
"""Releases that Maven Central has no jars of, or not all that a store needs."""

STORES = tuple(one for row in DIALECTS for one in row.versions if one not in (*VERSIONS, *UNPUBLISHED))
"""Releases whose store alone is driven, for what differs between them."""

NO_FETCH = "REPUT_TESTS_FETCH_NOTHING"
"""Set in tests: what isn't here is an error."""

_INCUBATING = ("4.0.0", "4.1.0")
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
_HADOOP_CLIENT = ("hadoop-client-api", "hadoop-client-runtime")
#: What Spark reads S3 with: of Amazon's SDK what that needs, 19 MB in all, and not its bundle of 686 MB.
_SDK = "2.35.4"
_HADOOP_AWS = (
    ("org.apache.hadoop", "hadoop-aws", _HADOOP),
    *(("software.amazon.awssdk", name, _SDK) for name in ("s3", "s3-transfer-manager", "sts")),
)
_TIMEOUT = 900.0
#: What `make test` needs of :data:`STORES`.
_TESTED_STORES = (
    *("4.0.0", "4.1.0", "4.2.0", "4.3.1", "4.4.0", "4.5.1", "4.5.2", "4.7.0", "4.8.0"),
    *("4.9.1", "4.9.2", "5.1.4", "5.4.0"),
)
#: The start of :func:`digest`, of each directory that `make test` needs.
_DIGESTS = {
    "RocketMQ 4.9.7": "83b31cf175966d21ee63e5d5e7ce52a6",
    "RocketMQ 5.3.3": "aaab40bdd49046af5d21470a88768992",
    "RocketMQ 5.5.0": "4b2484ef1b87d09c5e4f28a805f51875",
    "RocketMQ 4.0.0": "a5c553006c2df99221a9303020b8938c",
    "RocketMQ 4.1.0": "ff2562daf658a95bdbe2e028e3aaec9a",
    "RocketMQ 4.2.0": "29a0f3d3c48449962a8d638f16208145",
    "RocketMQ 4.3.1": "41ab4ca19170f9cedbca7c6c66252363",
    "RocketMQ 4.4.0": "53efcd20629e8112fdd6b7e7a3420333",
    "RocketMQ 4.5.1": "5d992c41923a78979ce437e0a4a35153",
    "RocketMQ 4.5.2": "8b0654312a9246d4a68f55de21f57344",
    "RocketMQ 4.7.0": "598a1eee16a22ba8301e7912d55769a1",
    "RocketMQ 4.8.0": "6515808346e49c952d4fa97666c6a888",
    "RocketMQ 4.9.1": "faa156a94d6ec7a6dd450bbc0cf2c100",
    "RocketMQ 4.9.2": "0ccf96d6443044a2c380008f8cba04fb",
    "RocketMQ 5.1.4": "e9d1245bbeb724e8086cb08dd1ab194b",
    "RocketMQ 5.4.0": "8f0521454181e5518fedec5bf7d313e7",
    "Hadoop 3.5.0": "209efd77c445d85eac115c29aca7ea44",
    "hadoop-aws 3.5.0": "4b5ee331eb49695bac8b27738e01acba",
}
#: Organisation, name and version.
_Artifact = tuple[str, str, str]


class JarsUnavailableError(RuntimeError):
    """The jars are neither cached nor can be fetched: no Java, no network, or no such release."""


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
    if version in UNPUBLISHED:
        raise JarsUnavailableError(f"Maven Central lacks jars of RocketMQ {version}")
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

    With them the client's where PySpark has those of another Hadoop: a cluster's is its own.

    Raises:
        JarsUnavailableError: see there.
    """
    target = cache_dir().parent / "hadoop" / _HADOOP
    _have(f"Hadoop {_HADOOP}", target, _HADOOP_DAEMONS, transitive=False)
    found = sorted(target.glob("*.jar"))
    if pyspark_jar("hadoop-client-api-").stem.endswith(f"-{_HADOOP}"):
        return found
    client = target.with_name(f"{_HADOOP}-client")
    wanted = [("org.apache.hadoop", name, _HADOOP) for name in _HADOOP_CLIENT]
    _have(f"the client of Hadoop {_HADOOP}", client, wanted, transitive=False)
    return [*found, *sorted(client.glob("*.jar"))]


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


def digest(directory: Path) -> str:
    """The start of a SHA-256 over the names and bytes of jars."""
    whole = hashlib.sha256()
    for jar in sorted(directory.glob("*.jar")):
        whole.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def needed() -> dict[str, tuple[Path, Callable[[], object]]]:
    """By name where what tests need is kept, and what fetches it."""
    releases = (*VERSIONS, *(STORES if PROOF else _TESTED_STORES))
    return {
        **{f"RocketMQ {one}": (cache_dir() / one, partial(jars, one)) for one in releases},
        f"Hadoop {_HADOOP}": (cache_dir().parent / "hadoop" / _HADOOP, hadoop_jars),
        f"hadoop-aws {_HADOOP}": (cache_dir().parent / "hadoop-aws" / _HADOOP, hadoop_aws_jars),
        "Delta Lake": (delta_jars(fetch=False)[0], delta_jars),
    }


def missing() -> list[str]:
    """What tests need and isn't here."""
    return [name for name, (place, _) in needed().items() if not place.exists()]


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
    if NO_FETCH in os.environ:
        raise JarsUnavailableError(f"{what} isn't here, and tests fetch nothing: run `make jars` first")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent):
        if not target.is_dir():  # another process may have been first
            _fetch(what, target, _ivy_module(artifacts, transitive, excludes, classifier))


def _fetch(what: str, target: Path, module: str) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (work / "ivy.xml").write_text(module, encoding="utf-8")
        ivy = [str(java_executable()), "-jar", str(pyspark_jar("ivy-"))]
        try:
            run = retrieve(ivy, work, _TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise JarsUnavailableError(
                f"{what} did not arrive in {_TIMEOUT:.0f} s: is Maven Central within reach?"
            ) from error
        if run.returncode:
            tail = "\n".join(run.stdout.splitlines()[-20:])
            raise JarsUnavailableError(
                f"fetching {what} failed (exit code {run.returncode}): "
                f"is Maven Central within reach? Ivy said:\n{tail}"
            )
        if (found := digest(work / "jars")) != _DIGESTS.get(what, found):
            raise JarsUnavailableError(
                f"{what} isn't what it was: its jars give {found}, not {_DIGESTS[what]}"
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
    for release in sys.argv[1:]:
        print(f"{release}: {len(jars(release))} jars in {cache_dir() / release}")
    if not sys.argv[1:]:
        wanted = needed()
        for name in missing():
            print(f"Fetching {name}, for the tests", file=sys.stderr)
            wanted[name][1]()
