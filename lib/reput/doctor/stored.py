"""A store: whether it can be read, who uses it, which settings and release fit, and what it asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from reput.dialect import dialect
from reput.doctor.check import Check, ok, warning, wrong
from reput.doctor.machine import maps, open_files
from reput.errors import ReputError
from reput.estimate import estimate
from reput.format import names
from reput.recovery.config import config_problems
from reput.settings import StoreSettings
from reput.store.lock import store_holder
from reput.store.segments import CommitLog, discover, without_unwritten_end
from reput.store.space import free_bytes, human
from reput.topics import batch_queue_topics

#: Bytes of log between two commits, as `reput rebuild` has it by default.
_BYTES_PER_BATCH = 4 << 30
_MOST_SHOWN = 3
#: What 4.9 never writes (``CompactionStore``, ``TimerMessageStore``, ``BatchConsumeQueue``; 5.5: RocksDB).
_MARKS_OF_5 = ("compaction", "timerwheel", "timerlog", "rocksdbstore", names.BATCH_CONSUME_QUEUE)


def store_checks(
    store: Path, broker_conf: Path | None, version: str | None, out: Path | None = None
) -> Iterator[Check]:
    """Look at a store; each check that can't be made without the one before it is left out.

    Args:
        store: the store's directory.
        broker_conf: the broker's file, None for RocketMQ's defaults.
        version: the release that wrote it, None when it isn't known.
        out: where a rebuild is to be written; None for the store's own place.
    """
    try:
        settings = StoreSettings.load(store, broker_conf, version, dledger=True)
    except ReputError as error:
        yield _from("settings", error)
        return
    try:
        log = discover(settings)
    except ReputError as error:
        yield _from("log", error)
        return
    files = list(_files(settings.root))
    yield settings_check(settings, files)
    yield version_check(settings, version)
    yield log_check(log)
    yield readable(log, files)
    yield in_use(settings)
    yield config(settings)
    count = len(files) + len(log.segments)
    yield open_files(count)
    yield maps(count)
    yield room(settings, log, out)


def settings_check(settings: StoreSettings, files: list[Path]) -> Check:
    """Whether the files are as long as the settings say."""
    expected = {
        names.CONSUME_QUEUE: settings.consume_queue_file_size,
        names.INDEX: 40 + 4 * settings.max_hash_slot_num + 20 * settings.max_index_num,
    }
    named = "RocketMQ's defaults" if settings.broker_conf is None else str(settings.broker_conf)
    for kind, size in expected.items():
        for path in (file for file in files if _is_of(kind, file.relative_to(settings.root))):
            length = _length(path)
            if length != size:
                step = (
                    "Give the broker's own file with --broker-conf."
                    if settings.broker_conf is None
                    else "Give the broker.conf that the store was written with."
                )
                return wrong("settings", f"{named}: {path} has {length} bytes, and {size} are set", step)
            break
    return ok("settings", f"{named}, and the files are as long as they say")


def version_check(settings: StoreSettings, version: str | None) -> Check:
    """Whether the release that is named, or assumed, can have written this store."""
    marks = [mark for mark in _MARKS_OF_5 if (settings.root / mark).exists()]
    is_4 = settings.dialect.name.startswith("4.")
    named = f"{version} is given" if version is not None else f"{dialect(None).name} is assumed, the newest"
    if marks and is_4:
        return wrong(
            "version", f"{named}, but {marks[0]}/ is there", "Name the 5.x release with --rocketmq-version."
        )
    if not marks and version is None:
        step = "Name the release with --rocketmq-version; 4.9 and 5.x write different files."
        return warning("version", f"{named}, but nothing is there that only 5.x writes", step)
    seen = f"{marks[0]}/ is there, as 5.x writes it" if marks else "nothing speaks against it"
    return ok("version", f"{named}; {seen}")


def log_check(log: CommitLog) -> Check:
    """Whether segments are missing or have a wrong length."""
    size = human(log.segment_size)
    found = f"{len(log.segments):,} segments of {size}, from {log.start} on"
    if not log.findings:
        return ok("log", found)
    shown = "; ".join(str(finding) for finding in log.findings[:_MOST_SHOWN])
    return warning(
        "log", f"{found}: {shown}", "Bring back what is missing from a copy; else reput goes around it."
    )


def readable(log: CommitLog, files: list[Path]) -> Check:
    """Whether this user may read what is there."""
    paths = [segment.path for segment in log.segments] + files
    closed = list(islice((path for path in paths if not os.access(path, os.R_OK)), _MOST_SHOWN))
    if not closed:
        return ok("readable", f"{len(paths):,} files")
    shown = ", ".join(map(str, closed))
    return wrong("readable", f"not {shown}", "Run reput as root, or as the user that the broker runs as.")


def in_use(settings: StoreSettings) -> Check:
    """Whether a broker runs on it."""
    try:
        holder = store_holder(settings.root)
    except ReputError as error:
        return _from("in-use", error)
    if holder is None:
        return ok("in-use", "by nobody")
    step = (
        "Stop the broker before anything in place; query, lag, stats, verify, tail and rebuild --out may run."
    )
    return warning("in-use", f"by {holder.what}", step)


def config(settings: StoreSettings) -> Check:
    """The broker's own files below config/, as far as they decide whether it starts."""
    problems = list(config_problems(settings))
    if not problems:
        return ok("config", str(settings.root / names.CONFIG))
    first = max(problems, key=lambda problem: problem.stops)
    return (wrong if first.stops else warning)("config", str(first), first.next_step)


def room(settings: StoreSettings, log: CommitLog, out: Path | None) -> Check:
    """Whether a rebuild of everything fits beside what is there."""
    place = settings.root if out is None else out
    try:
        needed = estimate(
            settings,
            without_unwritten_end(log),
            index=settings.message_index_enable,
            bytes_per_batch=_BYTES_PER_BATCH,
            batch_topics=_batch_topics(settings),
        ).output_bytes
        free = free_bytes(place)
    except ReputError as error:
        return _from("room", error)
    found = f"a rebuild takes some {human(needed)}, and {human(free)} are free at {place}"
    if free >= needed:
        return ok("room", found)
    return wrong("room", found, f"Free {human(needed - free)}, or write to another file system with --out.")


def _batch_topics(settings: StoreSettings) -> frozenset[str]:
    """Whose units are longer."""
    if not settings.dialect.recovery.switches_queue_types:
        return frozenset()
    try:
        return frozenset(batch_queue_topics(settings.topics_json))
    except ReputError:
        return frozenset()  # said of the file itself


def _from(name: str, error: ReputError) -> Check:
    step = error.next_step or "Mend that first."
    return wrong(name, str(error).removesuffix(f". {error.next_step}"), step)


def _is_of(kind: str, path: Path) -> bool:
    """Whether a file of the store has a name that a broker gives to those in this directory."""
    named = (
        names.is_index_name(path.name)
        if kind == names.INDEX
        else names.parse_offset_name(path.name) is not None
    )
    return named and path.parts[0] == kind


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _files(root: Path) -> Iterator[Path]:
    """Files of queues and index, which a broker maps all."""
    for kind in (*names.QUEUES, names.INDEX):
        for directory, _directories, files in os.walk(root / kind):
            yield from (Path(directory, file) for file in files)
