"""docker-compose.yml brought up, looked at, harmed and compared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from reput.errors import ReputError
from reput.format import names
from reput.output.journal import read_state
from reput.store.compare import Comparison, compare
from tests.compose.podman import ROOT, ContainersError, Podman

TOKEN = "compose"
MASTER, METRICS, JUPYTER = "http://127.0.0.1:8080", "http://127.0.0.1:9404", "http://127.0.0.1:8888"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))[
    "services"
]
_SECONDS = 300.0
#: So many more show that a part goes on.
_MORE = 2000
_REFUSED = 78


class Story:
    """A composition that runs.

    Attributes:
        store, derived: the broker's and the tail's, as this machine sees the volume.
    """

    def __init__(self, podman: Podman, say: Callable[[str], None]) -> None:
        self._podman = podman
        self._say = say
        self._podman.environment["JUPYTER_TOKEN"] = TOKEN

    def up(self) -> None:
        """Start each service when what it waits for is there; podman waits so itself from 4.6 on."""
        up: list[str] = []
        while left := [one for one in SERVICES if one not in up and "profiles" not in SERVICES[one]]:
            for name in left:
                before = SERVICES[name].get("depends_on", {})
                if not set(before) <= set(up):
                    continue
                for other, how in before.items():
                    self._wait_for(other, how["condition"])
                self._podman.compose("up", "-d", "--no-deps", "--no-build", name)
                up.append(name)
        self._wait_for("tail", "service_healthy")
        volume = Path(
            self._podman.run(
                "volume", "inspect", "-f", "{{.Mountpoint}}", f"{self._podman.project}_store"
            ).strip()
        )
        self.store, self.derived = volume / "broker", volume / "derived"
        self._say(f"up: {', '.join(up)}")

    def look(self) -> None:
        """Ask what a browser is shown."""
        master = json.loads(self._get(f"{MASTER}/json/"))
        (app,) = master["activeapps"]
        if master["aliveworkers"] != SERVICES["spark-worker"]["deploy"]["replicas"]:
            raise ContainersError(f"Spark's master has {master['aliveworkers']} workers")
        self._say(
            f"Spark's master: {master['aliveworkers']} workers, {app['name']} with {app['cores']} cores"
        )
        metrics = [line for line in self._get(f"{METRICS}/metrics").splitlines() if line.startswith("reput_")]
        if not metrics:
            raise ContainersError(f"{METRICS}/metrics has no line of reput's")
        self._say(f"metrics: {len(metrics)} lines, such as {metrics[0]}")
        if self._status(f"{JUPYTER}/api/contents") != 403:
            raise ContainersError("Jupyter answers who has no token")
        self._get(f"{JUPYTER}/api/contents/offsets.ipynb?token={TOKEN}")
        run = "jupyter nbconvert --to notebook --execute --output-dir /tmp offsets.ipynb"
        self._podman.run(
            "exec", "-w", "/opt/reput/notebooks", self._podman.container("jupyter"), *run.split(), seconds=300
        )
        self._say("Jupyter: 403 without its token; offsets.ipynb ran there, on the broker's store")

    def kill_worker(self) -> None:
        """A worker that has cores of the tail's."""
        before = self._messages()
        busy = [
            one["host"] for one in json.loads(self._get(f"{MASTER}/json/"))["workers"] if one["coresused"]
        ]
        (killed,) = (
            name
            for name in (self._podman.container("spark-worker", number) for number in (1, 2))
            if self._podman.run("exec", name, "hostname", "-i").split()[0] == busy[0]
        )
        self._kill(killed)
        self._goes_on(before)
        self._until(
            lambda: json.loads(self._get(f"{MASTER}/json/"))["aliveworkers"] == 2,
            "the killed worker back at its master",
        )
        self._say(f"killed {killed}: the tail went on, and a new worker came")

    def kill_tail(self) -> None:
        before = self._messages()
        self._kill(self._podman.container("tail"))
        self._goes_on(before)
        self._wait_for("tail", "service_healthy")
        self._say("killed the tail: it came back, and went on where it was")

    def kill_broker(self) -> None:
        before = self._messages()
        self._kill(self._podman.container("broker"))
        self._wait_for("broker", "service_healthy")
        self._goes_on(before)
        said = [line for line in self.logs("broker", 1000).splitlines() if "start it" in line]
        if not said:
            raise ContainersError("the guard said nothing of the killed broker's start")
        self._say(f"killed the broker: it came back, and the tail went on; the guard: {said[-1]}")

    def compare(self) -> None:
        """Stop the producer; wait until all files are equal, byte for byte; ask the service ``check``; go on.

        Raises:
            ContainersError: they never were equal.
        """
        self._podman.compose("stop", "producer")
        found: list[Comparison] = []

        def equal() -> bool:
            found[:] = [compare(self.store, self.derived)]
            return not found[0].differences and found[0].queue_files > 0 and found[0].index_files > 0

        try:
            self._until(equal, "files that equal the broker's")
        except ContainersError as error:
            raise ContainersError(f"{error}: {'; '.join(found[0].differences[:5])}") from None
        self._check()
        (one,) = found
        self._say(
            f"{self._messages():,} messages: {one.queue_files} queue files, {one.queue_bytes:,} bytes, and "
            f"{one.index_files} index files, {one.index_bytes:,} bytes, equal the broker's; so says check"
        )
        self._podman.compose("start", "producer")

    def refuse(self) -> None:
        """The guard refuses a broker whose start would lose messages, until it is mended."""
        self._podman.compose("stop", "producer")
        self._podman.compose("stop", "broker")
        if (self.store / names.ABORT).exists():
            raise ContainersError("the broker wasn't stopped in good order: there is a file abort")
        lost = max((self.store / names.CONSUME_QUEUE / "TopicTest").iterdir())
        shutil.move(lost, self.store.parent / "lost")
        self._podman.compose("start", "broker")
        self._until(lambda: "refused: see above" in self.logs("broker", 50), "a refusal of the guard's")
        code = int(self._podman.run("wait", self._podman.container("broker")))
        self._podman.compose("stop", "broker")
        if code != _REFUSED:
            raise ContainersError(f"the refused broker's exit code is {code}, not {_REFUSED}")
        conf = ("--broker-conf=/opt/reput/conf/broker.conf", "--rocketmq-version=5.3.3")
        mend = ("reput", "mend", "/store/broker", "--apply", *conf)
        self._check(*mend)
        self._podman.compose("start", "broker")
        self._wait_for("broker", "service_healthy")
        self._say("the guard refused a broker without a queue, exit code 78; reput mend, and it started")

    def down(self) -> None:
        self._podman.compose("down", "--volumes", seconds=180)
        left = self._podman.run("ps", "--all", "--quiet") + self._podman.run("volume", "ls", "--quiet")
        if left.split():
            raise ContainersError(f"still there after `down --volumes`: {left.split()}")
        self._say("down: no container and no volume is left")

    def logs(self, service: str, lines: int) -> str:
        """The last lines that a service said."""
        return self._podman.run("logs", f"--tail={lines}", self._podman.container(service), said_too=True)

    def _check(self, *command: str) -> None:
        """The service ``check``, with its own command or another one."""
        # Compose itself takes a service that is named for one whose profile is on.
        words = ("--profile", "check", "run", "--rm", "--no-deps", "check", *command)
        self._podman.compose(*words, seconds=300)

    def _messages(self) -> int:
        try:
            return read_state(self.derived / names.REPUT / names.JOURNAL)[1].messages
        except (ReputError, OSError):
            return 0

    def _goes_on(self, before: int) -> None:
        self._until(lambda: self._messages() >= before + _MORE, f"{_MORE} more messages after {before:,}")

    def _kill(self, container: str) -> None:
        """As the kernel would: what podman itself kills it takes for stopped, and doesn't start again."""
        pid = self._podman.state(container)["Pid"]
        os.kill(pid, signal.SIGKILL)
        self._until(
            lambda: self._podman.state(container)["Pid"] not in (0, pid), f"{container} started again"
        )

    def _wait_for(self, service: str, condition: str) -> None:
        container = self._podman.container(service)
        if condition == "service_healthy":
            self._until(lambda: self._podman.succeeds("healthcheck", "run", container), f"{service} healthy")
        else:
            self._until(
                lambda: self._podman.state(container)["Status"] in ("exited", "stopped"), f"{service} done"
            )
            if code := self._podman.state(container)["ExitCode"]:
                raise ContainersError(f"{service} ended with exit code {code}")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _SECONDS
        while not holds():
            if time.monotonic() > until:
                raise ContainersError(f"not there after {_SECONDS:.0f} s: {what}")
            time.sleep(1)

    @staticmethod
    def _get(address: str) -> str:
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def _status(self, address: str) -> int:
        try:
            self._get(address)
        except urllib.error.HTTPError as error:
            return error.code
        return 200
