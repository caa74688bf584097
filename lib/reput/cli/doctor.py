"""``reput doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput import caches
from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Master, WrittenBy, by_hand
from reput.cli.commands import START
from reput.cli.output import Output, ProgressDisplay
from reput.errors import SettingsError
from reput.spark import class_archive
from reput.spark.java import is_installed

if TYPE_CHECKING:
    from reput.doctor import Check

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
