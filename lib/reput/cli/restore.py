"""``reput restore``: a store from an object store or HDFS, ready for a broker to start on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli import app as commands
from reput.cli.arguments import MEND, AsJson, Dry, OnSpark, PerCommit, Writes, argument, command, option
from reput.cli.output import (
    Output,
    ProgressDisplay,
    findings_lines,
    inline,
    listed,
    step_lines,
    summary_lines,
    told,
)
from reput.spark.java import check_spark
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.job.restore import Restored

_EXAMPLES = """Examples:
  What would be copied, and whether there is room:
    reput restore s3://backup/broker-a/store --out /data/store --dry-run
  The broker's store from its backup, as the user that the broker runs as:
    reput restore s3://backup/broker-a/store --out /data/store --broker-conf broker.conf
"""


@dataclass(kw_only=True)
class _Words(Writes, PerCommit, Dry, OnSpark, AsJson):
    url: str = argument("URL", "The store elsewhere: what holds commitlog/, s3://BUCKET/PATH.")
    out: Path = option("--out -o DIR", "The directory that becomes the broker's store.", MISSING)


@command("restore", _EXAMPLES, MEND)
def restore_command(given: _Words) -> None:
    """Copy a store's commit log and settings here, and make its queues, index and checkpoint.

    The store elsewhere is only read. Queues and index are made while segments are copied. To continue after
    whatever ended a run, run the same command again.

    Exit code 0: done and sound. 1: done, with findings. 2: refused or failed.
    """
    from reput.job import RebuildOptions
    from reput.job.restore import preview_restore, restore

    with Output(given.as_json) as output:
        options = given.to(RebuildOptions, store=Path())
        if given.dry_run:
            found = preview_restore(given.url, options)
        else:
            check_spark()
            with ProgressDisplay("restoring") as display:
                found = restore(
                    given.url,
                    options,
                    lambda: commands.start_spark("reput restore", given.master, display),
                    display.derived,
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
    elif found.findings:
        yield from findings_lines(found.findings)
    if found.needed_bytes is None:
        yield from step_lines((), found.next_steps)
