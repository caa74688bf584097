"""A notebook's store and its scratch directory."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import reput
from reput import demo
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError
from reput.store.reading import check_store
from reput.store.system import human

#: Environment variables that name another store than the one that comes with reput.
STORE, BROKER_CONF, VERSION = "REPUT_STORE", "REPUT_BROKER_CONF", "REPUT_ROCKETMQ_VERSION"

#: A store is copied up to this many bytes unless more is allowed.
MOST_COPIED = 1 << 30


@dataclass(frozen=True, slots=True)
class Store:
    """A store, and what is needed to read it.

    Attributes:
        root: its directory.
        broker_conf: the broker's own configuration file; None to use what the store shows.
        version: the RocketMQ release that wrote it; None to use the one that the store shows.
        title: what it is, for people.
        is_copy: it was copied for the notebook, and may be changed.
    """

    root: Path
    broker_conf: Path | None
    version: str | None
    title: str
    is_copy: bool = False

    def __repr__(self) -> str:
        return self.title

    def settings(self, *, rocksdb: bool = False) -> StoreSettings:
        """What its broker.conf says.

        Args:
            rocksdb: the caller reads no files of queues, so that these may be in RocksDB.

        Raises:
            SettingsError, UnsupportedError: see :meth:`reput.config.settings.StoreSettings.load`.
        """
        return StoreSettings.load(self.root, self.broker_conf, self.version, dledger=True, rocksdb=rocksdb)

    def open(self) -> reput.Store:
        """What can be asked of it; see docs/interface.md."""
        return reput.open(self.root, broker_conf=self.broker_conf, rocketmq_version=self.version)


class Workspace:
    """A scratch directory, removed when the process ends, and stores in it.

    Args:
        directory: an empty one to use instead; it stays.
    """

    def __init__(self, directory: Path | None = None) -> None:
        # The directory is removed with this object, at the latest when Python ends.
        self._scratch = None if directory else tempfile.TemporaryDirectory(prefix="reput-notebook-")
        self.root = Path(self._scratch.name if self._scratch else os.path.abspath(directory or "."))

    def open(self, store: Path | str | None = None) -> Store:
        """The store to look at: the one given, or that of ``REPUT_STORE``, or else the one that reput has.

        For the first two, ``REPUT_BROKER_CONF`` and ``REPUT_ROCKETMQ_VERSION`` give the rest. The last one is
        unpacked; a real broker of RocketMQ 5.5.0 wrote it.

        Raises:
            StoreError: there is no such directory.
        """
        named = store or os.environ.get(STORE)
        if not named:
            unpacked = demo.unpack(self.root / "demo")
            title = f"the store that comes with reput, written by a broker of RocketMQ {demo.VERSION}"
            return Store(unpacked.root, unpacked.broker_conf, demo.VERSION, title)
        root = Path(os.path.abspath(named))
        check_store(
            root, next_step=f"Check {STORE}, or leave it out to look at the store that comes with reput"
        )
        conf = os.environ.get(BROKER_CONF)
        return Store(
            root,
            Path(os.path.abspath(conf)) if conf else None,
            os.environ.get(VERSION) or None,
            f"the store in {root}",
        )

    def copy(self, store: Store, name: str = "store", most: int = MOST_COPIED) -> Store:
        """A copy of a store in the workspace, which may be changed; its broker.conf is beside it.

        Args:
            store: it is only read. Its broker should be stopped, or the copy isn't of one moment.
            name: of the copy's directory.
            most: bytes on disk up to which it is copied.

        Raises:
            StoreError: it is larger, or its commit log isn't all in its directory.
            SettingsError: its broker.conf doesn't fit the copy.
        """
        used = sum(
            path.stat().st_blocks * 512
            for path in store.root.rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        if used > most:
            raise StoreError(
                "this store is too large to be copied for a notebook",
                path=store.root,
                expected=f"up to {human(most)} on disk",
                found=human(used),
                next_step="Choose a smaller store, or allow more with copy(store, most=...)",
            )
        outside = [
            path
            for path in store.settings(rocksdb=True).commit_log_dirs
            if not path.is_relative_to(store.root)
        ]
        if outside:
            raise StoreError(
                "the commit log isn't in the store's directory, so that a copy would have none",
                path=outside[0],
                expected=f"a directory in {store.root}",
                next_step="Copy it by hand, with a broker.conf that names the copy's places",
            )
        root = self.root / name
        shutil.copytree(store.root, root, symlinks=True)
        conf = store.broker_conf
        if conf is not None:
            conf = Path(shutil.copyfile(conf, self.root / "broker.conf"))
        title = f"a copy of {store.title}"
        copied = replace(store, root=root, broker_conf=conf, title=title, is_copy=True)
        copied.settings(rocksdb=True)  # refuse a broker.conf that leads from the copy to the original's log
        return copied

    def options(self, store: Store) -> str:
        """The options that a command needs to read a store, for :class:`explore.workspace.Terminal`."""
        words = [] if store.broker_conf is None else ["--broker-conf", self.relative(str(store.broker_conf))]
        words += [] if store.version is None else ["--rocketmq-version", store.version]
        return shlex.join(words)

    def relative(self, text: str) -> str:
        """A text with paths in the workspace made relative, as a shell in it would show them."""
        return text.replace(f"{self.root}{os.sep}", "").replace(str(self.root), ".")


_REFUSED = 2
#: Options that name what is written.
_OUT = ("-o", "--out")


class Terminal:
    """Runs commands as if its shell were in a workspace, and shows them with what they print.

    As a process, a command that starts Spark takes ten seconds or more; here all share one session.

    Args:
        workspace: relative paths are looked for there, and paths in it are shown as such.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, line: str) -> None:
        """Run ``reput …`` and show what it prints, progress left out.

        Raises:
            SettingsError: it isn't one of reput's commands.
        """
        self._show(line, self._run(line))

    def json(self, line: str) -> dict[str, Any]:
        """Run ``reput … --json``, show the line and the exit code, and return what it prints.

        Raises:
            SettingsError: it isn't one of reput's commands, or it was refused.
        """
        code, printed = self._run(f"{line} --json")
        self._show(f"{line} --json", (code, ""))
        document: dict[str, Any] = json.loads(printed)
        if code == _REFUSED:
            raise SettingsError(str(document.get("message")))
        return document

    def _run(self, line: str) -> tuple[int, str]:
        from reput.cli.app import app  # its package registers all commands

        program, *words = shlex.split(line)
        if program != "reput":
            raise SettingsError("only reput's own commands are run here", found=line)
        root = self._workspace.root
        found = [
            str(root / word)
            if before in _OUT or (not (root / word).name.startswith("-") and (root / word).exists())
            else word
            for before, word in pairwise(["", *words])
        ]
        printed, progress = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(progress):
            code = app(found, standalone_mode=False)
        text = printed.getvalue()
        if code == _REFUSED and not text:
            text = progress.getvalue()
        return int(code or 0), self._workspace.relative(text)

    def _show(self, line: str, ran: tuple[int, str]) -> None:
        code, text = ran
        print(f"$ {line}\n{text}[exit code {code}]")
