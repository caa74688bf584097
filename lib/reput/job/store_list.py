"""Lists of stores: ``stores.toml``, or the STORE arguments of a command."""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reput.config.dialect import dialect
from reput.errors import SettingsError
from reput.newer_python import tomllib
from reput.remote.client import is_url, url_of
from reput.store.listing import nearest

_ON_HOST = re.compile(r"(?P<host>\[[^\]/]*\]|[^/:]*):(?P<path>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A store's place."""

    path: Path  # its directory; absolute and without ``..`` if it is on a host. Of a URL, what ``Path`` makes
    #: a name in lower case, or an address; None for this process's own file system, and for a URL
    host: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return self.url or str(self.path)
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"

    @property
    def url(self) -> str | None:
        """The store's URL, if it is in an object store or in HDFS."""
        return url_of(self.path) if self.host is None and is_url(self.path) else None

    @property
    def is_here(self) -> bool:
        """Whether it is a directory of this host."""
        return self.host is None and self.url is None

    @classmethod
    def parse(cls, word: str) -> Place:
        """The place that a word names: ``PATH``, ``HOST:/PATH``, ``[IPV6]:/PATH`` or a URL.

        As with scp, a colon ahead of the first slash ends a host; nothing is looked up.
        """
        # A host's path may begin with two slashes; a scheme that nobody knows is a host, then.
        if "://" in word and is_url(word):
            return cls(Path(url_of(word)))
        found = _ON_HOST.fullmatch(word)
        if found is None:
            return cls(Path(word))
        host, path = _host(found["host"]), found["path"]
        if host is None or not path.startswith("/"):
            raise SettingsError(
                "a store's place can't be understood",
                expected="HOST:/PATH, where /PATH begins at the host's root",
                found=word,
                next_step=f"If it is a path on this host: ./{word}",
            )
        if _is_everywhere(host):
            raise SettingsError(
                "each host calls itself so",
                expected="a name or an address by which other hosts know it",
                found=host,
                next_step="A path without a host is one here",
            )
        return cls(Path("/" + posixpath.normpath(path).lstrip("/")), host)


def _host(text: str) -> str | None:
    """A name or an address in its usual spelling; None if it is neither."""
    bare = text.removeprefix("[").removesuffix("]")
    with suppress(ValueError):
        return str(ipaddress.ip_address(bare))
    name = bare.lower().removesuffix(".")
    return name if bare == text and _NAME.fullmatch(name) else None


def _is_everywhere(host: str) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


SUFFIX = ".toml"
_TABLE, _PLACE = "store", "place"
#: May stand at the top, too, for all stores that don't say otherwise.
_COMMON = ("cluster", "broker", "broker_conf", "rocketmq_version")
_KEYS = (_PLACE, *_COMMON)


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A store, and what is said of it."""

    place: Place  # where it is; a path here is absolute if it comes from a file
    #: cluster, broker: ``brokerClusterName`` and ``brokerName``; None where nothing is said
    cluster: str | None = None
    broker: str | None = None
    #: the broker's configuration file, where the store is, or here for a URL. ``{store}`` and
    #: ``{host}`` in it stand for the store's
    broker_conf: Path | None = None
    rocketmq_version: str | None = None  # the release that wrote the store

    @classmethod
    def parse(cls, word: str) -> StoreEntry:
        """The store that an argument names; nothing else is known of it."""
        return cls(Place.parse(word))


def listed(words: Iterable[str]) -> list[StoreEntry]:
    """The stores that arguments name: each a place, or a file whose name ends in ``.toml``."""
    found: list[StoreEntry] = []
    for word in words:
        place = Place.parse(word)
        if place.is_here and word.endswith(SUFFIX):
            found += read_stores(Path(word))
        else:
            found.append(StoreEntry(place))
    return found


def read_stores(path: Path) -> list[StoreEntry]:
    """The stores of a ``stores.toml``, one at least; no store is looked at.

    Relative paths in it begin at its directory.
    """
    document = _document(path)
    _check_keys(path, "", document, (_TABLE, *_COMMON))
    common = {key: _text(path, "", key, document[key]) for key in _COMMON if key in document}
    tables = document.get(_TABLE)
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise _refused(path, "it lists no stores", f"[[{_TABLE}]] tables, one per store", _shown(tables))
    entries, seen = [], dict[str, int]()
    for number, table in enumerate(tables, 1):
        where = f"[[{_TABLE}]] {number}"
        _check_keys(path, where, table, _KEYS)
        said = common | {key: _text(path, where, key, value) for key, value in table.items()}
        if _PLACE not in said:
            raise _refused(path, f"{where} has no {_PLACE}", f"{_PLACE} = {_PLACES}", "none")
        entry = _entry(path, where, said)
        earlier = seen.setdefault(str(entry.place), number)
        if earlier != number:
            raise _refused(
                path,
                "a store is listed twice",
                "each store once",
                f"{entry.place} in [[{_TABLE}]] {earlier} and {number}",
            )
        entries.append(entry)
    return entries


_PLACES = "a PATH, HOST:/PATH or URL"


def _document(path: Path) -> dict[str, Any]:
    expected = f"TOML with [[{_TABLE}]] tables"
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        found = error.strerror or str(error)
        raise _refused(path, "the list of stores can't be read", expected, found) from error
    except UnicodeDecodeError as error:
        found = f"byte {error.start} isn't UTF-8"
        raise _refused(path, "the list of stores can't be read", expected, found) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _refused(path, "the list of stores isn't TOML", expected, str(error)) from error


def _check_keys(path: Path, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            place = f" in {where}" if where else ""
            meant = nearest(key, known)
            raise _refused(
                path,
                f"a key is unknown{place}",
                ", ".join(known),
                repr(key),
                None if meant is None else f"Did you mean {meant}?",
            )


def _text(path: Path, where: str, key: str, value: object) -> str:
    """A value that is a string with something in it."""
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    place = f" in {where}" if where else ""
    raise _refused(path, f"{key}{place} can't be used", f'a string: {key} = "…"', _shown(value))


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case dict():
            return "one table"
        case list():
            return "an array" if value else "an empty array"
        case str():
            return repr(value)
        case bool():
            return str(value).lower()
    return str(value)


def _entry(path: Path, where: str, said: dict[str, str]) -> StoreEntry:
    directory = Path(os.path.abspath(path)).parent
    try:
        place = Place.parse(said[_PLACE])
        if (version := said.get("rocketmq_version")) is not None:
            dialect(version)
    except SettingsError as error:
        raise _refused(
            path, f"{where}: {error.problem}", error.expected or _PLACES, error.found, error.next_step
        ) from error
    if place.is_here:
        place = Place(Path(os.path.abspath(directory / place.path)))
    conf = said.get("broker_conf")
    if conf is not None and place.host is None and not conf.startswith("{store}"):
        conf = str(directory / conf)
    return StoreEntry(
        place,
        said.get("cluster"),
        said.get("broker"),
        None if conf is None else Path(conf),
        version,
    )


def _refused(
    path: Path, problem: str, expected: str, found: str | None, next_step: str | None = None
) -> SettingsError:
    return SettingsError(problem, path=path, expected=expected, found=found, next_step=next_step)
