"""Hosts with a store that they share, and what becomes of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from reput.format import names
from reput.output.journal import read_state
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.hosts import gluster, network
from tests.hosts.network import OWN, SHARED, Host
from tests.hosts.submitting import Submitted

#: The store's log comes to more than three of these.
BATCH = "70k"


@dataclass
class Place:
    """Hosts, and what they share.

    Attributes:
        shared: the shared directory, as the test sees it.
        has_own_caches: each host has a page cache of its own.
    """

    hosts: list[Host]
    shared: Path
    golden: GoldenStore
    has_own_caches: bool

    @property
    def options(self) -> Sequence[str]:
        """Of every command for the store."""
        return ("--broker-conf", f"{SHARED}/broker.conf", "--rocketmq-version", self.golden.version)

    @property
    def several(self) -> Sequence[str]:
        """On one kernel hosts do share a page cache, and have to be told that they don't count on it."""
        return () if self.has_own_caches else ("--several-hosts",)

    def batches(self, out: str) -> int:
        """How many an output has so far."""
        journal = self.shared / out / names.REPUT / names.JOURNAL
        return read_state(journal)[1].batches if journal.exists() else 0

    def wait_for_batches(self, out: str, count: int, submitted: Submitted) -> None:
        """Return when an output has so many."""
        deadline = time.monotonic() + 240
        while self.batches(out) < count:
            assert submitted.process.poll() is None, submitted.said
            assert time.monotonic() < deadline, submitted.said
            time.sleep(0.02)

    def assert_sound(self, out: str) -> None:
        """Every byte is the broker's."""
        found = compare(self.golden.root, self.shared / out)
        assert found.differences == ()
        assert found.queue_bytes > 0
        assert found.index_bytes > 0


@contextmanager
def place(work: Path, count: int, *, on_gluster: bool) -> Iterator[Place]:
    """Make hosts that share a store, its broker.conf, and room for outputs.

    Args:
        on_gluster: by GlusterFS; else by one directory of this kernel.
    """
    shared = work / "shared"
    shared.mkdir()
    golden = unpack("5.3.3-mixed", work / "store")
    conf = golden.write_broker_conf(work / "broker.conf")
    conf.write_text(conf.read_text().replace(str(golden.root), f"{SHARED}/store"))
    with ExitStack() as stack:
        made = stack.enter_context(network.hosts(work, shared, count))
        if on_gluster:
            stack.enter_context(gluster.volume(made))
            shared = made[0].own / "brick"
        shutil.copytree(golden.root, made[0].own / "store")
        shutil.copy(conf, made[0].own / "broker.conf")
        made[0].run("cp", "-a", OWN / "store", OWN / "broker.conf", SHARED)
        yield Place(made, shared, golden, on_gluster)
