"""``reput undo``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.app import app
from reput.cli.arguments import AsJson, DryRun
from reput.cli.commands import MEND
from reput.cli.output import Output, listed

if TYPE_CHECKING:
    from reput.job import Undone
    from reput.job.preview import UndoPreview

_EXAMPLES = """**Examples**

After a rebuild in place, or a mending, that isn't what was wanted:

    reput undo /data/store

An earlier one:

    reput undo /data/store --kept /data/store/replaced-20261121T100000Z
"""


@app.command("undo", epilog=_EXAMPLES, rich_help_panel=MEND)
def undo_command(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="The store that was rebuilt, mended or migrated.")
    ],
    kept: Annotated[
        Path | None,
        typer.Option(
            "--kept",
            metavar="DIR",
            help="Put back this replaced-... directory (default: that of the last rebuild not yet undone).",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put back what `rebuild --in-place`, `mend --apply` or `migrate --apply` replaced.

    The rebuilt files are kept in another replaced-... directory. Refused while a broker runs, and once one
    has run since: the files would lack what it has written.

    Exit code 0: done. 2: refused or failed.
    """
    from reput.job import undo

    with Output(as_json, interrupted="the same command finishes what was begun") as output:
        if dry_run:
            from reput.job.preview import preview_undo

            would = preview_undo(store, kept)
        else:
            undone = undo(store, kept)
    if dry_run:
        output.end(0, would.to_dict(), _preview_lines(would))
    output.end(0, undone.to_dict(), _lines(undone))


def _preview_lines(preview: UndoPreview) -> Iterator[str]:
    if preview.kept is None:
        yield f"Nothing was done. Would finish the replacing of files in {preview.store} that was interrupted"
        return
    yield f"Nothing was done. Would put back what was replaced in {preview.store}"
    yield f"  put back   {listed(preview.put_back) or 'nothing'}, from {preview.kept}"
    if preview.taken_away:
        yield f"  take away  {listed(preview.taken_away)}"
    yield "  kept       what is in place now would be kept in another replaced-... directory"


def _lines(undone: Undone) -> Iterator[str]:
    yield f"Put back what was replaced in {undone.store}"
    yield f"  put back   {listed(undone.put_back) or 'nothing'}"
    if undone.taken_away:
        yield f"  taken away {listed(undone.taken_away)}"
    yield f"  kept       what was in place is kept in {undone.kept}"
