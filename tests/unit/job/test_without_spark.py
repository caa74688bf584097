"""A rebuild on processes of this host: it goes on after SIGKILL, and says what only Spark can do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.format import names
from reput.job import RebuildOptions, rebuild
from tests.rebuilds import LIB, assert_same, broker_conf, golden

KILLED = """
import sys, time
from pathlib import Path
from reput.job import RebuildOptions, rebuild
from reput.output import writer
from reput.replay import runner

runner._SMALL = -1
store, conf, version, in_place = sys.argv[1:5]
committed = writer.BatchWriter._commit
count = 0

def commit(self, scan, batch):
    global count
    count += 1
    if count == 3:
        print("now", flush=True)
        time.sleep(60)
    committed(self, scan, batch)

writer.BatchWriter._commit = commit
rebuild(
    RebuildOptions(
        Path(store),
        None if in_place == "yes" else Path(store).parent / "out",
        broker_conf=Path(conf),
        rocketmq_version=version,
        part_bytes=50_000,
        max_bytes_per_trigger=100_000,
    ),
    None,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.5.0-mixed"])
def test_it_goes_on_after_sigkill(name: str, in_place: bool, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    before = tmp_path / "before"
    before.symlink_to(golden(name, tmp_path / "other").root)
    words = [str(store.root), str(broker_conf(store)), store.version, "yes" if in_place else "no"]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *words],
        env={**os.environ, "PYTHONPATH": str(LIB)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.2)  # for its processes to end
    asked = RebuildOptions(
        store.root,
        None if in_place else tmp_path / "out",
        broker_conf=broker_conf(store),
        rocketmq_version=store.version,
        part_bytes=50_000,
        max_bytes_per_trigger=100_000,
    )
    summary = rebuild(asked, None)
    assert 0 < summary.new_messages < summary.messages
    assert_same(before, store.root if in_place else tmp_path / "out")


def test_an_output_isnt_gone_on_with_once_the_log_has_more_than_it_was_made_from(tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    options = RebuildOptions(
        store.root, broker_conf=broker_conf(store), rocketmq_version=store.version, out=tmp_path / "out"
    )
    segment = store.root / names.COMMIT_LOG / names.offset_name(65536)
    segment.rename(tmp_path / "away")
    assert "missing-segments" in {one.kind for one in rebuild(options, None).findings}
    rebuild(options, None)
    (tmp_path / "away").rename(segment)
    with pytest.raises(OutputError, match="segments that this output was made without") as refused:
        rebuild(options, None)
    assert (refused.value.found, refused.value.path) == (str(segment), str(tmp_path / "out"))
