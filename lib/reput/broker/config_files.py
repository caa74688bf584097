"""The broker's own files below ``config/``, as far as they decide whether it starts.

Source: ``ConfigManager.load``, ``BrokerController`` (rocketmq-all-4.9.7, 5.3.3): the backup of a file that
can't be read, is missing or empty is tried. When the backup can't be read either, the broker doesn't start; a
missing or empty one is no trouble. Of a RocksDB there is no backup: a broker whose database doesn't open, or
holds what isn't its own, doesn't start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.broker.problem import Problem
from reput.config.fastjson import parse
from reput.config.kept import Form, Kind, kept
from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.format import names
from reput.rocksdb import is_database

#: What a broker loads before or after its store, the same in 4.9.7 and 5.3.3.
FILES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")
#: Of a broken file with nothing in its ``.bak``.
LOST_CONFIG = "lost-config"
_NO_BACKUP = "there is no .bak with anything in it: the broker starts"
_WITHOUT = {
    "topics.json": "without its topics: consumers get nothing of them",
    "consumerOffset.json": "without committed offsets: consumers miss messages, or get them again",
    "subscriptionGroup.json": "without its subscription groups and their settings",
    "delayOffset.json": "without its place in delayed messages: all in their queues are delivered again",
}


def config_problems(settings: StoreSettings) -> Iterator[Problem]:
    """Files that keep the broker from starting, and those that it reads from their backup.

    Raises:
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """
    place = settings.config
    in_files = [name for name in FILES if place.form is Form.FILES or place.file_kind(name) is None]
    for kind in Kind if place.form is not Form.FILES else ():
        try:
            kept(place, kind)
        except SettingsError as error:
            yield Problem(
                kind="broken-config",
                path=error.path or str(place.where(kind)),
                expected=error.expected or "what a broker writes",
                found=error.found or error.problem,
                outcome=f"{error.problem}: the broker doesn't start",
                next_step=error.next_step or "",
                stops=True,
            )
    for name in in_files:
        path = settings.root / names.CONFIG / name
        backup = path.with_name(name + ".bak")
        is_there, broken = _look(path)
        if is_there and broken is None:
            continue
        spare_is_there, spare_broken = _look(backup)
        if broken is None and spare_broken is None:
            continue
        gone = not spare_is_there and spare_broken is None
        yield Problem(
            kind=LOST_CONFIG if gone else "broken-config",
            path=str(backup if broken is None else path),
            expected="a JSON object",
            found=broken or spare_broken or "",
            outcome=f"{_NO_BACKUP} {_WITHOUT[name]}" if gone else _outcome(name, broken, spare_broken),
            next_step="Bring the file back from a copy, or move it and its .bak away to go on without them.",
            stops=spare_broken is not None,
        )


def missing_config(settings: StoreSettings) -> list[str]:
    """Files with topics and committed offsets that aren't there, nor their backups, relative to the store.

    That is no problem of a start, and right for a new broker.
    """
    config, place = settings.root / names.CONFIG, settings.config
    if place.form is not Form.FILES:
        return [
            f"{names.CONFIG}/{place.database(kind).name}"
            for kind in (Kind.TOPICS, Kind.OFFSETS)
            if not is_database(place.database(kind))
        ]
    return [
        f"{names.CONFIG}/{name}"
        for name in FILES[:2]
        if not _look(config / name)[0] and not _look(config / f"{name}.bak")[0]
    ]


def _outcome(name: str, broken: str | None, spare_broken: str | None) -> str:
    if spare_broken is None:
        return "the broker takes its .bak, which may be older"
    if broken is None:
        return f"there is nothing in {name}, and the broker doesn't start"
    return "its .bak can't be read either, and the broker doesn't start"


def _look(path: Path) -> tuple[bool, str | None]:
    """Whether a file holds anything, and why it can't be read."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False, None  # File.exists() says no
    except OSError as error:
        return True, error.strerror
    if not data:
        return False, None
    try:
        found = parse(data)
    except (ValueError, RecursionError) as error:
        return True, str(error)
    return True, None if isinstance(found, dict) else type(found).__name__
