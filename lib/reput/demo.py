"""The stores that come with reput, and a demonstration: rebuild one that a broker wrote, and compare."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import SettingsError
from reput.job import RebuildOptions, Summary, rebuild
from reput.store.compare import Comparison, compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress

VERSION = "5.5.0"
ARCHIVE = Path(__file__).with_name("demo_stores") / f"store-{VERSION}.tar.xz"
FLEET = ARCHIVE.with_name(f"fleet-{VERSION}.tar.xz")
#: The brokers of the fleet: two masters, and a slave of the first one that stopped before it.
FLEET_BROKERS = ("broker-a", "broker-b", "broker-a-slave")


@dataclass(frozen=True, slots=True)
class DemoStore:
    """The broker's store, unpacked."""

    root: Path  # the store's directory
    broker_conf: Path  # the configuration that the broker ran with


def unpack(directory: Path) -> DemoStore:
    """Unpack the store that comes with reput into ``directory``, which is empty."""
    _unpack(ARCHIVE, directory)
    return DemoStore(directory / "store", directory / "broker.conf")


def unpack_fleet(directory: Path) -> dict[str, DemoStore]:
    """Unpack the stores of the fleet that comes with reput into ``directory``, which is empty; by broker."""
    _unpack(FLEET, directory)
    return {
        name: DemoStore(directory / name / "store", directory / name / "broker.conf")
        for name in FLEET_BROKERS
    }


def _unpack(path: Path, directory: Path) -> None:
    if find_spec("_lzma") is None:
        raise SettingsError(
            "the demo's stores can't be unpacked",
            expected="a Python with lzma",
            found=f"{sys.executable} without, as in what `reput pack` makes",
            next_step="Run it where it was packed",
        )
    with tarfile.open(path) as archive:
        archive.extractall(directory, filter="data")


def run(
    directory: Path,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None],
) -> tuple[Summary, Comparison]:
    """Rebuild the unpacked store from its commit log alone, and compare with what the broker wrote."""
    store = unpack(directory)
    rebuilt = directory / "rebuilt"
    options = RebuildOptions(
        store=store.root, out=rebuilt, broker_conf=store.broker_conf, rocketmq_version=VERSION
    )
    return rebuild(options, start_spark, listener), compare(store.root, rebuilt)


def train() -> None:
    """Rebuild the demonstration's store, read its log as a table, and wait for the JVM's end.

    :mod:`reput.spark.class_archive` runs this with a JVM that keeps in an archive what it has loaded.
    """
    from pyspark import SparkContext

    from reput.source import read
    from reput.spark.sessions import session

    spark = session("reput training", "local[*]")
    gateway: Any = SparkContext._gateway
    try:
        with tempfile.TemporaryDirectory(prefix="reput-training-") as scratch:
            summary, _ = run(Path(scratch), lambda: spark, lambda _progress, _total: None)
            read(spark, str(summary.store), ["topic"]).groupBy("topic").count().collect()
            spark.stop()
    except BaseException:
        gateway.proc.kill()  # which then keeps nothing
        raise
    gateway.shutdown()
    gateway.proc.stdin.close()  # it takes that for this process's end
    gateway.proc.wait()


if __name__ == "__main__":
    train()
