"""The rebuild without Spark: the same writer, its tasks run one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from reput.config.settings import RecoverySettings, StoreSettings
from reput.errors import Finding
from reput.format import names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.log.segments import CommitLog, cut, discover
from reput.output import databases
from reput.output.batch import BatchTasks
from reput.output.journal import Journal
from reput.output.log_changes import roll_back
from reput.output.writer import BatchWriter
from reput.replay.state import Opening, State
from reput.replay.target import FiltersNow, Selection, Target
from reput.scan.rules import Part
from reput.store import files
from reput.store.lock import OutputLock

JOURNAL = "journal"
SCRATCH = "scratch"


class Runner:
    """Runs one function after the other, whoever asks: the stages of a batch are threads."""

    slots = 2
    is_local = True

    def __init__(self) -> None:
        self._lock = Lock()

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        with self._lock:
            return [function(item) for item in items]


class NoLedger:
    """Stands in for the ledger where only files are looked at: a Delta commit takes longer than the rest."""

    def catch_up(self, batches: object) -> None:
        pass

    def commit(self, batch: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Store:
    """A store on disk, how it is to be read, and what of it is wanted."""

    root: Path
    settings: StoreSettings
    selection: Selection = field(default_factory=Selection)

    @property
    def log(self) -> CommitLog:
        return discover(self.settings)


def write_store(
    root: Path,
    segments: Iterable[tuple[int, bytes]],
    *,
    version: str | None = None,
    segment_size: int | None = None,
    **changes: Any,
) -> Store:
    """A store with these segments, (base, bytes) each; ``changes`` are fields of its StoreSettings."""
    directory = root / names.COMMIT_LOG
    directory.mkdir(parents=True, exist_ok=True)
    for base, data in segments:
        (directory / names.offset_name(base)).write_bytes(data)
    return open_store(root, version=version, segment_size=segment_size, **changes)


def open_store(root: Path, *, version: str | None = None, **changes: Any) -> Store:
    """A store that is there, with small output files unless ``changes`` say otherwise."""
    settings = StoreSettings.load(root, None, version)
    sizes = {"consume_queue_file_size": 100, "max_hash_slot_num": 7, "max_index_num": 9}
    return Store(root, replace(settings, **{**sizes, **changes}))


def in_log_order(store: Store, *batch: str) -> Store:
    """The same store with ConsumeQueueExt, and with batch queues for some topics; their files are small."""
    recovery = RecoverySettings(queue_ext=True, queue_ext_file_size=90, batch_queue_file_size=92)
    return Store(store.root, replace(store.settings, recovery=recovery), Selection(batch=frozenset(batch)))


def target_of(
    store: Store,
    out: Path,
    *,
    index: bool = True,
    selection: Selection | None = None,
    flush: bool = False,
    several_hosts: bool = False,
) -> Target:
    """What tasks of a run need to know."""
    return Target(
        settings=store.settings,
        root=out,
        scratch=out / names.REPUT / SCRATCH,
        selection=selection or store.selection,
        index=index,
        owner=None,
        flush_in_tasks=flush,
        several_hosts=several_hosts,
        filters=FiltersNow.of(store.settings),
        index_in_rocksdb=store.settings.rocksdb.index,
    )


def parts_of(log: CommitLog, start: int, end: int, part_bytes: int, cursor: int) -> list[Part]:
    """The rows that the source gives for a batch."""
    return list(cut(log, start, end, part_bytes, cursor))


@contextmanager
def opened_output(target: Target, log: CommitLog) -> Any:
    """The output's journal, begun or gone on with; what was never committed is taken back."""
    with OutputLock(target.root):
        path = target.root / names.REPUT / JOURNAL
        if path.exists():
            journal = Journal.open(path)
        else:
            files.make_dirs(path.parent)
            journal = Journal.create(path, Opening(str(target.settings.root), "", log.start), None)
        with journal:
            with OutputLock(target.root).exclusive():
                roll_back(target, journal.state)
            yield journal


def rebuild_locally(
    store: Store,
    out: Path,
    *,
    part_bytes: int = 1 << 20,
    ends: Sequence[int] = (),
    ledger: bool = False,
    index: bool = True,
    selection: Selection | None = None,
    flush_in_tasks: bool = False,
    several_hosts: bool = False,
    abort_present: bool = False,
    announce: Callable[[str], None] = lambda _text: None,
) -> State:
    """Rebuild ``store`` into ``out``, or go on with it.

    Args:
        part_bytes: bytes of log in a part.
        ends: physical offsets where batches end, increasing; the last batch goes up to the log's end.
        ledger: write the Delta ledger, too.
        announce: see BatchWriter.

    Returns:
        What the journal says at the end.
    """
    files.make_dirs(out)
    target = target_of(
        store,
        out,
        index=index,
        selection=selection,
        flush=flush_in_tasks,
        several_hosts=several_hosts,
    )
    log = store.log
    with opened_output(target, log) as journal:
        writer = BatchWriter(target, journal, log, Runner(), abort_present=abort_present, announce=announce)
        if not ledger:
            writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        start = journal.state.cursor
        for batch_id, end in enumerate([*ends, max(log.end, start)]):
            if end > start:
                writer.write(parts_of(log, start, end, part_bytes, journal.state.cursor), batch_id)
                start = end
        writer.finish()
        if target.in_rocksdb:
            runner = Runner()
            tasks = BatchTasks.for_databases(runner, target)
            databases.make(target, journal, tasks, runner.slots, dict)
            writer.finish()
        return journal.state


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` by its relative path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def directories(root: Path) -> set[str]:
    """Every directory below ``root``, relative."""
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}


def outputs(root: Path) -> dict[str, bytes]:
    """What a broker would read of an output: queues, index files, checkpoint."""
    return {
        path: data
        for path, data in tree(root).items()
        if path.split("/")[0] in (*names.QUEUES, names.INDEX, names.CHECKPOINT)
    }


def queues(root: Path) -> dict[str, bytes]:
    """The consume-queue files, named below consumequeue/."""
    return tree(root / names.CONSUME_QUEUE)


def index_of(root: Path) -> list[bytes]:
    """The index files in order."""
    return [data for _name, data in sorted(tree(root / names.INDEX).items())]


def units(root: Path, topic: str, queue_id: int = 0) -> list[tuple[int, int, int]]:
    """The units of a queue in order, (physicalOffset, size, tagsCode), without the zeros at its end."""
    data = b"".join(data for path, data in queues(root).items() if path.startswith(f"{topic}/{queue_id}/"))
    found = list(UNIT.iter_unpack(data))
    while found and found[-1] == (0, 0, 0):
        found.pop()
    return found


def first_place(root: Path, topic: str, queue_id: int = 0) -> int:
    """The queueOffset where a queue's first file begins; the units of :func:`units` count from there."""
    first = min(path for path in queues(root) if path.startswith(f"{topic}/{queue_id}/"))
    return int(Path(first).name) // UNIT_LENGTH


def kinds(findings: Iterable[Finding]) -> list[str]:
    """The kinds of findings, in order."""
    return [finding.kind for finding in findings]
