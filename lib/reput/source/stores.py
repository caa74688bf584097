"""Which stores a path means: one, several, or all that match a pattern."""

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.errors import ReputError, SettingsError
from reput.remote import is_url
from reput.spark import worker_daemon
from reput.unforeseen import TRACEBACK

_LOG = logging.getLogger(__name__)
#: Stands for the store's directory in ``brokerConf``.
STORE = "{store}"
FAIL, SKIP = "fail", "skip"

if not os.environ.get(TRACEBACK):
    worker_daemon.tell_in_a_sentence(ReputError)

_K = TypeVar("_K")
_T = TypeVar("_T")


def paths_of(options: Mapping[str, str]) -> tuple[Path, ...]:
    """The stores' directories, each once, in the order given; what a pattern matches by name.

    A directory that exists under the whole text is that one, whatever commas and stars are in its name.

    Args:
        options: by their names in lower case: ``path``, ``paths`` (Spark's own, for ``.load([...])``, or with
            commas).

    Raises:
        SettingsError: it is missing.
    """
    found: dict[Path, None] = {}
    for text in _texts(options):
        found.update(dict.fromkeys(_matching(text)))
    if not found:
        raise SettingsError(
            "the source needs a path",
            expected="the store's directory, as in .load(path)",
            found="no path",
        )
    return tuple(found)


def load(options: Mapping[str, str], *, dledger: bool, derived: bool) -> tuple[StoreSettings, ...]:
    """The settings of every store that the options name; see :func:`each` for one that can't be used.

    Args:
        options: by their names in lower case.
        dledger: commit logs that DLedger writes will do.
        derived: queues and index are read; of a store elsewhere they are copied.

    Raises:
        SettingsError, UnsupportedError: see :meth:`StoreSettings.load`.
    """
    conf, version = options.get("brokerconf"), options.get("rocketmqversion") or None

    def settings(path: Path) -> StoreSettings:
        own = Path(conf.replace(STORE, str(path))) if conf else None
        # Spark asks in several processes, one after the other, and tasks read when these are gone.
        root = here(path, derived=derived, shared=True)
        return StoreSettings.load(root, own, version, dledger=dledger, rocksdb=True, elsewhere=not derived)

    return tuple(found for _, found in each(paths_of(options), settings, skips=skips(options)))


def skips(options: Mapping[str, str]) -> bool:
    """Whether ``badStores`` says to leave out a store that can't be read.

    Raises:
        SettingsError: it says neither that nor the contrary.
    """
    text = options.get("badstores", FAIL).strip().lower()
    if text not in (FAIL, SKIP):
        raise SettingsError(
            "badStores isn't one of its two words", expected=f"{FAIL} or {SKIP}", found=repr(text)
        )
    return text == SKIP


def each(stores: tuple[_K, ...], work: Callable[[_K], _T], *, skips: bool) -> Iterator[tuple[_K, _T]]:
    """What ``work`` makes of each store; one that it refuses is left out, with a warning, or ends it all.

    Raises:
        ReputError: that of the first refusal, without ``skips`` or when no store is left.
    """
    first: ReputError | None = None
    is_any = False
    for store in stores:
        try:
            made = work(store)
        except ReputError as error:
            if not skips:
                raise
            first = first or error
            _LOG.warning("a store is left out: %s", error)
            continue
        is_any = True
        yield store, made
    if first is not None and not is_any:
        raise first


def _texts(options: Mapping[str, str]) -> Iterator[str]:
    several = options.get("paths", "")
    if several.startswith("["):
        try:
            yield from (str(path) for path in json.loads(several))
        except ValueError as error:
            raise SettingsError(
                "paths can't be read", expected='["/a", "/b"], or /a,/b', found=repr(several)
            ) from error
    elif several:
        yield several
    if options.get("path"):
        yield options["path"]


def _matching(text: str) -> Iterator[Path]:
    if is_url(text) and "," not in text:
        yield Path(text)
        return
    if "," in text and not Path(text).is_dir():
        for part in text.split(","):
            if part.strip():
                yield from _matching(part.strip())
        return
    if not glob.has_magic(text) or Path(text).is_dir():
        yield Path(text)
        return
    found = sorted(path for path in glob.glob(text) if Path(path).is_dir())  # noqa: PTH207 - absolute or not
    if not found:
        raise SettingsError("no directory matches", path=text, expected="stores", found="none")
    yield from map(Path, found)
