"""A few of the kills of ``make torture``, behind a real store under load.

How much is written between two kills depends on the machine. What shows that files were rolled and compared
at all is waited for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.format import names
from tests.torture.commands import CASES, Commands
from tests.torture.run import Torture
from tests.torture.steps import BY_NAME

#: What a broker of 5.x writes by itself: to its schedule, for consumers that failed, about transactions, of
#: the timer wheel and of popping.
BROKERS_OWN = {
    *("SCHEDULE_TOPIC_XXXX", "%RETRY%pullers", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    *("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster", "%RETRY%poppers_Returns"),
}

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.proof]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Leave no py4j object for later: finalized while CPython 3.11 parses, it breaks that (gh-106905)."""
    yield
    gc.collect()


def test_a_tail_that_is_killed_comes_to_the_real_stores_bytes(tmp_path: Path) -> None:
    steps = [BY_NAME["journal record half written"], BY_NAME["units half written"]]
    result = Torture(tmp_path / "torture", "4.9.7", seed=20, rate=400, step_seconds=120).run(1, steps)
    assert sum(result.kills.values()) == 3
    assert result.end.queue_bytes > 100_000
    assert result.messages > 500
    assert result.missed == []


def test_a_tail_that_is_killed_comes_to_a_whole_brokers_bytes(tmp_path: Path) -> None:
    torture = Torture(
        tmp_path / "torture", "5.5.0", seed=3, rate=300, broker=True, is_enough=has_rolled_and_popped
    )
    result = torture.run(2, [])
    assert sum(result.kills.values()) == 2
    assert result.messages > 500
    assert result.end.queue_bytes > 50_000
    assert has_rolled_and_popped(torture.out)


def test_each_other_command_that_is_killed_leaves_what_it_would_have_left(tmp_path: Path) -> None:
    result = Commands(tmp_path / "torture", "5.5.0", seed=3).run(len(CASES))
    assert set(result.kills.values()) == {1}
    assert result.compared > 100


def has_rolled_and_popped(root: Path) -> bool:
    """Whether a broker has written everything by itself that it does, and begun second files."""
    queues = root / names.CONSUME_QUEUE
    topics = {path.name for path in queues.glob("*")}
    several = [len(list(path.glob("*"))) > 1 for path in (root / names.INDEX, queues / "Orders" / "0")]
    return topics >= BROKERS_OWN and all(several)
