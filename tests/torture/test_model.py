"""A tail that ends at any call to the operating system, in many small batches, comes to the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from reput.build import units
from reput.errors import ReputError
from reput.output import batch, writer
from reput.replay.state import State
from reput.store import files
from reput.store.system import System
from tests.crash import Dying, Failing, LosingPower, died
from tests.laid_out import Damage, Log, lay_out, store_of
from tests.levels import examples
from tests.local import Store, in_log_order, outputs, rebuild_locally
from tests.memory import scratch
from tests.torture.model import GrowingLog, tail_locally
from tests.unit.output.test_rollback import LOG, check, known

Expected = tuple[dict[str, bytes], dict[str, object]]
UseSystem = Callable[[System], None]


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def laid() -> Log:
    laid = lay_out(LOG + LOG, segment_size=800)
    laid.segments = Damage(0.52, 40, 0).apply(laid.segments)
    return laid


@pytest.fixture(params=["placed", "in log order"])
def store(request: pytest.FixtureRequest, place: Path) -> Store:
    store = store_of(place / "store", lay_out([], segment_size=800), "5.5.0")
    return store if request.param == "placed" else in_log_order(store, "B")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> UseSystem:
    return lambda one: monkeypatch.setattr(files, "system", one)


@pytest.fixture
def expected(place: Path, laid: Log, store: Store) -> Expected:
    """What a rebuild makes of the log in one go."""
    whole = GrowingLog(store, laid)
    whole.grow(whole.end)
    state = rebuild_locally(store, place / "expected")
    assert len(state.index) > 4
    is_ordered = store.settings.recovery.queue_ext
    assert {queue.is_batch for queue in state.queues.values()} == {False, True} if is_ordered else {False}
    return outputs(place / "expected"), known(state)


class Tails:
    """Tails over one log, each cut in its own way."""

    def __init__(self, store: Store, laid: Log, out: Path, random: Random) -> None:
        self.log = GrowingLog(store, laid)
        self.out = out
        self.random = random
        self.inline_bytes: list[int] = []

    def follow(self, monkeypatch: pytest.MonkeyPatch, steps: int = 6) -> State:
        """Follow the log while it grows by some bytes, several times; to its end if this isn't ended."""
        # Batches of several sizes: some here, some by tasks.
        monkeypatch.setattr(writer, "_INLINE_BYTES", self.random.choice([0, 300, 1 << 20]))
        # Units of many queues are collected.
        monkeypatch.setattr(batch, "_FEW_QUEUES", self.random.choice([2048, 2]))
        monkeypatch.setattr(units, "_MOST_COLLECTED", self.random.choice([1 << 22, 2]))
        left = self.log.end - self.log.reached
        offsets = sorted(self.log.reached + self.random.randint(0, left) for _ in range(steps))
        return tail_locally(
            self.log,
            self.out,
            [*offsets, self.log.end],
            limit=self.random.choice([150, 1000, 1 << 30]),
            part_bytes=self.random.choice([97, 400, 1 << 20]),
        )


@pytest.fixture
def tails(store: Store, laid: Log, place: Path) -> Callable[[int], Tails]:
    return lambda seed: Tails(store, laid, place / str(seed), Random(seed))


@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.slow
def test_growth_and_batches_leave_no_trace(
    seed: int, tails: Callable[[int], Tails], expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = tails(seed)
    check(tail.out, tail.follow(monkeypatch, steps=3 * seed), expected)


@pytest.mark.parametrize("seed", range(examples(24)))
def test_killed_again_and_again_while_the_log_grows(
    seed: int,
    tails: Callable[[int], Tails],
    expected: Expected,
    system: UseSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also at the start, while what was left over is taken back."""
    tail = tails(seed)
    for _ in range(5):
        system(Dying(tail.random.choice([tail.random.randint(1, 40), tail.random.randint(1, 1200)])))
        died(lambda: tail.follow(monkeypatch))
    system(System())
    check(tail.out, tail.follow(monkeypatch), expected)


@pytest.mark.parametrize("seed", range(examples(24)))
@pytest.mark.slow
def test_power_lost_again_and_again_while_the_log_grows(
    seed: int,
    tails: Callable[[int], Tails],
    expected: Expected,
    system: UseSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What wasn't flushed is there, or not, or in part."""
    tail = tails(seed)
    tail.out.mkdir()
    for _ in range(3):
        losing = LosingPower(tail.out, tail.random.randint(1, 1200))
        system(losing)
        died(lambda: tail.follow(monkeypatch))
        losing.lose(tail.random)
    system(System())
    check(tail.out, tail.follow(monkeypatch), expected)


@pytest.mark.parametrize("seed", range(examples(16)))
def test_a_disk_that_refuses_once_ends_the_tail(
    seed: int,
    tails: Callable[[int], Tails],
    expected: Expected,
    system: UseSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an error that says where; the next one goes on to the same bytes."""
    tail = tails(seed)
    for _ in range(3):
        system(Failing(tail.random.randint(1, 800)))
        with suppress(ReputError):
            tail.follow(monkeypatch)
    system(System())
    check(tail.out, tail.follow(monkeypatch), expected)
