"""What every batch did, as a Delta table."""

from __future__ import annotations

from functools import cache


@cache
def is_kept() -> bool:
    """Whether runs here keep one: what writes it comes with ``reput[spark]``.

    The journal is what counts. A run where this is installed adds to the ledger what one without left out.
    """
    try:
        import pyarrow  # noqa: F401 - it starts a thread
    except ModuleNotFoundError:
        return False
    return True


def load() -> None:
    """Load what writes one, where it is kept: a quarter of a second."""
    if is_kept():
        import reput.output.ledger.ledger  # noqa: F401
