"""``reput demo``, ``reput doctor`` and ``reput pack``."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput import caches
from reput.cli import app as commands
from reput.cli.app import app, prepare_spark, start_spark
from reput.cli.arguments import START, AsJson, BrokerConf, Master, WrittenBy, by_hand
from reput.cli.output import Output, ProgressDisplay, noted, summary_lines
from reput.errors import SettingsError
from reput.spark import class_archive
from reput.spark.java import is_installed
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.doctor import Check
    from reput.pack import Packed

_EXAMPLES = """**Examples**

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


@commands.app.command("doctor", epilog=_EXAMPLES, rich_help_panel=START)
def doctor_command(
    ctx: typer.Context,
    store: Annotated[
        Path | None, typer.Argument(metavar="[STORE]", help="A store to check, too.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where a rebuild will write (default: the store)."),
    ] = None,
    archive: Annotated[
        Literal["make", "remove"] | None,
        typer.Option(
            "--class-archive",
            help="First make, or remove, an archive of Java's classes, with which Spark starts faster.",
            show_default=False,
        ),
    ] = None,
    remove_cache: Annotated[
        bool,
        typer.Option(
            "--remove-cache",
            help="In the end, remove what reput keeps for this user: runs make it again. Starts no Spark.",
        ),
    ] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Don't start a Spark session.")] = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine, and a store, have what reput needs, and how to mend what is missing.

    Nothing is changed, except numba's cache of compiled kernels, as by any command, and what --class-archive
    and --remove-cache make or remove.

    Exit code 0: all is well. 1: something is wrong, or soon will be. 2: refused or failed.
    """
    from reput.doctor import Status, machine_checks, store_checks, worst
    from reput.store.files import reporting
    from reput.store.space import human

    with Output(as_json, interrupted="nothing was changed") as output:
        _refuse_ignored(ctx)
        if archive == "make":
            with ProgressDisplay("making an archive of Java's classes, which takes half a minute"):
                class_archive.make()
        elif archive == "remove":
            class_archive.remove()
        checks = list(machine_checks())
        if not no_spark and not remove_cache and is_installed():
            java_is_wrong = any(check.name == "java" and check.status is Status.WRONG for check in checks)
            checks.append(_spark(master, java_is_wrong=java_is_wrong))
        if store is not None:
            checks += store_checks(store, broker_conf, rocketmq_version, out)
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


def _refuse_ignored(ctx: typer.Context) -> None:
    """Refuse options that would change nothing: who gives them expects something of them."""
    given = ctx.params
    for name in ("out", "broker_conf", "rocketmq_version"):
        if given["store"] is None and given[name] is not None and by_hand(ctx, name):
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option} belongs to a store", expected="STORE beside it", found=option)
    for name in ("no_spark", "remove_cache"):
        if given[name] and given["master"] is not None:
            found = f"--{name.replace('_', '-')} --master"
            raise SettingsError("--master belongs to Spark", expected="one of them", found=found)
    if given["remove_cache"] and given["archive"] is not None:
        found = f"--remove-cache --class-archive {given['archive']}"
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


_DEMO_EXAMPLES = """**Examples**

    reput demo

Keep the store and what was rebuilt of it in a directory that you choose:

    reput demo --dir /tmp/shop
"""


@app.command("demo", epilog=_DEMO_EXAMPLES, rich_help_panel=START)
def demo_command(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep the stores here, in a new directory.")
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark master (default: local[*]).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Rebuild a store that a real broker wrote, and count the bytes that differ from the broker's own files.

    Without --dir the store and what was rebuilt are kept in a new directory among the temporary files.

    Exit code 0: none. 1: some. 2: the rebuild failed.
    """
    from reput.demo import VERSION, run

    with Output(as_json) as output:
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
                lambda: start_spark("reput demo", master, display),
                lambda progress, total: display.update(progress.bytes_done, progress.messages, total),
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


_PACK_EXAMPLES = """**Examples**

For a broker's host that has neither Python nor Java:

    reput pack -o reput.tar.gz --light

The same for one with arm64:

    reput pack -o reput-arm64.tar.gz --light --machine aarch64

For `--archives reput-env.tar.gz#environment` of spark-submit:

    reput pack -o reput-env.tar.gz

With Spark, for a host that has Java and nothing else:

    reput pack -o reput-env.tar.gz --with-spark --force
"""


@commands.app.command("pack", epilog=_PACK_EXAMPLES, rich_help_panel=START)
def pack_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The archive to write, a .tar.gz.")
    ],
    light: Annotated[
        bool, typer.Option("--light", help="Without Spark: check, dump, query, export, mend and the like.")
    ] = False,
    with_spark: Annotated[
        bool, typer.Option("--with-spark", help="Include Spark's jars and scripts, which a cluster has.")
    ] = False,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", metavar="NAME", help="The hosts' machine: x86_64 or aarch64 (default: this one's)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pack Python, reput and all that it needs into one file, for a broker's host or the hosts of a cluster.

    The archive works at any path, on hosts with glibc 2.28 or later (RHEL 8, Debian 10) and without any
    Python, whatever this host has. Interpreter and packages come from Maven Central and PyPI, in the locked
    versions. Its files are put together beside FILE first; FILE gets its name when it is whole.

    Exit code 0: done. 2: refused or failed.
    """
    from reput.pack import PackOptions, pack

    with (
        Output(as_json, interrupted="nothing was written") as output,
        ProgressDisplay("writing the archive", "file") as display,
    ):
        options = PackOptions(out, light, with_spark, machine, force)
        result = pack(options, display.say, display.update)
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
