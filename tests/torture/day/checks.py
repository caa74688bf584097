"""What has to hold of the output of a day's tail: beside a real store's files, and beside counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.replay.state import State
from reput.store.compare import Comparison, compare
from tests.torture.day.sizes import Sizes
from tests.torture.verify import WrongError


class Compared:
    """Compares what a tail has committed with a real store that goes on, each byte once, before it expires.

    Args:
        right: the real store.
        out: the tail's output.
        sizes: of the files of both.

    Attributes:
        units, entries: compared so far, of consume queues and index files; all were equal.
    """

    def __init__(self, right: Path, out: Path, sizes: Sizes) -> None:
        self.units = self.entries = 0
        self._right, self._out = right, out
        self._queue_file = sizes.queue_units * UNIT_LENGTH
        self._first_entry = HEADER_LENGTH + sizes.index_slots * SLOT_LENGTH
        self._next: dict[tuple[str, int], int] = {}
        #: By the physical offset at which a file begins: up to which ordinal, and whether it was full then.
        self._ordinals: dict[int, tuple[int, bool]] = {}

    def more(self, state: State) -> None:
        """Compare what is new in this state; the real store must have derived as much, and expired no more.

        Raises:
            WrongError: a byte differs.
        """
        for (topic, queue_id), queue in state.queues.items():
            first = max(queue.first, self._next.get((topic, queue_id), 0))
            directory = names.queue_directory(Path(), topic, queue_id)
            self._range(directory, first * UNIT_LENGTH, queue.next * UNIT_LENGTH)
            self.units += max(queue.next - first, 0)
            self._next[topic, queue_id] = queue.next
        theirs = self._index_files()
        for number, (name, header) in enumerate(state.index):
            if header.index_count <= FIRST_ORDINAL:
                continue
            begin, is_full = header.begin_physical_offset, number + 1 < len(state.index)
            done, was_full = self._ordinals.get(begin, (FIRST_ORDINAL, False))
            if was_full:
                continue
            if begin not in theirs:
                raise WrongError(f"{self._right}: no index file begins at {begin}, as {name} of {self._out}")
            pair = theirs[begin], self._out / names.INDEX / name
            if is_full:
                _same(*pair, 0, max(path.stat().st_size for path in pair))
            else:
                start, stop = (
                    self._first_entry + ordinal * ENTRY_LENGTH for ordinal in (done, header.index_count)
                )
                _same(*pair, start, stop)
            self.entries += header.index_count - done
            self._ordinals[begin] = header.index_count, is_full

    def _range(self, directory: Path, start: int, stop: int) -> None:
        for base in range(start - start % self._queue_file, stop if start < stop else 0, self._queue_file):
            name = directory / names.offset_name(base)
            low, high = max(start - base, 0), min(stop - base, self._queue_file)
            _same(self._right / name, self._out / name, low, high)

    def _index_files(self) -> dict[int, Path]:
        found = {}
        for path in sorted((self._right / names.INDEX).iterdir()):
            with path.open("rb") as file:
                header = IndexHeader.decode(file.read(HEADER_LENGTH))
            if header.index_count > FIRST_ORDINAL:
                found[header.begin_physical_offset] = path
        return found


def _same(right: Path, ours: Path, start: int, stop: int) -> None:
    expected, found = _read(right, start, stop), _read(ours, start, stop)
    if expected != found or len(found) != stop - start:
        pairs = enumerate(zip(expected, found, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(found)))
        wanted, wrong = (data[at : at + 20].hex(" ") for data in (expected, found))
        raise WrongError(
            f"{ours}: byte {start + at} of {start} to {stop}: "
            f"expected {wanted}, as {right} has, found {wrong}"
        )


def _read(path: Path, start: int, stop: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(max(stop - start, 0))
    except FileNotFoundError:
        raise WrongError(f"{path}: missing") from None


def check_files(right: Path, out: Path) -> Comparison:
    """Compare all files of consume queues and index of two outputs that nobody writes.

    Raises:
        WrongError: a byte differs, a file is missing or too many, or there is nothing to compare.
    """
    found = compare(right, out)
    if found.differences or found.empty_directories:
        lines = "\n".join([*found.differences, *found.empty_directories][:40])
        raise WrongError(f"{found.differing_bytes} bytes differ from {right}:\n{lines}")
    if not found.queue_bytes or not found.index_bytes:
        raise WrongError(f"{out}: there was nothing to compare with {right}")
    return found


def check_queues(right: Path, out: Path) -> int:
    """Compare all consume queues of two outputs, and nothing of the index; how many bytes were equal.

    Raises:
        WrongError: one differs.
    """
    found = compare(right, out)
    wrong = [line for line in found.differences if not line.startswith(f"{names.INDEX} ")]
    if wrong or found.empty_directories or not found.queue_bytes:
        lines = "\n".join([*wrong, *found.empty_directories][:40])
        raise WrongError(f"queues differ from those of {right}:\n{lines}")
    return found.queue_bytes


def check_counts(state: State, kept: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """Each queue ends where the messages of the log do that were counted, and those that were fed.

    Args:
        state: what the tail has committed.
        kept: messages by "topic/queueId", counted in the log.
        expected: the same of the writer's counts: taken by the store, and not lost by a cut.

    Raises:
        WrongError: one doesn't.
    """
    tailed = {f"{topic}/{queue_id}": known.next for (topic, queue_id), known in state.queues.items()}
    wrong = []
    for queue in sorted(tailed.keys() | kept.keys() | expected.keys()):
        counts = [found.get(queue) for found in (tailed, kept, expected)]
        if len(set(counts)) > 1:
            wrong.append(f"{queue}: the tail has {counts[0]}, the log {counts[1]}, the writer {counts[2]}")
    if wrong or not tailed:
        raise WrongError("messages are missing, or there are too many:\n" + "\n".join(wrong))
    if state.messages != sum(kept.values()):
        raise WrongError(f"the tail has {state.messages} messages, the log {sum(kept.values())}")


def check_the_checks(right: Path, out: Path, state: State, sizes: Sizes, kept: Counter[str]) -> list[str]:
    """Change one thing after the other in a sound output that nobody writes; what was found, one line each.

    Raises:
        WrongError: a change isn't found.
    """
    topic, queue_id = min(state.queues)
    last = state.queues[topic, queue_id].next - 1
    at = last * UNIT_LENGTH % (sizes.queue_units * UNIT_LENGTH)
    unit = names.queue_directory(out, topic, queue_id)
    unit /= names.offset_name(last * UNIT_LENGTH - at)
    name, header = state.index[-1]
    if header.index_count <= FIRST_ORDINAL:  # a full one is before it
        name, header = state.index[-2]
    entry = HEADER_LENGTH + sizes.index_slots * SLOT_LENGTH + (header.index_count - 1) * ENTRY_LENGTH
    found = []
    for path, offset in ((unit, at + 7), (out / names.INDEX / name, entry + 1)):
        with _changed(path, offset):
            _must_fail(lambda: check_files(right, out))
            _must_fail(lambda: Compared(right, out, sizes).more(state))
        found.append(f"byte {offset} of {path.name} changed: found")
    one_less = kept - Counter({f"{topic}/{queue_id}": 1})
    _must_fail(lambda: check_counts(state, one_less, kept))
    _must_fail(lambda: check_counts(state, kept, one_less))
    return [*found, "one message less counted: found"]


def _must_fail(check: Callable[[], object]) -> None:
    try:
        check()
    except WrongError:
        return
    raise WrongError("a byte was changed on purpose, or a count, and no check has found it")


@contextmanager
def _changed(path: Path, offset: int) -> Iterator[None]:
    """Meanwhile, one byte of a file is another one."""
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(1)

        def put(byte: bytes) -> None:
            file.seek(offset)
            file.write(byte)
            file.flush()

        put(bytes([before[0] ^ 1]))
        try:
            yield
        finally:
            put(before)
