"""What is asked of a changed store: the same answer, or a finding by name, or an error of reput's."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.findings import not_derived
from reput.errors import ReputError
from reput.format import names
from reput.format.consumequeue import UNIT
from reput.format.consumequeueext import HEAD_LENGTH, place_of
from reput.format.indexfile import FIRST_ORDINAL, PREVIOUS, TIME_DIFF, IndexHeader
from reput.log.segments import cut, discover
from reput.recovery.plan import plan
from reput.replay.runner import InlineRunner
from reput.source import messages
from reput.verify.plan import VerifyOptions, prepare, prepare_pair
from reput.verify.report import LOG as LOG_AREA
from reput.verify.report import Report
from reput.verify.run import check, compare_pair
from tests import slow_rebuild
from tests.fuzz import asking, dumping
from tests.fuzz.calm import calm
from tests.fuzz.changes import CUT, Change
from tests.fuzz.guarded import guarded_segments
from tests.fuzz.repairs import repaired
from tests.fuzz.scanning import scan_alike
from tests.fuzz.specimen import (
    BATCH,
    CHECKPOINT,
    CONF,
    CONFIG,
    DUMPS,
    EXT,
    INDEX,
    LOG,
    QUERIES,
    QUEUE,
    REPAIRS,
    Specimen,
    index_place,
)
from tests.local import Store, index_of, queues, rebuild_locally

#: What a broker does by itself: a rebuild tells it, a verification takes it for sound.
_LEGAL = {"queue-offset-jump", "queue-restarted", "repeated-message"}
#: Records that a rebuild passes over and a reader of messages doesn't.
_NO_MESSAGE = {"bad-delay", "bad-inner-batch"}


class FailedCaseError(AssertionError):
    """A change led to something that must not be."""


@dataclass(slots=True)
class Files:
    """What a rebuild wrote."""

    queues: dict[str, bytes] = field(default_factory=dict)
    index: list[bytes] = field(default_factory=list)


class Cases:
    """Runs changes on one specimen, one at a time.

    Args:
        specimen: the store.
        only: the only step that is done, of :data:`STEPS`; None for what belongs to the changed part.
    """

    def __init__(self, specimen: Specimen, *, only: str | None = None) -> None:
        self._specimen = specimen
        self._only = only
        self._outputs = 0
        self._told: Counter[str] = Counter()
        self._sound = Files()
        self._said = ""
        own = specimen.slow_settings()
        self._places = {
            message.position
            for base, data in specimen.segments()
            for message in slow_rebuild.read(base, data, own)
        }
        self._twin = specimen.place / "twin"
        shutil.copytree(specimen.golden.root, self._twin)
        with calm():
            # The slow rebuild, with which another one is compared, knows nothing of units in log order.
            kinds = self._verify(specimen.settings)
            if not specimen.is_ordered:
                more, self._sound, _ = self._rebuild(specimen.settings)
                kinds |= more
        if kinds != set():
            raise FailedCaseError(f"the unchanged store has findings: {kinds}")
        self._questions = asking.questions(specimen.settings)
        self._answers = asking.asked(specimen.settings, self._questions)
        self._shown = {what: self._dumped(what) for what in _DUMPED}
        if any(shown.code for shown in self._shown.values()):
            raise FailedCaseError(f"a dump of the unchanged store: {self._shown}")

    def run(self, part: str, change: Change) -> Counter[str]:
        """Make a change, ask everything that it concerns, and take it back.

        Returns:
            What was seen, counted by name.

        Raises:
            FailedCaseError: something that must not be.
            Exception: an error that isn't reput's.
        """
        self._told = Counter()
        path = self._specimen.place / change.file
        data = self._specimen.files[change.file]
        path.write_bytes(change.apply(data))
        # Both ends of a segment get their guard page: from one bit to the next they take turns.
        try:
            with calm(), guarded_segments(at_end=change.at % 2 == 0):
                (_STEPS[self._only] if self._only else _ASKED[part])(self, change)
        finally:
            path.write_bytes(data)
        return self._told

    # --- the log ------------------------------------------------------------------------------------------

    def _log(self, change: Change) -> None:
        specimen = self._specimen
        base = int(Path(change.file).name)
        for stop in scan_alike(specimen.settings, base, change.apply(specimen.files[change.file])):
            self._told[f"scan {stop}"] += 1
        kinds, files, messages_read = self._rebuild(specimen.settings)
        self._forged(files)
        try:
            slow = self._slowly()
        except slow_rebuild.NotUtf8Error:
            self._told["rebuild: a text that the slow one can't read"] += 1
        else:
            if slow is not None and files != slow:
                raise FailedCaseError(f"the rebuild isn't that of the slow one; {_difference(files, slow)}")
            if slow is None and not kinds and files != self._sound:
                raise FailedCaseError("damage changed the output and nothing was said")
        self._told["rebuild: equal" if files == self._sound else "rebuild: differs"] += 1
        if not kinds and files != self._sound:
            self._told["rebuild: another sound log"] += 1
        if kinds is not None:
            self._read_messages(messages_read, kinds)
        must_find = files != self._sound or bool(kinds - _LEGAL)
        found = self._verify(specimen.settings)
        if must_find and found == set():
            raise FailedCaseError(f"verify finds nothing; the rebuild: {sorted(kinds)}")
        # A message whose time was set back leaves the checkpoint ahead of the log.
        if not must_find and found - {"checkpoint-ahead"}:
            raise FailedCaseError(f"verify finds {sorted(found)} where a rebuild changes nothing")
        self._plan(specimen.settings)
        self._query(specimen.settings)
        self._dump(change, dumping.LOG)

    def _rebuild(self, settings: StoreSettings) -> tuple[set[str], Files, int]:
        """Kinds of findings, what was written, and how many messages there were."""
        self._outputs += 1
        out = self._specimen.place / f"out{self._outputs}"
        try:
            state = rebuild_locally(Store(self._specimen.golden.root, settings), out, part_bytes=700)
        except ReputError as error:
            self._told[f"rebuild: {type(error).__name__}"] += 1
            return {type(error).__name__}, Files(), 0
        finally:
            files = Files(queues(out), index_of(out))
            shutil.rmtree(out, ignore_errors=True)
        self._said = " ".join(map(str, state.findings))
        for finding in state.findings:
            self._told[f"rebuild: {finding.kind}"] += finding.count
            str(finding)
        passed = sum(finding.count for finding in state.findings if finding.kind in _NO_MESSAGE)
        return {finding.kind for finding in state.findings}, files, state.messages + passed

    def _forged(self, files: Files) -> None:
        """No unit leads into a message, unless a finding lists what it leads to."""
        leads_to = {
            place for data in files.queues.values() for place, size, _ in UNIT.iter_unpack(data) if size
        }
        for place in leads_to - self._places - {0}:
            if f" at {place}" not in self._said:
                raise FailedCaseError(f"a unit leads to {place}, where no message was written")

    def _slowly(self) -> Files | None:
        """What the slow rebuild makes of the log, None where it is damaged."""
        try:
            queues_there = {
                file.split("/", 2)[2]: self._specimen.files[file]
                for file in self._specimen.of(names.CONSUME_QUEUE)
            }
            slow = slow_rebuild.rebuild(
                self._specimen.segments(), self._specimen.slow_settings(), queues_there
            )
        except slow_rebuild.NotUtf8Error:
            raise
        except slow_rebuild.DamagedError:
            return None
        return Files(slow.queues, slow.index)

    def _read_messages(self, expected: int, kinds: set[str]) -> None:
        """The Spark source's reader takes the same messages."""
        settings = self._specimen.settings
        try:
            log = discover(settings)
        except ReputError:
            return
        found = 0
        for part in cut(log, log.start, log.end, 700, log.start):
            found += sum(batch.num_rows for batch in messages.read(part, settings))
        if found != expected and kinds.isdisjoint({"SettingsError", "StoreError"}):
            raise FailedCaseError(f"{found} messages read, {expected} dispatched")

    # --- what is derived from it --------------------------------------------------------------------------

    def _derived(self, change: Change) -> None:
        found = self._verify(self._specimen.settings)
        if found == set():
            why = unseen(self._specimen, change)
            if why is None:
                raise FailedCaseError("verify finds nothing")
            self._told[f"verify: sound, {why}"] += 1
        self._plan(self._specimen.settings)
        self._query(self._specimen.settings, *_untouched(change))
        self._dump(change, *_dumped_parts(change))
        if not change.file.endswith(names.CHECKPOINT):
            self._compare()

    # --- the configuration --------------------------------------------------------------------------------

    def _config(self, change: Change) -> None:
        specimen = self._specimen
        if change.file == CONF:
            self._dump(change, dumping.LOG, dumping.INDEX)
        try:
            settings = StoreSettings.load(specimen.golden.root, specimen.place / CONF, specimen.version)
        except ReputError as error:
            self._told[f"settings: {type(error).__name__}"] += 1
            str(error)
            return
        self._told["settings: read"] += 1
        if change.file == CONF and settings == specimen.settings:
            self._told["settings: equal"] += 1
            return
        self._verify(settings)
        self._plan(settings)
        self._query(settings)
        if change.file == CONF:
            self._rebuild(settings)

    # --- commands that change nothing ---------------------------------------------------------------------

    def _verify(self, settings: StoreSettings) -> set[str]:
        """The kinds of findings; the error's where it was refused."""
        options = VerifyOptions(
            settings.root,
            broker_conf=settings.broker_conf,
            rocketmq_version=self._specimen.version,
            part_bytes=50_000 if self._specimen.is_ordered else 700,
            batch_bytes=80_000 if self._specimen.is_ordered else 1000,
        )
        return self._report("verify", lambda: check(prepare(options), InlineRunner()))

    def _compare(self) -> None:
        options = VerifyOptions(
            self._specimen.golden.root,
            broker_conf=self._specimen.place / CONF,
            rocketmq_version=self._specimen.version,
            against=self._twin,
        )
        self._report("against", lambda: compare_pair(prepare_pair(options), InlineRunner()))

    def _report(self, name: str, ask: Callable[[], Report]) -> set[str]:
        with self._unchanged():
            try:
                report = ask()
            except ReputError as error:
                self._told[f"{name}: {type(error).__name__}"] += 1
                str(error)
                return {type(error).__name__}
        for finding in report.findings:
            self._told[f"{name}: {'log ' if finding.area == LOG_AREA else ''}{finding.kind}"] += 1
        report.facts()
        if not report.findings:
            self._told[f"{name}: sound"] += 1
        return {finding.kind for finding in report.findings}

    def _plan(self, settings: StoreSettings) -> None:
        with self._unchanged():
            try:
                snapshot = take(settings)
                met = [*snapshot.problems, *not_derived(snapshot)]
            except ReputError as error:
                self._told[f"check: {type(error).__name__}"] += 1
                str(error)
                return
            for problem in met:
                self._told[f"check: {problem.kind}"] += 1
            try:
                planned = plan(snapshot)
            except ReputError as error:
                self._told[f"plan: {type(error).__name__}"] += 1
                str(error)
                return
        planned.facts()
        for loss in (*planned.losses, *planned.unrepaired):
            self._told[f"plan: {loss.kind}"] += 1
        if not planned.loses:
            self._told["plan: nothing is lost"] += 1

    def _repairs(self, _change: Change) -> None:
        specimen = self._specimen
        try:
            settings = StoreSettings.load(specimen.golden.root, specimen.place / CONF, specimen.version)
        except ReputError as error:
            self._told[f"settings: {type(error).__name__}"] += 1
            return
        try:
            for one in repaired(settings, specimen.version):
                self._told[f"{one.what}: {one.how}"] += 1
        finally:
            shutil.rmtree(settings.root)
            shutil.copytree(self._twin, settings.root)

    def _queries(self, change: Change) -> None:
        specimen = self._specimen
        try:
            settings = StoreSettings.load(specimen.golden.root, specimen.place / CONF, specimen.version)
        except ReputError as error:
            self._told[f"settings: {type(error).__name__}"] += 1
            return
        self._query(settings, *_untouched(change))

    def _query(self, settings: StoreSettings, *same: str) -> None:
        """Ask everything; of these kinds one question each, which has the answer of before."""
        few = {one.kind: one for one in self._questions if one.kind in same}
        chosen = [one for one in self._questions if few.get(one.kind, one) is one]
        with self._unchanged():
            said = asking.asked(settings, chosen)
        self._told.update(asking.counted(said))
        for name, own in said.items():
            if own.kind in same and own != self._answers[name]:
                raise FailedCaseError(f"query {name}: {own}, before {self._answers[name]}")
        if all(own == self._answers[name] for name, own in said.items()):
            self._told["query: equal"] += 1

    def _dumps(self, change: Change) -> None:
        """Every dump, those of files that nobody touched included."""
        self._dump(change, *_DUMPED)

    def _dump(self, change: Change, *which: str) -> None:
        """Show files of these sorts; one that isn't of the changed file says what it said before."""
        with self._unchanged():
            said = {what: self._dumped(what) for what in which}
        touched = _dumped_parts(change)
        for what, shown in said.items():
            self._told.update(shown.told())
            if what not in touched and change.file != CONF and shown != self._shown[what]:
                raise FailedCaseError(f"dump {what}: another answer than before")
            if shown == self._shown[what]:
                self._told[f"dump {what}: equal"] += 1

    def _dumped(self, what: str) -> dumping.Dumped:
        specimen = self._specimen
        return dumping.dumped(what, specimen.golden.root, specimen.place / CONF, specimen.version)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        root = self._specimen.golden.root
        before = _facts(root)
        yield
        if _facts(root) != before:
            raise FailedCaseError("a command that only looks has changed the store")


def _facts(root: Path) -> dict[str, tuple[int, int, int]]:
    """What changes when somebody writes: of every file below a directory, and of every directory."""
    found = {}
    for directory, _, files in os.walk(root):
        for name in (".", *files):
            path = f"{directory}/{name}"
            facts = os.stat(path)  # noqa: PTH116 - a Path for each takes as long as all that is asked
            found[path] = facts.st_ino, facts.st_size, facts.st_mtime_ns
    return found


def _difference(files: Files, slow: Files) -> str:
    for name in sorted(files.queues.keys() | slow.queues.keys()):
        if files.queues.get(name) != slow.queues.get(name):
            return f"queue file {name}"
    return f"{len(files.index)} index files, {len(slow.index)} by the slow one"


def unseen(specimen: Specimen, change: Change) -> str | None:
    """Why a verification may take a changed file of queues, index or checkpoint for sound; else None."""
    if change.file in specimen.of(names.CHECKPOINT):
        return _unseen_checkpoint(specimen, change)
    if change.file in specimen.of(names.INDEX):
        return _unseen_index(specimen, change)
    if change.file in specimen.of(names.CONSUME_QUEUE_EXT):
        return _unseen_ext(specimen, change)
    return None


def _unseen_ext(specimen: Specimen, change: Change) -> str | None:
    if change.kind == CUT:
        return None
    *_, topic, queue_id, name = change.file.split("/")
    changed = int(name) + change.byte
    for file in specimen.of(f"{names.CONSUME_QUEUE}/{topic}/{queue_id}"):
        for _position, _size, tags in UNIT.iter_unpack(specimen.files[file]):
            place = place_of(tags)
            if place is not None and place <= changed < place + HEAD_LENGTH:
                return None
    return "no unit leads there"


def _unseen_checkpoint(specimen: Specimen, change: Change) -> str | None:
    if change.kind == CUT:
        return "an empty checkpoint counts as none" if change.at == 0 else None
    if change.byte >= 8 * specimen.settings.dialect.checkpoint_fields:
        return "behind the checkpoint's longs"
    name = ("physic", "logics", "index", "masterFlushed", "confirm", "logicsPhysicalOffset")[change.byte // 8]
    if name in ("masterFlushed", "confirm"):
        return f"{name} isn't compared"
    at = change.byte // 8 * 8
    value = int.from_bytes(change.apply(specimen.files[change.file])[at : at + 8], "big", signed=True)
    # A checkpoint that is behind makes a broker look at more than it had to.
    return f"{name} isn't ahead" if value <= _reached(specimen)[name] else None


def _reached(specimen: Specimen) -> dict[str, int]:
    """The most that each field of a checkpoint may say."""
    own = specimen.slow_settings()
    log = [one for base, data in specimen.segments() for one in slow_rebuild.read(base, data, own)]
    placed = [one for one in log if one.transaction in ("none", "commit")]
    last_index = specimen.files[specimen.of(names.INDEX)[-1]]
    return {
        "physic": max(one.store_timestamp for one in log),
        "logics": max(one.store_timestamp for one in placed),
        "index": IndexHeader.decode(last_index).end_timestamp,
        "logicsPhysicalOffset": placed[-1].position,
    }


def _unseen_index(specimen: Specimen, change: Change) -> str | None:
    if change.kind == CUT:
        return None
    data = specimen.files[change.file]
    count = int.from_bytes(data[36:40], "big")
    part, number, byte = index_place(specimen.settings, change.byte)
    if part == "entry" and number == 0:
        return "entry 0, which no file uses"
    if part == "entry" and number >= count:
        return "behind the index file's last entry"
    if part == "header" and 32 <= byte < 36:
        used, now = (int.from_bytes(one[32:36], "big") for one in (data, change.apply(data)))
        return "counted as up to 4.7.0" if used <= now <= count - FIRST_ORDINAL else None
    first = change.file == min(specimen.of(names.INDEX))
    if first and (part, number) == ("entry", FIRST_ORDINAL) and TIME_DIFF <= byte < PREVIOUS:
        return "timeDiff of the index's first entry"
    return None


#: Questions that don't ask a directory or a file. When a queue file was written, 4.9 asks for a time.
_UNTOUCHED = {
    names.CONSUME_QUEUE: (asking.OFFSET, asking.ID, asking.KEY),
    names.INDEX: (asking.OFFSET, asking.PLACE),
    names.CHECKPOINT: (asking.OFFSET, asking.ID, asking.KEY, asking.PLACE),
}


def _untouched(change: Change) -> tuple[str, ...]:
    _, _, path = change.file.partition("/")
    return _UNTOUCHED.get(path.split("/")[0], ())


_DUMPED = (dumping.LOG, dumping.QUEUES, dumping.INDEX, dumping.CHECKPOINT)


def _dumped_parts(change: Change) -> tuple[str, ...]:
    """Which dumps show a changed file."""
    part = change.file.partition("/")[2].split("/")[0]
    if part in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_EXT, names.BATCH_CONSUME_QUEUE):
        return (dumping.QUEUES,)
    own = {names.COMMIT_LOG: dumping.LOG, names.INDEX: dumping.INDEX, names.CHECKPOINT: dumping.CHECKPOINT}
    return (own[part],) if part in own else ()


_ASKED: dict[str, Callable[[Cases, Change], None]] = {
    LOG: Cases._log,
    QUEUE: Cases._derived,
    EXT: Cases._derived,
    BATCH: Cases._derived,
    INDEX: Cases._derived,
    CHECKPOINT: Cases._derived,
    CONFIG: Cases._config,
}

_STEPS: dict[str, Callable[[Cases, Change], None]] = {
    QUERIES: Cases._queries,
    REPAIRS: Cases._repairs,
    DUMPS: Cases._dumps,
}
