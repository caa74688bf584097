"""``python -m bench.sizing``: what a rebuild of many stores takes, from measured rates.

Only arithmetic: :data:`MEASURED` has the rates, from 2 cores and 4 GiB of log (docs/data/benchmark.md);
options replace them by your own. docs/sizing.md says what it leaves out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from reput.cli.arguments import size
from reput.cli.output import Output
from reput.errors import SettingsError
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH
from reput.store.system import human
from reput.words import counted

_MB = 1_000_000
_MIB = 1 << 20
_GIB = 1 << 30
#: RocketMQ's defaults, ``maxIndexNum`` and ``maxHashSlotNum`` (``MessageStoreConfig``).
_INDEX_KEYS, _INDEX_SLOTS = 20_000_000 - 1, 5_000_000
#: Bytes a message and a key of a batch until it is committed, as in :mod:`reput.replay.estimate`.
_SPILL_MESSAGE, _SPILL_KEY = 20, 4
_BATCH = 4 * _GIB


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates of one machine.

    Attributes:
        bytes_per_second: of log, of a rebuild in a session that has run before, files in the page cache.
        cores: how many did that.
        start_seconds: what a command takes before and after, Python, JVM and Spark.
        message_bytes: mean size of a record in the log.
        keys: index entries of a message, the unique key and the tag among them.
        memory_fixed, memory_per_core: bytes, of driver and JVM, and of the worker of each core.
    """

    bytes_per_second: float
    cores: int
    start_seconds: float
    message_bytes: int
    keys: int
    memory_fixed: int
    memory_per_core: int


#: docs/data/benchmark.md: "reput, warm", RocketMQ 5.5.0, 2 cores; 5.24 s less 2.52 s; peaks with 1 and 2
#: cores of 853.3 and 1007.3 MiB, and 1.3 GiB for the longest log (each page of forks counted twice), rounded
#: up.
MEASURED = Measured(1705 * _MB, 2, 2.7, 704, 3, 1 * _GIB, 256 * _MIB)


#: Bytes of log a second that a first night checks with 2 cores, in the page cache: 40 GiB in 46.2 s,
#: docs/data/benchmark.md.
NIGHTLY = 930 * _MB
#: Defaults of RocketMQ: ``mappedFileSizeCommitLog``, ``mappedFileSizeConsumeQueue``.
_SEGMENT, _QUEUE_FILE = 1 << 30, 300_000 * UNIT_LENGTH
_INDEX_FILE = HEADER_LENGTH + _INDEX_SLOTS * SLOT_LENGTH + (_INDEX_KEYS + 1) * ENTRY_LENGTH


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts for a rebuild.

    Attributes:
        number: hosts; each rebuilds whole stores, one after the other.
        cores: of each.
        read, write: bytes a second that one host's disks read, and write.
        network: bytes a second between one host and the disks, None where they are its own.
    """

    number: int
    cores: int
    read: float
    write: float
    network: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rebuild takes, in bytes and seconds; figures of a host are of the one with the most stores.

    Attributes:
        stores, bytes: to rebuild, in all.
        messages, keys: likely numbers, in all.
        queue_bytes, index_bytes: of the outputs, in all.
        stores_per_host: one after the other.
        bytes_per_host, output_per_host: of log that is read, and what is written.
        scratch_per_host: beside the outputs, until a batch is committed.
        memory_per_host: of processes; the page cache comes on top.
        bounds: seconds that each resource is busy on that host, by name.
        start_seconds: on that host, for all its stores as commands of their own.
    """

    stores: int
    bytes: int
    messages: int
    keys: int
    queue_bytes: int
    index_bytes: int
    stores_per_host: int
    bytes_per_host: int
    output_per_host: int
    scratch_per_host: int
    memory_per_host: int
    bounds: dict[str, float]
    start_seconds: float

    @property
    def slowest(self) -> str:
        """The resource that is busy longest."""
        return max(self.bounds, key=lambda name: self.bounds[name])

    @property
    def least_seconds(self) -> float:
        """If all resources were busy at the same time."""
        return self.start_seconds + max(self.bounds.values())

    @property
    def most_seconds(self) -> float:
        """If only one of them was at any time."""
        return self.start_seconds + sum(self.bounds.values())


def plan(log_bytes: int, stores: int, hosts: Hosts, measured: Measured = MEASURED) -> Plan:
    """What a rebuild of some stores of equal size takes.

    Args:
        log_bytes: of all stores together.
    """
    messages = log_bytes // measured.message_bytes
    keys = messages * measured.keys
    queue_bytes = messages * UNIT_LENGTH
    index_files = stores * -(-(keys // stores) // _INDEX_KEYS) if keys else 0
    index_bytes = keys * ENTRY_LENGTH + index_files * (HEADER_LENGTH + _INDEX_SLOTS * SLOT_LENGTH)
    each = -(-stores // min(hosts.number, stores))
    share = each / stores
    read, written = log_bytes * share, (queue_bytes + index_bytes) * share
    batch = min(_BATCH, log_bytes // stores)
    scratch = batch // measured.message_bytes * (_SPILL_MESSAGE + _SPILL_KEY * measured.keys)
    bounds = {
        "cores": read / (measured.bytes_per_second / measured.cores * hosts.cores),
        "reading": read / hosts.read,
        "writing": written / hosts.write,
    }
    if hosts.network is not None:
        bounds["network"] = (read + written) / hosts.network
    return Plan(
        stores=stores,
        bytes=log_bytes,
        messages=messages,
        keys=keys,
        queue_bytes=queue_bytes,
        index_bytes=index_bytes,
        stores_per_host=each,
        bytes_per_host=int(read),
        output_per_host=int(written),
        scratch_per_host=scratch,
        memory_per_host=measured.memory_fixed + hosts.cores * measured.memory_per_core,
        bounds=bounds,
        start_seconds=each * measured.start_seconds,
    )


@dataclass(frozen=True, slots=True)
class Night:
    """What a night's verification takes of the host with the most stores, in bytes and seconds.

    Attributes:
        log: bytes of log that are verified: what is new, and the segments that aren't sealed yet.
        derived: bytes of queues and index that are read.
        bounds: as those of :class:`Plan`.
    """

    log: int
    derived: int
    bounds: dict[str, float]

    @property
    def slowest(self) -> str:
        """The resource that is busy longest."""
        return max(self.bounds, key=lambda name: self.bounds[name])


def nights(found: Plan, hosts: Hosts, growth: float, queues: int, measured: Measured) -> tuple[Night, Night]:
    """The first night, which reads all, and each later one.

    Args:
        growth: of the log in a night, as a share of it.
        queues: of a store; of each, and of the index, the last file is read each night.
    """
    stores = found.stores_per_host
    share = found.output_per_host / found.bytes_per_host
    new = int(found.bytes_per_host * growth)
    going_on = stores * (queues * _QUEUE_FILE + _INDEX_FILE)
    later = min(new + stores * _SEGMENT, found.bytes_per_host)

    def night(log: int, derived: int) -> Night:
        bounds = {
            "cores": log / (NIGHTLY / measured.cores * hosts.cores),
            "reading": (log + derived) / hosts.read,
        }
        if hosts.network is not None:
            bounds["network"] = (log + derived) / hosts.network
        return Night(log, derived, bounds)

    first = night(found.bytes_per_host, found.output_per_host)
    return first, night(later, min(int(new * share) + going_on, found.output_per_host))


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    log_bytes: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="Commit log of all stores together: 512g, 100t.")
    ],
    stores: Annotated[int, typer.Option("--stores", metavar="N", min=1, help="Stores, of equal size.")] = 1,
    hosts: Annotated[
        int | None, typer.Option("--hosts", metavar="N", min=1, help="Hosts (default: one for each store).")
    ] = None,
    cores: Annotated[int, typer.Option("--cores", metavar="N", min=1, help="Cores of a host.")] = 8,
    disk_read: Annotated[
        float, typer.Option("--disk-read", metavar="MB/s", min=1, help="What a host's disks read.")
    ] = 500.0,
    disk_write: Annotated[
        float, typer.Option("--disk-write", metavar="MB/s", min=1, help="What a host's disks write.")
    ] = 250.0,
    network: Annotated[
        float | None,
        typer.Option(
            "--network",
            metavar="MB/s",
            min=1,
            help="Between a host and the stores, if they are elsewhere.",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="MB/s", min=1, help="Your `make bench`: MB/s of reput, warm ..."),
    ] = MEASURED.bytes_per_second / _MB,
    rate_cores: Annotated[
        int, typer.Option("--rate-cores", metavar="N", min=1, help="... on N cores.")
    ] = MEASURED.cores,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", metavar="N", min=92, help="A record in the mean.")
    ] = MEASURED.message_bytes,
    keys: Annotated[
        int, typer.Option("--keys", metavar="N", min=0, help="Index entries of a message.")
    ] = MEASURED.keys,
    nightly: Annotated[
        float | None,
        typer.Option(
            "--nightly",
            metavar="PERCENT",
            min=0,
            max=100,
            help="Plan verifications every night, in which the log grows by PERCENT, not a rebuild.",
        ),
    ] = None,
    queues: Annotated[
        int, typer.Option("--queues", metavar="N", min=1, help="Queues of a store, for --nightly.")
    ] = 400,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON document.")] = False,
) -> None:
    """What a rebuild of many stores takes: cores, memory, disk and hours, computed from measured rates.

    Nothing is read or started. Exit code 0; 2 where an option can't be understood.
    """
    with Output(as_json=False):
        told_bytes = size("--bytes", log_bytes)
        if told_bytes < stores * message_bytes:
            raise SettingsError("--bytes is less than a message for each store", found=log_bytes)
    number = min(hosts or stores, stores)
    there = Hosts(number, cores, disk_read * _MB, disk_write * _MB, network and network * _MB)
    measured = Measured(
        rate * _MB,
        rate_cores,
        MEASURED.start_seconds,
        message_bytes,
        keys,
        MEASURED.memory_fixed,
        MEASURED.memory_per_core,
    )
    found = plan(told_bytes, stores, there, measured)
    lines = _lines(found, there, measured)
    facts: dict[str, object] = {
        **asdict(found),
        "slowest": found.slowest,
        "least_seconds": found.least_seconds,
        "most_seconds": found.most_seconds,
        "hosts": asdict(there),
        "measured": asdict(measured),
    }
    if nightly is not None:
        first, later = nights(found, there, nightly / 100, queues, measured)
        facts = {"first": asdict(first), "later": asdict(later), "hosts": asdict(there)}
        lines = [*lines[:3], *_night_lines(first, later, found, nightly, queues)]
    Output(as_json, command="plan").put(facts, lines)


def _lines(found: Plan, hosts: Hosts, measured: Measured) -> list[str]:
    one = measured.bytes_per_second / measured.cores / _MB
    where = f"on {counted(hosts.number, 'host')} with {counted(hosts.cores, 'core')} each"
    lines = [
        f"{human(found.bytes)} of commit log in {counted(found.stores, 'store')}, {where}",
        f"  messages   {found.messages:,} of {measured.message_bytes} bytes, {found.keys:,} index entries",
        f"  outputs    queues {human(found.queue_bytes)}, index {human(found.index_bytes)}",
        "a host",
        f"  stores     {found.stores_per_host:,}, one after the other: {human(found.bytes_per_host)} of log",
        f"  disk       {human(found.output_per_host)} of outputs, {human(found.scratch_per_host)} of scratch",
        f"  memory     {human(found.memory_per_host)}, and page cache",
    ]
    why = {
        "cores": f"{hosts.cores} times {one:,.0f} MB/s, measured with {counted(measured.cores, 'core')}",
        "reading": f"{hosts.read / _MB:,.0f} MB/s",
        "writing": f"{hosts.write / _MB:,.0f} MB/s",
        "network": f"{(hosts.network or 0) / _MB:,.0f} MB/s, both ways together",
    }
    for name, seconds in found.bounds.items():
        most = "  <- the bound" if name == found.slowest else ""
        lines.append(f"  {name:<10} {_time(seconds)}: {why[name]}{most}")
    lines.append(f"  starts     {_time(found.start_seconds)}")
    tib = (1 << 40) / found.bytes_per_host
    for title, share in (("in all", 1.0), ("per TiB", tib)):
        least, most = _time(found.least_seconds * share), _time(found.most_seconds * share)
        lines.append(f"  {title:<10} {least} if these overlap, {most} if none does")
    return lines


def _night_lines(first: Night, later: Night, found: Plan, growth: float, queues: int) -> list[str]:
    each = f"{counted(found.stores_per_host, 'store')} of {counted(queues, 'queue')} each"
    lines = [f"a host, which verifies {each}; the log grows by {growth:g} % a night"]
    for title, night in (("first", first), ("later", later)):
        lines.append(f"  {title:<10} {human(night.log)} of log, {human(night.derived)} of queues and index")
        for name, seconds in night.bounds.items():
            most = "  <- the bound" if name == night.slowest else ""
            lines.append(f"    {name:<8} {_time(seconds)}{most}")
    return lines


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    app()
