"""The checks of the machine, what reput, Python, Java and Spark need, and of a store."""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import reput
from reput import caches
from reput.broker.config_files import config_problems, missing_config
from reput.config.basis import DEFAULT
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.format.rocksdbconfig import SEPARATE, SINGLE, V2
from reput.log.segments import CommitLog, discover, without_unwritten_end
from reput.newer_python import StrEnum
from reput.replay.estimate import estimate
from reput.rocksdb import is_database, opened
from reput.rocksdb.reader import PACKAGE, installed
from reput.spark import class_archive
from reput.spark.ahead import JAVA_TEMPORARY
from reput.spark.jars import delta_jars
from reput.spark.java import LEAST_JAVA, is_installed, java
from reput.spark.sessions import OPEN_FILES, spark_error
from reput.store.lock import store_holder
from reput.store.system import free_bytes, human
from reput.unforeseen import unforeseen
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LEAST_PYTHON = (3, 10)
_KNOWN_JAVA = (17, 21)
#: What a rebuild took with two cores (docs/data/benchmark.md, "reput, warm"), rounded up.
_MEMORY_NEEDED = 1 << 30
#: What a tail took (docs/data/benchmark.md), and an estimate for a rebuild with more cores: driver and JVM,
#: and the worker of each core (docs/sizing.md).
_MEMORY_TAIL, _MEMORY_FIXED, _MEMORY_PER_CORE = int(2.1 * (1 << 30)), 1 << 30, 256 << 20
#: An estimate: reput's own spills are in its output, and here is what Spark keeps and spills.
_SCRATCH_WANTED = 512 << 20
_DEFAULT_MAPS = 65_530
MAKE = "`reput doctor --class-archive make`"
REMOVE = "`reput doctor --remove-cache`"
#: What comes with reput besides the package: in a checkout, and below share/reput where pip installed it.
_BESIDE = ("jobs", "conf", "notebooks")


class Status(StrEnum):
    """How a check came out, the best first."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str  # of the check; stable, for programs
    status: Status  # how it came out
    found: str  # what is there
    next_step: str | None = None  # how to fix it; None when it is ok

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        steps = [] if self.next_step is None else [self.next_step]
        return {"name": self.name, "status": self.status, "found": self.found, "next_steps": steps}


def worst(checks: Iterable[Check]) -> Status:
    """The worst of some checks."""
    return max((check.status for check in checks), key=list(Status).index, default=Status.OK)


def ok(name: str, found: str) -> Check:
    """It works."""
    return Check(name, Status.OK, found)


def warning(name: str, found: str, next_step: str) -> Check:
    """It works, but not in all cases."""
    return Check(name, Status.WARNING, found, next_step)


def wrong(name: str, found: str, next_step: str) -> Check:
    """It doesn't work."""
    return Check(name, Status.WRONG, found, next_step)


def machine_checks() -> Iterator[Check]:
    """All checks that need no Spark session, the most important first."""
    yield system()
    yield python()
    yield encoding()
    yield numba_cache()
    yield cache()
    yield shipped()
    if is_installed():
        yield java_check()
        yield class_archive_check()
        yield delta()
    else:
        yield ok(
            "spark",
            "not installed: rebuild, tail, catalog, demo, and check or mend on a cluster need reput[spark]",
        )
    yield rocksdb()
    yield memory()
    yield open_files(None)
    yield maps(None)
    yield scratch()


def system() -> Check:
    """Linux, for its locks and its calls."""
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if platform.system() == "Linux":
        return ok("system", found)
    return warning("system", found, "reput was only tested on Linux: better copy the store to such a host.")


def python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """The Python that runs this, and Spark's workers."""
    found = f"Python {platform.python_version()}, {sys.executable}"
    if version >= _LEAST_PYTHON:
        return ok("python", found)
    return wrong("python", found, "Install Python 3.10 or later, and reput into it.")


def encoding(files: str | None = None, shown: str | None = None) -> Check:
    """The encoding of file names and output: topics are directories, and may have any characters."""
    files = (files or sys.getfilesystemencoding()).lower().replace("-", "")
    shown = (shown or getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    found = f"file names are {files}, output is {shown}"
    if files != "utf8":
        return wrong("encoding", found, "Set LC_ALL=C.UTF-8: a broker writes the names of topics in UTF-8.")
    if shown != "utf8":
        step = "Set LC_ALL=C.UTF-8 or PYTHONIOENCODING=utf-8; without it, such characters show as escapes."
        return warning("encoding", found, step)
    return ok("encoding", found)


def numba_cache() -> Check:
    """Whether compiled kernels can be cached; otherwise each process compiles them again."""
    from reput.scan import frames

    # numba chooses the directory when a function is decorated, and has no public name for it.
    cache = getattr(getattr(frames._pass_over, "_cache", None), "cache_path", None)
    if cache is None:
        step = "Set NUMBA_CACHE_DIR to a directory that you can write to."
        return wrong("numba-cache", "there is nowhere to keep compiled kernels", step)
    return cache_check(Path(cache))


def cache_check(directory: Path) -> Check:
    """Whether kernels can be cached in a directory, which needn't exist yet."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        step = "Set NUMBA_CACHE_DIR to a directory that you can write to (docs/cluster.md)."
        return wrong("numba-cache", f"{directory} can't be written to", step)
    compiled = len(list(directory.glob("*.nbi"))) if directory.is_dir() else 0
    state = (
        f"{counted(compiled, 'kernel')} compiled so far"
        if compiled
        else "nothing compiled yet: the first run takes longer"
    )
    return ok("numba-cache", f"{directory}, {state}")


def cache() -> Check:
    """What reput keeps for this user: all that an uninstall leaves."""
    places = caches.kept()
    if not places:
        return ok("cache", "nothing is kept for this user")
    shown = ", ".join(f"{place} ({human(caches.size_of([place]))})" for place in places)
    return ok("cache", f"{shown}: any run makes it again; {REMOVE} removes it")


def shipped() -> Check:
    """Where the jobs, the settings and the notebooks are."""
    root = beside()
    if root is None:
        return ok("files", "the package alone, without jobs, conf and notebooks")
    return ok("files", f"jobs, conf and notebooks in {root}")


def beside() -> Path | None:
    """The directory with ``jobs``, ``conf`` and ``notebooks``; None where only the package is."""
    places = [Path(reput.__file__).absolute().parents[2]]
    with suppress(PackageNotFoundError):
        for file in distribution("reput").files or ():
            if file.parts[-3:] == ("reput", "jobs", "rebuild.py"):
                places.append(Path(os.path.normpath(str(file.locate()))).parents[1])
    return next((one for one in places if all((one / name).is_dir() for name in _BESIDE)), None)


def rocksdb() -> Check:
    """Whether what a store has in RocksDB can be read and written."""
    try:
        installed()
    except ReputError:
        return ok("rocksdb", "not installed: stores with queues, index or settings in it need reput[rocksdb]")
    return ok("rocksdb", f"{PACKAGE} {version(PACKAGE)}")


def java_check() -> Check:
    """The Java that Spark will start."""
    path, version = java()
    step = f"Install Java 17 or 21 (Debian: openjdk-{LEAST_JAVA}-jre-headless), or let JAVA_HOME name one."
    if path is None:
        home = os.environ.get("JAVA_HOME")
        return wrong(
            "java", f"no bin/java in JAVA_HOME={home}" if home else "no java on PATH, and no JAVA_HOME", step
        )
    if version is None:
        return wrong("java", f"{path} doesn't show its version", step)
    found = f"Java {version}, {path}"
    if version < LEAST_JAVA:
        return wrong("java", found, step)
    return ok("java", found) if version in _KNOWN_JAVA else warning("java", f"{found}: not tested", step)


def class_archive_check() -> Check:
    """The archive of Java's classes, without which all works, too."""
    archive = class_archive.find()
    if archive is None:
        return ok("class-archive", "none, and there is no place for one: Spark starts without")
    path = archive.path()
    if path is None:
        return ok("class-archive", f"none: {MAKE} makes one, and Spark starts in half the time")
    return ok("class-archive", f"{path}, {human(path.stat().st_size)}")


def delta() -> Check:
    """Delta Lake, needed only to read the ledger and messages as tables in Spark."""
    try:
        jar = delta_jars(fetch=False)[0]
    except ReputError as error:
        return ok("delta", str(error))
    if jar.is_file():
        return ok("delta", str(jar))
    # No warning: who needs it gets it, or an error that says the same.
    return ok(
        "delta",
        f"{jar} isn't here yet; only Spark SQL on the ledger and on a table of messages needs it "
        "(docs/catalog.md). It is fetched then; without Maven Central in reach, copy its "
        "directory from a host that has it",
    )


def memory(available: int | None = None, cores: int | None = None) -> Check:
    """Free memory for this many cores, in the container if this is one."""
    available = _available_memory() if available is None else available
    cores = _cores() if cores is None else cores
    wanted = max(_MEMORY_TAIL, _MEMORY_FIXED + cores * _MEMORY_PER_CORE)
    if available is None:
        return warning("memory", "unknown", f"Make sure that {human(wanted)} are free.")
    found = f"{human(available)} available"
    if available >= wanted:
        return ok("memory", found)
    step = (
        f"A rebuild takes {human(_MEMORY_NEEDED)} with two cores, and may take {human(wanted)} with {cores}, "
        "as may a tail: stop something, give --master 'local[2]', or go to a larger host."
    )
    return (warning if available >= _MEMORY_NEEDED else wrong)("memory", found, step)


def open_files(files: int | None, limit: int | None = None) -> Check:
    """The limit of open files, for reput, and for a broker that loads this many files."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unlimited = limit == resource.RLIM_INFINITY
    name = "open-files" if files is None else "open-files-of-store"
    found = "no limit" if unlimited else f"up to {limit:,}"
    if files is not None:
        found += f" here, and a broker keeps {files:,} files of this store open"
        step = f"Start the broker with a limit above that, e.g. `ulimit -n {max(655_350, 2 * files)}`."
        return ok(name, found) if unlimited or limit > files else warning(name, found, step)
    if unlimited or limit >= OPEN_FILES:
        return ok(name, found)
    return warning(name, found, f"`ulimit -n {OPEN_FILES}` or more: a task keeps up to 512 queue files open.")


def maps(files: int | None, limit: int | None = None) -> Check:
    """``vm.max_map_count``, for reput, and for a broker that maps this many files."""
    limit = _map_limit() if limit is None else limit
    name = "maps" if files is None else "maps-of-store"
    if limit is None:
        return ok(name, "no vm.max_map_count here")
    found = f"vm.max_map_count is {limit:,}"
    wanted = max(655_360, 2 * (files or 0))
    step = f"`sysctl -w vm.max_map_count={wanted}`, as RocketMQ's os.sh does, and a line in /etc/sysctl.d."
    if files is not None:
        found += f", and a broker maps {files:,} files of this store"
        return ok(name, found) if limit > files else warning(name, found, step)
    return ok(name, found) if limit >= _DEFAULT_MAPS else warning(name, found, step)


def scratch() -> Check:
    """Where Spark keeps shuffled data, and Python its temporary files: the worst of these directories."""
    ours = Path(tempfile.gettempdir())
    spark = os.environ.get("SPARK_LOCAL_DIRS") or JAVA_TEMPORARY
    names = {Path(name.strip()): ["SPARK_LOCAL_DIRS"] for name in spark.split(",") if name.strip()}
    names.setdefault(ours, []).append("TMPDIR")
    checks = [_temporary(place, " and ".join(variables)) for place, variables in names.items()]
    status = worst(checks)
    return next(check for check in checks if check.status is status)


def _temporary(directory: Path, variable: str) -> Check:
    """One of them; ``variable`` names it."""
    step = f"Let {variable} name a directory that can be written to, with {human(_SCRATCH_WANTED)} free."
    if not os.access(directory, os.W_OK | os.X_OK):
        return wrong("temporary", f"{directory} can't be written to", step)
    try:
        free = free_bytes(directory)
    except ReputError as error:
        return wrong("temporary", str(error), step)
    found = f"{directory}, {human(free)} free"
    return (
        ok("temporary", found)
        if free >= _SCRATCH_WANTED
        else warning("temporary", found, f"Free some. {step}")
    )


def spark_check(start: Callable[[], SparkSession]) -> Check:
    """Start a session, or take the one that is there, and have a Python worker do something."""
    began = time.monotonic()
    try:
        spark = start()
        started = time.monotonic() - began
        rows = spark.range(1).mapInArrow(lambda batches: batches, "id long").count()
    except (ReputError, ModuleNotFoundError) as error:
        said = error if isinstance(error, ReputError) else unforeseen(error)
        return wrong("spark", str(said), said.next_step or "See Spark's output above.")
    except Exception as error:  # noqa: BLE001 - whatever Spark raises, the other checks are to be shown
        return wrong("spark", str(spark_error(error)), "See Spark's output above.")
    took = f"session after {started:.1f} s, a Python worker after {time.monotonic() - began:.1f} s"
    found = f"Spark {spark.version} on {spark.sparkContext.master}: {took}"
    if rows != 1:
        return wrong(
            "spark",
            f"{found}; a row was lost",
            "Install reput's own versions of PySpark and pyarrow.",
        )
    return ok("spark", found)


def _available_memory() -> int | None:
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit.isdecimal():
            used = int((group / "memory.current").read_text(encoding="ascii"))
            found.append(max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _cores() -> int:
    """The cores that ``local[*]`` uses: as Java counts them, those of this process and its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def _map_limit() -> int | None:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


#: Bytes of log between two commits, as `reput rebuild` has it by default.
_BYTES_PER_BATCH = 4 << 30
_MOST_SHOWN = 3


def store_checks(
    store: Path, broker_conf: Path | None, version: str | None, out: Path | None = None
) -> Iterator[Check]:
    """Check a store; checks that depend on one that failed are left out.

    ``out`` is where a rebuild is to be written; None for the store's own place.
    """
    try:
        settings = StoreSettings.load(store, broker_conf, version, dledger=True, rocksdb=True)
    except ReputError as error:
        yield _from("settings", error)
        return
    try:
        log = discover(settings)
    except ReputError as error:
        yield _from("log", error)
        return
    files = list(_files(settings.root))
    yield settings_check(settings)
    yield version_check(settings)
    yield evidence_check(settings)
    yield log_check(log)
    yield readable(log, files)
    yield in_use(settings)
    if databases := _databases(settings.root):
        yield _databases_check(databases)
    yield config(settings)
    count = len(files) + len(log.segments)
    yield open_files(count)
    yield maps(count)
    yield room(settings, log, out)


def settings_check(settings: StoreSettings) -> Check:
    """Whether the files fit the settings, and what the settings are based on."""
    basis = settings.basis
    against = [one for one in basis.contradictions if one.by_conf]
    offered = "" if basis.offered is None else f" There is {basis.offered}: see whether it is this broker's."
    named = "no broker.conf is given" if settings.broker_conf is None else str(settings.broker_conf)
    if against:
        found = "; ".join(map(str, against))
        return wrong("settings", f"{named}: {found}", f"{against[0].next_step}.{offered}")
    if settings.broker_conf is not None:
        return ok("settings", f"{named}, and nothing in the store contradicts it")
    found = f"{named}; {'; '.join(basis.files)}"
    if any(DEFAULT in one for one in basis.files):
        return warning("settings", found, f"Give the broker's own file with -c, if it has one.{offered}")
    return ok("settings", found)


def version_check(settings: StoreSettings) -> Check:
    """Whether the release that is named, or assumed, can have written this store."""
    basis, release = settings.basis, settings.basis.given_in_full
    against = [one for one in basis.contradictions if not one.by_conf]
    if against:
        return wrong("version", str(against[0]), f"{against[0].next_step}.")
    shown = "nothing in the store shows its release" if basis.evidence is None else basis.evidence.release
    if release is not None:
        return ok("version", f"{release} is given; {shown}")
    found = f"{settings.dialect.name} is assumed; {basis.release}"
    if basis.evidence is None or not basis.evidence.release.marks:
        step = "Name the release with --rocketmq-version; 4.9 and 5.x write different files."
        return warning("version", found, step)
    return ok("version", found)


def evidence_check(settings: StoreSettings) -> Check:
    """All that the store shows of its settings and its release, and what couldn't be read."""
    evidence = settings.basis.evidence
    if evidence is None:
        return ok("evidence", "not examined")
    shown = [str(sizes) for sizes in evidence.sizes() if sizes.looked_at]
    shown += [f"{mark.why} ({mark.range})" for mark in evidence.release.marks]
    if evidence.switches.multi_dispatch:
        shown.append(evidence.switches.why)
    if evidence.switches.queue_ext:
        shown.append("units point to consumequeue_ext/")
    found = "; ".join(shown) or "the store shows nothing of its settings and its release"
    if evidence.unread:
        step = (
            "Run reput as root or as the broker's user, or bring broken files back from a copy; "
            "else give --broker-conf and --rocketmq-version."
        )
        return warning("evidence", f"{found}. Not read: {'; '.join(evidence.unread)}", step)
    return ok("evidence", found)


def log_check(log: CommitLog) -> Check:
    """Whether segments are missing or have a wrong length."""
    size = human(log.segment_size)
    found = f"{len(log.segments):,} segments of {size}, from {log.start} on"
    if not log.findings:
        return ok("log", found)
    shown = "; ".join(str(finding) for finding in log.findings[:_MOST_SHOWN])
    return warning("log", f"{found}: {shown}", "Bring back what is missing from a copy; else reput skips it.")


def readable(log: CommitLog, files: list[Path]) -> Check:
    """Whether this user may read what is there."""
    paths = [segment.path for segment in log.segments] + files
    closed = list(islice((path for path in paths if not os.access(path, os.R_OK)), _MOST_SHOWN))
    if not closed:
        return ok("readable", f"{len(paths):,} files")
    shown = ", ".join(map(str, closed))
    return wrong("readable", f"not {shown}", "Run reput as root, or as the user that the broker runs as.")


def in_use(settings: StoreSettings) -> Check:
    """Whether a broker runs on it."""
    try:
        holder = store_holder(settings.root)
    except ReputError as error:
        return _from("in-use", error)
    if holder is None:
        return ok("in-use", "not in use")
    step = (
        "Stop the broker before anything in place; query, lag, stats, check, tail and rebuild --out may run."
    )
    return warning("in-use", f"by {holder.what}", step)


def _databases_check(databases: list[Path]) -> Check:
    """Whether what the store has in RocksDB can be read here."""
    try:
        for path in databases:
            with opened(path):
                pass
    except ReputError as error:
        return _from("rocksdb-of-store", error)
    return ok("rocksdb-of-store", f"{counted(len(databases), 'database')} can be read")


def config(settings: StoreSettings) -> Check:
    """The broker's own files below config/, as far as they decide whether it starts."""
    try:
        problems = list(config_problems(settings))
    except ReputError as error:
        return _from("config", error)
    if not problems and (missing := missing_config(settings)):
        found = "; ".join(f"{one.path}: {one.found}" for one in missing)
        step = "Copy what is missing from a backup of the broker or from its slave before it starts."
        return warning("config", f"{found}: a broker starts {missing[0].without}", step)
    if not problems:
        kept = "; ".join(settings.basis.kept)
        return ok("config", f"{settings.root / names.CONFIG}{'; ' if kept else ''}{kept}")
    first = max(problems, key=lambda problem: problem.stops)
    return (wrong if first.stops else warning)("config", str(first), first.next_step)


def room(settings: StoreSettings, log: CommitLog, out: Path | None) -> Check:
    """Whether a rebuild of everything fits beside what is there."""
    place = settings.root if out is None else out
    try:
        needed = estimate(
            settings,
            without_unwritten_end(log),
            index=settings.message_index_enable,
            bytes_per_batch=_BYTES_PER_BATCH,
            batch_topics=settings.batch_topics(),
        ).output_bytes
        free = free_bytes(place)
    except ReputError as error:
        return _from("room", error)
    found = f"a rebuild takes some {human(needed)}, and {human(free)} are free at {place}"
    if free >= needed:
        return ok("room", found)
    return wrong("room", found, f"Free {human(needed - free)}, or write to another file system with --out.")


def _from(name: str, error: ReputError) -> Check:
    step = error.next_step or "Fix that first."
    return wrong(name, str(error).removesuffix(f". {error.next_step}"), step)


def _databases(root: Path) -> list[Path]:
    """Those that a broker may have made."""
    config = root / names.CONFIG
    places = [root / names.CONSUME_QUEUE, root / names.CONSUME_QUEUE_ROCKSDB, root / names.ROCKSDB_STORE]
    places += [config / name for name in (*SEPARATE.values(), SINGLE, V2)]
    return [place for place in places if is_database(place)]


def _files(root: Path) -> Iterator[Path]:
    """Files of queues and index, which a broker maps all."""
    for kind in (*names.QUEUES, names.INDEX):
        for directory, _directories, files in os.walk(root / kind):
            yield from (Path(directory, file) for file in files)
