"""``reput pack``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson
from reput.cli.commands import START
from reput.cli.output import Output, ProgressDisplay
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.pack import Packed

_EXAMPLES = """**Examples**

For a broker's host that has neither Python nor Java:

    reput pack -o reput.tar.gz --light

The same for one with arm64:

    reput pack -o reput-arm64.tar.gz --light --machine aarch64

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
    output.show(result, _lines(result))


def _lines(result: Packed) -> Iterator[str]:
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
