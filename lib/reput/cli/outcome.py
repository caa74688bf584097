"""From how a command's work ended to its exit code."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from reput.cli.output import Output, told
from reput.errors import ReputError

REFUSED = 2
INTERRUPTED = 130


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
        traceback.print_exc()
        output.error(
            ReputError(
                "reput failed in a way that it doesn't foresee",
                found=f"{type(error).__name__}: {error}",
                next_step="The lines above say where; please report them",
            )
        )
        raise typer.Exit(REFUSED) from None
