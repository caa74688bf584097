"""Nights of a store in an object store: segments are told by their ETags, and not read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest

from reput.config.stand_in import borrowed
from reput.format import names
from reput.remote import client, with_urls
from reput.replay.runner import InlineRunner
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.proofs import CHANGED, Proofs, Remembering
from reput.verify.report import Report
from reput.verify.run import check
from tests.golden.store import GoldenStore, unpack
from tests.remote import gateway as servers
from tests.remote.gateway import Gateway, s3

pytestmark = [
    pytest.mark.slow,  # the server is built, once per user
    pytest.mark.skipif(servers.why_not() is not None, reason=f"NOT TESTED: {servers.why_not()}"),
]


@pytest.fixture(autouse=True)
def _credentials(credentials: Callable[..., None]) -> None:
    """All tests need them."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the segments that are read, one for each request."""
    asked: list[str] = []
    real = client._ObjectStore.read

    def reading(self: client._ObjectStore, file: client.RemoteFile, start: int, stop: int) -> memoryview:
        if file.name.startswith(names.COMMIT_LOG):
            asked.append(file.name)
        return real(self, file, start, stop)

    monkeypatch.setattr(client._ObjectStore, "read", reading)
    return asked


def night(
    store: GoldenStore, url: str, before: Proofs | None, read: list[str], **how: bool
) -> tuple[Report, list[tuple[str, str]], Proofs]:
    """A run, (kind, path) of what it found, and what it leaves; ``read`` gets what was read once it began."""
    proven = Remembering(before, **how)
    conf = store.root.parent / "broker.conf"
    with borrowed(Path(url), derived=True) as root:
        options = VerifyOptions(root, broker_conf=conf, rocketmq_version=store.version)
        plan = prepare(options)  # which looks into segments to see what release wrote them
        read.clear()
        report = check(plan, InlineRunner(), proven=proven)
        found = [(one.kind, with_urls(one.path)) for one in report.findings]
        assert root.exists()
    assert not root.parent.exists()
    return report, found, Proofs.decode(proven.after.encode(), Path("proofs"))


def skipped(report: Report) -> int:
    assert report.remembered is not None
    return report.remembered.skipped


def test_nights(gateway: Gateway, tmp_path: Path, read: list[str]) -> None:
    store = unpack("5.3.3-mixed", tmp_path / "store")
    store.write_topics_json()
    store.write_broker_conf(tmp_path / "broker.conf")
    prefix = f"{tmp_path.name}/store"
    url = gateway.upload(store.root, prefix)
    segments = sorted(path.name for path in (store.root / names.COMMIT_LOG).iterdir())
    bucket = s3(gateway)

    first, found, left = night(store, url, None, read)
    assert (found, skipped(first)) == ([], 0)
    assert {Path(name).name for name in read} == set(segments)

    second, found, left = night(store, url, left, read)
    assert (found, skipped(second)) == ([], len(segments) - 1)
    assert {Path(name).name for name in read} == {segments[-1]}
    assert second.messages == first.messages

    # A copy of the same bytes is another object, of which only its own bytes tell: here they are the same.
    name = f"{prefix}/{names.COMMIT_LOG}/{segments[1]}"
    data = bytearray((store.root / names.COMMIT_LOG / segments[1]).read_bytes())
    data[len(data) // 2] ^= 1
    obstore.put(bucket, name, bytes(data))
    third, found, left = night(store, url, left, read)
    assert found[0] == (CHANGED, f"{url}/{names.COMMIT_LOG}/{segments[1]}")
    assert len(found) > 1
    assert {Path(one).name for one in read} == {segments[1], segments[-1]}
    fourth, again, left = night(store, url, left, read)
    assert again == found
    assert third.remembered is not None
    assert fourth.remembered is not None
    assert third.remembered.first_seen == fourth.remembered.first_seen

    # A unit turns.
    obstore.put(bucket, name, (store.root / names.COMMIT_LOG / segments[1]).read_bytes())
    _, found, left = night(store, url, left, read, anew=True)
    assert found == []
    queue = min((store.root / names.CONSUME_QUEUE).rglob("0" * 20))
    unit = bytearray(queue.read_bytes())
    unit[7] ^= 1
    path = queue.relative_to(store.root).as_posix()
    obstore.put(bucket, f"{prefix}/{path}", bytes(unit))
    _, found, left = night(store, url, left, read)
    assert found == [("wrong-unit", f"{url}/{path}")]

    # The head expires, which is no finding; all bytes are read where they are asked for.
    obstore.delete(bucket, f"{prefix}/{names.COMMIT_LOG}/{segments[0]}")
    report, found, left = night(store, url, left, read)
    assert CHANGED not in {kind for kind, _ in found}
    assert skipped(report) == len(segments) - 2
    night(store, url, left, read, read_all=True)
    assert {Path(one).name for one in read} == set(segments[1:])
