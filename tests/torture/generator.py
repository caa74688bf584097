"""The broker's side: a real store that appends under load while its log is tailed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from reput.newer_python import Self
from tests.compat.compiled import instance
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import SHORT_LIVED, JavaError

SOURCE = Path(__file__).with_name("LoadWriter.java")

#: Small, so that everything rolls; not so small that the store runs out of maps in half an hour.
SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 2 << 20,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "enableMultiDispatch": True,
    "enableLmq": True,
}


class Generator:
    """A store under load; a context manager that stops it cleanly, unless an error is on its way.

    Args:
        version: the RocketMQ release.
        root: the store's directory.
        rate: messages a second in the mean; they come in bursts with silence in between.
        seed: of the messages; another one for each start over the same store.
        delayed: let some messages be delayed ones. A 4.9 store that recovers from a crash gives these wrong
            tagsCodes.
    """

    def __init__(
        self, version: str, root: Path, *, rate: float = 1000, seed: int = 1, delayed: bool = True
    ) -> None:
        self.version = version
        self.root = root
        self._load = {"rate": float(rate), "seed": seed, "delayed": delayed}
        self._store = JavaStore(
            version, root, SIZES, jvm_options=[*SHORT_LIVED, "-XX:ActiveProcessorCount=1"], heap="384m"
        )
        self._writing = False

    def __enter__(self) -> Self:
        self._store.__enter__()
        try:
            self._writer = instance(self._store.jvm, SOURCE)
            if not self._store.load():
                raise JavaError(f"{self.root}: the store did not load; {self._store.jvm.log_tail()}")
            self._store.start()
            self._writer.apply({"store": self._store.store, **self._load})
            self._writing = True
        except BaseException as error:
            self._store.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing and error is None:
            try:
                self.finish()
            except BaseException as failure:
                self._store.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._store.__exit__(kind, error, trace)

    def messages(self) -> int:
        """How many messages have been written since the start.

        Raises:
            JavaError: the store has stopped taking them.
        """
        return self._told(self._writer.apply({}))

    def end(self) -> int:
        """The physical offset of the log's end."""
        return int(self._store.store.getMaxPhyOffset())

    def finish(self) -> int:
        """Stop writing and wait until the store has derived everything; returns :meth:`messages`.

        Raises:
            JavaError: writing has failed, or the store doesn't come to an end.
        """
        self._writing = False
        messages = self._told(self._writer.apply({"stop": True}))
        self._store.wait_dispatched()
        return messages

    def kill(self) -> None:
        """SIGKILL."""
        self._writing = False
        self._store.kill()

    @staticmethod
    def _told(answer: Any) -> int:
        if "error" in answer:
            raise JavaError(str(answer["error"]))
        return int(answer["messages"])


def broker_conf(root: Path, path: Path) -> Path:
    """The broker.conf of a generator's store, written to ``path``."""
    path.write_text(conf_text({"storePathRootDir": root, "storePathCommitLog": root / "commitlog", **SIZES}))
    return path


@contextmanager
def derived_anew(version: str, root: Path) -> Iterator[Path]:
    """What the real store derives from a log alone: of ``root``, the directory with ``commitlog/`` only."""
    (root / "abort").touch()
    # By default 5.5 looks at the last ten segments only.
    all_of_it = {"commitLogRecoverMaxNum": 1_000_000} if version == "5.5.0" else {}
    with JavaStore(version, root, {**SIZES, **all_of_it}, heap="384m") as store:
        if not store.load():
            raise JavaError(f"{root}: the store did not load; {store.jvm.log_tail()}")
        store.start()
        store.wait_dispatched()
    yield root


def written_end(root: Path) -> int:
    """The physical offset after the last byte of a store's log that isn't zero."""
    for path in sorted((root / "commitlog").iterdir(), reverse=True):
        written = len(path.read_bytes().rstrip(b"\0"))
        if written:
            return int(path.name) + written
    return 0


def wait_for(what: str, holds: Any, timeout: float, every: float = 0.02) -> None:
    """Wait until ``holds()``.

    Raises:
        TimeoutError: it doesn't within this many seconds.
    """
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        time.sleep(every)
