"""``reput demo``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from reput.cli.app import REFUSED, app, start_spark
from reput.cli.output import Output, ProgressDisplay, summary_lines, told
from reput.errors import ReputError

DIFFERENT = 1

_EXAMPLES = """**Examples**

    reput demo

Keep the store and what was rebuilt of it:

    reput demo --dir /tmp/shop
"""


@app.command("demo", epilog=_EXAMPLES)
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

    Exit code 0: none. 1: some. 2: the rebuild failed.
    """
    from reput.demo import VERSION, run

    with tempfile.TemporaryDirectory(prefix="reput-demo-") as scratch:
        place = directory or Path(scratch)
        try:
            place.mkdir(parents=True, exist_ok=directory is None)
            with ProgressDisplay() as display:
                summary, comparison = run(
                    place,
                    lambda: start_spark("reput demo", master),
                    lambda progress, total: display.update(progress.bytes_done, progress.messages, total),
                )
        except FileExistsError:
            told(ReputError("the directory exists", path=place, next_step="Choose a new one"))
            raise typer.Exit(REFUSED) from None
        except ReputError as error:
            told(error)
            raise typer.Exit(REFUSED) from None
    facts = {"differing_bytes": comparison.differing_bytes, "differences": comparison.differences}
    lines = [
        *summary_lines(summary),
        f"Compared with the files that the broker of RocketMQ {VERSION} wrote itself:",
        f"  {comparison.queue_files} consume queue files, {comparison.queue_bytes:,} bytes",
        f"  {comparison.index_files} index files, {comparison.index_bytes:,} bytes",
        f"  {comparison.differing_bytes:,} bytes differ",
        *(f"    {difference}" for difference in comparison.differences),
    ]
    Output(as_json).put({**summary.to_dict(), **facts}, lines)
    raise typer.Exit(DIFFERENT if comparison.differing_bytes else 0)
