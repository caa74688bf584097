"""The page: facts in, one HTML document out. It needs nothing beside it, and runs no script but its own.

Names and keys of a store may be anybody's: templates escape all they print, what would steer a reader
(control characters, turned writing directions) shows as escapes, and the page's own policy forbids every
other script and every connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import reput
from reput.config.settings import StoreSettings
from reput.diagnosis.verdict import TITLES, Effect, Finding, Sort
from reput.diagnosis.verdict import WORDS as VERDICTS
from reput.report import numbers
from reput.report.charts import log_map, size_histogram, traffic_chart
from reput.report.facts import (
    ATTENTION,
    BROKEN,
    CORRUPT,
    EXPIRED,
    IN_ROCKSDB,
    MISSING,
    SOUND,
    UNREAD,
    UNWRITTEN,
    WRITTEN,
    Facts,
    QueueFacts,
)
from reput.report.language import ENGLISH, TAGS, current, gettext, in_language, said
from reput.store.files import reporting
from reput.store.places import check_file, check_outside
from reput.words import counted, visible

#: Rows of a table, unless more are asked for.
ROWS = 1000
#: What a page of reput's says of itself, near its beginning.
GENERATOR = "reput report"

#: What a badge says.
_WORDS: dict[str, str] = {
    SOUND: "sound",
    ATTENTION: "look at this",
    BROKEN: "broken",
    **{str(sort): said for sort, said in VERDICTS.items()},
}
#: The colours of verdicts and of sections of findings.
_LEVELS = {
    Sort.START: SOUND,
    Sort.START_WITH_LOSS: ATTENTION,
    Sort.MEND: BROKEN,
    Sort.NO_START: BROKEN,
    Sort.UNKNOWN: ATTENTION,
    Effect.BLOCKS: BROKEN,
    Effect.UNKNOWN: ATTENTION,
    Effect.LOSES: BROKEN,
    Effect.LACKS: BROKEN,
    Effect.GONE: ATTENTION,
    Effect.HEALS: SOUND,
    Effect.HARMLESS: SOUND,
}
_STRETCHES = {
    WRITTEN: "messages",
    UNREAD: "written, not read",
    UNWRITTEN: "not written yet",
    CORRUPT: "damaged",
    MISSING: "missing",
    EXPIRED: "expired",
}
#: What the script says.
_OF_SCRIPT = {
    "filter_rows": "Filter these rows",
    "filter": "Filter: ",
    "shown": "%(shown)s of %(all)s rows",
    "hint": "Point at a bar to read it off.",
    "others": "others",
    "messages": "messages",
    "bytes": "bytes",
}
_SECTIONS = (
    ("findings", "Findings"),
    ("log", "Commit log"),
    ("traffic", "Traffic"),
    ("sizes", "Message sizes"),
    ("lag", "Consumers"),
    ("topics", "Topics"),
    ("queues", "Queues"),
    ("index", "Index"),
)


_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page."""

    name: str
    value: str
    note: str


def render(
    facts: Facts, rows: int = ROWS, zone: numbers.Zone | None = None, language: str = ENGLISH
) -> bytes:
    """The page, as UTF-8.

    Args:
        rows: of each table, at most.
        zone: of its times; UTC if missing.
        language: of its words, one of :data:`reput.report.language.LANGUAGES`.
    """
    with in_language(language), numbers.in_zone(numbers.Zone() if zone is None else zone):
        return _rendered(facts, rows)


def _rendered(facts: Facts, rows: int) -> bytes:
    return filled(
        "report.html.j2",
        _embedded(facts),
        facts=facts,
        rows=rows,
        sections=_SECTIONS,
        tiles=_tiles(facts),
        level=_LEVELS[facts.verdict.sort],
        headline=f"{said(facts.verdict.words)}: {said(facts.verdict.said)}",
        sentences=list(_sentences(facts)),
        findings=_by_effect(facts.findings, rows),
        topics=facts.topics[:rows],
        in_topics=sum(one.messages for one in facts.topics),
        queues=_worst_first(facts.queues)[:rows],
        lag=(facts.lag or [])[:rows],
        index=facts.index[-rows:],
        segments=() if facts.log is None else facts.log.segments[-rows:],
        damage=()
        if facts.log is None
        else [one for one in facts.log.stretches if one.kind in (CORRUPT, MISSING, UNWRITTEN)],
        log_map=None if facts.log is None else log_map(facts.log, _past(facts)),
        log_summary=_log_summary(facts),
        written=_written(facts),
        charts=None
        if facts.traffic is None
        else {what: traffic_chart(facts.traffic, what=what) for what in ("messages", "bytes")},
        buckets=_buckets(facts),
        last_time=_last_time(facts),
        histogram=None if facts.sizes is None else size_histogram(facts.sizes),
    )


def filled(template: str, embedded: dict[str, object], **facts: object) -> bytes:
    """A page of one of the templates, as UTF-8, with the style, the script and the words of all.

    ``embedded``: what the script reads, JSON-ready.
    """
    script = _source("report.js")
    text = (
        _environment()
        .get_template(template)
        .render(
            zone=numbers.zone_name(),
            generator=f"{GENERATOR} {reput.__version__}",
            script=Markup(script),  # the package's own file, as the style is
            script_hash=_hash(script),
            style=Markup(_source("report.css")),
            lang=TAGS[current()],
            embedded=_json({**embedded, "words": _labels(_OF_SCRIPT)}),
            words={"level": _labels(_WORDS), "stretch": _labels(_STRETCHES)},
            **facts,
        )
    )
    return text.encode()


def _shown(value: Any) -> Any:
    """What a template prints: its own markup as it is, texts with all to be seen."""
    return visible(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reput.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.policies["ext.i18n.trimmed"] = True
    # Texts that count something are put together by `counted`, in which a catalogue has no plurals.
    environment.install_gettext_callables(gettext, _no_plural, newstyle=True)  # type: ignore[attr-defined]
    environment.filters.update(
        said=said,
        seen=_shown,
        counted=counted,
        number=numbers.number,
        size=numbers.size,
        moment=numbers.moment,
        moment_fine=numbers.moment_fine,
        iso=numbers.iso,
        span=numbers.span,
        file_name=lambda path: PurePath(path).name,
        below=_below,
        remarks=_remarks,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    return environment


def _source(name: str) -> str:
    return (files("reput.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _no_plural(one: str, several: str, number: int) -> str:
    raise NotImplementedError((one, several, number))


def _labels(words: dict[_Key, str]) -> dict[_Key, str]:
    return {key: gettext(word) for key, word in words.items()}


def _embedded(facts: Facts) -> dict[str, object]:
    """What the script and other programs read: the facts without their long lists."""
    return {
        "store": facts.store,
        "made_at": facts.made_at,
        "zone": numbers.zone_name(),
        "reput_version": facts.reput_version,
        "rocketmq_version": facts.rocketmq_version,
        "verdict": facts.verdict.sort,
        "summary": facts.verdict.text,
        "exit_code": facts.exit_code,
        "queue_totals": asdict(facts.queue_totals),
        "traffic": None if facts.traffic is None else asdict(facts.traffic),
    }


def _json(document: dict[str, object]) -> Markup:
    """A document in which nothing can end the element that it stands in, or begin another one."""
    text = json.dumps(document, separators=(",", ":"))
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _worst_first(queues: list[QueueFacts]) -> list[QueueFacts]:
    """Those with problems, then those with the most messages."""

    def order(row: QueueFacts) -> tuple[bool, int, int]:
        held = (row.max_offset or 0) - (row.min_offset or 0)
        messages = row.log_messages if row.log_messages is not None else held
        return row.problem is None and row.is_there, -(row.behind or 0), -messages

    return sorted(queues, key=order)


def _remarks(row: QueueFacts) -> str:
    """What else there is to say of a queue, in the page's language."""
    found = ["batch queue"] if row.kind == "batch" else []
    if row.problem is not None:
        found.append(row.problem)
    elif not row.is_there:
        found.append("no files" if row.kind != IN_ROCKSDB else "not in RocksDB")
    return "; ".join(map(said, found))


def _buckets(facts: Facts) -> list[tuple[int, int, int]]:
    """(time in ms, messages, bytes) of each bucket."""
    traffic = facts.traffic
    if traffic is None:
        return []
    columns = zip(
        *(
            map(sum, zip(*(getattr(one, what) for one in traffic.series), strict=True))
            for what in ("messages", "bytes")
        ),
        strict=True,
    )
    return [
        (traffic.start_ms + number * traffic.width_ms, messages, size)
        for number, (messages, size) in enumerate(columns)
    ]


def _below(path: str, root: str) -> str:
    """A path as it is named in the store, where it lies there."""
    found = PurePath(path)
    return str(found.relative_to(root)) if found.is_relative_to(root) else path


def _last_time(facts: Facts) -> int | None:
    times = [] if facts.log is None else [one.last_time for one in facts.log.segments]
    return next((time for time in reversed(times) if time is not None), None)


def _log_summary(facts: Facts) -> str:
    if facts.log is None:
        return ""
    lengths: dict[str, int] = {}
    for one in facts.log.stretches:
        lengths[one.kind] = lengths.get(one.kind, 0) + one.end - one.start
    return ", ".join(
        f"{gettext(_STRETCHES[kind])} {numbers.size(length)}" for kind, length in lengths.items()
    )


def _past(facts: Facts) -> frozenset[str]:
    """Names of what leads past the log's end, where nobody adds to it meanwhile."""
    log = facts.log
    if log is None or facts.in_use_by is not None:
        return frozenset()
    return frozenset(one.name for one in log.reaches if one.offset is not None and one.offset > log.end)


@dataclass(frozen=True, slots=True)
class Section:
    """Findings of one effect: its title and colour, those that are listed, and how many there are."""

    title: str
    level: str
    findings: list[Finding]
    count: int


def _by_effect(findings: list[Finding], rows: int) -> list[Section]:
    """The worst first."""
    found = []
    for effect, title in TITLES.items():
        some = [one for one in findings if one.effect is effect]
        if some:
            found.append(Section(title, _LEVELS[effect], some[:rows], len(some)))
    return found


def _sentences(facts: Facts) -> Iterator[str]:
    """What else there is to know of a store before its broker is started."""
    if facts.in_use_by is not None:
        yield f"In use by {facts.in_use_by}: what is said here was true while it was read."
    elif facts.clean is False:
        yield "The last broker crashed (the file abort is there): the next start recovers as after a crash."
    start = facts.starting
    if start is not None and start["begins_at"] is not None:
        messages = counted(start["walked_messages"], "message")
        yield f"A start walks {messages} of the log, up to {start['log_end']}."


def _written(facts: Facts) -> int:
    """Bytes of the log that were written, and are there."""
    stretches = () if facts.log is None else facts.log.stretches
    return sum(one.end - one.start for one in stretches if one.kind in (WRITTEN, UNREAD, CORRUPT))


def _tiles(facts: Facts) -> list[Tile]:
    log, totals = facts.log, facts.queue_totals
    tiles = []
    if log is not None:
        segments = counted(len(log.segments), "segment")
        tiles.append(Tile("Commit log", numbers.size(_written(facts)), segments))
        if log.messages is not None:
            mean = f"{numbers.size(facts.sizes.mean)} each" if facts.sizes is not None else "none in the log"
            tiles.append(Tile("Messages", numbers.number(log.messages), mean))
    tiles.append(Tile("Topics", numbers.number(totals.topics), counted(totals.queues, "queue")))
    if facts.lag:
        late = sum(row.lag for row in facts.lag)
        groups = len({row.group for row in facts.lag})
        tiles.append(Tile("Lag", numbers.number(late), counted(groups, "group")))
    keys = sum(one.keys for one in facts.index)
    tiles.append(Tile("Index", numbers.number(keys), f"keys in {counted(len(facts.index), 'file')}"))
    last = max((row.last_time for row in facts.queues if row.last_time is not None), default=None)
    if last is not None:
        age = facts.made_at - last
        when = numbers.moment(last)
        tiles.append(
            Tile(
                "Last message",
                when[11:] or when,
                f"{when[:10]} {numbers.zone_name()}, {numbers.span(max(age, 0))} ago",
            )
        )
    return tiles


#: A page names its maker within so many bytes.
_HEAD = 512
_MARK = f'<meta name="generator" content="{GENERATOR}'.encode()


def check_target(path: Path, settings: StoreSettings, *, force: bool) -> Path:
    """Refuse a page in one of the store's directories, or in the place of what reput hasn't made."""
    return check_page(path, settings.directories, force=force)


def check_page(path: Path, directories: Iterable[Path], *, force: bool) -> Path:
    """Refuse what a page must not be written to; before anything is read, for that may take long.

    ``directories``: of stores. ``force``: a file that is no report may be replaced.

    Returns:
        Where to write, with links followed.
    """
    target = check_outside("a report", path, directories, "Name another file with --out.")
    check_file(
        target,
        "a report is",
        force=force or (target.is_file() and is_report(target)),
        other=", and it is no report",
        expected="no file, or a page that reput report made",
    )
    return target


def is_report(path: Path) -> bool:
    """Whether a file is a page of reput's, or empty."""
    with reporting("the file can't be read", path), open(path, "rb") as file:
        head = file.read(_HEAD)
    return not head or _MARK in head
