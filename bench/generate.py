"""A large commit log, written by the real store, kept and used again."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bench.errors import BenchError, say
from reput.format import names
from reput.store.files import fsync_dir
from reput.store.system import check_free, human
from tests.compat.compiled import instance
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm

TOPICS = 16
QUEUES = 8
KEYS_PER_MESSAGE = 2
"""Index keys of a message: UNIQ_KEY and one word of KEYS; from RocketMQ 5.4 on its TAGS as well."""

_MASS_WRITER = "MassWriter"
_MANIFEST = "manifest.json"
_HEAP = "2g"
#: Bytes that stay free while all others are used once.
_LEFT_FREE = 2 << 30


@dataclass(frozen=True, slots=True)
class Log:
    """A written commit log.

    Attributes:
        store: the directory that holds ``commitlog/`` and nothing else.
        written_by: the RocketMQ release that wrote it.
        size: bytes that were asked for.
        end: physical offset of its end, bytes; it starts at 0.
        messages: how many it holds.
    """

    store: Path
    written_by: str
    size: int
    end: int
    messages: int

    @property
    def segments(self) -> list[Path]:
        """Its files in log order."""
        return sorted((self.store / names.COMMIT_LOG).iterdir())


def log_directory(directory: Path, version: str, size: int) -> Path:
    """Where the log of this version and size is kept, and all that was made from it."""
    return directory / f"{version}-{size}"


def write_log(
    directory: Path, version: str, size: int, shape: Mapping[str, int] = MappingProxyType({})
) -> Log:
    """The log with these parameters: the one that is there, or one written now.

    The JVM is killed once the log is flushed: its dispatch may lag behind, and what it derived is removed
    anyway. So are the segments that it preallocated past the log's end.

    Args:
        directory: the benchmark's directory.
        version: the RocketMQ release that writes.
        size: bytes of log; the last message may pass it.
        shape: what isn't as usual, of what MassWriter.java takes.

    Raises:
        JavaError: the JVM has no compiler.
        OutputError: no room.
    """
    home = log_directory(directory, version, size)
    home = home.with_name("-".join([home.name, *(f"{name}{value}" for name, value in shape.items())]))
    manifest = home / _MANIFEST
    store = home / "store"
    if manifest.exists():
        return Log(**{**json.loads(manifest.read_text(encoding="utf-8")), "store": store})
    shutil.rmtree(home, ignore_errors=True)
    check_free(directory, 2 * size + (4 << 30), "the benchmark's commit log and what is rebuilt from it")
    store.mkdir(parents=True)
    began = time.monotonic()
    with JavaStore(version, store, heap=_HEAP, jvm_options=()) as java:
        writer = writer_in(java.jvm, _MASS_WRITER)
        if not java.load():
            raise BenchError(f"{store}: the store did not load; {java.jvm.log_tail()}")
        java.start()
        done = writer.apply(
            {
                "store": java.store,
                "bytes": size,
                "threads": len(os.sched_getaffinity(0)),
                "topics": TOPICS,
                "queues": QUEUES,
                **shape,
            }
        )
        end, messages = int(done["end"]), int(done["messages"])
        java.kill()
    for path in store.iterdir():
        if path.name != names.COMMIT_LOG:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    log = Log(store, version, size, end, messages)
    for segment in log.segments:
        if (names.parse_offset_name(segment.name) or 0) >= end > 0:
            segment.unlink()
    facts = {**asdict(log), "store": "store"}
    partial = manifest.with_suffix(".tmp")
    partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    partial.rename(manifest)
    fsync_dir(home)
    seconds = time.monotonic() - began
    say(f"wrote {human(end)}, {messages:,} messages, with RocketMQ {version} in {seconds:.0f} s")
    return log


def writer_in(jvm: Jvm, name: str) -> Any:
    """An instance of a class of this directory, compiled against this JVM's RocketMQ and loaded there.

    Raises:
        JavaError: this Java is a runtime without compiler, or the class doesn't compile.
    """
    return instance(jvm, Path(__file__).with_name(f"{name}.java"))


@cache
def touch_free_memory() -> None:
    """Use all free memory once: a virtual machine's host may give it a page only then, which takes it longer.

    Writing 0.5 GB to new files took 1 s in such memory, and 0.1 s in memory that had been used before.
    """
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) << 10 for line in meminfo if line.startswith("MemFree:"))
    if free > _LEFT_FREE:
        with mmap.mmap(-1, free - _LEFT_FREE) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def warm_page_cache(log: Log) -> None:
    """Read the log once, so that no run that is measured waits for the disk, and use all free memory."""
    touch_free_memory()
    buffer = bytearray(8 << 20)
    for path in log.segments:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
