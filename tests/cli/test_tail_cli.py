"""``reput tail`` as a process, as far as it goes before Spark starts: it waits for a new broker's log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from reput.format import names
from tests.rebuilds import run, start


@pytest.mark.parametrize("way", ["stop", "SIGTERM", "SIGINT"])
@pytest.mark.slow
def test_waiting_for_the_first_segment_ends_when_asked_to(way: str, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    store.mkdir()
    process = start("tail", store, "--out", out)
    try:
        assert process.stderr is not None
        assert "waiting for the broker's first one" in process.stderr.readline()
        status = run("tail", "--status", out)
        assert status.code == 2
        assert "waits for the log's first segment" in status.stderr
        second = run("tail", store, "--out", out)
        assert second.code == 2
        assert "another reput writes here" in second.stderr
        if way == "stop":
            stopped = run("tail", "--stop", out)
            assert stopped.code == 0
            assert "the log has no segment yet" in stopped.stdout
        else:
            process.send_signal(signal.Signals[way])
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    finally:
        process.kill()
    assert "up to 0" in stdout
    assert not (out / names.REPUT / names.STOP).exists()
    assert not (out / names.REPUT / names.JOURNAL).exists()


@pytest.mark.slow
def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused = run("tail", tmp_path / "none", "--out", tmp_path / "out")
    assert refused.code == 2
    assert "there is no store here" in refused.stderr


@pytest.mark.slow
def test_a_log_without_order_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "store" / names.COMMIT_LOG
    log.mkdir(parents=True)
    (log / "segment").write_bytes(b"not named by an offset")
    refused = run("tail", tmp_path / "store", "--out", tmp_path / "out")
    assert refused.code == 2
    assert "the commit log is empty" in refused.stderr
