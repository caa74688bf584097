"""Where an output may go: wherever its ledger can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.job.output_directory import check_ledger_path
from reput.sink.journal import Batch
from reput.sink.ledger import Ledger


def test_names_that_a_ledger_takes(tmp_path: Path) -> None:
    """Everything that a path may hold but what is refused; the writer itself fails at that."""
    root = tmp_path / "100% of #1?, {é𝄞} & 'so' \"on\"; `~$<*>@:=+!" / "%zz"
    check_ledger_path(root)
    root.mkdir(parents=True)
    batch = Batch(0, 10, 0, 1, 10, 0, 5, 5)
    for _ in range(2):
        Ledger(root).catch_up([batch])
    assert Ledger(root).version() == 1


def test_links_are_followed(tmp_path: Path) -> None:
    """As the ledger's writer does."""
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    with pytest.raises(OutputError, match="'%20'"):
        check_ledger_path(tmp_path / "link" / "out")
