"""Text between two marking lines of a document, which a program writes."""

from __future__ import annotations

from pathlib import Path


def between(path: Path, first: str, last: str) -> str:
    """What stands between them.

    Raises:
        ValueError: the document hasn't both.
    """
    return _parts(path, first, last)[1]


def put_between(path: Path, first: str, last: str, text: str) -> None:
    """Put a text between two marking lines of a document.

    Raises:
        ValueError: the document hasn't both.
    """
    before, _, after = _parts(path, first, last)
    path.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}", encoding="utf-8")


def _parts(path: Path, first: str, last: str) -> tuple[str, str, str]:
    before, begin, rest = path.read_text(encoding="utf-8").partition(first)
    text, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} lacks the lines {first} and {last}")
    return before, text, after
