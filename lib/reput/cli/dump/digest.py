"""``reput dump digest``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.arguments import AsJson, BrokerConf, Store, WrittenBy
from reput.cli.output import Output, ProgressDisplay, at_most, fact_lines, settings_lines
from reput.config.stand_in import here
from reput.errors import SettingsError
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.dump.digest import Compared, Written

EXAMPLES = """**Examples**

On one host, and with that file on another one:

    reput dump digest /data/store --out store.digest --broker-conf broker.conf

    reput dump digest /data/store --against store.digest --broker-conf broker.conf
"""


def digest_command(
    store: Store,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the digests to this new file.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Compare with a file of digests of another store."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    as_json: AsJson = False,
) -> None:
    """Compare log and queues of two hosts by a small file, without copying a store.

    The file has a SHA-256 for each 16 MiB of log and each 65,536 units of a queue; batch queues and index
    files aren't looked at. What only one of the two has is no difference: a slave may be behind, and a head
    expires.

    Exit code 0: written, or the same. 1: something differs, or nothing could be compared. 2: refused or
    failed.
    """
    from reput.dump.digest import Compared, compare, write

    with Output(as_json, interrupted="nothing was written") as output:
        store = here(store, derived=True)
        if (out is None) == (against is None):
            raise SettingsError(
                "what to do with the digests is not clear",
                expected="either --out FILE or --against FILE",
                found="neither" if out is None else "both",
            )
        with ProgressDisplay("reading") as display:
            done: Written | Compared
            if out is not None:
                done = write(
                    store, out, broker_conf, rocketmq_version, force=force,
                    listener=lambda read, total: display.update(read, 0, total),
                )  # fmt: skip
            elif against is not None:
                done = compare(
                    store,
                    against,
                    broker_conf,
                    rocketmq_version,
                    lambda read, total: display.update(read, 0, total),
                )
    output.show(done, _compared(done) if isinstance(done, Compared) else _written(done))


def _written(done: Written) -> Iterator[str]:
    size = human(done.file.stat().st_size)
    yield f"Wrote {counted(done.ranges, 'digest')} of {done.settings.root} to {done.file}: {size}"
    yield from settings_lines(done.settings.basis)
    yield f"  log        {done.start} to {done.end}"
    yield f"  queues     {done.queues:,}"
    yield from at_most("  not read   ", done.not_read, "             and {} more; --json prints all")


def _compared(done: Compared) -> Iterator[str]:
    yield done.text
    yield from at_most("  not read   ", done.not_read, "             and {} more; --json prints all")
    yield from settings_lines(done.settings.basis)
    yield from fact_lines("findings", done.differs, done.settings.root)
