"""reput's commands. Each parses its words, makes a session, and calls the library once."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import reput
from reput.cli.arguments import (
    MEND,
    AsJson,
    Derives,
    Dry,
    OnSpark,
    OnStores,
    app,
    are_several,
    command,
    flag,
    option,
    refuse_of_one,
)
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
from reput.cli.process import REFUSED, ended_by, with_deep_stack
from reput.cli.times import use_zone
from reput.config.stand_in import here
from reput.errors import SettingsError
from reput.spark import ahead
from reput.unforeseen import TRACEBACK

__all__ = ["REFUSED", "app", "main", "prepare_spark", "start_spark"]


_EXAMPLES = """Examples:
  Beside the store, to look at or to copy:
    reput rebuild /data/store --out /data/rebuilt --broker-conf broker.conf
  In the place of the store's own files, with the broker stopped; first only what that would do:
    reput rebuild /data/store --in-place --broker-conf broker.conf --dry-run
    reput rebuild /data/store --in-place --broker-conf broker.conf
  Each broker's store, with its own broker.conf beside it, two at a time:
    reput rebuild /brokers/*/store --out-root /rebuilt --broker-conf '{store}/../broker.conf' --at-once 2
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


@dataclass(kw_only=True)
class RebuildWords(OnStores, Derives, Dry, OnSpark, AsJson):
    """What ``rebuild`` is given."""

    out: Path | None = option("--out -o DIR", "Write to DIR, laid out like a store.")
    out_root: Path | None = option(
        "--out-root DIR",
        "Of several stores: write below DIR; {host} in it stands for each one's host.",
    )
    in_place: bool = flag("--in-place", "Replace the store's own files, which are kept.")
    convert: bool = flag("--convert", "With --in-place: convert to the sizes and the release given here.")


@command("rebuild", _EXAMPLES, MEND)
def rebuild_command(given: RebuildWords) -> None:
    """Rebuild consume queues, index files, checkpoint and ledger from a commit log.

    The commit log is only read. To resume, or when the log has grown, run the same command again.

    Several stores each get an output of their own; one that fails doesn't stop the others. In --broker-conf
    {store} stands for each store's path, {host} for its host.

    Exit code 0: done and sound. 1: done, with findings. 2: refused or failed, with the store's files as they
    were. Of several stores the highest.
    """
    from reput.job import RebuildOptions, rebuild

    with Output(given.as_json) as output:
        several = are_several(given.stores, given.out_root, given.at_once)
        if several:
            refuse_of_one(
                {
                    "--out": given.out, "--in-place": given.in_place, "--convert": given.convert,
                    "--queue": given.queue, "--catalog": given.catalog,
                    "--catalog-bodies": given.catalog_bodies, "--dry-run": given.dry_run,
                }
            )  # fmt: skip
        options = given.to(RebuildOptions, store=Path(given.stores[0]))
    if several:
        from reput.cli.many import rebuild_several

        rebuild_several(output, options, given)
    with output:
        store = options.store if given.in_place else here(options.store, derived=False)
        if given.in_place == (given.out is not None):
            raise SettingsError(
                "where the output goes is not clear",
                expected="either --out DIR or --in-place",
                found="both" if given.in_place else "neither",
            )
        if given.convert and (not given.in_place or given.queue or given.no_index):
            found = [] if given.in_place else ["--out"]
            found += ["--queue"] if given.queue else []
            found += ["--no-index"] if given.no_index else []
            raise SettingsError(
                "--convert makes all files of a store anew",
                expected="--in-place, and all queues and the index",
                found=f"--convert {' '.join(found)}",
            )
        options = replace(options, store=store)
        if given.dry_run:
            from reput.job.plan import preview

            would = preview(options)
        else:
            prepare_spark()
            warn_of_unknown(store, given.queue)
            with ProgressDisplay() as display:
                summary = rebuild(
                    options,
                    lambda: start_spark("reput rebuild", given.master, display),
                    display.derived,
                    told,
                )
    if given.dry_run:
        output.show(would, preview_lines(would))
    output.show(summary, summary_lines(summary))


def _code(ended: SystemExit) -> int | str | None:
    """The exit code of a command; of help and of wrong usage the same when nobody reads what they say.

    Typer ends with 1 where a pipe is closed, which would mean findings. Commands don't come here: they print
    by themselves.
    """
    if not isinstance(ended.__context__, BrokenPipeError):
        return ended.code
    let_go_of_stdout()
    return 0 if ended.__context__.__context__ is None else REFUSED


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script ``reput``."""
    part_stderr()
    code: int | str | None = 0
    try:
        with_deep_stack(app, arguments)
    except SystemExit as ended:
        code = _code(ended)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would end with 1
        if isinstance(error, OSError) and error.errno in _OF_STDOUT and error.filename is None:
            unwritten(error)  # help; commands print by themselves
        code = ended_by(error)
    printed()  # what is still in buffers, while it can be told that it can't be written
    if isinstance(code, int):
        ahead.leave(code)
    sys.exit(code)
