"""``reput pack``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson
from reput.cli.commands import START
from reput.cli.output import Output, ProgressDisplay, at_most
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.pack import Packed

_EXAMPLES = """**Examples**

For `--archives reput-env.tar.gz#environment` of spark-submit:

    reput pack -o reput-env.tar.gz

With Spark, for a host that has Java and nothing else:

    reput pack -o reput-env.tar.gz --with-spark --force
"""


@commands.app.command("pack", epilog=_EXAMPLES, rich_help_panel=START)
def pack_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The archive to write, a .tar.gz.")
    ],
    with_spark: Annotated[
        bool, typer.Option("--with-spark", help="Include Spark's jars and scripts, which a cluster has.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pack Python, reput and all that it needs, for the hosts of a cluster: YARN, Kubernetes, standalone.

    The archive works at any path, on hosts with a glibc that is new enough and without any Python. It holds
    what this reput itself runs on. Its files are put together beside FILE first; FILE gets its name when it
    is whole.

    Exit code 0: done. 2: refused or failed.
    """
    from reput.pack import PackOptions, pack

    with (
        Output(as_json, interrupted="nothing was written") as output,
        ProgressDisplay("writing the archive", "file") as display,
    ):
        result = pack(PackOptions(out, with_spark, force), display.say, display.update)
    output.show(result, _lines(result))


def _lines(result: Packed) -> Iterator[str]:
    facts = result.facts
    size = f"{human(result.bytes)}, {human(result.unpacked_bytes)} in {counted(result.files, 'file')}"
    yield f"Packed reput {facts.reput_version} with Python {facts.python_version} into {result.out}"
    yield f"  size       {size} unpacked"
    yield f"  needs      {facts.machine}, glibc {facts.least_glibc} or later"
    yield f"  Spark      {facts.spark}"
    left_out = [f"{place}: it can't be loaded here either" for place in facts.left_out]
    yield from at_most("  left out   ", left_out, "             and {} more; --json lists all")
    yield f"  took       {result.seconds:.0f} s"
    yield f"  next       spark-submit --archives {result.out}#environment, with the environment's"
    yield "             PYSPARK_PYTHON=./environment/bin/python (docs/cluster.md)"
