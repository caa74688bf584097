"""Killed under real Spark: a rebuild into RocksDB, and a migration while its files are put in place."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from reput.format import names
from reput.store.swap import is_pending
from tests.compat.served import in_files, places
from tests.rebuilds import broker_conf, golden, run
from tests.spark.test_rocksdb import check_queues, contents
from tests.torture.steps import IN_PLACE, Doom
from tests.torture.tailing import Tailing

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.proof]


def kill(words: list[str | Path], root: Path, log: Path, step: str) -> None:
    """Run a command up to a step, and end all its processes there (SIGKILL)."""
    doomed = Tailing(words, root, log, Doom("", "", step, in_spark=True))
    deadline = time.monotonic() + 120
    try:
        while not doomed.fired:
            assert not doomed.has_ended, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
    finally:
        doomed.kill()


def test_it_goes_on_after_sigkill(tmp_path: Path) -> None:
    put_aside, made, swapping = (step.name for step in IN_PLACE)
    store = golden("5.5.0-rocksdb-mixed", tmp_path)
    conf = ["-c", broker_conf(store), "--rocketmq-version", store.version]
    queues, expected = store.root / names.CONSUME_QUEUE, store.dump()[names.CONSUME_QUEUE]
    shutil.rmtree(queues)

    rebuild = ["rebuild", store.root, "--in-place", *conf]
    for step in (put_aside, made):
        kill(rebuild, store.root, tmp_path / "log", step)
        assert not queues.exists(), "nothing of it is in its place"
    done = run(*rebuild)
    assert done.code == 0, done.stderr
    check_queues(contents(queues), expected, None)

    migrate = ["migrate", store.root, "--to", "file", "--apply", *conf]
    kill(migrate, store.root, tmp_path / "log", swapping)
    assert is_pending(store.root)
    done = run(*migrate)
    assert (done.code, "storeType=default" in done.stdout) == (0, True), done.stderr
    assert in_files(store.root) == places(expected)
    assert not list(queues.glob("CURRENT"))
    assert run("undo", store.root).code == 0
    check_queues(contents(queues), expected, None)
