"""Which queues a message that names light queues gets into, release by release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.format import commitlog
from reput.format.commitlog import Record
from tests.local import kinds, rebuild_locally, write_store
from tests.memory import scratch

OWN_ID = 3
PLAIN, RETRY, SCHEDULE = "orders", "%RETRY%group", "SCHEDULE_TOPIC_XXXX"
TIMER, SYSTEM = "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_cluster"
TOPICS = (PLAIN, RETRY, SCHEDULE, TIMER, SYSTEM, "%DLQ%group", "a%RETRY%group")
#: From this release on, these topics have none.
EXCLUDED: dict[str, tuple[str, ...]] = {
    "4.9.2": TOPICS,
    "4.9.3": (),
    "5.0.0": (),
    "5.1.0": (),
    "5.1.1": (RETRY,),
    "5.1.2": (RETRY, SCHEDULE, TIMER),
    "5.1.4": (RETRY, SCHEDULE, TIMER),
    "5.2.0": (RETRY, SCHEDULE, TIMER, SYSTEM),
    "5.3.3": (RETRY, SCHEDULE, TIMER, SYSTEM),
    "5.5.0": (RETRY, SCHEDULE, TIMER, SYSTEM),
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: what is tested isn't the disk."""
    with scratch() as place:
        yield place


def rebuilt(
    root: Path, version: str, named: list[tuple[str, str]], *, enable_lmq: bool = True
) -> tuple[set[tuple[str, int]], list[str]]:
    """The queues of a log with a message for each (topic, light queues), and the kinds of findings."""
    log = b""
    for topic, listed in named:
        count = listed.count(",") + 1
        properties = (
            f"INNER_MULTI_DISPATCH\x01{listed}\x02INNER_MULTI_QUEUE_OFFSET\x01{','.join('0' * count)}\x02"
        )
        log += commitlog.encode(
            Record(topic.encode(), b"x", properties.encode(), queue_id=OWN_ID, physical_offset=len(log))
        )
    store = write_store(
        root / "store",
        [(0, log.ljust(4000, b"\0"))],
        version=version,
        segment_size=4000,
        enable_multi_dispatch=True,
        enable_lmq=enable_lmq,
    )
    state = rebuild_locally(store, root / "out")
    return set(state.queues), kinds(state.findings)


@pytest.mark.parametrize("version", EXCLUDED)
def test_topics_whose_messages_have_light_queues(version: str, tmp_path: Path) -> None:
    named = [(topic, f"%LMQ%{number}") for number, topic in enumerate(TOPICS)]
    queues, findings = rebuilt(tmp_path, version, named)
    light = {(name, 0) for topic, name in named if topic not in EXCLUDED[version]}
    assert queues - {(topic, OWN_ID) for topic in TOPICS} == light
    assert findings == []


@pytest.mark.parametrize(
    ("name", "queue_id"),
    [
        ("%LMQ%device", 0),
        ("%LMQ%", 0),
        ("%LMQ%größe", 0),
        ("%lmq%device", OWN_ID),
        ("x%LMQ%device", OWN_ID),
        ("plain", OWN_ID),
        (" %LMQ%device", OWN_ID),
    ],
)
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_names_that_make_the_queue_id_0(version: str, name: str, queue_id: int, tmp_path: Path) -> None:
    queues, findings = rebuilt(tmp_path / "with", version, [(PLAIN, name)])
    assert (queues, findings) == ({(PLAIN, OWN_ID), (name, queue_id)}, [])
    queues, findings = rebuilt(tmp_path / "without", version, [(PLAIN, name)], enable_lmq=False)
    assert (queues, findings) == ({(PLAIN, OWN_ID), (name, OWN_ID)}, [])


@pytest.mark.parametrize(
    ("version", "found"),
    [
        *[(version, ["unsafe-topic"]) for version in ("4.9.3", "4.9.7", "5.0.0", "5.1.1")],
        *[(version, []) for version in ("5.1.2", "5.1.4", "5.2.0", "5.5.0")],
    ],
)
def test_a_name_with_a_slash(version: str, found: list[str], tmp_path: Path) -> None:
    """Those beside it get their units; from 5.1.2 on a broker passes it over, and reput says nothing."""
    queues, findings = rebuilt(tmp_path, version, [(PLAIN, "%LMQ%a,%LMQ%b/c,%LMQ%d")])
    assert queues == {(PLAIN, OWN_ID), ("%LMQ%a", 0), ("%LMQ%d", 0)}
    assert findings == found
