"""Who may write one store's messages to a table, and which files a run has left that no commit names.

In a local directory that is a lock, which goes with its holder, and a mark beside it. In an object store,
where nobody sees who has died, it is an object that says who writes, and that is only ever written if it is
still what was read (a conditional write):

* Each run takes the object over, with a new token; its files have the token in their names. It looks at the
  object before each commit. A run whose object was taken over meanwhile is refused there.
* Each commit is made for the one version of the table that follows the one that was looked at. So a run that
  stood still between that look and its commit fails at it, once another one has committed anything.
* At its end a run removes those of its own files that it never named in a commit.
* Files of tokens that were taken over are removed only after this run has committed, thus never while they
  can still come to be named, whatever the clocks say.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reput.errors import OutputError, ReputError, StoreInUseError
from reput.format import names
from reput.newer_python import Self
from reput.store import files
from reput.store.lock import OutputLock

if TYPE_CHECKING:
    from types import TracebackType

    from reput.catalog.table import Broker, Table

_MARK = "catalog-files"
_BROKERS = "brokers"
#: A run on another host is taken for dead after so many seconds without a sign of life.
DEAD_SECONDS = 600.0
#: How often it gives one while it reads.
_BEAT_SECONDS = 60.0
#: Tasks of a run that was killed may go on writing so long.
_LATE_SECONDS = 86_400.0
#: The tokens of the runs of this process.
_own: set[str] = set()


class Hold(Protocol):
    """A run's right to write one store's messages to a table. A context manager."""

    locks: Path | None  # the directory with the lock that tasks hold; None where there is none

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self) -> str:
        """What the names of files have that tasks are going to write."""
        ...

    def check(self) -> None:
        """See that no other run has taken it, else raise OutputError."""
        ...

    def beat(self) -> None:
        """Give a sign of life, if one is due."""
        ...

    def clean(self, wait_seconds: float = 10.0) -> None:
        """Remove files that no commit came to name, where that is known to be safe.

        Late tasks may take ``wait_seconds`` to end, where they are seen.
        """
        ...


def hold_of(table: Table) -> Hold:
    """The hold on the store whose messages a table is opened for."""
    if table.is_remote and table.broker is not None:
        return RemoteHold(table, table.broker)
    return LocalHold(table)


class LocalHold:
    """A lock in the table's directory, and a mark beside it."""

    def __init__(self, table: Table) -> None:
        self.locks: Path | None = locks_of(table)
        self._table = table
        self._lock = OutputLock(locks_of(table))
        self._token = ""

    def __enter__(self) -> Self:
        if self.locks is not None:
            files.make_dirs(self.locks)
        try:
            self._lock.acquire()
        except StoreInUseError as error:
            raise StoreInUseError(
                "another run writes to the table",
                path=self._table.path,
                found=error.found,
                next_step="Wait until it has ended; a tail keeps its table until it is stopped",
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def begin(self) -> str:
        """Leave a new mark."""
        remove_unnamed(self._table)
        self._token = secrets.token_hex(8)
        files.write_atomically(_mark(self._table), self._token.encode())
        return self._token

    def check(self) -> None:
        """See that the mark is this run's, while there is one."""
        if not self._token:
            return
        # On another host, where locks don't meet, a run has taken this one for dead, and removed its files.
        mark = _mark_in(self._lock.directory)
        if not mark.exists() or mark.read_text(encoding="utf-8") != self._token:
            raise OutputError(
                "another run writes to the table",
                path=self._table.path,
                expected=f"{mark.name} as this run left it",
                found="another one's" if mark.exists() else "none",
                next_step="Let one run at a time write to it, and run the same command again",
            )

    def beat(self) -> None:
        """A lock needs none."""

    def clean(self, wait_seconds: float = 10.0) -> None:
        """Remove the run's files that no commit came to name; see :func:`remove_unnamed`."""
        remove_unnamed(self._table, wait_seconds)
        self._token = ""


def locks_of(table: Table) -> Path:
    """The directory that holds the locks of the store whose messages a local table is opened for."""
    if table.broker is None:
        return table.path
    return table.path / names.REPUT / _BROKERS / table.broker.digest


def remove_unnamed(table: Table, wait_seconds: float = 10.0) -> None:
    """Remove the files of a run on a local table that no commit came to name.

    Tasks that still write may take ``wait_seconds`` to end; then this raises StoreInUseError.
    """
    mark = _mark(table)
    try:
        token = mark.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    named = {file.path for file in table.files()}
    with OutputLock(locks_of(table)).exclusive(wait_seconds):
        below = "*=*/*" if table.broker is None else f"{table.broker.directory}/*=*/*"
        found = table.path.glob(f"{below}-{token}-*") if token.isalnum() else ()
        files.remove_files(path for path in found if str(path.relative_to(table.path)) not in named)
        files.remove_files([mark])


def _mark(table: Table) -> Path:
    return _mark_in(locks_of(table))


def _mark_in(directory: Path) -> Path:
    return directory / names.REPUT / _MARK


class RemoteHold:
    """An object that says which run writes a broker's messages to a table."""

    def __init__(self, table: Table, broker: Broker) -> None:
        from reput.remote.client import objects

        self.locks: Path | None = None
        self._table = table
        self._objects = objects(table.url)
        self._broker = broker
        self._name = f"{names.REPUT}/{_BROKERS}/{broker.digest}.json"
        self._place = f"{table.url}/{self._name}"
        self._token = ""
        self._version: Any = None
        self._left: dict[str, float] = {}
        self._beaten = 0.0
        self._is_clean = self._has_begun = False

    def __enter__(self) -> Self:
        found = self._objects.get(self._name)
        if found is not None:
            noted = _noted(found.data)
            # Of a host whose clock is ahead, too: it shall not be looked for until then.
            left, now = noted.get("left", {}), time.time()
            self._left = {str(token): min(float(since), now) for token, since in left.items()}
            if noted.get("token"):
                self._refuse_living(noted, found.written_at)
                self._left[str(noted["token"])] = time.time()
        self._token = secrets.token_hex(8)
        self._version = self._objects.swap(
            self._name, self._note(self._token), None if found is None else found.version
        )
        if self._version is None and not self._is_ours():
            raise self._in_use("it has begun just now")
        self._objects.check_conditions(self._name, self._version)
        self._beaten = time.monotonic()
        _own.add(self._token)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _own.discard(self._token)
        if kind is not None or not self._removed_own():
            self._left[self._token] = time.time()
        with suppress(ReputError):  # then the next run finds a run that is dead
            self._objects.swap(self._name, self._note(None), self._version)

    def begin(self) -> str:
        """The token of the whole run."""
        self._has_begun = True
        return self._token

    def check(self) -> None:
        """See that the object is as this run left it, and give a sign of life with that."""
        version = self._objects.swap(self._name, self._note(self._token), self._version)
        if version is not None:
            self._version = version
        elif not self._is_ours():
            raise OutputError(
                "another run has taken over this broker's messages in the table",
                path=self._place,
                expected="the note of who writes as this run left it",
                found="another run's",
                next_step="Let one run at a time write a broker's messages, and run the same command again",
            )
        self._beaten = time.monotonic()

    def beat(self) -> None:
        """Do that once a minute."""
        if time.monotonic() - self._beaten > _BEAT_SECONDS:
            self.check()

    def clean(self, wait_seconds: float = 10.0) -> None:  # noqa: ARG002 - tasks of others aren't seen
        """Remove what runs have left that were killed: once a run, and a day long."""
        table = self._table
        if self._is_clean or not self._left or table.cursor is None:
            return
        # A commit since this run took over: what was under way before can't be made any more.
        self.check()
        table.touch(self.check)
        named = {file.path for file in table.files()}
        tokens = tuple(f"-{token}-" for token in self._left if token.isalnum() and token != self._token)
        found = [name for name, _ in self._objects.names(self._broker.directory)]
        self._objects.remove(
            name for name in found if name not in named and any(token in name for token in tokens)
        )
        now = time.time()
        self._left = {token: since for token, since in self._left.items() if now - since < _LATE_SECONDS}
        self._is_clean = True

    def _removed_own(self) -> bool:
        """Remove what tasks of this run have written and it never named; False where that wasn't possible.

        Nobody else can come to name it. Tasks that were tried twice leave such files, and merges that another
        change of the table forestalled.
        """
        if not self._has_begun:
            return True
        try:
            found = [name for name, _ in self._objects.names(self._broker.directory)]
            self._objects.remove(
                name for name in found if f"-{self._token}-" in name and name not in self._table.named
            )
        except ReputError:
            return False
        return True

    def _note(self, token: str | None) -> bytes:
        note = {
            "token": token,
            **self._broker.to_columns(),
            **_process(os.getpid()),
            "left": self._left,
        }
        return json.dumps(note).encode()

    def _is_ours(self) -> bool:
        """Whether the object has this run's token; an answer may have been lost that said so."""
        found = self._objects.get(self._name)
        if found is None or _noted(found.data).get("token") != self._token:
            return False
        self._version = found.version
        return True

    def _refuse_living(self, noted: dict[str, Any], written_at: float) -> None:
        here = _process(int(noted.get("pid") or 0))
        if noted.get("host") == here["host"]:
            is_over = noted.get("pid") == os.getpid() and noted["token"] not in _own
            if noted.get("started") is not None and noted["started"] == here["started"] and not is_over:
                raise self._in_use(f"process {noted['pid']} on this host")
            return
        # By the server's clock: that of a host that died may have been years ahead.
        silent = time.time() - written_at
        if silent < DEAD_SECONDS:
            raise self._in_use(
                f"process {noted.get('pid')} on {noted.get('name')}, which gave a sign of life "
                f"{max(silent, 0.0):.0f} s ago",
                f"Wait until it has ended. If it was killed, try again in {DEAD_SECONDS - silent:.0f} s",
            )

    def _in_use(self, found: str, step: str = "Wait until it has ended") -> StoreInUseError:
        return StoreInUseError(
            f"another run writes the messages of {self._broker} to the table",
            path=self._place,
            found=found,
            next_step=step,
        )


def _noted(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _process(pid: int) -> dict[str, Any]:
    """A process of this host, told apart from a later one with its number, and from one of another boot."""
    boot, started = "", None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *facts = text.rpartition(")")[2].split()
        started = None if state in "ZX" else facts[18]
    node = platform.node()
    return {"host": f"{node} {boot}", "name": node, "pid": pid, "started": started}
