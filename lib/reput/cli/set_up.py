"""``reput demo``, ``reput doctor`` and ``reput pack``."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reput import caches
from reput.cli import app as commands
from reput.cli.app import prepare_spark, start_spark
from reput.cli.arguments import START, AsJson, Broker, OnSpark, argument, command, flag, option
from reput.cli.output import Output, ProgressDisplay, noted, summary_lines
from reput.errors import SettingsError
from reput.spark import class_archive
from reput.spark.java import is_installed
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.doctor import Check
    from reput.pack import Packed

_EXAMPLES = """Examples:
  Whether reput can work on this machine, a Spark session included:
    reput doctor
  This machine and a store, without Spark:
    reput doctor /data/store --broker-conf broker.conf --rocketmq-version 5.3.3 --no-spark
  Let Spark start in half the time from now on, for this user (150 MB in `~/.cache/reput`):
    reput doctor --class-archive make
  Take away what reput keeps for this user, before `pip uninstall reput`:
    reput doctor --remove-cache
  Whether a rebuild fits where it is to be written, for a program:
    reput doctor /data/store --out /data/rebuilt --no-spark --json
"""


@dataclass(kw_only=True)
class _DoctorWords(Broker, OnSpark, AsJson):
    store: Path | None = argument("[STORE]", "A store to check, too.", None)
    out: Path | None = option("--out DIR", "Where a rebuild will write (default: the store).")
    archive: Literal["make", "remove"] | None = option(
        "--class-archive", "First make or remove an archive of Java's classes: Spark starts faster with it."
    )
    remove_cache: bool = flag(
        "--remove-cache", "In the end, remove what reput keeps for this user. No Spark."
    )
    no_spark: bool = flag("--no-spark", "Don't start a Spark session.")


@command("doctor", _EXAMPLES, START)
def doctor_command(given: _DoctorWords) -> None:
    """Check whether this machine, and a store, have what reput needs, and how to mend what is missing.

    Nothing is changed, except numba's cache of compiled kernels, as by any command, and what --class-archive
    and --remove-cache make or remove.

    Exit code 0: all is well. 1: something is wrong, or soon will be. 2: refused or failed.
    """
    from reput.doctor import Status, machine_checks, store_checks, worst
    from reput.store.files import reporting
    from reput.store.system import human

    store, archive, remove_cache = given.store, given.archive, given.remove_cache
    with Output(given.as_json, interrupted="nothing was changed") as output:
        _refuse_ignored(given)
        if archive == "make":
            with ProgressDisplay("making an archive of Java's classes, which takes half a minute"):
                class_archive.make()
        elif archive == "remove":
            class_archive.remove()
        checks = list(machine_checks())
        if not given.no_spark and not remove_cache and is_installed():
            java_is_wrong = any(check.name == "java" and check.status is Status.WRONG for check in checks)
            checks.append(_spark(given.master, java_is_wrong=java_is_wrong))
        if store is not None:
            checks += store_checks(store, given.broker_conf, given.rocketmq_version, given.out)
        removed = caches.kept() if remove_cache else []
        freed = caches.size_of(removed)
        for place in removed:
            with reporting("what is kept for this user can't be removed", place):
                caches.remove(place)
    facts = {
        "status": worst(checks),
        "store": None if store is None else str(store),
        "checks": [check.to_dict() for check in checks],
        "next_steps": [check.next_step for check in checks if check.next_step is not None],
    }
    lines = list(_lines(checks, store))
    if remove_cache:
        facts["removed"] = list(map(str, removed))
        lines.append(f"Removed {', '.join(map(str, removed)) or 'nothing'}: {human(freed)}")
    output.end(int(worst(checks) is not Status.OK), facts, lines)


def _spark(master: str | None, *, java_is_wrong: bool) -> Check:
    from reput.doctor import Check, Status, spark_check

    if java_is_wrong:
        return Check("spark", Status.WRONG, "not tried: there is no Java for it", "Mend that first.")
    with ProgressDisplay("checking") as display:
        return spark_check(lambda: commands.start_spark("reput doctor", master, display))


def _refuse_ignored(given: _DoctorWords) -> None:
    """Refuse options that would change nothing: who gives them expects something of them."""
    for name in ("out", "broker_conf", "rocketmq_version"):
        if given.store is None and getattr(given, name) is not None and given.by_hand(name):
            option = given.named(name)
            raise SettingsError(f"{option} belongs to a store", expected="STORE beside it", found=option)
    for name in ("no_spark", "remove_cache"):
        if getattr(given, name) and given.master is not None:
            found = f"{given.named(name)} --master"
            raise SettingsError("--master belongs to Spark", expected="one of them", found=found)
    if given.remove_cache and given.archive is not None:
        found = f"--remove-cache --class-archive {given.archive}"
        raise SettingsError("--remove-cache removes that archive, too", expected="one of them", found=found)


def _lines(checks: list[Check], store: Path | None) -> Iterator[str]:
    from reput.doctor import Status

    counts = Counter(check.status for check in checks)
    said = [
        f"{counts[status]} {status}{'s' * (status is Status.WARNING and counts[status] > 1)}"
        for status in (Status.WRONG, Status.WARNING, Status.OK)
        if counts[status]
    ]
    yield f"Checked this machine{'' if store is None else f' and {store}'}: {', '.join(said)}"
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"  {check.status:<7}  {check.name:<{width}}  {check.found}"
        if check.next_step is not None:
            yield f"  {'':<7}  {'':<{width}}  -> {check.next_step}"


_DEMO_EXAMPLES = """Examples:
    reput demo
  Keep the store and what was rebuilt of it in a directory that you choose:
    reput demo --dir /tmp/shop
"""


@dataclass(kw_only=True)
class _DemoWords(OnSpark, AsJson):
    directory: Path | None = option("--dir DIR", "Keep the stores here, in a new directory.")


@command("demo", _DEMO_EXAMPLES, START)
def demo_command(given: _DemoWords) -> None:
    """Rebuild a store that a real broker wrote, and count the bytes that differ from the broker's own files.

    Without --dir the store and what was rebuilt are kept in a new directory among the temporary files.

    Exit code 0: none. 1: some. 2: the rebuild failed.
    """
    from reput.demo import VERSION, run

    directory = given.directory
    with Output(given.as_json) as output:
        prepare_spark()
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="reput-demo-"))
        else:
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                raise SettingsError(
                    "the directory exists", path=directory, next_step="Choose a new one"
                ) from None
        noted(f"unpacking a store that RocketMQ {VERSION} wrote into {directory}")
        noted("making its consume queues and index files anew, from its commit log alone")
        with ProgressDisplay() as display:
            summary, comparison = run(
                directory,
                lambda: start_spark("reput demo", given.master, display),
                display.derived,
            )
    lines = [
        *summary_lines(summary),
        f"Compared with the files that the broker of RocketMQ {VERSION} wrote itself:",
        f"  {comparison.queue_files} consume queue files, {comparison.queue_bytes:,} bytes",
        f"  {comparison.index_files} index files, {comparison.index_bytes:,} bytes",
        f"  {comparison.differing_bytes:,} bytes differ",
        *(f"    {difference}" for difference in comparison.differences),
        f"Try next: {_command()} report {shlex.quote(str(summary.store))} -o report.html",
        f"Remove it all: rm -r {shlex.quote(str(directory))}",
    ]
    facts = {
        **summary.to_dict(),
        "differing_bytes": comparison.differing_bytes,
        "differences": comparison.differences,
    }
    output.end(1 if comparison.differing_bytes else 0, facts, lines)


def _command() -> str:
    """``reput`` as this shell finds it: from a clone it isn't on PATH, and called by its path."""
    called, found = sys.argv[0], shutil.which("reput")
    if Path(called).name != "reput" or (found is not None and Path(found).samefile(called)):
        return "reput"
    return shlex.quote(called)


_PACK_EXAMPLES = """Examples:
  For a broker's host that has neither Python nor Java:
    reput pack -o reput.tar.gz --light
  The same for one with arm64:
    reput pack -o reput-arm64.tar.gz --light --machine aarch64
  For `--archives reput-env.tar.gz#environment` of spark-submit:
    reput pack -o reput-env.tar.gz
  With Spark, for a host that has Java and nothing else:
    reput pack -o reput-env.tar.gz --with-spark --force
"""


@dataclass(kw_only=True)
class _PackWords(AsJson):
    out: Path = option("--out -o FILE", "The archive to write, a .tar.gz.", MISSING)
    light: bool = flag("--light", "Without Spark: check, dump, query, export, mend and the like.")
    with_spark: bool = flag("--with-spark", "Include Spark's jars and scripts, which a cluster has.")
    machine: str | None = option("--machine NAME", "x86_64 or aarch64 (default: this host's).")
    force: bool = flag("--force", "Replace a file that is there.")


@command("pack", _PACK_EXAMPLES, START)
def pack_command(given: _PackWords) -> None:
    """Pack Python, reput and all that it needs into one file, for a broker's host or the hosts of a cluster.

    The archive works at any path, on hosts with glibc 2.28 or later (RHEL 8, Debian 10) and without any
    Python, whatever this host has. Interpreter and packages come from Maven Central and PyPI, in the locked
    versions. Its files are put together beside FILE first; FILE gets its name when it is whole.

    Exit code 0: done. 2: refused or failed.
    """
    from reput.pack import PackOptions, pack

    with (
        Output(given.as_json, interrupted="nothing was written") as output,
        ProgressDisplay("writing the archive", "file") as display,
    ):
        result = pack(given.to(PackOptions), display.say, display.update)
    output.show(result, _pack_lines(result))


def _pack_lines(result: Packed) -> Iterator[str]:
    facts = result.facts
    size = f"{human(result.bytes)}, {human(result.unpacked_bytes)} in {counted(result.files, 'file')}"
    yield f"Packed reput {facts.reput_version} with Python {facts.python_version} into {result.out}"
    yield f"  size       {size} unpacked"
    yield f"  needs      {facts.machine}, glibc {facts.least_glibc} or later"
    yield f"  Spark      {facts.spark}"
    yield f"  took       {result.seconds:.0f} s"
    name = shlex.quote(result.out.name)
    if "pyspark" in facts.packages and not facts.with_spark:
        yield f"  next       spark-submit --archives {name}#environment, with the environment's"
        yield "             PYSPARK_PYTHON=./environment/bin/python (docs/cluster.md)"
    else:
        yield f"  next       copy {name} to the host, and there: mkdir reput && tar -xf {name} -C reput"
        yield "             then: reput/bin/reput check --quick STORE"
