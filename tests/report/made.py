"""Stores and facts to make pages of: hostile ones, and any number of queues."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from reput.diagnosis.verdict import Sort, Verdict
from reput.format.commitlog import Record
from reput.report.facts import Facts, QueueFacts, QueueTotals
from tests.stores import LogWriter

#: Names that would break out of a page that prints them as they are: of an element, an attribute, a script.
HOSTILE = (
    "<script>window.broken=1</script>",
    "</script><script>window.broken=1</script>",
    "</title></svg><img src=x onerror=window.broken=1>",
    '" onmouseover="window.broken=1" x="',
    "'><svg onload=window.broken=1>",
    "{{ 7 * 7 }}{% raw %}",
    "<!--<script>",
    "]]>&lt;&amp;&#60;",
    "javascript:window.broken=1",
    "\u202egnirts desrever",
    "a\x00b\x1b[31mred",
    "=cmd|' /C calc'!A0",
)

#: 2026-11-20 00:00 UTC, ms.
MORNING = 1_795_132_800_000


def hostile_store(root: Path) -> Path:
    """A store whose topics, keys and consumer groups are :data:`HOSTILE`, with damage in the middle."""
    log = LogWriter(root, 4096)
    for number in range(60):
        topic = HOSTILE[number % len(HOSTILE)]
        log.append(
            Record(
                topic=topic.encode(),
                body=b"<script>window.broken=1</script>" * (1 + number % 3),
                properties=f"KEYS\x01{topic}\x02".encode(),
                queue_id=number % 2,
                queue_offset=number // len(HOSTILE) // 2,
                store_timestamp=MORNING + number * 60_000,
            )
        )
    log.overwrite(log.records[20].physical_offset, b"\xff" * 40)
    for topic in HOSTILE:
        if "/" not in topic and "\0" not in topic:
            queue = root / "consumequeue" / topic / "0"
            queue.mkdir(parents=True)
            (queue / f"{0:020d}").write_bytes(bytes(6_000_000))
    config = root / "config"
    config.mkdir()
    groups = {f"{topic}@{topic}": {"0": 3} for topic in HOSTILE if "@" not in topic}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": groups}), encoding="utf-8")
    return root


def many_queues(count: int, **changes: object) -> Facts:
    """The facts of a store with so many queues."""
    queues = [
        QueueFacts(
            f"topic-{number // 8:05d}",
            number % 8,
            "plain",
            0,
            number,
            1,
            6_000_000,
            number,
            number,
            MORNING,
            0,
        )
        for number in range(count)
    ]
    facts = Facts(
        store="/data/store",
        broker_conf=None,
        rocketmq_version="5.5",
        reput_version="0",
        made_at=MORNING + 60_000,
        verdict=Verdict(Sort.START, "/data/store", "start it", "nothing is wrong for RocketMQ 5.5"),
        queues=queues,
        queue_totals=QueueTotals(count, -(-count // 8), count, count * 6_000_000, sum(range(count)), 0),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


class Elements(HTMLParser):
    """What a page is made of.

    Attributes:
        tags: the names of its elements, in order.
        attributes: the names of their attributes.
        texts: by element, what stands in it.
        values: of attributes, by name.
    """

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.values: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            self.values.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
