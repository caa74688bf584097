"""Logs that were mended from a replica, beside the undamaged original, and opened by the real store."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from reput.broker.snapshot import take
from reput.format import commitlog, names
from reput.job import undo
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.recovery.plan import plan
from tests.compat import damage
from tests.compat.damage import Copy, Record
from tests.compat.starts import Bench, Case, differences, expected
from tests.rebuilds import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]


def hurt(copy: Copy, records: list[Record], random: Random) -> None:
    for record in records:
        path = copy.root / names.COMMIT_LOG / record.segment.name
        match random.randrange(3):
            case 0:
                damage.write(path, record.position + commitlog.MAGIC, b"oops")
            case 1:
                damage.write(path, record.position, bytes(record.size))
            case _:
                damage.write(path, record.position, random.randbytes(30))


# The log that comes out is the original byte for byte; releases differ in which magics a record may have.
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_the_real_store_serves_every_message(version: str, tmp_path: Path, spark: SparkSession) -> None:
    """Damage here and there, a missing segment, a short one, and a lost end."""
    bench = Bench(version, tmp_path)
    tried = []
    try:
        original = bench.copy("original", crash=None)
        log, random = tree(original.root / names.COMMIT_LOG), Random(7)
        for name in ("ranges", "segments", "end"):
            copy, replica = bench.copy(name, crash=None), bench.copy(f"{name}-replica", crash=None)
            records = copy.records()
            chosen = random.sample(records, 20)
            hurt(replica, chosen[10:], random)
            if name == "ranges":
                hurt(copy, chosen[:10], random)
            elif name == "segments":
                written = sorted(
                    {record.segment for record in records} - {one.segment for one in chosen[10:]}
                )
                written[1].unlink()
                with written[2].open("r+b") as file:
                    file.truncate(1000)
            else:
                lost = next(one for one in records[-5:] if one.offset not in {two.offset for two in chosen})
                behind = [one for one in records if one.offset >= lost.offset]
                for record in behind:
                    damage.write(record.segment, record.position, bytes(record.size))
                shutil.copytree(
                    original.root / names.COMMIT_LOG, replica.root / names.COMMIT_LOG, dirs_exist_ok=True
                )
            before, theirs = tree(copy.root, names.REPUT, names.LOCK), tree(replica.root)
            options = RebuildOptions(copy.root, broker_conf=bench.conf, rocketmq_version=version)
            mended = mend(options, replica.root, apply=True)
            assert mended.replica is not None
            assert (mended.exit_code, mended.replica.left, mended.changes) == (0, [], [])
            assert tree(replica.root) == theirs
            assert tree(copy.root / names.COMMIT_LOG) == log, name
            queues = [tree(one.root / names.CONSUME_QUEUE) for one in (copy, original)]
            assert queues[0] == queues[1], name
            # A broker names index files by its clock.
            index = [list(tree(one.root / names.INDEX).values()) for one in (copy, original)]
            assert index[0] == index[1], name
            result = plan(take(bench.settings(copy.root)))
            assert not result.loses, (name, result.losses, result.unrepaired)
            again = bench.copy(f"{name}-undone", crash=None)
            shutil.rmtree(again.root)
            shutil.copytree(copy.root, again.root)
            undo(again.root)
            kept = [path.name for path in again.root.glob("replaced-*")]
            assert tree(again.root, names.REPUT, names.LOCK, *kept) == before
            tried.append(Case(name, copy.root, expected(result.prediction)))
        bench.open_all(tried)
        for case in tried:
            assert differences(case.predicted, case.seen) == [], (case.name, case.error)
    finally:
        bench.close()
