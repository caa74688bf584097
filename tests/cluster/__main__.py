"""``python -m tests.cluster``: a rebuild on a cluster, compared with the broker's own files."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from reput.cli.output import Output
from reput.errors import OutputError
from reput.store.compare import compare
from tests.cluster import trial
from tests.cluster.standalone import Cluster, Submitted

_REFUSED = 2
_FINDINGS = 1
_MOST_DIFFERENCES = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def cluster(
    store: Annotated[
        Path | None,
        typer.Argument(
            help="A store, or a packed one (.tar.xz); default: the small one that comes with reput."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep the output in DIR (default: removed).")
    ] = None,
    broker_conf: Annotated[Path | None, typer.Option("--broker-conf", "-c", help="Its broker.conf.")] = None,
    rocketmq_version: Annotated[str | None, typer.Option(help="Write as this release.")] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Workers, a core each.")] = 2,
    logs: Annotated[
        Path | None, typer.Option("--logs", metavar="DIR", help="Copy the cluster's logs to DIR, too.")
    ] = None,
) -> None:
    """Rebuild a store on a Spark cluster on this machine, and compare the result with the broker's own files.

    Exit code 0: every byte is the broker's. 1: bytes differ, or there are findings. 2: refused or failed.
    """
    scratch = tempfile.TemporaryDirectory(prefix="reput-cluster-", ignore_cleanup_errors=True)
    with Output(as_json=False, interrupted="the cluster is stopped"), scratch as directory:
        work = Path(directory)
        if store is None:
            found = trial.default_store(work)
        else:
            found = trial.open_store(store, work, broker_conf, rocketmq_version)
        output = (out or work / "out").absolute()
        try:
            submitted = _rebuild(found, output, work, workers)
        finally:
            if logs is not None:
                _copy_logs(work, logs)
        typer.echo(submitted.stdout, nl=False)
        share = ", ".join(f"{count} on executor {name}" for name, count in submitted.tasks.items())
        typer.echo(f"tasks        {share or 'none'}")
        code = _REFUSED
        if submitted.exit_code in (0, _FINDINGS):
            code = max(submitted.exit_code, _compare(found, output))
    raise typer.Exit(code)


def _rebuild(store: trial.TrialStore, output: Path, work: Path, workers: int) -> Submitted:
    started = time.perf_counter()
    with Cluster(work, workers) as running:
        seconds = time.perf_counter() - started
        pids = ", ".join(f"{name} {pid}" for name, pid in running.pids.items())
        typer.echo(f"reput: {running.master} is up after {seconds:.1f} s (pids: {pids})", err=True)
        submitted = running.submit(trial.JOB, store.arguments(output))
    typer.echo("reput: the cluster is stopped", err=True)
    return submitted


def _compare(store: trial.TrialStore, output: Path) -> int:
    if not store.has_output:
        typer.echo("compared     nothing: the store has no consume queues of its own")
        return 0
    found = compare(store.root, output)
    typer.echo(
        f"equal        {found.queue_files:,} queue files with {found.queue_bytes:,} bytes, "
        f"{found.index_files:,} index files with {found.index_bytes:,} bytes"
    )
    typer.echo(f"differing    {found.differing_bytes:,} bytes")
    for difference in found.differences[:_MOST_DIFFERENCES]:
        typer.echo(f"  {difference}")
    if len(found.differences) > _MOST_DIFFERENCES:
        typer.echo(f"  and {len(found.differences) - _MOST_DIFFERENCES} more files")
    return _FINDINGS if found.differences else 0


def _copy_logs(work: Path, target: Path) -> None:
    """Copy the logs of daemons and executors, and the events; not the secret."""
    try:
        for source in (work / "logs", work / "events", *work.glob("worker-*")):
            if source.is_dir():
                shutil.copytree(source, target / source.name, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise OutputError("the logs can't be copied", path=target, found=str(error)) from error


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    """Make sure that the cluster is stopped by every signal but SIGKILL, then run the command."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    app()


if __name__ == "__main__":
    main()
