"""The proof by kill: a tail that is killed again and again behind a real store under load."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from reput.format import names
from tests.torture import processes
from tests.torture.generator import Generator, broker_conf, wait_for, written_end
from tests.torture.real_broker import BrokerUnderLoad
from tests.torture.steps import STEPS, Doom, Step
from tests.torture.tailing import Tailing
from tests.torture.verify import Checked, WrongError, check_all, check_committed, state_of

START_UP, FIRST_BATCH, STEADY, STOPPING = "start-up", "first batch", "steady state", "stopping"
DRIVER, JVM = "driver alone", "JVM alone"

#: Shares of the random kills. The early ones are cheap, the late ones meet more.
_SHARES = {START_UP: 0.3, FIRST_BATCH: 0.15, STEADY: 0.4, STOPPING: 0.1, DRIVER: 0.03, JVM: 0.02}
_LIMITS = ("40k", "300k", "2m", "1g")
_START_SECONDS = 300.0
_STEADY_SECONDS = 5.0
_STEP_SECONDS = 12.0
_END_SECONDS = 600.0


@dataclass(slots=True)
class Result:
    """What a torture has shown.

    Attributes:
        kills: by the phase in which the tail was killed, or by the step.
        missed: steps that a run didn't come to; it was killed in its steady state.
        seconds: wall time of all.
        messages, log_bytes: written by the real store meanwhile.
        end: the closing comparison.
        compared: bytes that were compared after kills, all of them equal.
    """

    kills: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    messages: int = 0
    log_bytes: int = 0
    end: Checked = field(default_factory=lambda: Checked(0, 0, 0, 0))
    compared: int = 0

    def lines(self) -> list[str]:
        """For people."""
        killed = ", ".join(f"{count} {phase}" for phase, count in sorted(self.kills.items()))
        at_end = f"{self.end.queue_bytes:,} bytes of queues, {self.end.index_bytes:,} bytes of index files"
        found = [
            f"log: {self.messages:,} messages, {self.log_bytes:,} bytes, in {self.end.batches:,} batches",
            f"compared at the end: {at_end}, checkpoint and ledger: 0 bytes differ",
            f"compared after kills, of what was committed: {self.compared:,} bytes: 0 bytes differ",
        ]
        if self.missed:
            found.append(f"steps that a run didn't come to: {', '.join(self.missed)}")
        return [*found, f"{sum(self.kills.values())} kills in {self.seconds:.0f} s: {killed}; 0 bytes differ"]


class Torture:
    """One store under load, one output, many tails.

    Args:
        place: a directory of its own; emptied first.
        version: of the store.
        seed: of the moments and of the messages.
        rate: messages a second.
        broker: a whole broker with clients writes the log, instead of its store alone.
        step_seconds: how long a tail in its steady state may take to come to a step.
        is_enough: whether the store, in this directory, has been written to enough: a few kills may leave it
            too little time.
        say: is told of each kill.
    """

    def __init__(
        self,
        place: Path,
        version: str,
        *,
        seed: int,
        rate: float,
        broker: bool = False,
        step_seconds: float = _STEP_SECONDS,
        is_enough: Callable[[Path], bool] = lambda _store: True,
        say: Callable[[str], None] = print,
    ) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.store = place / "store"
        self.out = place / "out"
        self.result = Result()
        self._version = version
        kind = BrokerUnderLoad if broker else Generator
        self._writer = partial(kind, version, self.store, rate=rate, seed=seed)
        self._random = random.Random(seed)
        self._step_seconds = step_seconds
        self._is_enough = is_enough
        self._say = say
        self._log = place / "tail.log"
        self._conf = broker_conf(self.store, place / "broker.conf")
        self._start_seconds = 8.0
        self._left_behind: list[Tailing] = []

    def run(self, kills: int, steps: Sequence[Step] = STEPS) -> Result:
        """Kill so many times at random moments and once at each of these steps; then compare everything.

        Raises:
            WrongError: a byte differs, or a tail ended by itself.
        """
        began = time.monotonic()
        plan: list[str | Step] = [*steps]
        for phase, share in _SHARES.items():
            plan += [phase] * round(share * kills)
        plan += [STEADY] * (kills + len(steps) - len(plan))
        self._random.shuffle(plan)
        try:
            with self._writer() as writer:
                for number, kind in enumerate(plan, 1):
                    self._round(f"{number}/{len(plan)}", kind)
                with self._tail(limit="1g") as last:
                    self._await_phase(last, STEADY)
                    self._await(last, lambda: self._is_enough(self.store), _END_SECONDS)
                    self.result.messages = writer.finish()
                    self._to_the_end(last, writer.end())
                    self._end(last, f"{number}/{len(plan)}")
                self.result.log_bytes = writer.end()
            # The store is shut down now: its checkpoint is that of a clean stop, and so must the tail's be.
            with self._tail(limit="1g") as last:
                self._await(last, lambda: last.can_be_stopped, _START_SECONDS)
                self._to_the_end(last, written_end(self.store))  # a broker writes up to its last moment
                self._end(last, "end")
            self.result.end = check_all(self.store, self.out)
        finally:
            for tail in self._left_behind:
                tail.clean_up()
        self.result.seconds = time.monotonic() - began
        return self.result

    def _round(self, number: str, kind: str | Step) -> None:
        disturbed = self._disturb()
        step = kind if isinstance(kind, Step) else None
        in_spark = self._random.random() < 0.4
        doom = Doom("", "", in_spark=in_spark)
        if step is not None:
            doom = Doom("", "", step.name, self._random.randint(1, step.most), in_spark)
        with self._tail(doom) as tail:
            if step is not None:
                killed, what = self._at_step(tail, step, doom.occurrence)
            else:
                killed, what = self._at_random(tail, str(kind))
            seconds = tail.seconds
        checked = check_committed(self.store, self.out)
        self.result.kills[killed] += 1
        self.result.compared += checked.queue_bytes + checked.index_bytes
        self._say(
            f"{number} {what}{', in Spark' if in_spark else ''}{disturbed}, after {seconds:.1f} s; "
            f"{checked.batches:,} batches to {checked.cursor:,}: "
            f"{checked.queue_bytes + checked.index_bytes:,} bytes equal"
        )

    def _at_step(self, tail: Tailing, step: Step, occurrence: int) -> tuple[str, str]:
        self._await(tail, lambda: tail.fired or tail.phase == STEADY, _START_SECONDS)
        deadline = time.monotonic() + self._step_seconds
        while not tail.fired and time.monotonic() < deadline:
            self._lives(tail)
            time.sleep(0.02)
        fired = tail.fired
        count = tail.kill()
        if not fired:
            self.result.missed.append(step.name)
            return STEADY, f"not at step {step.number}, {step.name} ({occurrence}): {count} processes killed"
        return "at steps", f"at step {step.number}, {step.name} ({occurrence}): {count} processes killed"

    def _at_random(self, tail: Tailing, kind: str) -> tuple[str, str]:
        if kind == START_UP:
            self._live_on(tail, self._random.uniform(0, self._start_seconds))
        elif kind == FIRST_BATCH:
            self._await(tail, lambda: tail.phase != START_UP, _START_SECONDS)
            self._live_on(tail, self._random.uniform(0, 1.5))
        else:
            self._await_phase(tail, STEADY)
            self._live_on(tail, self._random.uniform(0, _STEADY_SECONDS))
        if kind == STOPPING:
            tail.stop(self._random)
            self._live_on(tail, self._random.uniform(0, 1.5), may_end=True)
        phase = STOPPING if kind == STOPPING else tail.phase
        if kind == DRIVER:
            # The rest ends by itself, while the next tail is starting already.
            tail.kill_part(driver=True)
            self._left_behind.append(tail)
            return kind, f"{kind} in {phase}"
        if kind == JVM:
            tail.kill_part(driver=False)
            code = tail.wait_ended(120.0)
            if code != 2 or "its JVM is gone" not in tail.said():
                raise WrongError(f"without its JVM the tail ended with {code}:\n{tail.said()}")
            return kind, f"{kind} in {phase}"
        return phase, f"{phase}: {tail.kill()} processes killed"

    def _tail(self, doom: Doom | None = None, limit: str | None = None) -> Tailing:
        # What Spark does in many small batches lags ever more behind.
        limit = limit or self._random.choice(_LIMITS[2:] if doom and doom.in_spark else _LIMITS)
        return Tailing(
            [
                *("tail", self.store, "--out", self.out, "--broker-conf", self._conf),
                *("--rocketmq-version", self._version, "--max-bytes-per-trigger", limit),
            ],
            self.out,
            self._log,
            doom,
        )

    def _disturb(self) -> str:
        """Now and then something that a power loss may leave; says what, to be put behind a comma."""
        reput, chance = self.out / names.REPUT, self._random.random()
        checkpoint = reput / names.SPARK_CHECKPOINT
        if chance < 0.1 and checkpoint.exists():
            shutil.rmtree(checkpoint)
            return ", Spark's checkpoint removed before"
        if chance < 0.2 and (offsets := sorted((checkpoint / "offsets").glob("[0-9]*"))):
            os.truncate(offsets[-1], 0)
            return ", Spark's last offsets emptied before"
        if chance < 0.25 and (commits := sorted((self.out / names.LEDGER / "_delta_log").glob("*.json"))):
            os.truncate(commits[-1], commits[-1].stat().st_size // 2)
            return ", the ledger's last commit torn before"
        return ""

    def _end(self, tail: Tailing, number: str) -> None:
        """Stop it cleanly.

        Raises:
            WrongError: it ends with another exit code, or leaves scratch or a process.
        """
        tail.stop(self._random)
        code = tail.wait_ended(120.0)
        if code not in (0, 1) or "reput failed" in tail.said():
            raise WrongError(f"stopped cleanly, it ended with {code}:\n{tail.said()}")
        processes.wait_gone(tail.mark)
        self._say(f"{number} stopped with exit code {code}, after {tail.seconds:.1f} s")

    def _to_the_end(self, tail: Tailing, end: int) -> None:
        def is_there() -> bool:
            self._lives(tail)
            state = state_of(self.out)
            return state is not None and state.cursor >= end

        wait_for(f"the tail comes to the log's end at {end}", is_there, _END_SECONDS, every=0.5)

    def _await_phase(self, tail: Tailing, phase: str) -> None:
        order = [START_UP, FIRST_BATCH, STEADY]
        self._await(tail, lambda: order.index(tail.phase) >= order.index(phase), _START_SECONDS)
        if phase == STEADY:
            self._start_seconds += (tail.seconds - self._start_seconds) / 4

    def _await(self, tail: Tailing, holds: Callable[[], bool], timeout: float) -> None:
        def lives_and_holds() -> bool:
            self._lives(tail)
            return holds()

        try:
            wait_for("the tail comes to the moment of its kill", lives_and_holds, timeout, every=0.01)
        except TimeoutError as error:
            raise WrongError(f"{error}:\n{tail.said_at_last()}") from None

    def _live_on(self, tail: Tailing, seconds: float, *, may_end: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if may_end and tail.has_ended:
                return
            self._lives(tail)
            time.sleep(min(left, 0.1))

    @staticmethod
    def _lives(tail: Tailing) -> None:
        if tail.has_ended:
            raise WrongError(f"the tail ended by itself with {tail.process.returncode}:\n{tail.said()}")
