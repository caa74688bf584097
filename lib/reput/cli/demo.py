"""``reput demo``."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from reput.cli.app import app, prepare_spark, start_spark
from reput.cli.commands import START
from reput.cli.output import Output, ProgressDisplay, noted, summary_lines
from reput.errors import SettingsError

_EXAMPLES = """**Examples**

    reput demo

Keep the store and what was rebuilt of it in a directory that you choose:

    reput demo --dir /tmp/shop
"""


@app.command("demo", epilog=_EXAMPLES, rich_help_panel=START)
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
