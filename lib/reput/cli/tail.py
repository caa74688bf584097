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
    BytesPerCommit,
    CatalogBodies,
    CatalogTable,
    KnownTopicsOnly,
    Master,
    NoIndex,
    Queues,
    SingleHost,
    TimeZone,
    WrittenAs,
    by_hand,
    size,
)
from reput.cli.jvm import prepare_spark, start_spark
from reput.cli.output import Output, TailDisplay, noted, summary_lines, told, warn_of_unknown
from reput.errors import SettingsError
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

How it stands; also while it runs, and after it died:

    reput tail --status /data/derived

End it with a clean state; wait a minute at most for the batch under way:

    reput tail --stop /data/derived --timeout 60
"""


def tail_command(
    ctx: typer.Context,
    store: Annotated[
        Path | None,
        typer.Argument(metavar="STORE", help="The store to follow: the directory that holds commitlog/."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write to DIR, laid out like a store.")
    ] = None,
    status: Annotated[
        Path | None,
        typer.Option(
            "--status",
            metavar="DIR",
            help="Follow nothing: show the state of an output, DIR. Who writes it, its offset and lag, "
            "batches, findings. Only reads.",
        ),
    ] = None,
    stop: Annotated[
        Path | None,
        typer.Option(
            "--stop",
            metavar="DIR",
            help="Follow nothing: stop the tail that writes to DIR after its current batch, and wait until "
            "it has stopped. Does nothing if none is running.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            min=0.0,
            help="With --stop: seconds to wait for the batch under way (default: 90).",
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenAs = None,
    queue: Queues = None,
    no_index: NoIndex = False,
    known_topics_only: KnownTopicsOnly = False,
    max_bytes_per_trigger: BytesPerCommit = "4g",
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
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
    """Follow a live commit log, and keep consume queues, index files, checkpoint and ledger up to date.

    Runs until `reput tail --stop DIR`, SIGTERM or Ctrl-C; each lets the current batch finish. To resume, also
    after a crash, run the same command again. The commit log is only read. A new broker that has no segment
    yet is waited for.

    Exit code 0: ended cleanly. 1: ended cleanly, with findings. 2: refused or failed.
    With --status 0: sound. 1: findings, or the last run died. 2: no output, or it can't be read.
    With --stop 0: the tail has stopped and all is committed, or none was running. 1: it was cut off; its next
    start rolls back what it hadn't committed. 2: it has not stopped in time, or DIR is not an output.
    """
    with Output(as_json) as output:
        _refuse_unclear(ctx)
    if status is not None or stop is not None:
        from reput.cli.watch import show_status, show_stop

        # What stands in the environment is of the store that is followed: the output knows its own.
        conf = broker_conf if by_hand(ctx, "broker_conf") else None
        if status is not None:
            show_status(status, conf, as_json=as_json)
        elif stop is not None:
            show_stop(stop, 90.0 if timeout is None else timeout, conf, as_json=as_json)
    from reput.job.options import TailOptions
    from reput.job.tail import tail

    with output:
        if store is None or out is None:
            raise SettingsError(
                "what to follow, and where to, is not clear",
                expected="STORE and --out DIR; or --status DIR, or --stop DIR",
                found="neither" if store is None and out is None else "one of them alone",
            )
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


#: Of the command's parameters, those that fit --status and --stop.
_FITS = {"status": {"status", "broker_conf", "_tz", "as_json"}}
_FITS["stop"] = {*_FITS["status"], "stop", "timeout"} - {"status"}


def _refuse_unclear(ctx: typer.Context) -> None:
    """Refuse what doesn't go with --status or --stop.

    Raises:
        SettingsError: something was given that doesn't.
    """
    given = {
        str(one.name): next((name for name in one.opts if name.startswith("--")), "STORE")
        for one in ctx.command.params
        if getattr(ctx.get_parameter_source(str(one.name)), "name", None) == "COMMANDLINE"
    }
    for way, fits in _FITS.items():
        if way in given and (unfit := [name for key, name in given.items() if key not in fits]):
            raise SettingsError(
                f"--{way} follows nothing", expected=f"--{way} DIR without {', '.join(unfit)}", found="both"
            )
    if "timeout" in given and "stop" not in given:
        raise SettingsError("--timeout is about --stop", expected="--stop DIR with it", found="none")


def _stop_on_signals(stopping: threading.Event) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        told(f"{signal.Signals(number).name}: ending after the batch under way")
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
