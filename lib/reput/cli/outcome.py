"""From how a command's work ended to its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from reput.cli.crash import INTERRUPTED, REFUSED
from reput.cli.output import Output, told
from reput.errors import ReputError
from reput.unforeseen import unforeseen


@contextmanager
def reported(
    output: Output, *, interrupted: str = "the same command goes on from the last committed batch"
) -> Iterator[None]:
    """Show why the block failed, and exit: 2 for everything that is no result, 130 when interrupted.

    Args:
        interrupted: what an interrupt leaves.

    Raises:
        typer.Exit: the block failed.
    """
    try:
        yield
    except ReputError as error:
        output.error(error)
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        told(f"interrupted; {interrupted}")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - a bug must not look like exit code 1, a run with findings
        output.error(unforeseen(error))
        raise typer.Exit(REFUSED) from None
