"""Nights of a store elsewhere, and what they read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from reput.config import stand_in
from reput.config.stand_in import borrowed
from reput.diagnosis.nightly import Again
from reput.format import names
from reput.lag import lag, total_lag
from reput.remote import client, with_urls
from reput.remote.client import RemoteFile
from reput.remote.store import STORE
from reput.replay.runner import InlineRunner
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.proofs import Proofs, Remembering
from reput.verify.report import Report
from reput.verify.run import check
from tests.golden.store import GoldenStore


@dataclass
class Asked:
    """What was asked of the server since the last :meth:`clear`: (name, bytes) of each range."""

    ranges: list[tuple[str, int]] = field(default_factory=list)
    planned: int = 0

    def clear(self) -> None:
        self.ranges.clear()
        self.planned = 0

    @property
    def segments(self) -> set[str]:
        """Those that were read after the plan, which looks into some to see what release wrote them."""
        found = self.ranges[self.planned :]
        return {Path(name).name for name, _ in found if name.startswith(names.COMMIT_LOG)}

    def derived(self, kind: str) -> dict[str, int]:
        """Bytes of each file of the queues, or of the index."""
        found: dict[str, int] = {}
        for name, size in self.ranges:
            if name.startswith(kind):
                found[name] = found.get(name, 0) + size
        return found


def watched(monkeypatch: pytest.MonkeyPatch, kind: type[client._ObjectStore | client._Hdfs]) -> Asked:
    """What is read. In place of what wasn't copied, files hold what no broker writes."""
    asked = Asked()
    real, real_leave = kind.read, stand_in.leave_out

    def reading(self: client._ObjectStore, file: RemoteFile, start: int, stop: int) -> memoryview:
        asked.ranges.append((file.name, stop - start))
        return real(self, file, start, stop)

    def leave(home: Path, url: str, files: Iterable[RemoteFile], same: dict[str, int]) -> None:
        real_leave(home, url, files, same)
        for name, written in same.items():
            with (home / STORE / name).open("r+b") as out:
                out.write(b"\xa5" * written)

    monkeypatch.setattr(kind, "read", reading)
    monkeypatch.setattr(stand_in, "leave_out", leave)
    return asked


def night(
    store: GoldenStore, url: str, before: Proofs | None, read: Asked, **how: bool
) -> tuple[Report, list[tuple[str, str]], Proofs]:
    """A run, (kind, path) of what it found, and what it leaves; ``read`` gets what was read."""
    proven = Remembering(before, **how)
    conf = store.root.parent / "broker.conf"
    read.clear()
    again = Again(before, everything=how.get("anew", False), digests=how.get("read_all", False))
    with borrowed(Path(url), derived=True, known=again.known_files) as root:
        options = VerifyOptions(root, broker_conf=conf, rocketmq_version=store.version)
        plan = prepare(options)
        read.planned = len(read.ranges)
        report = check(plan, InlineRunner(), proven=proven)
        found = [(one.kind, with_urls(one.path)) for one in report.findings]
        assert proven.settings is not None
        counted = total_lag(proven.settings, proven.ends)
        asked = client.total(url)
        # A listing is a request, too.
        assert asked == (len(read.ranges) + 1, sum(size for _, size in read.ranges))
        known = read.ranges[:]
        assert counted == sum(row.lag for row in lag(proven.settings).rows) > 0
        read.ranges = known
    assert not root.parent.exists()
    return report, found, Proofs.decode(proven.after.encode(), Path("proofs"))


def facts(report: Report) -> dict[str, object]:
    """What a run says of the store, but for what it remembers."""
    text = with_urls(json.dumps(asdict(report)))
    found: dict[str, object] = json.loads(text)
    found.pop("remembered", None)
    for one in found["findings"]:  # type: ignore[attr-defined]
        one.pop("first_seen", None)
    return found


def with_consumers(store: GoldenStore) -> GoldenStore:
    """A store whose consumers are behind, with its broker.conf beside it."""
    store.write_topics_json()
    store.write_broker_conf(store.root.parent / "broker.conf")
    topics = sorted(path.name for path in (store.root / names.CONSUME_QUEUE).iterdir())
    offsets = {f"{topic}@audit": {0: number} for number, topic in enumerate(topics)}
    path = store.root / names.CONFIG / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": offsets}), encoding="utf-8")
    return store
