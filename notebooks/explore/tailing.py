"""A ``reput tail`` beside a notebook: its process, and its status and metrics while it runs."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

import reput
from reput.errors import OutputError, ReputError
from reput.newer_python import Self
from reput.watch.status import Status, look
from reput.watch.stop import Stopped, stop
from reput.watch.table import RunNote

if TYPE_CHECKING:
    from explore.workspace import Store, Workspace

_START_SECONDS = 120.0
_POLL_SECONDS = 0.1
_MOST_OUTPUT = 2000
_OURS = {
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_ENV_LOADED"),
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"),
}
_STAGE = "reput_stage_duration_seconds"


class Tail:
    """A tail as a process of its own; it ends with this one at the latest.

    Args:
        workspace: gets the output, and what the tail prints on stderr.
        store: the store to follow.
    """

    def __init__(self, workspace: Workspace, store: Store) -> None:
        self.out = workspace.root / "derived"
        self._said = workspace.root / "tail.log"
        words: list[object] = ["tail", store.root, "--out", self.out, "--metrics-port", 0]
        words += [] if store.broker_conf is None else ["--broker-conf", store.broker_conf]
        words += [] if store.version is None else ["--rocketmq-version", store.version]
        library = str(Path(reput.__file__).parents[1])
        path = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
        # The tail starts a JVM of its own, whatever the notebook's session is.
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reput.cli", *map(str, words)],
                env={**environment, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

        atexit.register(self.kill)

    def wait(self, offset: int, seconds: float = _START_SECONDS) -> Status:
        """Wait until the log is committed up to a physical offset.

        Raises:
            OutputError: it isn't within this time, or the tail has ended.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(ReputError):  # it hasn't begun its output
                status = look(self.out)
                if status.committed.cursor >= offset:
                    return status
            time.sleep(_POLL_SECONDS)
        printed = self._said.read_text(encoding="utf-8", errors="replace")[-_MOST_OUTPUT:]
        code = self._process.poll()
        found = f"exit code {code}" if code is not None else f"not there within {seconds:g} s"
        raise OutputError("the tail doesn't work", path=self.out, found=f"{found}; it printed: {printed}")

    def metrics(self) -> dict[str, float]:
        """Its metrics for Prometheus, by name; values of labels are appended after dots.

        Raises:
            OutputError: it doesn't serve metrics now.
        """
        from prometheus_client.parser import text_string_to_metric_families

        note = RunNote.read(self.out)
        if note is None or note.metrics is None:
            raise OutputError("the tail serves no metrics", path=self.out)
        try:
            with urllib.request.urlopen(note.metrics, timeout=5) as answer:
                text = answer.read().decode()
        except OSError as error:
            raise OutputError("the tail's metrics can't be read", found=str(error)) from error
        return {
            ".".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def stop(self) -> Stopped:
        """Stop it after the batch under way.

        Raises:
            StoreInUseError: it hasn't stopped in time.
        """
        stopped = stop(self.out)
        self._process.wait(30)
        return stopped

    def kill(self) -> None:
        """Kill it at once, if it still runs, as in a crash."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Sampler:
    """Reads a tail's metrics repeatedly while the block runs.

    Args:
        tail: it has started.
        every: seconds from one reading to the next.
    """

    def __init__(self, tail: Tail, every: float = 0.25) -> None:
        self._tail, self._every = tail, every
        self._rows: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(OutputError):  # it ends; the samples so far are what there is
                self._rows.append({"time": time.time() * 1000, **self._tail.metrics()})
            self._ended.wait(self._every)

    @property
    def samples(self) -> pd.DataFrame:
        """A row a reading, indexed by its time (UTC); a column a metric."""
        frame = pd.DataFrame(self._rows)
        frame["time"] = pd.to_datetime(frame["time"], unit="ms", utc=True)
        return frame.set_index("time")


def stages(before: dict[str, float], after: dict[str, float]) -> pd.DataFrame:
    """How the time of batches was spent between two readings of the metrics.

    Returns:
        Indexed by stage: ``ms`` (in a batch, in the mean) and ``share`` (0 to 1); the longest first.
    """
    prefix = f"{_STAGE}_sum."
    spent = {
        key.removeprefix(prefix): after[key] - before.get(key, 0) for key in after if key.startswith(prefix)
    }
    batches = after["reput_batches_total"] - before.get("reput_batches_total", 0)
    series = pd.Series(spent, dtype=float).sort_values(ascending=False)
    frame = pd.DataFrame({"ms": series / max(batches, 1) * 1000, "share": series / max(series.sum(), 1e-12)})
    frame.index.name = "stage"
    return frame
