"""The real store's own rebuild: what ``DefaultMessageStore.load`` does after a crash without a checkpoint.

Its consume queues and index files are gone, ``abort`` is there: the store walks the whole log and dispatches
every message before load returns. No broker is faster at it: services that start later aren't running yet.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from bench.errors import BenchError, say
from bench.generate import KEYS_PER_MESSAGE, Log, warm_page_cache
from bench.memory import MemorySampler
from bench.process import pinned
from bench.result import JAVA, Result
from reput.config.dialect import dialect
from reput.format import names
from reput.format.indexfile import HEADER_LENGTH, IndexHeader
from reput.store.compare import compare
from tests.compat.java_store import JavaStore

HEAP = "4g"
"""The store's heap, from the start and at most."""

# G1, as in the broker's own runbroker.sh.
_JVM_OPTIONS = ("-XX:-UseSerialGC", "-XX:+UseG1GC", f"-Xms{HEAP}")

# From this version on a crash start otherwise goes back at most ten segments: the rest would get no queues.
_LIMITS_RECOVERY = (5, 4)
_NO_LIMIT = 0x7FFFFFFF

_RESULT = "result.json"
_UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def reference(home: Path, version: str) -> Path:
    """The store that RocketMQ of this version rebuilt: what reput's output is compared with."""
    return home / f"rocketmq-{version}"


def known_result(home: Path, version: str) -> Result | None:
    """The result of an earlier :func:`measure` of this log, None without one."""
    path = reference(home, version) / _RESULT
    return Result.from_dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def check_reference(home: Path, version: str) -> None:
    """Look whether there is a reference of this version.

    Raises:
        BenchError: there is none.
    """
    if known_result(home, version) is None:
        raise BenchError(
            f"nothing to compare with: let RocketMQ {version} rebuild the log first (--only java)"
        )


def measure(home: Path, log: Log, version: str, cores: int, repeat: int, *, keep: bool = True) -> Result:
    """Let the store rebuild the log several times, and first once for its memory; that one's files stay.

    Each run's files are looked at before its time counts: a unit for every message, every key in the index,
    and the same bytes as in the first run.

    Args:
        home: the log's directory.
        log: what to rebuild.
        version: the RocketMQ release.
        cores: CPUs that the JVM may use.
        repeat: how often.
        keep: make the reference and keep the result; otherwise there is one already to compare with.

    Raises:
        BenchError: it didn't rebuild all.
    """
    seconds: list[float] = []
    peaks: list[int] = []
    stages: list[dict[str, float]] = []
    kept = reference(home, version)
    again = home / f"rocketmq-{version}-again"
    if keep:
        shutil.rmtree(kept, ignore_errors=True)
    for number in range(repeat + 1):
        root = kept if keep and number == 0 else again
        started, loaded, peak = _load(root, log, version, cores, watched=number == 0)
        _check_complete(root, log, version)
        if root == again:
            found = compare(kept, root).differences
            if found:
                raise BenchError(f"RocketMQ {version} rebuilt two different stores: {found[0]}")
            shutil.rmtree(again)
        if peak:
            peaks.append(peak)
            continue
        seconds.append(loaded)
        stages.append({"start of the JVM (not counted)": started, "load": loaded})
        say(f"{JAVA}, {version}, cores: {cores}: {loaded:.2f} s")
    result = Result(JAVA, version, cores, tuple(seconds), tuple(peaks), tuple(stages))
    if keep:
        (kept / _RESULT).write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    return result


def _load(root: Path, log: Log, version: str, cores: int, *, watched: bool) -> tuple[float, float, int]:
    """One crash start: seconds until the JVM stood, seconds of load(), bytes of memory (0: not watched)."""
    shutil.rmtree(root, ignore_errors=True)
    # Links: a store that finds a wrong end of the log would remove segments, and remove only links.
    (root / names.COMMIT_LOG).mkdir(parents=True)
    for segment in log.segments:
        os.link(segment, root / names.COMMIT_LOG / segment.name)
    (root / names.ABORT).touch()
    warm_page_cache(log)
    os.sync()
    began = time.perf_counter()
    config = {"commitLogRecoverMaxNum": _NO_LIMIT} if _parsed(version) >= _LIMITS_RECOVERY else {}
    with (
        pinned(cores),
        JavaStore(version, root, config, heap=HEAP, jvm_options=_JVM_OPTIONS) as store,
        MemorySampler(store.jvm.process.pid) if watched else nullcontext() as memory,
    ):
        started = time.perf_counter() - began
        if not store.load():
            raise BenchError(f"RocketMQ {version} didn't load the store; {store.jvm.log_tail()}")
        loaded = store.load_seconds()
        end = int(store.store.getMaxPhyOffset())
        # What it wrote is in the page cache and stays; a shutdown would only flush it.
        store.kill()
    if end != log.end:
        raise BenchError(f"RocketMQ {version} found the log's end at {end}, not at {log.end}")
    return started, loaded, 0 if memory is None else memory.peak_bytes


def _check_complete(root: Path, log: Log, version: str) -> None:
    units = count_units(root)
    if units != log.messages:
        raise BenchError(f"RocketMQ {version} built {units:,} units for {log.messages:,} messages")
    keys = count_keys(root)
    expected = log.messages * (KEYS_PER_MESSAGE + dialect(version).index_tags)
    if keys != expected:
        raise BenchError(f"RocketMQ {version} built {keys:,} index entries for {expected:,} keys")


def count_units(root: Path) -> int:
    """The units of all consume queues of a store: places with a message's size."""
    files = (path for path in (root / names.CONSUME_QUEUE).rglob("*") if path.is_file())
    return sum(int(np.count_nonzero(np.fromfile(path, _UNIT)["size"] > 0)) for path in files)


def count_keys(root: Path) -> int:
    """The entries of all index files of a store, by their headers."""
    count = 0
    for path in (root / names.INDEX).iterdir():
        with path.open("rb") as file:
            count += max(IndexHeader.decode(file.read(HEADER_LENGTH)).index_count, 1) - 1
    return count


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
