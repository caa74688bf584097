"""The sources' options: texts, as Spark hands them over, to values. A path may mean several stores."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.errors import ReputError, SettingsError
from reput.format.names import Queue
from reput.remote import is_url
from reput.remote.client import check_here
from reput.source.filters import each, moment
from reput.spark import worker_daemon
from reput.unforeseen import TRACEBACK

#: Stands for the store's directory in ``brokerConf``.
STORE = "{store}"
FAIL, SKIP = "fail", "skip"

if not os.environ.get(TRACEBACK):
    worker_daemon.tell_in_a_sentence(ReputError)


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
    """The settings of every store that the options name; one that can't be used is as :func:`each` says.

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


MESSAGES = "messages"
PARTS = "parts"

#: As a user writes them; any case will do. These are all sources'.
SHARED_NAMES = (
    "path",
    "paths",
    "badStores",
    "brokerConf",
    "rocketmqVersion",
    "where",
    "pushFilters",
    "timeSlack",
    "readReport",
    "partBytes",
)
#: Those of ``rocketmq-commitlog`` alone.
NAMES = (
    "storeColumn",
    "content",
    "startOffset",
    "afterTimestamp",
    "endOffset",
    "startingTimestamp",
    "startQueueOffsets",
    "endQueueOffsets",
    "failOnDataLoss",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "maxBytesPerSecond",
    "live",
    "stopFile",
    "proofs",
)
#: Those of ``rocketmq-consumequeue`` alone.
QUEUE_NAMES = ("blanks",)
_PART_BYTES = 128 << 20
_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TIME = re.compile(r"([0-9]{1,12})\s*(ms|s|m|h|d)", re.ASCII | re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME_SLACK_MS = 600_000
_LONG_MAX = 2**63 - 1
LATEST = "latest"
_QUEUE_OFFSETS = '{"TOPIC": {"QUEUE_ID": OFFSET}}, e.g. {"Orders": {"0": 100, "3": 7}}'


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that all sources have."""

    stores: tuple[StoreSettings, ...]  # the settings of each store, at least one
    skips: bool = False  # a store that can't be read is left out
    #: which rows; None for all. Parsed with the columns that a source can be asked for
    where: str | None = None
    push_filters: bool = False  # Spark's own filters are taken, too
    time_slack_ms: int = _TIME_SLACK_MS  # how far the broker's clock may have gone back while it wrote
    read_report: Path | None = None  # a directory for what planner and tasks really read; None for none
    part_bytes: int = _PART_BYTES  # bytes of files in one partition

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        names: tuple[str, ...] = (),
        *,
        dledger: bool = True,
        derived: bool = True,
    ) -> Shared:
        """The options of a ``.load()`` that all sources have; names in any case.

        Args:
            names: of the options that this source has besides.
            dledger: commit logs that DLedger writes will do.
            derived: queues or index are read.

        Raises:
            SettingsError: a name isn't known, a value can't be used, or broker.conf can't be.
            UnsupportedError: a store uses a feature that reput doesn't read.
        """
        values = _lower(options)
        known = {name.lower(): name for name in (*SHARED_NAMES, *names)}
        for name in values:
            if name not in known:
                raise SettingsError(
                    "the source has no such option",
                    expected=f"one of {', '.join(known.values())}",
                    found=name,
                )
        report = values.get("readreport")
        found = load(values, dledger=dledger, derived=derived)
        roots = [settings.root.resolve() for settings in found]
        if report and not {Path(report).resolve(), *Path(report).resolve().parents}.isdisjoint(roots):
            raise SettingsError(
                "readReport lies in the store", path=report, expected="a directory elsewhere", found=report
            )
        return cls(
            stores=found,
            skips=skips(values),
            where=values.get("where"),
            push_filters=_switch(values, "pushFilters"),
            time_slack_ms=_milliseconds(values, "timeSlack", _TIME_SLACK_MS),
            read_report=Path(report) if report else None,
            part_bytes=_size(values, "partBytes") or _PART_BYTES,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """What to read of a commit log, and how."""

    shared: Shared  # which stores, and the other options that all sources have
    store_column: bool = False  # messages have the column ``store``, too
    content: str = MESSAGES  # ``messages`` or ``parts``
    #: physical offset where the first record to read begins, None for the log's start
    start_offset: int | None = None
    #: storeTimestamp of the message before it, ms; what a live log has behind it is newer, or left of a cut
    after_timestamp: int | None = None
    starts_at_end: bool = False  # begin with what is written from now on
    #: begin with the first record that was stored then or later, ms; None doesn't ask
    start_timestamp: int | None = None
    #: physical offset; records that begin at or after it aren't read. None for the log's end
    end_offset: int | None = None
    #: of these alone, the queueOffsets [start, end) of each; None for all queues
    queues: Mapping[Queue, tuple[int, int]] | None = None
    #: a stream ends where what it was to read next has expired; else it leaves that out
    fails_on_loss: bool = True
    max_messages_per_trigger: int | None = None  # records in one micro-batch, None for no limit
    #: bytes of log in one micro-batch, None for everything that is there
    max_bytes_per_trigger: int | None = None
    max_bytes_per_second: int | None = None  # bytes of log in a second of a stream, None for no limit
    live: bool = False  # a stream takes only what is settled of a log that a broker may be writing
    #: while there is such a file, a stream finds nothing new, so that it can be stopped between two
    #: batches; None: no such file
    stop_file: Path | None = None
    #: a file of ``check --proofs``: where a topic's queues are proven, they and its messages alone are
    #: read; None for none
    proofs: Path | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """The options of a ``.load()``; names in any case.

        Raises:
            SettingsError: a name isn't known, a value can't be used, or broker.conf can't be.
            UnsupportedError: a store uses a feature that reput doesn't read.
        """
        values = _lower(options)
        live = _switch(values, "live")
        shared = Shared.parse(options, NAMES, dledger=not live, derived=False)
        for settings in shared.stores:
            if live and settings.remote is not None:
                check_here(settings.remote.url)
        content = values.get("content", MESSAGES).lower()
        if content not in (MESSAGES, PARTS):
            raise SettingsError(
                "content isn't one that the source has",
                expected=f"{MESSAGES} or {PARTS}",
                found=repr(content),
            )
        starts_at_end = values.get("startoffset", "").strip().lower() == LATEST
        start = None if starts_at_end else _offset(values, "startOffset", f", or {LATEST}")
        end = _offset(values, "endOffset")
        since = _moment(values, "startingTimestamp")
        if since is not None and "startoffset" in values:
            raise SettingsError(
                "a stream has one start",
                expected="startingTimestamp or startOffset",
                found=f"startOffset {values['startoffset']}, startingTimestamp {values['startingtimestamp']}",
            )
        queues = _queues(values)
        if queues is not None and content == PARTS:
            raise SettingsError(
                "parts hold messages of many queues",
                expected=f"startQueueOffsets and endQueueOffsets with content {MESSAGES}",
                found=f"content {PARTS}",
            )
        if start is not None and end is not None and start > end:
            raise SettingsError("startOffset lies behind endOffset", expected=f"at most {end}", found=start)
        if live and end is not None:
            raise SettingsError(
                "a live log's end is looked for", expected="live without endOffset", found=f"endOffset {end}"
            )
        store_column = _switch(values, "storeColumn")
        if store_column and content == PARTS:
            raise SettingsError(
                "parts have no column store: their path tells it",
                expected=f"storeColumn with content {MESSAGES}",
                found=f"content {PARTS}",
            )
        stop_file, proofs = values.get("stopfile"), values.get("proofs")
        if proofs and (len(shared.stores) > 1 or shared.stores[0].remote is not None):
            raise SettingsError(
                "proofs are of one store here",
                expected="proofs with one path that is no URL",
                found=", ".join(settings.place for settings in shared.stores),
            )
        if proofs and not Path(proofs).is_file():
            raise SettingsError(
                "there are no proofs",
                path=proofs,
                expected="a file that check --proofs keeps",
                found="no file",
            )
        return cls(
            shared=shared,
            store_column=store_column,
            content=content,
            start_offset=start,
            after_timestamp=_moment(values, "afterTimestamp"),
            starts_at_end=starts_at_end,
            start_timestamp=since,
            end_offset=end,
            queues=queues,
            fails_on_loss=_switch(values, "failOnDataLoss", usual="true"),
            max_messages_per_trigger=_count(values, "maxMessagesPerTrigger"),
            max_bytes_per_trigger=_size(values, "maxBytesPerTrigger"),
            max_bytes_per_second=_size(values, "maxBytesPerSecond"),
            live=live,
            stop_file=Path(stop_file) if stop_file else None,
            proofs=Path(proofs) if proofs else None,
        )


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What to read of consume queues."""

    shared: Shared  # which stores, and the other options that all sources have
    blanks: bool = False  # places without a message's unit are rows, too

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> QueueOptions:
        """The options of a ``.load()``; names in any case. Raises: see :meth:`Shared.parse`."""
        return cls(Shared.parse(options, QUEUE_NAMES), _switch(_lower(options), "blanks"))


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _offset(values: Mapping[str, str], name: str, more: str = "") -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    if _OFFSET.fullmatch(text) is None or int(text) > _LONG_MAX:
        raise SettingsError(
            f"{name} isn't a physical offset",
            expected=f"a whole number from 0 to {_LONG_MAX}{more}",
            found=repr(text),
        )
    return int(text)


def _count(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    if re.fullmatch(r"0*[1-9][0-9]{0,11}", text.strip(), re.ASCII) is None:
        raise SettingsError(f"{name} isn't a number of messages", expected="1 or more", found=repr(text))
    return int(text)


def _moment(values: Mapping[str, str], name: str) -> int | None:
    """A time in ms: as Kafka's source has it, or as a condition has it."""
    text = values.get(name.lower())
    if text is None:
        return None
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) else moment(text, name)


def _queues(values: Mapping[str, str]) -> dict[Queue, tuple[int, int]] | None:
    """Each queue that startQueueOffsets or endQueueOffsets names, with its queueOffsets [start, end)."""
    starts, ends = (_queue_offsets(values, name) for name in ("startQueueOffsets", "endQueueOffsets"))
    if starts is None and ends is None:
        return None
    starts, ends = starts or {}, ends or {}
    found = {queue: (starts.get(queue, 0), ends.get(queue, _LONG_MAX)) for queue in {**starts, **ends}}
    for (topic, queue_id), (start, end) in found.items():
        if start > end:
            raise SettingsError(
                "startQueueOffsets lies behind endQueueOffsets",
                expected=f"at most {end} for queue {queue_id} of {topic}",
                found=start,
            )
    return found


def _queue_offsets(values: Mapping[str, str], name: str) -> dict[Queue, int] | None:
    text = values.get(name.lower())
    if text is None:
        return None
    try:
        asked = [
            (topic, queue_id, offset)
            for topic, queues in json.loads(text, object_pairs_hook=_object).items()
            for queue_id, offset in queues.items()
        ]
    except (ValueError, AttributeError, RecursionError):
        asked = []
    are_offsets = all(
        _OFFSET.fullmatch(queue_id) and type(offset) is int and 0 <= offset <= _LONG_MAX
        for _, queue_id, offset in asked
    )
    found = {(topic, int(queue_id)): offset for topic, queue_id, offset in asked} if are_offsets else {}
    if not found or len(found) < len(asked):
        raise SettingsError(f"{name} can't be read", expected=_QUEUE_OFFSETS, found=repr(text))
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose names differ: of a repeated one, Python's reader would take the last alone."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _switch(values: Mapping[str, str], name: str, usual: str = "false") -> bool:
    text = values.get(name.lower(), usual).strip().lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name} isn't a switch", expected="true or false", found=repr(text))
    return text == "true"


def _size(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else int(match[1]) << _SHIFTS[(match[2] or "").lower()]
    if not 0 < size <= _LONG_MAX:
        raise SettingsError(
            f"{name} isn't a size",
            expected="a number of bytes from 1 up, or one with k, m, g or t after it, e.g. 512m",
            found=repr(text),
        )
    return size


def _milliseconds(values: Mapping[str, str], name: str, usual: int) -> int:
    text = values.get(name.lower())
    if text is None:
        return usual
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise SettingsError(
            f"{name} isn't a time",
            expected="a number with ms, s, m, h or d after it, e.g. 10m",
            found=repr(text),
        )
    return int(match[1]) * _UNIT_MS[match[2].lower()]
