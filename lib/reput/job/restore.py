"""Restoring a store from elsewhere: its segments are copied here, and queues and index made of the copies.

One pass over the log: tasks scan a segment once its copy is flushed, while the next ones come. Settings are
the store's own, as its files elsewhere show them (:mod:`reput.config.stand_in`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from reput.config.stand_in import opened, with_queues
from reput.errors import Finding, OutputError, ReputError, Result, SettingsError, UnsupportedError
from reput.format import names
from reput.job.options import RebuildOptions
from reput.job.plan import Intended, intended, prepare
from reput.job.rebuilding import stage
from reput.job.summary import Summary, missing_queues, summarize
from reput.log.segments import discover
from reput.newer_python import Self
from reput.output.journal import read_state
from reput.remote import is_url
from reput.remote.client import RANGE, RemoteFile
from reput.remote.store import RemoteStore, client_of, copying_mark
from reput.rocksdb import is_database
from reput.store import files
from reput.store.lock import StoreLock, check_store_free
from reput.store.ownership import Owner
from reput.store.reading import read_file
from reput.store.system import check_free, free_bytes
from reput.unforeseen import unforeseen
from reput.words import next_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress


#: Ends the name of a copy that isn't whole yet; no file of a broker's ends so.
PARTIAL = ".partial"
#: Ranges of one segment that are read at once.
_AT_ONCE = 4


class SegmentCopies:
    """Copies files one after the other, in a thread, while a ``with`` block runs.

    A copy gets its name when it is whole and flushed; whoever needs it waits for that
    (:func:`reput.remote.store.await_copy`). Ranges of zeros become holes. Leaving the block without an error
    waits for the last copy. ``copied`` counts bytes so far.
    """

    def __init__(self, url: str, wanted: Sequence[tuple[RemoteFile, Path]], directory: Path) -> None:
        self._url, self._wanted, self._running = url, wanted, copying_mark(directory)
        self._stopping = threading.Event()
        self._error: ReputError | None = None
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)
        self.copied = 0

    def __enter__(self) -> Self:
        files.write_atomically(self._running, b"")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stopping.set()
        self._thread.join()
        # A run that waited in vain has failed because of this.
        if self._error is not None and (error is None or isinstance(error, Exception)):
            raise self._error from None

    def _run(self) -> None:
        try:
            for file, path in self._wanted:
                if not self._stopping.is_set():
                    self._copy(file, path)
        except ReputError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - in a thread nobody else would say it
            self._error = unforeseen(error)
        finally:
            with suppress(OutputError):
                files.remove_tree(self._running)

    def _copy(self, file: RemoteFile, path: Path) -> None:
        partial = path.with_name(path.name + PARTIAL)
        files.remove_tree(partial)
        # The pool ends before the descriptor is closed: another file may get its number.
        with files.opened(partial, file.size, None) as fd, ThreadPoolExecutor(_AT_ONCE, "copying") as pool:

            def copy(start: int) -> int:
                if self._stopping.is_set():
                    return 0
                stop = min(start + RANGE, file.size)
                data = client_of(self._url).read(file, start, stop)
                if np.frombuffer(data, np.uint8).any():
                    files.pwrite_all(fd, data, start)
                return stop - start

            try:
                for length in pool.map(copy, range(0, file.size, RANGE)):
                    self.copied += length
            except BaseException:
                self._stopping.set()
                raise
            if self._stopping.is_set():
                return
            files.fsync_file(fd)
        files.rename(partial, path)


_PLAN = "restore.json"
#: Derived anew, or of no use to another broker.
_MADE_HERE = frozenset({names.CHECKPOINT, names.LOCK, names.ABORT})


@dataclass(frozen=True, slots=True)
class Restored(Result):
    """The result of a restore; ``to_dict`` is what ``--json`` prints."""

    store: str  # the URL where it was read
    output: str  # the store here
    segments: int  # copied by this run and earlier ones
    bytes: int  # of these
    copied_bytes: int  # of the segments that this run copied; of a dry run, would copy
    config_files: int  # copied from config/
    #: files and directories of the store elsewhere that were neither copied nor made anew
    left_out: tuple[str, ...]
    #: the result for queues and index; None for a dry run, and where all was done before
    rebuilt: Summary | None = None
    next_steps: tuple[str, ...] = ()  # what to do with the store
    #: needed_bytes, free_bytes: of disk, for a dry run: what would be written, and what there is
    needed_bytes: int | None = None
    free_bytes: int | None = None
    findings: tuple[Finding, ...] = ()  # of its rebuild, also where that was done before
    code: int = 0  # its rebuild's exit code

    hidden = ("code",)

    @property
    def exit_code(self) -> int:
        """The exit code of its rebuild."""
        return self.code


@dataclass(frozen=True, slots=True)
class _Planned:
    """A restore that may begin."""

    remote: RemoteStore
    run: Intended
    directory: Path
    segments: list[RemoteFile]
    config: list[Path]
    left_out: tuple[str, ...]
    begun: Mapping[str, object] | None

    @property
    def is_finished(self) -> bool:
        return self.begun is not None and self.begun["finished"] is True

    @property
    def missing(self) -> list[tuple[RemoteFile, Path]]:
        """Segments of which there is no copy, and where it goes: nothing else may be there."""
        copies = [(file, self.directory / names.COMMIT_LOG / Path(file.name).name) for file in self.segments]
        missing = [(file, path) for file, path in copies if not path.exists()]
        for file, path in copies:
            if path.exists() and path.stat().st_size != file.size:
                raise OutputError(
                    "this is no copy of the segment",
                    path=path,
                    expected=f"{file.size} bytes, or no file",
                    found=f"{path.stat().st_size} bytes",
                    next_step=f"Remove {self.directory}, and run the same command again",
                )
        return missing

    def result(self, copied: int, rebuilt: Summary | None = None) -> Restored:
        return Restored(
            store=self.remote.url,
            output=str(self.directory),
            segments=len(self.segments),
            bytes=sum(file.size for file in self.segments),
            copied_bytes=copied,
            config_files=len(self.config),
            left_out=self.left_out,
            rebuilt=rebuilt,
            next_steps=(self._check,),
            findings=() if rebuilt is None else tuple(rebuilt.findings),
            code=0 if rebuilt is None else rebuilt.exit_code,
        )

    def done_before(self) -> Restored:
        """What an earlier run found: a kill may have come before it was said."""
        path, begun = self.run.journal_path, self.begun or {}
        findings = tuple(read_state(path)[1].findings) if path.exists() else ()
        noted = begun.get("exit_code")  # an older note lacks it
        code = noted if isinstance(noted, int) else int(bool(findings))
        return replace(self.result(0), findings=findings, code=code)

    @property
    def _check(self) -> str:
        """What shows how a broker will start on the store, before it does."""
        settings = self.run.settings
        return next_command(
            "check", self.directory, broker_conf=settings.broker_conf, rocketmq_version=settings.basis.given
        )


def restore(
    place: str | Path,
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None] = lambda _progress, _total: None,
    announce: Callable[[str], None] = lambda _text: None,
) -> Restored:
    """Copy a store from elsewhere, and make its queues, index and checkpoint.

    Run again after whatever ended it, it continues: whole copies are kept, and so is what was derived. Of the
    options, ``store`` isn't used. Nothing in the directory is an operator's.
    """
    planned = _plan(place, options)
    directory, barrier = planned.directory, planned.directory / names.COMMIT_LOG / names.RESTORING
    if planned.is_finished:
        files.remove_tree(barrier)
        return planned.done_before()
    _check_room(planned)
    files.make_dirs(directory / names.REPUT)
    files.make_dirs(directory / names.COMMIT_LOG)
    with StoreLock(directory, Owner.default()):
        # Another run may have ended between the look and the lock.
        planned = replace(planned, begun=_begun(directory))
        _check_begun(planned)
        if planned.is_finished:
            return planned.done_before()
        missing = planned.missing
        _note(planned)
        with files.opened(barrier, 1, None) as fd:
            files.fsync_file(fd)
        files.fsync_dir(barrier.parent)
        for path in planned.config:
            target = directory / path.relative_to(planned.remote.root)
            files.make_dirs(target.parent)
            files.write_atomically(target, read_file(path))
        copies = SegmentCopies(planned.remote.url, missing, directory)
        remote = replace(planned.remote, copies=directory).register()
        announce(f"copying {len(missing)} of {len(planned.segments)} segments from {remote.url}")
        with copies:
            done = _derive(remote, replace(options, store=remote.root), start_spark, listener, announce)
        _note(planned, done.exit_code)
        files.remove_tree(barrier)
    return planned.result(copies.copied, done)


def _derive(
    remote: RemoteStore,
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None],
    announce: Callable[[str], None],
) -> Summary:
    """Make queues, index and checkpoint; the last files of queues without a message come from the store."""
    started = time.perf_counter()
    with prepare(intended(options)) as plan:
        before = replace(plan.journal.state)
        carried_from = cache(lambda: with_queues(remote, missing_queues(plan, remote.evidence_root)))
        stages = stage(plan, start_spark, listener, announce, carried_from)
        summary = summarize(plan, before, time.perf_counter() - started, None, stages, carried_from())
    return replace(summary, store=remote.url)


def preview_restore(place: str | Path, options: RebuildOptions) -> Restored:
    """What :func:`restore` would do. Nothing is changed but for temporary files."""
    planned = _plan(place, options)
    copied = 0 if planned.is_finished else sum(file.size for file, _ in planned.missing)
    needed = 0 if planned.is_finished else _check_room(planned)
    return replace(
        planned.result(copied),
        needed_bytes=needed,
        free_bytes=free_bytes(planned.directory),
        next_steps=(),
    )


def _plan(place: str | Path, options: RebuildOptions) -> _Planned:
    if not is_url(place):
        raise SettingsError(
            "a restore reads a store elsewhere",
            path=place,
            expected="a URL, such as s3://BUCKET/PATH",
            next_step="Copy what lies here, and run `reput rebuild --in-place` on the copy",
        )
    remote = opened(place, derived=False)
    options = replace(options, store=remote.root)
    run = intended(options)
    if run.settings.dledger is not None:
        raise UnsupportedError(
            "a commit log that DLedger writes isn't restored",
            path=remote.url,
            found="enableDLegerCommitLog",
            next_step="Let a new member of the group get it from the others",
        )
    directory = run.root
    if directory.exists():
        check_store_free(directory)
    # Of two files for one place the one that is the log's.
    segments = [remote.file_at(one.path) for one in discover(run.settings).segments]
    config = sorted(path for path in (remote.root / names.CONFIG).rglob("*") if path.is_file())
    taken = {file.name for file in segments}
    tops = {file.name.partition("/")[0] for file in remote.files if file.name not in taken}
    tops |= {path.name for path in remote.root.iterdir() if path.is_file()}
    if is_database(remote.evidence_root / names.ROCKSDB_STORE):
        tops.add(f"timers and half messages of {names.ROCKSDB_STORE}")
    begun = _begun(directory)
    planned = _Planned(remote, run, directory, segments, config, tuple(sorted(tops - _MADE_HERE)), begun)
    _check_begun(planned)
    return planned


def _begun(directory: Path) -> Mapping[str, object] | None:
    """What an earlier run was about; None if there was none."""
    path = directory / names.REPUT / _PLAN
    try:
        found = json.loads(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(
            "what an earlier restore noted can't be read",
            path=path,
            found=str(error),
            next_step=f"Remove {directory}, and run the same command again",
        ) from error
    return found if isinstance(found, dict) else {}


def _facts(planned: _Planned) -> dict[str, object]:
    """What a run that continues has to find again."""
    return {"url": planned.remote.url, "segments": [list(file) for file in planned.segments]}


def _note(planned: _Planned, exit_code: int | None = None) -> None:
    """Write down what a run is about; with the exit code of its rebuild, that it has finished."""
    data = json.dumps({**_facts(planned), "finished": exit_code is not None, "exit_code": exit_code})
    files.write_atomically(planned.directory / names.REPUT / _PLAN, data.encode())


def _check_begun(planned: _Planned) -> None:
    """Refuse a directory that is another run's, or in use."""
    directory, begun = planned.directory, planned.begun
    if begun is None:
        log = directory / names.COMMIT_LOG
        if planned.run.journal_path.exists() or (log.exists() and any(log.iterdir())):
            raise OutputError(
                "this directory is a store, or the output of a rebuild",
                path=directory,
                expected="an empty directory, or one in which a restore began",
                next_step="Choose another directory",
            )
        return
    now = _facts(planned)
    if begun.get("url") != now["url"]:
        raise OutputError(
            "a restore of another store began here",
            path=directory,
            expected=begun.get("url"),
            found=now["url"],
            next_step=f"Choose another directory, or remove {directory}",
        )
    since = "it was restored" if planned.is_finished else "the restore began"
    changed = _first_difference(begun.get("segments"), planned.segments)
    if changed is not None:
        raise OutputError(
            f"the store has changed since {since}",
            path=f"{planned.remote.url}/{changed[0]}",
            expected=changed[1],
            found=changed[2],
            next_step=f"Choose another directory, or remove {directory}, to restore what is there now",
        )
    if planned.is_finished:
        return
    # A broker writes into its lock; reput doesn't.
    for path, is_brokers in ((directory / names.ABORT, True), (directory / names.LOCK, False)):
        if path.exists() and (is_brokers or path.stat().st_size):
            raise OutputError(
                "a broker was started on this directory before it was restored",
                path=path,
                next_step=f"Remove {directory}, and run the same command again",
            )


def _first_difference(then: object, now: Sequence[RemoteFile]) -> tuple[str, str, str] | None:
    """Name, and what was and is of it, of the first segment that isn't what it was."""
    before = {one[0]: f"{one[1]} bytes, {one[2]}" for one in then} if isinstance(then, list) else {}
    after = {file.name: f"{file.size} bytes, {file.pin}" for file in now}
    for name in sorted(before.keys() | after.keys()):
        was, is_now = before.get(name, "none"), after.get(name, "none")
        if was != is_now:
            return name, was, is_now
    return None


def _check_room(planned: _Planned) -> int:
    """Bytes that are still to be written, as far as can be told; OutputError where there is less room."""
    partial = [path.with_name(path.name + PARTIAL) for _, path in planned.missing]
    there = sum(path.stat().st_blocks * 512 for path in partial if path.exists())
    needed = sum(file.size for file, _ in planned.missing) - there
    if not planned.run.journal_path.exists():
        needed += planned.run.estimate.output_bytes
    check_free(planned.directory, needed, "the restore")
    return needed
