"""What a broker's own cleaning leaves, from the files alone, the slow and obvious way."""

from __future__ import annotations

from pathlib import Path

from reput.format import consumequeueext, names
from reput.format.batchconsumequeue import UNIT as BATCH_UNIT
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_LENGTH
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.store import files
from tests.local import NoLedger, Runner, Store, opened_output, parts_of, target_of

MAX_SIZE = 0x7FFFFFFF  # of a pre-blank unit


def expire(store: Store, segments: int) -> None:
    """Remove the log's first segments."""
    for path in sorted((store.root / names.COMMIT_LOG).iterdir())[:segments]:
        path.unlink()


def read_to(store: Store, out: Path, end: int) -> State:
    """A run that ends at a physical offset."""
    files.make_dirs(out)
    target, log = target_of(store, out), store.log
    with opened_output(target, log) as journal:
        writer = BatchWriter(target, journal, log, Runner())
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        cursor = journal.state.cursor
        if end > cursor:
            writer.write(parts_of(log, cursor, end, 1 << 20, cursor), 0)
        writer.finish()
        return journal.state


def cleaned(outputs: dict[str, bytes], log_start: int) -> dict[str, bytes]:
    """The files that stay: ``CleanConsumeQueueService.deleteExpiredFiles``; the checkpoint is left out."""
    by_directory: dict[str, list[str]] = {}
    for path in sorted(outputs):
        if path != names.CHECKPOINT:
            by_directory.setdefault(str(Path(path).parent), []).append(path)
    kept = {}
    for directory, paths in by_directory.items():
        if directory.startswith(f"{names.CONSUME_QUEUE_EXT}/"):
            first = _first_place(directory, outputs, log_start)
            paths = [path for path in paths if int(Path(path).name) + len(outputs[path]) >= first]
        else:
            while len(paths) > 1 and _last_position(directory, outputs[paths[0]]) < log_start:
                paths.pop(0)
        kept |= {path: outputs[path] for path in paths}
    return kept


def _first_place(directory: str, outputs: dict[str, bytes], log_start: int) -> int:
    """Where in consumequeue_ext the first unit at or past the log's start has its own; 0 without one."""
    queue = directory.replace(names.CONSUME_QUEUE_EXT, names.CONSUME_QUEUE, 1)
    for path, data in sorted(outputs.items()):
        if path.startswith(f"{queue}/"):
            for position, size, tags in UNIT.iter_unpack(data):
                if 0 < size < MAX_SIZE and position >= log_start:
                    return consumequeueext.place_of(tags) or 0
    return 0


def _last_position(directory: str, data: bytes) -> int:
    if directory == names.INDEX:
        return IndexHeader.decode(data).end_physical_offset
    length = BATCH_LENGTH if directory.startswith(f"{names.BATCH_CONSUME_QUEUE}/") else UNIT_LENGTH
    return int.from_bytes(data[-length:][:8], "big")


def min_offsets(outputs: dict[str, bytes], log_start: int) -> dict[tuple[str, int], int]:
    """Each queue's first unit at or past the log's start; its next queueOffset when it has none."""
    found: dict[tuple[str, int], int] = {}
    for path, data in sorted(outputs.items()):
        directory, _, file = path.rpartition("/")
        if not directory.startswith(f"{names.CONSUME_QUEUE}/"):
            continue
        _, topic, queue_id = directory.split("/")
        first = int(file) // UNIT_LENGTH
        units = [(first + at, *unit) for at, unit in enumerate(UNIT.iter_unpack(data))]
        written = [(at, position) for at, position, size, _ in units if size > 0]
        live = [at for at, position, size, _ in units if 0 < size < MAX_SIZE and position >= log_start]
        queue = (topic, int(queue_id))
        if found.get(queue, -1) in {-1, first}:  # none in the file before: its end, where this one begins
            found[queue] = live[0] if live else written[-1][0] + 1
    return found | _min_batch_offsets(outputs, log_start)


def _min_batch_offsets(outputs: dict[str, bytes], log_start: int) -> dict[tuple[str, int], int]:
    """The same of batch queues, over all their files: where the last message before the log's start ends."""
    found: dict[tuple[str, int], int] = {}
    for path, data in sorted(outputs.items()):
        if path.startswith(f"{names.BATCH_CONSUME_QUEUE}/"):
            _, topic, queue_id, _ = path.split("/")
            for position, size, _tags, _time, base, count, _, _ in BATCH_UNIT.iter_unpack(data):
                if size and (position < log_start or (topic, int(queue_id)) not in found):
                    found[topic, int(queue_id)] = base + count if position < log_start else base
    return found
