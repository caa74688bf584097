"""Checks of a store: whether it can be read, who uses it, which settings and release fit, what it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from reput.broker.config_files import config_problems, missing_config
from reput.config.evidence.basis import DEFAULT
from reput.config.settings import StoreSettings
from reput.doctor.machine import Check, maps, ok, open_files, warning, wrong
from reput.errors import ReputError
from reput.format import names
from reput.format.rocksdbconfig import SEPARATE, SINGLE, V2
from reput.log.segments import CommitLog, discover, without_unwritten_end
from reput.replay.estimate import estimate
from reput.rocksdb import is_database, opened
from reput.store.lock import store_holder
from reput.store.space import free_bytes, human
from reput.words import counted

#: Bytes of log between two commits, as `reput rebuild` has it by default.
_BYTES_PER_BATCH = 4 << 30
_MOST_SHOWN = 3


def store_checks(
    store: Path, broker_conf: Path | None, version: str | None, out: Path | None = None
) -> Iterator[Check]:
    """Check a store; checks that depend on one that failed are left out.

    ``out`` is where a rebuild is to be written; None for the store's own place.
    """
    try:
        settings = StoreSettings.load(store, broker_conf, version, dledger=True, rocksdb=True)
    except ReputError as error:
        yield _from("settings", error)
        return
    try:
        log = discover(settings)
    except ReputError as error:
        yield _from("log", error)
        return
    files = list(_files(settings.root))
    yield settings_check(settings)
    yield version_check(settings)
    yield evidence_check(settings)
    yield log_check(log)
    yield readable(log, files)
    yield in_use(settings)
    if databases := _databases(settings.root):
        yield rocksdb(databases)
    yield config(settings)
    count = len(files) + len(log.segments)
    yield open_files(count)
    yield maps(count)
    yield room(settings, log, out)


def settings_check(settings: StoreSettings) -> Check:
    """Whether the files fit the settings, and what the settings are based on."""
    basis = settings.basis
    against = [one for one in basis.contradictions if one.by_conf]
    offered = "" if basis.offered is None else f" There is {basis.offered}: see whether it is this broker's."
    named = "no broker.conf is given" if settings.broker_conf is None else str(settings.broker_conf)
    if against:
        found = "; ".join(map(str, against))
        return wrong("settings", f"{named}: {found}", f"{against[0].next_step}.{offered}")
    if settings.broker_conf is not None:
        return ok("settings", f"{named}, and nothing in the store contradicts it")
    found = f"{named}; {'; '.join(basis.files)}"
    if any(DEFAULT in one for one in basis.files):
        return warning("settings", found, f"Give the broker's own file with -c, if it has one.{offered}")
    return ok("settings", found)


def version_check(settings: StoreSettings) -> Check:
    """Whether the release that is named, or assumed, can have written this store."""
    basis, release = settings.basis, settings.release
    against = [one for one in basis.contradictions if not one.by_conf]
    if against:
        return wrong("version", str(against[0]), f"{against[0].next_step}.")
    shown = "nothing in the store shows its release" if basis.evidence is None else basis.evidence.release
    if release is not None:
        return ok("version", f"{release} is given; {shown}")
    found = f"{settings.dialect.name} is assumed; {basis.release}"
    if basis.evidence is None or not basis.evidence.release.marks:
        step = "Name the release with --rocketmq-version; 4.9 and 5.x write different files."
        return warning("version", found, step)
    return ok("version", found)


def evidence_check(settings: StoreSettings) -> Check:
    """All that the store shows of its settings and its release, and what couldn't be read."""
    evidence = settings.basis.evidence
    if evidence is None:
        return ok("evidence", "not examined")
    shown = [str(sizes) for sizes in evidence.sizes() if sizes.looked_at]
    shown += [f"{mark.why} ({mark.range})" for mark in evidence.release.marks]
    if evidence.switches.multi_dispatch:
        shown.append(evidence.switches.why)
    if evidence.switches.queue_ext:
        shown.append("units point to consumequeue_ext/")
    found = "; ".join(shown) or "the store shows nothing of its settings and its release"
    if evidence.unread:
        step = (
            "Run reput as root or as the broker's user, or bring broken files back from a copy; "
            "else give --broker-conf and --rocketmq-version."
        )
        return warning("evidence", f"{found}. Not read: {'; '.join(evidence.unread)}", step)
    return ok("evidence", found)


def log_check(log: CommitLog) -> Check:
    """Whether segments are missing or have a wrong length."""
    size = human(log.segment_size)
    found = f"{len(log.segments):,} segments of {size}, from {log.start} on"
    if not log.findings:
        return ok("log", found)
    shown = "; ".join(str(finding) for finding in log.findings[:_MOST_SHOWN])
    return warning("log", f"{found}: {shown}", "Bring back what is missing from a copy; else reput skips it.")


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
        return ok("in-use", "not in use")
    step = (
        "Stop the broker before anything in place; query, lag, stats, check, tail and rebuild --out may run."
    )
    return warning("in-use", f"by {holder.what}", step)


def rocksdb(databases: list[Path]) -> Check:
    """Whether what the store has in RocksDB can be read here."""
    try:
        for path in databases:
            with opened(path):
                pass
    except ReputError as error:
        return _from("rocksdb-of-store", error)
    return ok("rocksdb-of-store", f"{counted(len(databases), 'database')} can be read")


def config(settings: StoreSettings) -> Check:
    """The broker's own files below config/, as far as they decide whether it starts."""
    try:
        problems = list(config_problems(settings))
    except ReputError as error:
        return _from("config", error)
    if not problems and (missing := missing_config(settings)):
        found = "; ".join(f"{one.path}: {one.found}" for one in missing)
        step = "Copy what is missing from a backup of the broker or from its slave before it starts."
        return warning("config", f"{found}: a broker starts {missing[0].without}", step)
    if not problems:
        kept = "; ".join(settings.basis.kept)
        return ok("config", f"{settings.root / names.CONFIG}{'; ' if kept else ''}{kept}")
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
            batch_topics=settings.batch_topics(),
        ).output_bytes
        free = free_bytes(place)
    except ReputError as error:
        return _from("room", error)
    found = f"a rebuild takes some {human(needed)}, and {human(free)} are free at {place}"
    if free >= needed:
        return ok("room", found)
    return wrong("room", found, f"Free {human(needed - free)}, or write to another file system with --out.")


def _from(name: str, error: ReputError) -> Check:
    step = error.next_step or "Fix that first."
    return wrong(name, str(error).removesuffix(f". {error.next_step}"), step)


def _databases(root: Path) -> list[Path]:
    """Those that a broker may have made."""
    config = root / names.CONFIG
    places = [root / names.CONSUME_QUEUE, root / names.CONSUME_QUEUE_ROCKSDB, root / names.ROCKSDB_STORE]
    places += [config / name for name in (*SEPARATE.values(), SINGLE, V2)]
    return [place for place in places if is_database(place)]


def _files(root: Path) -> Iterator[Path]:
    """Files of queues and index, which a broker maps all."""
    for kind in (*names.QUEUES, names.INDEX):
        for directory, _directories, files in os.walk(root / kind):
            yield from (Path(directory, file) for file in files)
