"""reput's rebuild: as a command (cold), and the second one in a session (warm)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bench.errors import BenchError, say
from bench.generate import Log, warm_page_cache
from bench.java_load import reference
from bench.process import Run, run
from bench.result import COLD, FLOOR, WARM, Result
from reput.store.compare import compare


def prepare(home: Path, cores: int) -> None:
    """Compile the kernels, once per machine, as a first use of reput does; not measured."""
    run(["-c", "from reput.replay.runner import load_kernels; load_kernels()"], cores, home)


def measure_cold(home: Path, log: Log, version: str, cores: int, repeat: int) -> Result:
    """``reput rebuild STORE --out DIR``, the whole command, several times, and once more for its memory.

    Raises:
        BenchError: it failed, had findings, or wrote other bytes than the real store.
    """
    result = _Measured(COLD, version, cores)
    for number in range(repeat + 1):
        out = home / f"out-cold-{number}"
        shutil.rmtree(out, ignore_errors=True)
        warm_page_cache(log)
        done = run(
            [
                *("-m", "reput.cli", "rebuild", str(log.store), "--out", str(out)),
                *("--rocketmq-version", version, "--master", f"local[{cores}]", "--json"),
            ],
            cores,
            home,
            watched=number == 0,
        )
        summary = json.loads(done.output)
        _check(home, log, version, out, summary)
        result.add(done.seconds, done, {**_stages(summary), **_rest(done.seconds, summary)})
        shutil.rmtree(out)
    return result.result()


def measure_warm(home: Path, log: Log, version: str, cores: int, repeat: int) -> Result:
    """The second rebuild of a Python process and its Spark session, several processes.

    Raises:
        BenchError: as in :func:`measure_cold`; the first rebuild's bytes are compared, too.
    """
    words = ["-m", "bench.warm", str(log.store), version, f"local[{cores}]"]
    return _measure_second(WARM, words, home, log, version, cores, repeat)


def measure_floor(home: Path, log: Log, version: str, cores: int, repeat: int) -> Result:
    """As :func:`measure_warm`, without Spark: see :mod:`bench.floor`."""
    words = ["-m", "bench.floor", "--one", str(log.store), version, ""]
    return _measure_second(FLOOR, words, home, log, version, cores, repeat)


def _measure_second(
    who: str, words: list[str], home: Path, log: Log, version: str, cores: int, repeat: int
) -> Result:
    result = _Measured(who, version, cores)
    for number in range(repeat + 1):
        outs = [home / "out-warm-first", home / "out-warm-second"]
        for out in outs:
            shutil.rmtree(out, ignore_errors=True)
        warm_page_cache(log)
        done = run([*words, *map(str, outs)], cores, home, watched=number == 0)
        rebuilds = json.loads(done.output)
        for out, rebuild in zip(outs, rebuilds, strict=True):
            _check(home, log, version, out, rebuild["summary"])
            shutil.rmtree(out)
        seconds, summary = rebuilds[-1]["seconds"], rebuilds[-1]["summary"]
        result.add(seconds, done, _stages(summary))
    return result.result()


class _Measured:
    """A result that grows run by run: one whose memory was watched, and others, whose times count."""

    def __init__(self, who: str, version: str, cores: int) -> None:
        self._who, self._version, self._cores = who, version, cores
        self._seconds: list[float] = []
        self._peaks: list[int] = []
        self._stages: list[dict[str, float]] = []

    def add(self, seconds: float, done: Run, stages: dict[str, float]) -> None:
        if done.peak_bytes:
            self._peaks.append(done.peak_bytes)
            return
        self._seconds.append(seconds)
        self._stages.append(stages)
        say(f"{self._who}, {self._version}, cores: {self._cores}: {seconds:.2f} s")

    def result(self) -> Result:
        return Result(
            self._who,
            self._version,
            self._cores,
            tuple(self._seconds),
            tuple(self._peaks),
            tuple(self._stages),
        )


def _check(home: Path, log: Log, version: str, out: Path, summary: dict[str, Any]) -> None:
    if summary["messages"] != log.messages or summary["end"] != log.end or summary["findings"]:
        raise BenchError(
            f"reput read {summary['messages']:,} of {log.messages:,} messages up to {summary['end']} "
            f"of {log.end}, with {len(summary['findings'])} findings"
        )
    found = compare(reference(home, version), out).differences
    if found:
        raise BenchError(f"reput wrote other bytes than RocketMQ {version}: {found[0]} ({len(found)} in all)")


def _stages(summary: dict[str, Any]) -> dict[str, float]:
    """The summary's stages; what lies between them is Spark's streaming query: planning, its own commits."""
    stages: dict[str, float] = dict(summary["stages"])
    return {**stages, "query": summary["seconds"] - sum(stages.values())}


def _rest(seconds: float, summary: dict[str, Any]) -> dict[str, float]:
    """What a command takes beside its rebuild: starting Python, imports, ending the JVM."""
    return {"process": seconds - summary["seconds"]}
