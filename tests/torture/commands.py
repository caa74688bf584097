"""The other commands that write, killed at random moments, and run again until they end.

Each gets its store as a real one wrote it, harmed where it has to be. What it leaves after one to five kills
has to be what it leaves without any, and a store's log what it was.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from reput.format import names
from reput.store.swap import INTENT
from tests.rebuilds import environment, tree
from tests.remote.gateway import gateway
from tests.spark.test_rocksdb import contents
from tests.torture import processes
from tests.torture.generator import Generator, broker_conf
from tests.torture.verify import WrongError

_WRITE_SECONDS, _RATE = 4.0, 5000.0
_LOOK_SECONDS = 0.01
_END_SECONDS = 300.0
#: So many kills of a command before it may come to its end, at most.
_IN_A_ROW = 5
_STORE = "store"
_LOG = f"{_STORE}/{names.COMMIT_LOG}"
_KEPT = re.compile(r"^replaced-\d{8}T\d{6}Z(-\d+)?")
#: What counts a command's runs, or holds their times.
_OF_A_RUN = (names.LOCK, INTENT)


@dataclass(frozen=True)
class Case:
    """A command, and the place that it starts from.

    Attributes:
        words: of the command; ``{place}`` stands for the directory that it is run in, ``{written}`` for the
            real store as it was, ``{url}`` for that in S3.
        before: commands that are run first, and not killed.
        harm: done to the store before all of them.
        conf: more lines of broker.conf.
        log_stays: whether it leaves the store's log alone.
        is_done: what it says, refused, when a kill came behind its last step.
    """

    name: str
    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    harm: Callable[[Path], None] = lambda _store: None
    conf: tuple[str, ...] = ()
    log_stays: bool = True
    is_done: str = ""


def _harm(store: Path) -> None:
    """Leave something for each of mend's steps."""
    with sorted((store / names.COMMIT_LOG).iterdir())[1].open("r+b") as file:
        file.seek(1 << 20)
        file.write(random.Random(1).randbytes(3000))
    topics = sorted(path for path in (store / names.CONSUME_QUEUE).iterdir() if path.is_dir())
    shutil.rmtree(topics[0])
    queue_file = max(path for path in topics[1].rglob("*") if path.is_file())
    with queue_file.open("r+b") as file:
        file.write(bytes(200))
    index_file = max((store / names.INDEX).iterdir())
    os.truncate(index_file, index_file.stat().st_size // 2)
    (store / names.INDEX / "by-hand").write_bytes(b"somebody's note")


def _lose(store: Path) -> None:
    """Lose what is derived, but for half of the queues."""
    for topic in sorted((store / names.CONSUME_QUEUE).iterdir())[::2]:
        shutil.rmtree(topic)
    shutil.rmtree(store / names.INDEX)


_STORE_WORDS = ("{place}/store", "--broker-conf", "{place}/broker.conf", "--rocketmq-version", "{version}")
_MEND = ("mend", *_STORE_WORDS, "--apply")
_TO_ROCKSDB = ("migrate", *_STORE_WORDS, "--to", "rocksdb", "--apply")
CASES = (
    Case("rebuild --out", ("rebuild", *_STORE_WORDS, "--out", "{place}/out")),
    Case("rebuild --in-place", ("rebuild", *_STORE_WORDS, "--in-place"), harm=_lose),
    Case("mend", _MEND, harm=_harm, log_stays=False),
    Case("mend --from", (*_MEND, "--from", "{written}"), harm=_harm, log_stays=False),
    Case(
        "undo",
        ("undo", "{place}/store"),
        before=(_MEND,),
        harm=_harm,
        log_stays=False,
        is_done="nothing to undo",
    ),
    Case("migrate --to rocksdb", _TO_ROCKSDB),
    Case(
        "migrate --to file",
        ("migrate", *_STORE_WORDS, "--to", "file", "--apply"),
        before=(_TO_ROCKSDB,),
        conf=("storeType=defaultRocksDB",),
    ),
    Case(
        "restore",
        ("restore", "{url}", *_STORE_WORDS[1:], "--out", "{place}/out", "--max-bytes-per-trigger", "4m"),
    ),
    Case(
        "catalog",
        ("catalog", *_STORE_WORDS, "--table", "{place}/out", "--bodies", "--max-bytes-per-trigger", "4m"),
    ),
    Case("export", ("export", *_STORE_WORDS, "--out", "{place}/out"), is_done="there is a file already"),
    Case(
        "export --as store",
        ("export", *_STORE_WORDS, "--as", "store", "--out", "{place}/out"),
        is_done="already",
    ),
)


@dataclass(slots=True)
class Result:
    """What was shown: ``kills`` by command, and runs that ended before their kill."""

    kills: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """For people."""
        each = ", ".join(f"{count} of {name}" for name, count in self.kills.items())
        return [
            f"{sum(self.ended.values())} commands ended before their kill",
            (
                f"{sum(self.kills.values())} kills in {self.seconds:.0f} s: {each}; "
                f"of {self.compared:,} files, tables and databases none differs from those without a kill"
            ),
        ]


class Commands:
    """A template of a store, and the commands on copies of it.

    Args:
        place: a directory of its own; emptied first.
    """

    def __init__(self, place: Path, version: str, *, seed: int, say: Callable[[str], None] = print) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self._place = place
        self._version = version
        self._filled = {"version": version, "url": "", "written": place / "written" / _STORE}
        self._seed = seed
        self._random = random.Random(seed)
        self._say = say
        self._more: dict[str, str] = {}
        self._pace = 1.0
        self.result = Result()

    def run(self, kills: int, cases: Sequence[Case] = CASES) -> Result:
        """Kill so often, each command as often as the others.

        Raises:
            WrongError: a command left something else than without a kill, or ended with another exit code.
        """
        began = time.monotonic()
        written = self._place / "written"
        with Generator(self._version, written / _STORE, rate=_RATE, seed=self._seed):
            time.sleep(_WRITE_SECONDS)
        broker_conf(written / _STORE, written / "broker.conf")
        with gateway(self._place / "s3") as server:
            self._filled["url"] = server.upload(written / _STORE, "broker-a/store")
            self._more = server.environment()
            self._say(f"{sum(1 for _ in (written / _STORE / names.COMMIT_LOG).iterdir())} segments")
            for number, case in enumerate(cases):
                share = (kills * (number + 1)) // len(cases) - (kills * number) // len(cases)
                self._torture(case, written, share)
        self.result.seconds = time.monotonic() - began
        return self.result

    def _torture(self, case: Case, written: Path, kills: int) -> None:
        template = self._copy(written, "template")
        case.harm(template / _STORE)
        for words in case.before:
            # Its own broker.conf has the place in it where it will be.
            here = self._at(template)
            if self._end(words, here)[0] not in (0, 1):
                raise WrongError(f"{case.name}: {' '.join(words)} failed: {self._said()}")
            shutil.rmtree(template)
            here.rename(template)
        if case.conf:
            with (template / "broker.conf").open("a") as file:
                file.write("".join(f"{line}\n" for line in case.conf))
        here = self._at(template)
        code, writes = self._end(case.words, here)
        expected = state(here)
        if code not in (0, 1):
            raise WrongError(f"{case.name}, not killed, ended with {code}: {self._said()}")
        if case.log_stays and tree(here / _LOG) != tree(template / _LOG):
            raise WrongError(f"{case.name}, not killed, changed the log")
        self._say(f"{case.name}: not killed, code {code}, writes from {writes[0]:.2f} to {writes[1]:.2f} s")
        done, self._pace = 0, 1.0
        while done < kills:
            here = self._at(template)
            row = self._random.randint(1, min(_IN_A_ROW, kills - done))
            moments = [f"{moment:.2f}" for _ in range(row) if (moment := self._kill(case, here, writes))]
            done += len(moments)
            ended, _ = self._end(case.words, here)
            where = f"{case.name}, killed after {', '.join(moments) or 'nothing'} s"
            found = state(here)
            if ended != code and not self._is_done(case, ended):
                raise WrongError(f"{where}, ended with {ended} instead of {code}: {self._said()}")
            if found != expected:  # the log's files are among them
                other = sorted(
                    one for one in {*found, *expected} if found.get(one, 0) != expected.get(one, 0)
                )
                raise WrongError(f"{where}, left something else in {other[:20]}")
            self.result.compared += len(found)
            self._say(f"{done}/{kills} {where}: {len(found)} files equal")

    def _kill(self, case: Case, here: Path, writes: tuple[float, float]) -> float:
        """Run a command and kill all of it; after how many seconds, 0 if it ended before."""
        first, last = (self._pace * moment for moment in writes)
        # One in five comes before it writes, or long after.
        moment = (
            self._random.uniform(0, last * 1.1)
            if self._random.random() < 0.2
            else self._random.uniform(first * 0.8, last + 0.1)
        )
        with self._started(case.words, here) as (process, mark):
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                processes.kill_marked(mark)
                process.wait()
        if process.returncode != -signal.SIGKILL:
            if process.returncode not in (0, 1) and not self._is_done(case, process.returncode):
                raise WrongError(f"{case.name} ended with {process.returncode}: {self._said()}")
            self.result.ended[case.name] += 1
            self._pace *= 0.9  # the machine has become faster
            return 0.0
        self._pace *= 1.02
        self.result.kills[case.name] += 1
        return moment

    def _end(self, words: Sequence[str], here: Path) -> tuple[int, tuple[float, float]]:
        """Run a command to its end: its exit code, and when it wrote."""
        seen, first, last = _signature(here), 0.0, 0.0
        with self._started(words, here) as (process, _):
            began = time.monotonic()
            while process.poll() is None:
                now = time.monotonic() - began
                if now > _END_SECONDS:
                    raise WrongError(f"{' '.join(words)} still runs after {now:.0f} s: {self._said()}")
                if (new := _signature(here)) != seen:
                    seen, last = new, now
                    first = first or now
                time.sleep(_LOOK_SECONDS)
        return process.returncode, (first, last)

    @contextmanager
    def _started(self, words: Sequence[str], here: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        mark = uuid.uuid4().hex
        filled = [word.format_map(self._filled | {"place": here}) for word in words]
        with (self._place / "said.log").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "reput.cli", "-q", *filled],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment(**self._more, **{processes.MARK: mark}),
                start_new_session=True,
            )
            try:
                yield process, mark
            finally:
                processes.kill_marked(mark)
                process.wait()
                processes.wait_gone(mark)

    def _is_done(self, case: Case, code: int) -> bool:
        return code == 2 and bool(case.is_done) and case.is_done in self._said()

    def _said(self) -> str:
        return (self._place / "said.log").read_text(errors="replace")[-3000:]

    def _at(self, template: Path) -> Path:
        """The template, where commands are run."""
        return self._copy(template, "here")

    def _copy(self, source: Path, name: str) -> Path:
        """With its times: some decisions go by them."""
        shutil.rmtree(self._place / name, ignore_errors=True)
        copy = shutil.copytree(source, self._place / name)
        conf = copy / "broker.conf"
        conf.write_text(conf.read_text().replace(str(self._place / "written"), str(self._place / "here")))
        return copy


def state(place: Path) -> dict[str, object]:
    """What a command has left below a directory.

    Files by their digests, Delta tables and RocksDB databases by what is in them, what reput keeps for itself
    by its names. Of directories with what was replaced the first, which has what the store began with: a kill
    behind the last step lets the same command begin anew.
    """
    found: dict[str, object] = {}
    later = sorted(path for path in place.glob("*/replaced-*"))[1:]
    for directory, below, files in os.walk(place):
        here = Path(directory)
        if here in later:
            below.clear()
            continue
        name = _KEPT.sub("replaced", here.relative_to(place).as_posix().removeprefix("store/"))
        if names.REPUT in below:
            # What is in them counts runs; that nothing else stays shows that nothing was left behind.
            found |= {f"{name}/{names.REPUT}/{path.name}": None for path in (here / names.REPUT).iterdir()}
            below.remove(names.REPUT)
        if "_delta_log" in below:
            found[name] = _rows(here)
            below.clear()
        elif "CURRENT" in files:
            found[name] = contents(here)
            below.clear()
        else:
            found |= {f"{name}/{file}": _digest(here / file) for file in files if file not in _OF_A_RUN}
            found[f"{name}/"] = None
    return found


def _rows(table: Path) -> tuple[int, str]:
    """How many there are, and a digest of all, whatever their order."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return len(rows), hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _signature(place: Path) -> list[tuple[Path, int, int]]:
    """What shows that something was written."""
    found = []
    for directory, _, files in os.walk(place):
        for path in (Path(directory, name) for name in files):
            with suppress(OSError):
                at = path.stat()
                found.append((path, at.st_size, at.st_mtime_ns))
    return found
