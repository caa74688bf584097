"""A disk that fills up, an output that is read-only or removed while a tail runs: an error that says so.

And after mending the cause, the same command goes on to the same bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reput.errors import OutputError, ReputError
from reput.format import names
from reput.job import TailOptions
from reput.job.tail import tail
from reput.output.writer import BatchWriter
from reput.store import files
from reput.store.system import System
from tests.golden.store import GoldenStore
from tests.levels import tried
from tests.rebuilds import assert_same, broker_conf, golden
from tests.torture.verify import check_ledger, state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Refusing(System):
    """Once ``code`` is set, refuses what takes space, or everything that changes something."""

    def __init__(self) -> None:
        self.code = 0

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT or self.code == errno.EROFS:
            self._check(path)
        return super().open(path, flags)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._check()
        return super().pwrite(fd, data, offset)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._check()
        super().allocate(fd, offset, length)

    def make_directory(self, path: Path) -> None:
        self._check(path)
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        if self.code == errno.EROFS:
            self._check(source)
        super().rename(source, target)

    def _check(self, path: Path | None = None) -> None:
        if self.code:
            raise OSError(self.code, os.strerror(self.code), path and str(path))


class Tail:
    """Tails of one golden store, in this process."""

    def __init__(self, store: GoldenStore, out: Path, spark: SparkSession) -> None:
        self.store = store
        self.out = out
        self._spark = spark
        conf = broker_conf(store)
        self._options = TailOptions(
            store=store.root,
            out=out,
            broker_conf=conf,
            rocketmq_version=store.version,
            max_bytes_per_trigger=30_000,
        )

    def run(self, then: Callable[[], Any] = lambda: None) -> None:
        """Follow the log to its end; after the third batch, something happens."""
        stopping = threading.Event()
        end = int(self.store.manifest["log"]["end"])
        batches = 0

        def batch_done(writer: BatchWriter) -> None:
            nonlocal batches
            batches += 1
            if batches == 3:
                then()
            if writer.state.cursor >= end:
                stopping.set()

        tail(self._options, lambda: self._spark, stopping, batch_done)

    def check(self) -> None:
        """It is all there, and nothing else."""
        assert_same(self.store.root, self.out)
        state = state_of(self.out)
        assert state is not None
        check_ledger(self.out, state)
        assert {path.name for path in (self.out / names.REPUT).iterdir()} <= {
            *(names.JOURNAL, "lock", "tasks.lock", names.SPARK_CHECKPOINT),
            *(names.SPARK_CHECKPOINT + ".aside", names.RUN),
        }


@pytest.fixture
def following(tmp_path: Path, spark: SparkSession) -> Tail:
    return Tail(golden("5.5.0-mixed", tmp_path), tmp_path / "out", spark)


@pytest.mark.parametrize(
    ("code", "told"), tried((errno.ENOSPC, "ENOSPC"), more=[(errno.EROFS, "EROFS"), (errno.EDQUOT, "EDQUOT")])
)
def test_an_output_that_takes_no_more(
    following: Tail, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    refusing = Refusing()
    monkeypatch.setattr(files, "system", refusing)
    with pytest.raises(OutputError, match=told) as failed:
        following.run(lambda: setattr(refusing, "code", code))
    assert str(following.out) in str(failed.value)
    refusing.code = 0
    following.run()
    following.check()


#: What goes, whether the tail has to notice, and what the error says.
REMOVED = {
    "consumequeue/Orders/0": "Orders/0/.*: a consume queue's last committed unit is gone",
    "consumequeue": "a consume queue's last committed unit is gone",
    "index": "the index file that is being written is gone",
    ".reput/journal": "the journal is gone",
    "": r"out/.*(gone|ENOENT|can't)",
    "ledger": "ledger",
    "checkpoint": None,
    ".reput/scratch": None,
}


@pytest.mark.parametrize("what", tried(*list(REMOVED)[:2], more=list(REMOVED)[2:]))
def test_something_is_removed_while_it_runs(following: Tail, tmp_path: Path, what: str) -> None:
    """What was committed is missed, told, and can be put back; what follows from the rest is made anew."""
    path, kept = following.out / what, tmp_path / "kept"

    def take_away() -> None:
        shutil.copytree(following.out, kept)
        _remove(path)

    told = REMOVED[what]
    if told is None:
        following.run(take_away)
    else:
        with pytest.raises(ReputError, match=told):
            following.run(take_away)
        if what != "ledger":  # which is made anew
            # Whoever runs it again before the files are back is told the same.
            with pytest.raises(ReputError, match=r"gone|missing"):
                following.run()
            if path.exists():
                _remove(path)
        if what not in ("", "ledger"):
            (shutil.copytree if (kept / what).is_dir() else shutil.copy)(kept / what, path)
        following.run()
    following.check()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
