"""reput's commands. Each parses its words, makes a session, and calls the library once."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import reput
from reput.cli.arguments import (
    FOLLOW,
    LOOK,
    MEND,
    AsJson,
    AtOnce,
    BrokerConf,
    BytesPerCommit,
    CatalogBodies,
    CatalogTable,
    Commands,
    DryRun,
    KnownTopicsOnly,
    Master,
    NoIndex,
    Queues,
    SingleHost,
    Stores,
    WrittenAs,
    by_hand,
    size,
)
from reput.cli.dump import dump_app
from reput.cli.jvm import part_stderr, prepare_spark, start_spark
from reput.cli.output import (
    Output,
    ProgressDisplay,
    let_go_of_stdout,
    preview_lines,
    printed,
    show_progress,
    summary_lines,
    told,
    unwritten,
    warn_of_unknown,
)
from reput.cli.process import REFUSED, ended_by
from reput.cli.tail import EXAMPLES as TAIL_EXAMPLES
from reput.cli.tail import tail_command
from reput.cli.times import use_zone
from reput.config.stand_in import here
from reput.errors import SettingsError
from reput.spark import ahead
from reput.unforeseen import TRACEBACK

__all__ = ["REFUSED", "app", "main", "prepare_spark", "start_spark"]


app = typer.Typer(
    name="reput",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rebuild what an Apache RocketMQ broker derives from its commit log, byte for byte, with Spark.",
)

_EXAMPLES = """**Examples**

Beside the store, to look at or to copy:

    reput rebuild /data/store --out /data/rebuilt --broker-conf broker.conf

In the place of the store's own files, with the broker stopped; first only what that would do:

    reput rebuild /data/store --in-place --broker-conf broker.conf --dry-run

    reput rebuild /data/store --in-place --broker-conf broker.conf

Each broker's store, with its own broker.conf beside it, two at a time:

    reput rebuild /brokers/*/store --out-root /rebuilt --broker-conf '{store}/../broker.conf' --at-once 2

Stores on the brokers' own hosts, where a Spark worker runs:

    reput rebuild broker-a:/data/store broker-b:/data/store --out-root /data/rebuilt --master spark://host:7077

One queue, as RocketMQ 4.9.7 writes it, for a program:

    reput rebuild /data/store --out /tmp/one --queue orders:3 --rocketmq-version 4.9.7 --json
"""

#: What stdout says when it doesn't take what is printed.
_OF_STDOUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _version(wanted: bool) -> None:
    if wanted:
        printed(f"reput {reput.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    _wanted: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress. Stands before the command.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show Python's and Spark's own words of what fails.")
    ] = False,
) -> None:
    use_zone(None)
    if quiet:
        show_progress(False)
        ctx.call_on_close(lambda: show_progress(True))
    if verbose:
        os.environ[TRACEBACK] = "1"


@app.command("rebuild", epilog=_EXAMPLES, rich_help_panel=MEND)
def rebuild_command(
    ctx: typer.Context,
    stores: Stores,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Write to DIR, laid out like a store."),
    ] = None,
    out_root: Annotated[
        Path | None,
        typer.Option(
            "--out-root",
            metavar="DIR",
            help="Of several stores, on each one's host: each output goes to the place below DIR that its "
            "store has below the common directory of that host's stores. {host} in it stands for the host.",
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Replace the store's own files. The broker must be stopped; the old files are kept.",
        ),
    ] = False,
    convert: Annotated[
        bool,
        typer.Option(
            "--convert",
            help="With --in-place: convert the store to the sizes and the release given here.",
        ),
    ] = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenAs = None,
    queue: Queues = None,
    no_index: NoIndex = False,
    known_topics_only: KnownTopicsOnly = False,
    max_bytes_per_trigger: BytesPerCommit = "4g",
    catalog: CatalogTable = None,
    catalog_bodies: CatalogBodies = False,
    dry_run: DryRun = False,
    at_once: AtOnce = None,
    single_host: SingleHost = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild consume queues, index files, checkpoint and ledger from a commit log.

    The commit log is only read. To resume after a crash, an interrupt or a full disk, or when the log has
    grown, run the same command again.

    Several stores each get an output of their own. One given as HOST:/PATH is rebuilt by a task on that host
    alone, into an output there. One that is refused or fails doesn't stop the others. In --broker-conf
    {store} stands for each store's path, {host} for its host.

    Exit code 0: done and sound. 1: done, with findings. 2: refused or failed, with the store's files as they
    were. Of several stores the highest.
    """
    from reput.cli.many import are_several, rebuild_several, refuse_of_one
    from reput.job import RebuildOptions, rebuild

    with Output(as_json) as output:
        several = are_several(stores, out_root, at_once)
        if several:
            refuse_of_one(
                {
                    "--out": out, "--in-place": in_place, "--convert": convert, "--queue": queue,
                    "--catalog": catalog, "--catalog-bodies": catalog_bodies, "--dry-run": dry_run,
                }
            )  # fmt: skip
        options = RebuildOptions(
            store=Path(stores[0]),
            out=out,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            index=not no_index,
            known_topics_only=known_topics_only,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            single_host=single_host,
            conf_by_hand=by_hand(ctx, "broker_conf"),
            version_by_hand=by_hand(ctx, "rocketmq_version"),
        )
    if several:
        rebuild_several(output, stores, out_root, options, master, at_once)
    with output:
        store = options.store if in_place else here(options.store, derived=False)
        if in_place == (out is not None):
            raise SettingsError(
                "where the output goes is not clear",
                expected="either --out DIR or --in-place",
                found="both" if in_place else "neither",
            )
        if convert and (not in_place or queue or no_index):
            found = [] if in_place else ["--out"]
            found += ["--queue"] if queue else []
            found += ["--no-index"] if no_index else []
            raise SettingsError(
                "--convert makes all files of a store anew",
                expected="--in-place, and all queues and the index",
                found=f"--convert {' '.join(found)}",
            )
        options = replace(
            options,
            store=store,
            convert=convert,
            queues=tuple(queue or ()),
            catalog=catalog,
            catalog_bodies=catalog_bodies,
        )
        if dry_run:
            from reput.job.preview import preview

            would = preview(options)
        else:
            prepare_spark()
            warn_of_unknown(store, queue)
            with ProgressDisplay() as display:
                summary = rebuild(
                    options,
                    lambda: start_spark("reput rebuild", master, display),
                    lambda progress, total: display.update(progress.bytes_done, progress.messages, total),
                    told,
                )
    if dry_run:
        output.show(would, preview_lines(would))
    output.show(summary, summary_lines(summary))


app.command("tail", epilog=TAIL_EXAMPLES, rich_help_panel=FOLLOW)(tail_command)
app.add_typer(dump_app, name="dump", rich_help_panel=LOOK)


def _code(ended: SystemExit, words: list[str]) -> int | str | None:
    """The exit code of a command; of help and of wrong usage the same when nobody reads what they say.

    Rich and typer end with 1 where a pipe is closed, which would mean findings. Commands don't come here:
    they print by themselves.
    """
    if not isinstance(ended.__context__, BrokenPipeError):
        return ended.code
    let_go_of_stdout()
    is_wrong_usage = ended.__context__.__context__ is not None
    # Without any option it is the help of a group that was given no command, which is wrong usage, too.
    return 0 if not is_wrong_usage and any(word.startswith("-") for word in words) else REFUSED


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script ``reput``."""
    part_stderr()
    code: int | str | None = 0
    try:
        app(arguments)
    except SystemExit as ended:
        code = _code(ended, sys.argv[1:] if arguments is None else arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would end with 1
        if isinstance(error, OSError) and error.errno in _OF_STDOUT and error.filename is None:
            unwritten(error)  # help; commands print by themselves
        code = ended_by(error)
    printed()  # what is still in buffers, while it can be told that it can't be written
    if isinstance(code, int):
        ahead.leave(code)
    sys.exit(code)
