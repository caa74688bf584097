"""``reput restore``: a store from an object store or HDFS, ready for a broker to start on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import MEND, AsJson, BrokerConf, DryRun, Master, NoIndex, WrittenAs, by_hand, size
from reput.cli.output import Output, ProgressDisplay, inline, listed, step_lines, summary_lines, told
from reput.spark.java import check_spark
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.job.restore import Restored

_EXAMPLES = """**Examples**

What would be copied, and whether there is room:

    reput restore s3://backup/broker-a/store --out /data/store --dry-run

The broker's store from its backup, as the user that the broker runs as:

    reput restore s3://backup/broker-a/store --out /data/store --broker-conf broker.conf
"""


@commands.app.command("restore", epilog=_EXAMPLES, rich_help_panel=MEND)
def restore_command(
    ctx: typer.Context,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The store elsewhere: what holds commitlog/, s3://BUCKET/PATH."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="The directory that becomes the broker's store."),
    ],
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenAs = None,
    no_index: NoIndex = False,
    max_bytes_per_trigger: Annotated[
        str,
        typer.Option("--max-bytes-per-trigger", metavar="SIZE", help="Maximum log bytes per commit."),
    ] = "1g",
    dry_run: DryRun = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store's commit log and settings here, and make its queues, index and checkpoint.

    The store elsewhere is only read. Queues and index are made while segments are copied. To continue after
    whatever ended a run, run the same command again.

    Exit code 0: done and sound. 1: done, with findings. 2: refused or failed.
    """
    from reput.job import RebuildOptions
    from reput.job.restore import preview_restore, restore

    with Output(as_json) as output:
        options = RebuildOptions(
            store=Path(),
            out=out,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            index=not no_index,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            conf_by_hand=by_hand(ctx, "broker_conf"),
            version_by_hand=by_hand(ctx, "rocketmq_version"),
        )
        if dry_run:
            found = preview_restore(url, options)
        else:
            check_spark()
            with ProgressDisplay("restoring") as display:
                found = restore(
                    url,
                    options,
                    lambda: commands.start_spark("reput restore", master, display),
                    lambda progress, total: display.update(progress.bytes_done, progress.messages, total),
                    told,
                )
    output.show(found, _lines(found))


def _lines(found: Restored) -> Iterator[str]:
    place, url = inline(found.output), inline(found.store)
    if found.needed_bytes is not None:
        yield f"Would restore {place} from {url}"
    elif found.rebuilt is None:
        yield f"Nothing to do: {place} was restored from {url} before"
    else:
        yield f"Restored {place} from {url}"
    when = "copied now" if found.needed_bytes is None else "to copy"
    copied = "all" if found.copied_bytes == found.bytes else human(found.copied_bytes)
    yield f"  segments   {found.segments:,}, {human(found.bytes)}; {when}: {copied}"
    yield f"  config     {counted(found.config_files, 'file')}"
    if found.left_out:
        yield f"  left out   {listed([*found.left_out])}"
    if found.needed_bytes is not None and found.free_bytes is not None:
        yield f"  room       {human(found.needed_bytes)} needed, {human(found.free_bytes)} free"
    if found.rebuilt is not None:
        yield from summary_lines(found.rebuilt)[1:]
    if found.needed_bytes is None:
        yield from step_lines((), found.next_steps)
