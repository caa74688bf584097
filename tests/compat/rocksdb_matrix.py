"""``python -m tests.compat.rocksdb_matrix``: damaged queues in RocksDB, as starts of the store leave them.

A store of the release writes a log; copies of it are damaged, started, read as a consumer reads, and written
to. What isn't served is counted against what the undamaged RocksDB led to. docs/data/recovery-matrix.md
holds the table, in a section of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.newer_python import UTC
from reput.recovery.plan import plan
from tests.compat import rocksdb
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.compat.matrix import SOUND, arguments
from tests.compat.rocksdb_damage import DAMAGES, Copy, gone_long_log, separate_path, switched_to_rocksdb
from tests.compat.served import Places, Queue, places, put, read
from tests.compat.starts import CONFIG, fill
from tests.marked import put_between

VERSIONS = ("5.3.3", "5.5.0")
STOPS = ("stopped", "crashed", "killed")
BEGIN, END = "<!-- rocksdb matrix: begin -->", "<!-- rocksdb matrix: end -->"
_CONFIG: dict[str, object] = {**CONFIG, "mappedFileSizeCommitLog": 16 * 1024}
_ROCKSDB = {"storeType": "defaultRocksDB"}
_AT_ONCE = 8
_START_TIMEOUT = 180.0


@dataclass(slots=True)
class Served:
    """What a start made of a damaged store.

    Attributes:
        starts: it started.
        why: why it didn't.
        messages: places of messages that the damage left in the log, over all queues.
        unserved: of these, those that no consumer gets who begins at the first offset.
        misplaced: of these, those that come at another place.
        repeated: places at which a message of another place comes, too.
        other: places at which something comes that is no message of the queue, or no whole one.
        stuck: answers that keep a consumer from going on, and how many queues get each.
        anew: queues whose next message isn't put behind their last one.
    """

    starts: bool
    why: str = ""
    messages: int = 0
    unserved: int = 0
    misplaced: int = 0
    repeated: int = 0
    other: int = 0
    stuck: dict[str, int] = field(default_factory=dict)
    anew: int = 0


@dataclass(slots=True)
class Predicted:
    """What reput's plan said of a damaged store, before its start.

    Attributes:
        starts: it starts.
        kinds: by kind of problem, loss or damage of queues, how many messages it is said of; 0: not counted.
    """

    starts: bool
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Row:
    """A damaged store, what reput predicted of it, and what the broker served of it.

    Attributes:
        damage: the name of the function in tests/compat/rocksdb_damage.py.
        stop: ``stopped`` cleanly; ``crashed``: the same, with ``abort`` again; ``killed``, with what RocksDB
            had written by then.
        version: the release.
        broker: what came of it.
        reput: what was predicted; None in rows that were measured before there were predictions.
    """

    damage: str
    stop: str
    version: str
    broker: Served
    reput: Predicted | None = None

    @classmethod
    def from_dict(cls, facts: dict[str, object]) -> Row:
        """The row that :func:`dataclasses.asdict` made."""
        predicted = facts.get("reput")
        reput = None if predicted is None else Predicted(**predicted)  # type: ignore[arg-type]
        return cls(**{**facts, "broker": Served(**facts["broker"]), "reput": reput})  # type: ignore[arg-type]


def measure(version: str, directory: Path, only: Sequence[str] = ()) -> list[Row]:
    """Try all damages with one release.

    Args:
        version: the release.
        directory: an empty one.
        only: names of damages; empty for all.
    """
    jvm = Jvm(version, heap="1g")
    copies: list[tuple[Row, Copy]] = []
    try:
        kept = _written(jvm, directory / "rocksdb", {**_CONFIG, **_ROCKSDB})
        files = _written(jvm, directory / "files", _CONFIG)
        queues = rocksdb.dump(jvm, kept)[names.CONSUME_QUEUE]
        killed = directory / "rocksdb-killed"
        for damage in (*DAMAGES, switched_to_rocksdb):
            switched = damage is switched_to_rocksdb
            source, led_to = (files, _places_of_files(files)) if switched else (kept, places(queues))
            for stop in STOPS:
                if only and damage.__name__ not in only:
                    continue
                if damage in (gone_long_log, separate_path) and version == "5.3.3":
                    continue  # it has no such setting
                if stop == "killed" and damage not in (DAMAGES[0], switched_to_rocksdb):
                    continue  # RocksDB is empty then: nothing is left to be damaged
                root = directory / f"{damage.__name__}-{stop}"
                shutil.copytree(
                    (directory / "files-killed" if switched else killed) if stop == "killed" else source, root
                )
                if stop == "crashed":
                    (root / names.ABORT).touch()
                copy = Copy(root, {**_CONFIG, **_ROCKSDB}, jvm, queues, led_to)
                damage(copy)
                row = Row(damage.__name__, stop, version, Served(starts=False))
                row.reput = predicted(version, root, copy.config)
                copies.append((row, copy))
        for start in range(0, len(copies), _AT_ONCE):
            jvm.kill()  # what a damaged RocksDB did to it doesn't touch the others
            jvm.close()
            jvm = Jvm(version, heap="1g")
            some = copies[start : start + _AT_ONCE]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                tried = pool.map(_try, [jvm] * len(some), [copy for _, copy in some])
                for (row, _), served in zip(some, tried, strict=True):
                    row.broker = served
                    print(
                        f"rocksdb matrix: {version} {row.damage} {row.stop}: {said(served)}; "
                        f"reput: {said_before(row.reput)}",
                        file=sys.stderr,
                    )
    finally:
        jvm.kill()
        jvm.close()
    return [row for row, _ in copies]


#: What the plan says of queues; the rest, such as index files, isn't looked at here.
_OF_QUEUES = ("missing-unit", "misplaced-unit", "queue-", "past-log-end", "broken-rocksdb")


def predicted(version: str, root: Path, config: Mapping[str, object]) -> Predicted:
    """What ``reput check`` says of the queues."""
    with tempfile.TemporaryDirectory(prefix="conf-") as directory:
        conf = Path(directory) / "broker.conf"
        conf.write_text(conf_text(config), encoding="utf-8")
        settings = StoreSettings.load(root, conf, version, rocksdb=True, elsewhere=True)
        result = plan(take(settings))
    kinds: dict[str, int] = {}
    for problem in result.prediction.problems:
        kinds.setdefault(problem.kind, 0)
    for loss in (*result.losses, *result.unrepaired):
        if loss.kind.startswith(_OF_QUEUES):
            kinds[loss.kind] = kinds.get(loss.kind, 0) + loss.count
    return Predicted(result.prediction.starts, kinds)


#: Of these a count says how many messages a consumer doesn't get.
_COUNTED = ("missing-unit", "misplaced-unit", "queue-begins-late", "queue-ends-early", "past-log-end")


def disagreement(row: Row) -> str | None:
    """What the start did otherwise than predicted; None where both agree.

    A plan counts messages that have no unit, or one that isn't found. Where a consumer gets stuck, or comes
    by units that lead nowhere, it gets fewer yet; a kind without a count says that the plan doesn't know it.
    A unit that repeats the one behind it may stand for a lost message: only the comparison tells.
    """
    said_by, broker = row.reput, row.broker
    if said_by is None:
        return "nothing was predicted"
    if said_by.starts != broker.starts:
        return f"starts: predicted {said_by.starts}, did {broker.starts}"
    if not broker.starts:
        return None
    is_sound = said(broker) == SOUND
    if is_sound is bool(said_by.kinds):
        return f"predicted {said_before(said_by)}, served {said(broker)}"
    count = sum(said_by.kinds.get(kind, 0) for kind in _COUNTED)
    lost = broker.unserved + broker.misplaced
    exact = not broker.stuck and "past-log-end" not in said_by.kinds
    exact = exact and all(said_by.kinds.get(kind, 1) for kind in ("queue-begins-late", "broken-rocksdb"))
    if (count > lost and not broker.stuck) or (exact and not count <= lost <= count + broker.repeated):
        return f"predicted {count} messages that aren't found, {lost} weren't"
    return None


def said_before(predicted: Predicted | None) -> str:
    """A prediction in short."""
    if predicted is None:
        return "not asked"
    if not predicted.starts:
        return f"no start: {', '.join(predicted.kinds)}"
    words = [f"{count} {kind}" if count else kind for kind, count in predicted.kinds.items()]
    return ", ".join(words) or SOUND


def _written(jvm: Jvm, root: Path, config: Mapping[str, object]) -> Path:
    store = JavaStore(jvm.version, root, config, jvm=jvm)
    assert store.load()
    store.start()
    fill(store)
    shutil.copytree(root, root.with_name(f"{root.name}-killed"))
    store.shutdown()
    return root


def _places_of_files(root: Path) -> dict[Queue, Places]:
    found: dict[Queue, Places] = {}
    for path in sorted((root / names.CONSUME_QUEUE).glob("*/*/*")):
        units = enumerate(UNIT.iter_unpack(path.read_bytes()), int(path.name) // UNIT_LENGTH)
        there = {place: offset for place, (offset, size, _) in units if size > 0}
        found.setdefault((path.parts[-3], int(path.parts[-2])), {}).update(there)
    return found


_making = threading.Lock()


def _try(jvm: Jvm, copy: Copy) -> Served:
    try:
        # One at a time: StoreStatsService fills a static TreeMap when it is made.
        with _making:
            store = JavaStore(jvm.version, copy.root, copy.config, jvm=jvm)
        if not store.load():
            return Served(starts=False, why="load() is false")
    except Exception as error:  # noqa: BLE001 - whatever Java threw, the store doesn't start
        return Served(starts=False, why=_first_line(error))
    errors: list[str] = []
    thread = threading.Thread(target=_start, args=(store, errors), daemon=True)
    thread.start()
    thread.join(_START_TIMEOUT)
    if thread.is_alive() or errors:
        return Served(starts=False, why=errors[0] if errors else "start() doesn't return")
    try:
        store.wait_dispatched(timeout=30)
        return _count(store, copy)
    except Exception as error:  # noqa: BLE001 - as above
        return Served(starts=False, why=_first_line(error))


def _start(store: JavaStore, errors: list[str]) -> None:
    try:
        store.start()
    except Exception as error:  # noqa: BLE001 - as above
        errors.append(_first_line(error))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return next(
        (line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else ""
    )[:160]


def _count(store: JavaStore, copy: Copy) -> Served:
    start, end = int(store.store.getMinPhyOffset()), int(store.store.getMaxPhyOffset())
    seen = read(store, copy.places)
    found = Served(starts=True)
    for queue, wanted in copy.places.items():
        there = {place: offset for place, offset in wanted.items() if start <= offset < end}
        got = seen[queue]
        found.messages += len(there)
        came = set(got.messages.values())
        for place, offset in there.items():
            if got.messages.get(place) != offset:
                found.misplaced += offset in came
                found.unserved += offset not in came
        found.other += len(got.broken)
        own = set(there.values())
        for place, offset in got.messages.items():
            if there.get(place) != offset:
                found.repeated += offset in own and got.messages.get(_place(there, offset)) == offset
                found.other += offset not in own
        if got.empty and (got.empty[-1][2] <= got.empty[-1][0]):
            status = got.empty[-1][1]
            found.stuck[status] = found.stuck.get(status, 0) + 1
        following = max((place for place, offset in wanted.items() if offset < end), default=-1) + 1
        try:
            found.anew += put(store, *queue) != following
        except Exception as error:  # noqa: BLE001 - as above
            found.stuck[f"put: {_first_line(error)}"] = 1
    return found


def _place(places: Places, offset: int) -> int:
    return next(place for place, there in places.items() if there == offset)


def said(served: Served) -> str:
    """An outcome in short."""
    if not served.starts:
        return f"no start: {served.why}"
    words = []
    if served.unserved:
        words.append(f"{served.unserved} of {served.messages} unserved")
    if served.misplaced:
        words.append(f"{served.misplaced} misplaced")
    if served.repeated:
        words.append(f"{served.repeated} repeated")
    if served.other:
        words.append(f"{served.other} other")
    words += [f"{status} in {count}" for status, count in served.stuck.items()]
    if served.anew:
        words.append(f"{served.anew} put wrong")
    return ", ".join(words) or SOUND


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown; those of one damage that say the same are one."""
    versions = [version for version in VERSIONS if any(row.version == version for row in rows)]
    lines = []
    measured = {row.damage for row in rows}
    for damage in [one.__name__ for one in (*DAMAGES, switched_to_rocksdb) if one.__name__ in measured]:
        stops: dict[tuple[str, ...], list[str]] = {}
        for stop in STOPS:
            these = {row.version: row for row in rows if (row.damage, row.stop) == (damage, stop)}
            if these:
                cells = [said(these[one].broker) if one in these else "no such setting" for one in versions]
                cells.append(_predictions(these))
                stops.setdefault(tuple(cells), []).append(stop)
        lines += [[f"`{damage}`", ", ".join(names), *cells] for cells, names in stops.items()]
    head = ["damage", "broker was", *(f"start of {version}" for version in versions), "reput predicts"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _predictions(rows: Mapping[str, Row]) -> str:
    """What was predicted, once where it is the same for all releases."""
    found: dict[str, list[str]] = {}
    for version, row in rows.items():
        found.setdefault(said_before(row.reput), []).append(version)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(versions)}: {words}" for words, versions in found.items())


def legend() -> str:
    """What the damages are."""
    lines = ["| damage | what it is |", "| --- | --- |"]
    for damage in (*DAMAGES, switched_to_rocksdb):
        lines.append(f"| `{damage.__name__}` | {' '.join((damage.__doc__ or '').split())} |")
    return "\n".join(lines)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Put the tables between the markers of a document.

    Raises:
        ValueError: the document hasn't both.
    """
    releases = ", ".join(VERSIONS)
    about = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {len(rows)} damaged stores, RocketMQ {releases}."
    put_between(path, BEGIN, END, "\n\n".join([about, table(rows), legend()]))


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    known = (*DAMAGES, switched_to_rocksdb)
    options = arguments(words, "tests.compat.rocksdb_matrix", __doc__, VERSIONS, known)
    rows: list[Row] = []
    if options.read:
        for path in options.read:
            rows += [Row.from_dict(facts) for facts in json.loads(path.read_text(encoding="utf-8"))]
    else:
        for version in options.versions:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="reput-matrix-") as directory:
                rows += measure(version, Path(directory), options.damages)
            print(f"rocksdb matrix: {version}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if options.rows is not None:
        options.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if options.write is not None:
        write(options.write, rows)
    print(table(rows))
    wrong = [(row, found) for row in rows if row.reput is not None and (found := disagreement(row))]
    for row, found in wrong:
        print(f"rocksdb matrix: {row.version} {row.damage} {row.stop}: {found}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
