"""``reput tail``: follow a live commit log."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.arguments import (
    AsJson,
    BrokerConf,
    CatalogBodies,
    CatalogTable,
    KnownTopicsOnly,
    LocalStore,
    Master,
    NoIndex,
    Queues,
    SingleHost,
    WrittenAs,
    by_hand,
    size,
)
from reput.cli.jvm import prepare_spark, start_spark
from reput.cli.output import Output, TailDisplay, noted, summary_lines, told, warn_of_unknown
from reput.spark.java import is_submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import BatchWriter

EXAMPLES = """**Examples**

Beside a running broker:

    reput tail /data/store --out /data/derived --broker-conf broker.conf

From a disk that the broker needs more, with metrics for Prometheus:

    reput tail /data/store --out /data/derived --max-rate 50m --metrics-port 9404

And with all messages in a Delta table, for Spark SQL:

    reput tail /data/store --out /data/derived --catalog /data/messages

End it with a clean state:

    reput stop /data/derived
"""


def tail_command(
    ctx: typer.Context,
    store: LocalStore,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Write to DIR, laid out like a store.")
    ],
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenAs = None,
    queue: Queues = None,
    no_index: NoIndex = False,
    known_topics_only: KnownTopicsOnly = False,
    max_bytes_per_trigger: Annotated[
        str,
        typer.Option(
            "--max-bytes-per-trigger",
            metavar="SIZE",
            help="Maximum log bytes per micro-batch while there is a backlog.",
        ),
    ] = "4g",
    max_rate: Annotated[
        str | None,
        typer.Option("--max-rate", metavar="SIZE", help="Maximum log bytes read per second, e.g. 50m."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve Prometheus metrics on this port; 0: any free port.",
        ),
    ] = None,
    metrics_address: Annotated[
        str, typer.Option("--metrics-address", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    catalog: CatalogTable = None,
    catalog_bodies: CatalogBodies = False,
    single_host: SingleHost = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Follow a live commit log, and keep consume queues, index files, checkpoint and ledger up to date.

    Runs until `reput stop DIR`, SIGTERM or Ctrl-C; each lets the current batch finish. To resume, also after
    a crash, run the same command again. The commit log is only read. If a new broker has no segment yet, the
    tail waits for it.

    Exit code 0: ended cleanly. 1: ended cleanly, with findings. 2: refused or failed.
    """
    from reput.job.options import TailOptions
    from reput.job.tail import tail

    with Output(as_json) as output:
        options = TailOptions(
            store=store,
            out=out,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            queues=tuple(queue or ()),
            index=not no_index,
            known_topics_only=known_topics_only,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            max_rate=None if max_rate is None else size("--max-rate", max_rate),
            metrics_port=metrics_port,
            metrics_address=metrics_address,
            catalog=catalog,
            catalog_bodies=catalog_bodies,
            single_host=single_host,
            conf_by_hand=by_hand(ctx, "broker_conf"),
            version_by_hand=by_hand(ctx, "rocketmq_version"),
        )
        prepare_spark()
        warn_of_unknown(store, queue)
        stopping = threading.Event()
        display = TailDisplay()

        def begin() -> SparkSession:
            noted("starting Spark")
            spark = start_spark("reput tail", master)
            _stop_on_signals(stopping)
            return spark

        def on_wait(directory: Path) -> None:
            if not is_submitted():
                _stop_on_signals(stopping)
            told(f"no segment in {directory} yet: waiting for the broker's first one")

        def batch_done(writer: BatchWriter) -> None:
            state = writer.state
            display.update(
                writer.progress.bytes_done, writer.progress.messages, state.cursor, state.last_timestamp
            )

        summary = tail(options, begin, stopping, batch_done, told, on_wait)
    output.show(summary, summary_lines(summary))


def _stop_on_signals(stopping: threading.Event) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        told(f"{signal.Signals(number).name}: ending after the batch under way")
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
