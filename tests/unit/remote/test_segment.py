"""What a segment elsewhere takes of memory, and what becomes of an error of a range that is read ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reput.errors import RemoteStoreError
from reput.remote.client import RemoteFile
from reput.remote.segment import RANGE, RemoteSegment
from reput.remote.store import RemoteStore

ROOT = Path("/reput-remote/store")


class Client:
    """Has one file of ones; fails from a position on."""

    def __init__(self, fails_from: int) -> None:
        self.fails_from = fails_from

    def read(self, file: RemoteFile, start: int, stop: int) -> memoryview:
        if stop > self.fails_from:
            raise RemoteStoreError("it can't be read", path=file.name, offset=start)
        return memoryview(np.ones(stop - start, np.uint8))


def segment(monkeypatch: pytest.MonkeyPatch, length: int, fails_from: int, **more: Any) -> RemoteSegment:
    monkeypatch.setattr("reput.remote.segment.client_of", lambda _: Client(fails_from))
    store = RemoteStore("s3://b/s", ROOT, (RemoteFile("commitlog/0", length, ""),))
    return RemoteSegment(store, ROOT / "commitlog/0", length, **more)


def held(one: RemoteSegment) -> int:
    """Bytes that aren't zero: what was given back is."""
    return int(np.count_nonzero(one.data))


@pytest.mark.parametrize("keeps", [True, False])
def test_what_was_passed_is_given_back(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    length = 12 * RANGE
    one = segment(monkeypatch, length, length, keeps=keeps)
    position, most = 0, 0
    while position < length:
        one.passed(position)
        position = one.until(position, length)
        most = max(most, held(one))
    assert most == length if keeps else most <= 6 * RANGE
    one.fetch(0, 100)
    assert one.data[:100].all()


def test_an_error_of_what_is_read_ahead_comes_when_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    one = segment(monkeypatch, 4 * RANGE, 2 * RANGE)
    assert one.until(0, 4 * RANGE) == RANGE
    assert one.until(RANGE, 4 * RANGE) == 2 * RANGE
    with pytest.raises(RemoteStoreError, match="can't be read"):
        one.until(2 * RANGE, 4 * RANGE)


def test_a_forked_process_is_refused() -> None:
    text = """
import os
from reput.errors import RemoteStoreError
from reput.remote.store import client_of

os.environ |= {"AWS_REGION": "x", "AWS_SKIP_SIGNATURE": "true"}
client_of("s3://bucket/store")
if not os.fork():
    try:
        client_of("s3://bucket/store")
    except RemoteStoreError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
client_of("s3://bucket/store")
"""
    assert (
        subprocess.run([sys.executable, "-c", text], env=os.environ, check=False, timeout=180).returncode == 0
    )
