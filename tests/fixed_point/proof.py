"""One case: damage a copy, mend it, look again, mend again, and undo."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.verdict import COUNTS, Finding, Remedy, Sort
from reput.errors import ReputError
from reput.format import commitlog, names
from reput.job.in_place import undo
from reput.job.options import RebuildOptions
from reput.mending import Mended, mend
from reput.recovery.plan import plan
from reput.store.swap import KEPT
from reput.verify.plan import VerifyOptions
from tests.fixed_point.cases import Case, Original

#: What nobody can put right from the log: whoever runs the broker has to.
BY_HAND = frozenset(
    {
        "no-log",
        "missing-log-directory",
        "other-settings",
        "odd-name",
        "rival-file",
        "broken-config",
        "lost-config",
        "missing-config",
        "expired-queues",
        "old-times",
        "compaction-mismatch",
    }
)
_DONE = {Sort.START, Sort.START_WITH_LOSS}
_SECONDS = 120
_COMMAND = re.compile(r"`(?:\S*/)?reput ([a-z-]+)")
#: Commands that are no more, or that a check must not send to.
_NO_REMEDIES = {"recover", "verify", "check", "verify-many", "rebuild-many"}


@dataclass(slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        applied: how many of its damages found a place.
        before, after: verdicts.
        by_hand: kinds of what is left for the operator.
        changed: something was mended.
        why: why it failed; empty where it passed.
        starts: a start on the result is foretold.
    """

    applied: int = 0
    before: str = ""
    after: str = ""
    by_hand: list[str] = field(default_factory=list)
    changed: bool = False
    why: list[str] = field(default_factory=list)
    starts: bool = False


class _TooSlowError(Exception):
    pass


def proven(case: Case, original: Original, place: Path, *, keep: bool = False) -> Outcome:
    """Run a case in a new directory ``place``; with ``keep`` the mended store stays there as ``store``."""
    outcome, root = Outcome(), place / "store"
    shutil.copytree(original.root, root, symlinks=True)
    outcome.applied = case.damage(root, original)
    try:
        with _limited(_SECONDS):
            _Proof(outcome, root, original).run(keep=keep)
    except ReputError as error:
        outcome.why.append(f"{type(error).__name__}: {error}".replace(str(root), "STORE"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the case failed
        outcome.why.append(f"{type(error).__name__} {error} ({_where(error)})".replace(str(root), "STORE"))
    return outcome


def _where(error: BaseException) -> str:
    trace, at = error.__traceback__, ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "/reput/" in path:
            at = f"{path.rpartition('/reput/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return at


class _Proof:
    def __init__(self, outcome: Outcome, root: Path, original: Original) -> None:
        self._outcome = outcome
        self._root = root
        self._options = RebuildOptions(root, broker_conf=original.conf, rocketmq_version=original.version)
        self._asked = VerifyOptions(root, None, original.conf, original.version)
        self._segment_size = original.segment_size

    def run(self, *, keep: bool) -> None:
        outcome, root = self._outcome, self._root
        before = tree(root)
        messages = readable(root, self._segment_size)
        planned = mend(self._options)
        outcome.before = planned.before.verdict.sort
        self._is_same(before, "mend without --apply changes something")
        self._advice(planned.before, planned)
        mended = mend(self._options, apply=True)
        outcome.changed = mended.applied
        said = [step.said for step in planned.steps], [step.said for step in mended.steps]
        self._see(said[0] == said[1], f"other steps than without --apply: {said}")
        after = check(self._asked)
        outcome.after = after.verdict.sort
        # Where a queue ended that isn't there any more, nobody can tell who looks later.
        is_gone = any(
            one.kind == "expired-queues" or one.outcome.startswith("the queue ends at")
            for one in mended.now.left
        )
        self._see(
            mended.exit_code == after.exit_code or (is_gone and after.exit_code == 0),
            f"mend said {mended.now.verdict.text!r}, check says {after.verdict.text!r}",
        )
        self._is_an_end(after)
        self._nothing_lost(before, mended, messages, after)
        mended_tree = tree(root)
        again = mend(self._options, apply=True)
        self._see(not again.applied, f"a second mend has {[str(one) for one in again.steps]}")
        self._is_same(mended_tree, "a second mend changes something")
        if keep and not outcome.why:
            others = shutil.ignore_patterns(f"{KEPT}*", names.REPUT)
            shutil.copytree(
                root, root.with_name("mended"), symlinks=True, ignore=others, copy_function=_copied
            )
        if mended.applied and not again.applied:
            undo(root)
            self._is_same(before, "undo doesn't give back what was")

    def _see(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._outcome.why.append(otherwise.replace(str(self._root), "STORE"))

    def _is_same(self, before: dict[str, str | bytes], otherwise: str) -> None:
        now = tree(self._root)
        if now != before:
            names_of = sorted(one for one in {*now, *before} if now.get(one) != before.get(one))
            self._see(False, f"{otherwise}: {', '.join(names_of[:4])} ({len(names_of)})")

    def _advice(self, found: Diagnosis, planned: Mended | None = None) -> None:
        left = [one for one in found.findings if one.effect in COUNTS]
        for one in left:
            wrong = _NO_REMEDIES.intersection(_COMMAND.findall(one.step))
            self._see(not wrong, f"{one.kind} names {', '.join(wrong)}: {one.step}")
            if one.remedy is Remedy.BY_HAND:
                self._see(bool(one.step), f"{one.kind} is to be done by hand, and it isn't said what")
        sends = any(one.remedy is Remedy.MEND for one in left)
        if planned is not None and sends:
            self._see(bool(planned.steps), f"check sends to mend, which has no step: {found.verdict.text}")

    def _is_an_end(self, after: Diagnosis) -> None:
        self._advice(after)
        left = [one for one in after.findings if one.effect in COUNTS]
        if after.verdict.sort in _DONE:
            return
        self._outcome.by_hand = sorted({one.kind for one in left if _is_by_hand(one)})
        # Where it isn't known what is right, what a mend could do otherwise waits for the operator.
        others = [one for one in left if one.remedy is Remedy.BY_HAND and not _is_by_hand(one)]
        if others or after.mendable or not self._outcome.by_hand:
            kinds = sorted({f"{one.kind} ({one.effect}, {one.remedy})" for one in left})
            self._see(False, f"after mend: {after.verdict.text}: {', '.join(kinds)}")

    def _nothing_lost(
        self, before: dict[str, str | bytes], mended: Mended, messages: set[tuple[int, int]], after: Diagnosis
    ) -> None:
        root = self._root
        now = tree(root)
        kept = {} if mended.kept is None else tree(Path(mended.kept))
        for name, data in before.items():
            if data != _DIRECTORY and now.get(name) != data and kept.get(name) != data:
                self._see(False, f"{name} is neither in its place nor kept")
        lost = messages - readable(root, self._segment_size)
        self._see(not lost, f"{len(lost)} readable messages aren't in the log any more: {sorted(lost)[:3]}")
        if after.verdict.sort not in _DONE or after.snapshot is None:
            return
        prediction = plan(after.snapshot).prediction
        self._outcome.starts = prediction.starts
        self._see(prediction.starts, "a start isn't foretold")
        ends = prediction.log_start, prediction.log_end
        cut = [at for at, size in messages if not ends[0] <= at < at + size <= ends[1]]
        self._see(not cut, f"a start on the result leaves {ends}, without messages at {sorted(cut)[:3]}")


def _is_by_hand(one: Finding) -> bool:
    """Whether nobody but the operator can do it: what a link leads to may lie on another disk.

    And without topics nothing says what type a topic's queues have.
    """
    if one.kind == "queue-type" and one.remedy is Remedy.BY_HAND:
        return True
    if one.kind == "not-compared" and Path(one.path).parent.name == names.CONFIG:
        return True
    if one.kind == "not-compared" and one.outcome == "the commit log is empty":
        return True  # or storePathCommitLog is wrong
    return one.kind in BY_HAND or (one.remedy is Remedy.BY_HAND and Path(one.path).is_symlink())


def _copied(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


_DIRECTORY = "directory"


def tree(root: Path) -> dict[str, str | bytes]:
    """What a store holds, by name: bytes of files, and in words what else there is; not what is reput's."""
    found: dict[str, str | bytes] = {}
    for place, directories, files in os.walk(root):
        if Path(place) == root:
            directories[:] = [one for one in directories if one != names.REPUT and not one.startswith(KEPT)]
        for name in (*directories, *files):
            path = Path(place, name)
            if name == names.LOCK and Path(place) == root:
                continue
            relative = path.relative_to(root).as_posix()
            if path.is_symlink():
                found[relative] = f"link to {path.readlink()}"
            elif path.is_file():
                found[relative] = path.read_bytes()
            else:
                found[relative] = _DIRECTORY if path.is_dir() else "special"
    return found


def readable(root: Path, segment_size: int) -> set[tuple[int, int]]:
    """Offset and size of each message of the log that is whole, lies in its place, and isn't behind a closing
    record: found without any of what reput knows of walks.
    """
    found: set[tuple[int, int]] = set()
    for path in sorted((root / names.COMMIT_LOG).glob("*")):
        if len(path.name) != 20 or not path.name.isdecimal() or not path.is_file():
            continue
        data, base = path.read_bytes()[:segment_size], int(path.name)
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == commitlog.MAGIC_BLANK:
                break
            whole = _is_whole(data, at, base)
            if whole:
                found.add((base + at, size))
            at += size if whole else 1
    return found


def _is_whole(data: bytes, at: int, base: int) -> bool:
    size, magic = struct.unpack_from(">iI", data, at)
    if magic not in (commitlog.MAGIC_V1, commitlog.MAGIC_V2) or size <= 0 or at + size > len(data):
        return False
    try:
        record = commitlog.decode(data, at)
    except (ReputError, ValueError, struct.error, IndexError):
        return False
    crc = struct.unpack_from(">i", data, at + commitlog.BODY_CRC)[0]
    if not record.topic or len(commitlog.encode(record)) != size:
        return False
    return record.physical_offset == base + at and zlib.crc32(record.body) & 0x7FFFFFFF == crc


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """What waits for ever, as for a writer of a FIFO, fails."""

    def rings(_number: int, _frame: object) -> None:
        raise _TooSlowError(f"took more than {seconds} s")

    old = signal.signal(signal.SIGALRM, rings)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
