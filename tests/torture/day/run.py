"""The proof of a day: one tail behind a real store that is fed all day, while everything happens to both."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import machine
from reput.format import names
from reput.replay.state import State
from tests.compat.conf import conf_text
from tests.torture import processes
from tests.torture.day.books import Books
from tests.torture.day.checks import Compared, check_counts, check_files, check_queues, check_the_checks
from tests.torture.day.disk import Disk
from tests.torture.day.outcome import Outcome
from tests.torture.day.plan import (
    CUT,
    FULL_DISK,
    STORE_KILLED,
    STORE_STOPPED,
    TAIL_KILLED,
    TAIL_STOPPED,
    Event,
    plan,
)
from tests.torture.day.sizes import Sizes
from tests.torture.day.stores import FedStore, Slave, lose_units, records
from tests.torture.day.watch import Results, Watch, metrics
from tests.torture.steps import SPARK_SAID
from tests.torture.tailing import Tailing
from tests.torture.verify import WrongError, check_ledger, state_of

_SAMPLE_SECONDS = 5.0
_TICK_SECONDS = 0.1
#: The machine may be slow for a while.
_LONGEST_SECONDS = 1800.0
_TIMESTAMP_AT = 56  # storeTimestamp in a record
#: What a cut takes at most, and where in the first lost record: at its start, in its header, in its body.
_LOST_RECORDS = 20_000
_LOST_FROM = (0, 10, 100)
_PAGE = 4096
_DISK_BYTES = 2 << 30
_LEFT_BYTES = 2 << 20
#: What a tail may report of such a day.
_EXPECTED_FINDINGS = {"log-went-back"}


class Day:
    """One store, a slave of it, one output on a disk of its own, and the tails that follow one another.

    Args:
        place: a directory of its own; emptied first.
        version: the RocketMQ release.
        seed: of what happens, and when.
        messages: how many are fed.
        rate: messages a second.
        each: how often each kind of event happens.
        every: seconds between two lines of results, and two comparisons.
        results: gets these lines.
        say: is told what happens.
    """

    def __init__(
        self,
        place: Path,
        version: str,
        *,
        seed: int,
        messages: int,
        rate: int,
        each: int,
        every: float,
        results: Results,
        say: Callable[[str], None] = print,
    ) -> None:
        self._place, self._version = place, version
        self._messages, self._rate, self._every = messages, rate, every
        self._random = random.Random(seed)
        self._plan = plan(messages, each, self._random)
        self._results, self._say = results, say
        self._sizes = Sizes.of(messages)
        self.store, self.out = place / "store", place / "disk" / "out"
        self._feed = FedStore(version, self.store, self._sizes, rate, place / "taken")
        self._watch = Watch()
        self._compared = Compared(place / "slave", self.out, self._sizes)
        self._events: Counter[str] = Counter()
        self._happened: list[str] = []
        self._until = 0
        self._fed = self._end = self._expired = self._tails = 0
        self._tail: Tailing | None = None
        self._ending = False
        self._began = self._next_line = self._next_sample = self._line_at = 0.0

    def run(self) -> Outcome:
        """Let all of it happen, and compare.

        Raises:
            WrongError: a byte differs, a message is missing, or a tail ended by itself.
            JavaError: a store failed.
            DiskError: the output can't have a file system of its own.
        """
        (self._place / "disk").mkdir(parents=True)
        conf = {"storePathRootDir": self.store, "storePathCommitLog": self._feed.log, **self._sizes.config}
        (self._place / "broker.conf").write_text(conf_text(conf))
        with ExitStack() as stack:
            image = self._place / "image"
            self._disk = stack.enter_context(Disk(image, self._place / "disk", _DISK_BYTES))
            stack.callback(self._feed.close)
            self._slave = Slave(self._version, self._place / "slave", self._sizes, self._feed.log)
            stack.callback(self._slave.close)
            self._books = Books(self._feed, self._slave)
            stack.callback(lambda: self._tail and self._tail.clean_up())
            facts = machine.facts(self._place)
            facts["Java"] = facts["Java"].partition(";")[0]
            self._results.write("begin", machine=facts, sizes=self._sizes.config, events=len(self._plan))
            self._began = time.monotonic()
            self._next_line, self._next_sample = self._every, _SAMPLE_SECONDS
            self._until = self._limit(0)
            self._feed.start(self._until)
            self._wait("the first message is fed", lambda: self._feed.fed() > 0)
            self._start_tail()
            self._catch_up()
            for number, event in enumerate(self._plan):
                self._come_to(number, event)
            self._until = self._messages
            self._wait("all is fed", lambda: self._feed.fed(self._until) >= self._messages, 1e9)
            return self._finish()

    def _limit(self, number: int) -> int:
        """Up to where is fed until an event is through: a second past it."""
        return self._plan[number].at + self._rate if number < len(self._plan) else self._messages

    # What happens

    def _come_to(self, number: int, event: Event) -> None:
        self._wait(f"{event.at:,} messages are fed", lambda: self._feed.fed() >= event.at, 1e9)
        # Up to the next one, so that it happens while messages come; after that it has to wait for this one.
        self._until = self._limit(number + 1)
        self._feed.fed(self._until)
        happen = {
            TAIL_STOPPED: self._stop_tail,
            TAIL_KILLED: self._kill_tail,
            STORE_STOPPED: self._stop_store,
            STORE_KILLED: self._kill_store,
            CUT: self._cut,
            FULL_DISK: self._fill_disk,
        }
        began = time.monotonic()
        what = happen[event.kind]()
        self._catch_up()
        self._events[event.kind] += 1
        self._note(f"{event.kind}: {what}; caught up after {time.monotonic() - began:.0f} s")

    def _stop_tail(self) -> str:
        tail = self._running()
        tail.process.send_signal(signal.SIGTERM)
        code = self._await_end(tail, (0, 1))
        processes.wait_gone(tail.mark)
        self._pass(self._random.uniform(0, 10))
        self._start_tail()
        return f"exit code {code}"

    def _kill_tail(self) -> str:
        count = self._end_tail_by_kill()
        self._pass(self._random.uniform(0, 10))
        self._start_tail()
        return f"{count} processes"

    def _stop_store(self) -> str:
        self._fed = self._feed.fed()
        end = self._feed.stop()
        self._pass(self._random.uniform(0, 5))
        self._start_store(end)
        return f"at {end:,}"

    def _kill_store(self) -> str:
        self._advance()
        self._feed.kill()
        found = list(records(self._feed.log, self._slave.end, self._sizes.segment))
        end = self._books.after_kill(found, lost=0)
        self._pass(self._random.uniform(0, 5))
        self._start_store(end)
        return f"at {end:,}"

    def _cut(self) -> str:
        self._advance()
        self._pass(self._random.uniform(0.5, 2))

        def has_new() -> bool:
            self._feed_on()  # a line may have let the slave have all that is fed before the next event
            return self._feed.end() > self._slave.end

        self._wait("a message comes that the slave hasn't got", has_new)
        self._feed.kill()
        log, segment = self._feed.log, self._sizes.segment
        found = list(records(log, self._slave.end, segment))
        # In the last segment: the store's start looks no further back for sure.
        base = found[-1].position - found[-1].position % segment
        choice = [record for record in found[-_LOST_RECORDS:] if record.position >= base]
        first = self._random.choice(choice)
        lost = [record for record in found if record.position >= first.position]
        start, end = first.position + self._random.choice(_LOST_FROM), lost[-1].position + lost[-1].size
        is_page = self._random.random() < 0.4 and end - start > 2 * _PAGE
        stop = start + _PAGE if is_page else end
        killed = ""
        with (log / names.offset_name(base)).open("r+b") as file:
            file.seek(start - base)
            file.write(bytes(stop - start))
        lose_units(self.store, first.position)
        self._books.after_kill(found, lost=len(lost))
        if self._random.random() < 0.4:
            killed = f", and the tail killed with {self._end_tail_by_kill()} processes"
        self._pass(self._random.uniform(0, 5))
        self._start_store(first.position)
        if self._tail is None:
            self._start_tail()
        kind = "a page, and so" if is_page else "the end:"
        return f"{kind} {len(lost):,} messages from {first.position:,} on{killed}"

    def _fill_disk(self) -> str:
        tail = self._running()
        self._ending = True
        left = self._random.choice([0, self._random.randrange(_LEFT_BYTES)])
        self._disk.fill(left)
        began = time.monotonic()

        def has_ended() -> bool:
            if time.monotonic() - began > 20:  # what expires makes room
                self._disk.fill()
                self._feed_on()  # all that was fed may have had room
            return tail.has_ended

        self._wait("the tail ends as its disk is full", has_ended)
        code, said = tail.process.returncode, tail.said()
        own = "\n".join(line for line in said.splitlines() if not line.startswith(SPARK_SAID))
        if code != 2 or "ENOSPC" not in own or "reput failed" in own or "Traceback" in own:
            raise WrongError(f"on a full disk the tail ended with {code}:\n{said}")
        self._tail_ended()
        tail.clean_up()
        self._pass(self._random.uniform(0, 5))
        self._disk.make_room()
        self._start_tail()
        told = next(line for line in said.splitlines()[::-1] if "ENOSPC" in line)
        return f"{left:,} bytes left, {told}"

    # The store

    def _start_store(self, end: int) -> None:
        found = self._feed.start(self._until)
        # A closing record at the end: the next message goes into the next segment, or into its place.
        blank_end = end + (-end % self._sizes.segment)
        if found not in (end, blank_end):
            raise WrongError(f"the store goes on at {found:,}, its log ends at {end:,}")

    def _feed_on(self) -> None:
        """Feed some more before the next event, where all that was to be fed has been."""
        if self._feed.fed() >= self._until:
            self._until = min(self._until + self._rate // 100, self._messages)
            self._feed.fed(self._until)

    def _advance(self) -> None:
        """Let the slave have all there is."""
        self._slave.follow(self._feed.end())
        self._pass(0.5)

    # The tail

    def _running(self) -> Tailing:
        if self._tail is None:
            raise WrongError("no tail runs")
        return self._tail

    def _start_tail(self) -> None:
        self._tails += 1
        self._ending = False
        self._tail = Tailing(
            [
                *("tail", self.store, "--out", self.out, "--broker-conf", self._place / "broker.conf"),
                *("--rocketmq-version", self._version, "--metrics-port", "0"),
            ],
            self.out,
            self._place / f"tail-{self._tails}.log",
        )

    def _end_tail_by_kill(self) -> int:
        count = self._running().kill()
        self._tail_ended()
        return count

    def _await_end(self, tail: Tailing, codes: tuple[int, ...]) -> int:
        self._ending = True
        self._wait("the tail ends", lambda: tail.has_ended)
        code = tail.process.returncode
        if code not in codes or "reput failed" in tail.said():
            raise WrongError(f"stopped, the tail ended with {code}:\n{tail.said()}")
        self._tail_ended()
        return int(code)

    def _tail_ended(self) -> None:
        self._watch.ended()
        self._tail = None

    def _catch_up(self) -> None:
        """Until the tail has committed what the log holds now, and compare all that."""
        end = self._feed.end() if self._feed.runs else self._end

        def is_there() -> bool:
            values = metrics(self._running())
            return values is not None and values.get(("reput_offset", ""), -1) >= end

        self._wait(f"the tail comes to {end:,}", is_there)
        self._wait(f"the tail's state is of this log, up to {end:,}", lambda: self._compare(end), every=1.0)

    def _compare(self, end: int = 0) -> bool:
        """Compare what is committed, and let old segments expire; whether it reaches so far."""
        state = state_of(self.out)
        if self._feed.runs:
            self._slave.follow(self._feed.end())
        if state is None or not self._is_of_this_log(state):
            return False
        self._compared.more(state)
        if self._feed.runs:
            self._expire(state.cursor)
        return state.cursor >= end

    def _is_of_this_log(self, state: State) -> bool:
        """Whether the last message of a state is in the log: a cut may have taken it since."""
        if state.cursor > self._slave.end or state.last_position < 0:
            return False
        base = state.last_position - state.last_position % self._sizes.segment
        with (self._feed.log / names.offset_name(base)).open("rb") as file:
            file.seek(state.last_position - base + _TIMESTAMP_AT)
            return int.from_bytes(file.read(8), "big") == state.last_timestamp

    def _expire(self, cursor: int) -> None:
        """As many segments as are too many, and as the tail has read."""
        bases = sorted(int(path.name) for path in self._feed.log.iterdir())
        end = min(cursor, self._slave.end)
        many = sum(end - base > self._sizes.kept and base + self._sizes.segment < end for base in bases)
        if many:
            self._feed.expire(many)
            self._slave.expire(many)
            self._expired += many

    # Time goes by

    def _wait(
        self,
        what: str,
        holds: Callable[[], bool],
        seconds: float = _LONGEST_SECONDS,
        every: float = _TICK_SECONDS,
    ) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                said = "" if self._tail is None or self._tail.has_ended else self._tail.said_at_last()
                raise WrongError(f"not within {seconds:.0f} s: {what}\n{said}")
            self._tick()
            time.sleep(every)

    def _pass(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self._tick()
            time.sleep(_TICK_SECONDS)

    def _tick(self) -> None:
        now = time.monotonic() - self._began
        tail = self._tail
        if tail is not None and tail.has_ended and not self._ending:
            raise WrongError(f"the tail ended by itself with {tail.process.returncode}:\n{tail.said()}")
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_SECONDS
            if tail is not None and not tail.has_ended:
                self._watch.look(tail, self._tails, now)
        if now >= self._next_line:
            self._next_line = now + self._every
            self._compare()
            self._line(now)

    def _line(self, now: float) -> None:
        if self._feed.runs:
            self._fed, self._end = self._feed.fed(), self._feed.end()
        samples = self._watch.since(self._line_at)
        record = self._end / max(self._fed, 1)
        facts: dict[str, object] = {
            "seconds": round(now),
            "fed": self._fed,
            "late_seconds": round(self._feed.late, 1),
            "most_late_seconds": round(self._feed.most_late, 1),
            "log_end": self._end,
            "expired_segments": self._expired,
            "tails": self._tails,
            "stores": self._feed.starts,
            "restarts": self._watch.all_restarts(),
            "compared": {"units": self._compared.units, "entries": self._compared.entries},
            "disk_bytes": self._used(),
            "events": self._happened,
        }
        if samples:
            middle = sorted(samples, key=lambda sample: sample.own)[len(samples) // 2]
            facts |= {
                "lag_messages": round(samples[-1].behind / record),
                "most_lag_messages": round(max(sample.behind for sample in samples) / record),
                "lag_seconds": round(samples[-1].lag, 3),
                "memory_bytes": int(statistics.median(sample.own for sample in samples)),
                "most_memory_bytes": max(sample.own for sample in samples),
                "anonymous_bytes": int(statistics.median(sample.anonymous for sample in samples)),
                "memory_by_kind": middle.by_kind,
            }
        self._results.write("sample", **facts)
        self._line_at, self._happened, self._feed.most_late = now, [], 0.0
        if self._feed.runs and facts["late_seconds"]:
            self._say(f"the writer is {self._feed.late:.1f} s late")

    def _used(self) -> int:
        """Bytes on disk of both stores and of the output's file system."""
        paths = [path for root in ("store", "slave") for path in (self._place / root).rglob("*")]
        total = 0
        for path in [*paths, self._place / "image"]:
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    def _note(self, text: str) -> None:
        self._happened.append(text)
        self._say(f"{self._feed.fed() if self._feed.runs else self._fed:,} messages: {text}")

    # The end

    def _finish(self) -> Outcome:
        self._fed = self._feed.fed()
        self._end = self._feed.stop()
        fed_seconds = time.monotonic() - self._began
        self._slave.follow(self._end)
        self._catch_up()
        self._await_stop()
        start = min(int(path.name) for path in self._feed.log.iterdir())
        if (state := state_of(self.out)) is not None and state.log_start != start:
            # The last segments expired when no batch came any more: a start follows them.
            self._start_tail()
            tail = self._running()
            self._wait("the last tail runs", lambda: tail.can_be_stopped and metrics(tail) is not None)
            self._await_stop()
        self._slave.stop()
        state = state_of(self.out)
        if state is None or state.cursor != self._end:
            raise WrongError(f"the tail ends at {state and state.cursor}, the log at {self._end}")
        self._compared.more(state)
        found = check_files(self._slave.root, self.out)
        queue_bytes = check_queues(self.store, self.out)
        check_ledger(self.out, state)
        check_counts(state, self._slave.counts, self._books.kept())
        kinds = Counter(finding.kind for finding in state.findings)
        if kinds.keys() - _EXPECTED_FINDINGS:
            raise WrongError(f"findings of a sound log: {dict(kinds)}")
        proofs = check_the_checks(self._slave.root, self.out, state, self._sizes, self._slave.counts)
        check_files(self._slave.root, self.out)
        self._line(time.monotonic() - self._began)
        return Outcome(
            {
                "seconds": round(time.monotonic() - self._began),
                "fed_seconds": round(fed_seconds),
                "messages": self._fed,
                "kept": self._slave.counts.total(),
                "lost_by_cuts": self._books.lost.total(),
                "uncounted": self._books.uncounted.total(),
                "late_seconds": round(self._feed.late, 1),
                "log_bytes": self._end,
                "log_start": start,
                "expired_segments": self._expired,
                "events": dict(self._events),
                "tails": self._tails,
                "stores": self._feed.starts,
                "restarts": self._watch.all_restarts(),
                "findings": dict(kinds),
                "batches": state.batches,
                "compared": {"units": self._compared.units, "entries": self._compared.entries},
                "compared_at_the_end": {
                    "queue_bytes": found.queue_bytes,
                    "index_bytes": found.index_bytes,
                    "queue_bytes_of_the_fed_store": queue_bytes,
                },
                "proofs": proofs,
                "memory": self._watch.memory(),
            }
        )

    def _await_stop(self) -> None:
        tail = self._running()
        tail.process.send_signal(signal.SIGTERM)
        self._await_end(tail, (0, 1))
        processes.wait_gone(tail.mark)
