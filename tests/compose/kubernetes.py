"""conf/kubernetes/Dockerfile: its entry points run a rebuild, with a stand-in for Kubernetes' API server."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import yaml

from reput.store.compare import compare
from tests.cluster.standalone import finished_tasks
from tests.compose.podman import ROOT, ContainersError, Podman
from tests.golden.store import unpack
from tests.kubernetes import SETTINGS, Api, api

IMAGE = "reput-kubernetes"
_FILES = ROOT / "conf" / "kubernetes"
_STORE = "5.3.3-mixed"
_API = "1.37"
_EVENTS = (
    "--conf=spark.eventLog.enabled=true",
    "--conf=spark.eventLog.dir=file:/store/events",
    "--conf=spark.eventLog.rolling.enabled=false",
    "--conf=spark.eventLog.compress=false",
)


def run(podman: Podman) -> list[str]:
    """Rebuild a store with the driver as the Job has it, then by the word of deploy mode ``cluster``.

    Returns:
        what was compared, a line for each.

    Raises:
        ContainersError: a driver failed, nothing ran on executors' containers, or bytes differ.
    """
    job = yaml.safe_load((_FILES / "rebuild.yaml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    words: list[str] = pod["containers"][0]["args"]
    at = words.index("/opt/reput/jobs/rebuild.py")
    options = [word for word in words[:at] if not word.startswith(("--deploy-mode", "--driver-memory"))]
    said = []
    for how, command in (("spark-submit", words[:at]), ("driver", ["driver", *options[1:]])):
        said.append(f"{how}: {_rebuild(podman, pod, command, words[at:])}")
    return said


def _rebuild(podman: Podman, pod: dict[str, Any], command: list[str], script: list[str]) -> str:
    place = podman.place / "kubernetes"
    shutil.rmtree(place, ignore_errors=True)
    store = unpack(_STORE, place / "broker")
    store.write_broker_conf(place / "broker.conf")
    (place / "events").mkdir()
    for path in (place, *place.rglob("*")):
        os.chown(path, *(pod["securityContext"][key] for key in ("runAsUser", "runAsGroup")))
    mounted = ["--network=host", "--user=3000:3000", "--cap-drop=all", "--security-opt=no-new-privileges"]
    mounted += ["-v", f"{place}:/store"]

    class Containers(Api):
        """Each executor's pod is a container."""

        def executor(self, name: str, told: dict[str, str]) -> subprocess.Popen[bytes]:
            told = {**told, "SPARK_LOCAL_DIRS": "/tmp"}
            given = [word for key, value in told.items() for word in ("-e", f"{key}={value}")]
            with (self.logs / f"{name}.log").open("wb") as log:
                return subprocess.Popen(
                    ["podman", "run", "--rm", "--name", name, *mounted, *given, IMAGE, "executor"],
                    env={**os.environ, **podman.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    logs = place / "logs"
    logs.mkdir()
    (access,) = (
        one
        for one in yaml.safe_load_all((_FILES / "access.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "Role"
    )
    with api(_API, access["rules"], logs, Containers) as served:
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        driver = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver-1"}, "spec": pod}
        served.add("pods", {**driver, "status": ready})
        here = {"$(POD_IP)": "127.0.0.1", "$(POD_NAME)": "driver-1"}
        given = [_filled(word, here) for word in command]
        given = [f"--master={served.master}" if word.startswith("--master=") else word for word in given]
        around = ["-e", "SPARK_CONF_DIR=/opt/reput/conf", "-e", "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1"]
        around += ["-v", f"{_FILES}:/etc/reput:ro", "--name", "driver-1"]
        script = [*script[:-1], f"--rocketmq-version={store.version}"]
        podman.run("run", "--rm", *mounted, *around, IMAGE, *given, *SETTINGS, *_EVENTS, *script, seconds=600)
    tasks = finished_tasks(sorted((place / "events").iterdir()))
    if served.refused or not tasks or "driver" in tasks:
        said = "\n".join(path.read_text(errors="replace") for path in logs.glob("*.log"))
        raise ContainersError(f"tasks on {tasks}, refused {served.refused}; executors said:\n{said[-2000:]}")
    found = compare(store.root, place / "rebuilt")
    if found.differences or not found.queue_bytes:
        raise ContainersError(f"the rebuilt store isn't the broker's: {found.differences[:5]}")
    share = ", ".join(f"{count} on executor {name}" for name, count in tasks.items())
    return f"{found.queue_bytes + found.index_bytes:,} bytes equal; tasks: {share}"


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
