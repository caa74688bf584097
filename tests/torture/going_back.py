"""A broker that loses power under a tail: its log goes back, and others take the places of what is gone.

``python -m tests.torture --going-back`` runs it. The broker is killed, the end of its log made what a disk
may have kept of it, and the broker started again, which recovers and writes on. What is right in the end is
what the real store derives anew from the log alone.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from reput.format import names
from reput.store.compare import compare
from tests.torture.generator import SIZES, Generator, broker_conf, derived_anew, wait_for, written_end
from tests.torture.tailing import Tailing
from tests.torture.verify import Checked, WrongError, check_ledger, state_of

_SEGMENT = int(str(SIZES["mappedFileSizeCommitLog"]))
_PAGE = 4096
#: What is lost lies within so many bytes before the log's end.
_LOST_BYTES = 400_000
_SECONDS = 300.0


class GoingBack:
    """One store that loses power again and again, and tails behind it.

    Args:
        place: a directory of its own; emptied first.
        version: of the store.
        seed: of the moments and of the messages.
        rate: messages a second.
        say: is told what happens.
    """

    def __init__(
        self, place: Path, version: str, *, seed: int, rate: float, say: Callable[[str], None] = print
    ) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.store, self.out, self._anew = place / "store", place / "out", place / "anew"
        self.kinds: Counter[str] = Counter()
        self._version, self._seed, self._rate = version, seed, rate
        self._random = random.Random(seed)
        self._say = say
        self._log = place / "tail.log"
        self._conf = broker_conf(self.store, place / "broker.conf")
        self._tail: Tailing | None = None

    def run(self, times: int) -> Checked:
        """Lose power so many times; then compare everything.

        Raises:
            WrongError: a byte differs, or a tail ended by itself.
        """
        try:
            for number in range(times):
                with self._broker(number) as broker:
                    self._follow()
                    broker.kill()
                kind, lost = self._lose(self._random.choice(["end", "page", "nothing"]))
                self.kinds[kind] += 1
                self._say(f"{number + 1}/{times} power lost: {kind}, {lost:,} bytes")
                self._kill_sometimes()
            with self._broker(times) as broker:
                self._follow()
                broker.finish()
                end = broker.end()
            tail = self._running()
            wait_for("the tail comes to the log's end", lambda: self._is_at(end), _SECONDS, every=0.5)
            tail.stop(self._random)
            code = tail.wait_ended(_SECONDS)
            if code not in (0, 1):
                raise WrongError(f"stopped, it ended with {code}:\n{tail.said()}")
            return self._check()
        finally:
            if self._tail is not None:
                self._tail.clean_up()

    def _broker(self, number: int) -> Generator:
        # A 4.9 store that recovers derives wrong tagsCodes for delayed messages.
        return Generator(self._version, self.store, rate=self._rate, seed=self._seed + number, delayed=False)

    def _running(self) -> Tailing:
        if self._tail is None:
            self._tail = Tailing(
                [
                    *("tail", self.store, "--out", self.out, "--broker-conf", self._conf),
                    *("--rocketmq-version", self._version),
                ],
                self.out,
                self._log,
            )
        return self._tail

    def _follow(self) -> None:
        """Let the tail come to its steady state, and some seconds pass."""
        tail = self._running()
        before = state_of(self.out)
        cursor = -1 if before is None else before.cursor
        wait_for("the tail goes on", lambda: self._is_past(cursor), _SECONDS)
        time.sleep(self._random.uniform(0.5, 4.0))
        if tail.has_ended:
            raise WrongError(f"the tail ended by itself with {tail.process.returncode}:\n{tail.said()}")

    def _is_past(self, cursor: int) -> bool:
        tail, state = self._running(), state_of(self.out)
        if tail.has_ended:
            raise WrongError(f"the tail ended by itself with {tail.process.returncode}:\n{tail.said()}")
        return tail.phase != "start-up" and state is not None and state.cursor != cursor

    def _is_at(self, end: int) -> bool:
        state = state_of(self.out)
        return self._is_past(-1) and state is not None and state.cursor == end

    def _kill_sometimes(self) -> None:
        """Before the broker comes back, while it recovers, or not at all."""
        if self._tail is not None and self._random.random() < 0.4:
            time.sleep(self._random.uniform(0, 2))
            self._tail.kill()
            self._tail = None

    def _lose(self, kind: str) -> tuple[str, int]:
        """Make the log's end what a disk may have kept; which kind, and how many bytes."""
        end = written_end(self.store)
        if kind == "nothing":
            return kind, 0
        start = max(end - self._random.randint(1, _LOST_BYTES), 0)
        stop = end
        if kind == "page":
            start -= start % _PAGE
            stop = min(start + _PAGE, end)
        for path in sorted((self.store / names.COMMIT_LOG).iterdir()):
            base = int(path.name)
            low, high = max(start - base, 0), min(stop - base, path.stat().st_size)
            if low < high:
                with path.open("r+b") as file:
                    file.seek(low)
                    file.write(bytes(high - low))
        return kind, stop - start

    def _check(self) -> Checked:
        shutil.copytree(self.store / names.COMMIT_LOG, self._anew / names.COMMIT_LOG)
        with derived_anew(self._version, self._anew) as anew:
            found = compare(anew, self.out)
        if found.differences or found.empty_directories:
            lines = "\n".join([*found.differences, *found.empty_directories])
            raise WrongError(f"{found.differing_bytes} bytes differ:\n{lines}")
        state = state_of(self.out)
        if state is None or not found.queue_bytes:
            raise WrongError("there was nothing to compare")
        check_ledger(self.out, state)
        return Checked(found.queue_bytes, found.index_bytes, state.cursor, state.batches)
