"""A stand-in for Kubernetes' API server and its nodes, for Spark's real client.

It takes objects only if the API's schemas do, allows only what a Role allows, and runs each executor's pod as
a process of this machine, or as a container (``tests.compose.kubernetes``). What it isn't: scheduler,
network, volumes, controllers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pyspark

from tests.compat.jars import java_executable

_JARS = Path(pyspark.__file__).parent / "jars"
_KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "services": "Service"}
_ADDRESS = "127.0.0.1"
#: Spark's, since the stand-in has no watches, and every port is one of this machine's.
SETTINGS = (
    "--conf=spark.kubernetes.executor.enableApiWatcher=false",
    "--conf=spark.kubernetes.executor.apiPollingInterval=1s",
    "--conf=spark.driver.port=0",
    "--conf=spark.blockManager.port=0",
)
_Object = dict[str, Any]


@dataclass
class Api:
    """The server.

    Attributes:
        version: of the schemas.
        rules: a Role's; None allows all.
        objects: what is there, by resource and name.
        created: all that ever was, by resource.
        refused: what wasn't allowed, or isn't what the schemas ask for.
    """

    version: str
    rules: list[_Object] | None
    logs: Path
    objects: dict[tuple[str, str], _Object] = field(default_factory=dict)
    created: dict[str, list[_Object]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ending: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        """As spark-submit names it."""
        return f"k8s://http://{_ADDRESS}:{self.port}"

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, _Object]:
        """Status and document for a request."""
        split = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        group, resource, name = _parts(split.path)
        verb = _verb(method, name, query)
        if not self._allows(group, resource, verb):
            self.refused.append(f"{verb} {resource}")
            return 403, _status(403, "Forbidden", f"{verb} {resource}")
        with self._lock:
            # Spark applies what isn't a pod: a patch of something that isn't there yet.
            if verb in ("create", "patch"):
                return self._create(resource, json.loads(body))
            if verb == "get":
                found = self.objects.get((resource, name))
                return (200, found) if found else (404, _status(404, "NotFound", name))
            chosen = self._chosen(resource, name, query.get("labelSelector", ""))
            if verb == "list":
                kind = f"{_KINDS[resource]}List"
                listed = {"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"}}
                return 200, {**listed, "items": [self.objects[one] for one in chosen]}
            for one in chosen:
                self._delete(one)
            return 200, _status(200, "", "")

    def add(self, resource: str, found: _Object) -> None:
        """Have an object there from the beginning."""
        self.objects[resource, found["metadata"]["name"]] = _made(found)

    def stop(self) -> None:
        """End what still runs."""
        for process in (*self._running.values(), *self._ending):
            process.kill()
            process.wait()

    def _allows(self, group: str, resource: str, verb: str) -> bool:
        return self.rules is None or any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.rules
        )

    def _create(self, resource: str, found: _Object) -> tuple[int, _Object]:
        try:
            kubernetes_validate.validate(found, self.version, strict=True)
        except kubernetes_validate.ValidationError as error:
            self.refused.append(f"{found['kind']}: {error.message}")
            return 422, _status(422, "Invalid", error.message)
        made = _made(found)
        self.objects[resource, made["metadata"]["name"]] = made
        self.created.setdefault(resource, []).append(made)
        if resource == "pods" and made["spec"]["containers"][0].get("args") == ["executor"]:
            self._run(made)
        return 201, made

    def executor(self, name: str, told: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start what the image's entry point does with the word ``executor``, in an environment."""
        options = [value for key, value in told.items() if key.startswith("SPARK_JAVA_OPT_")]
        heap = told["SPARK_EXECUTOR_MEMORY"]
        words = {
            "--driver-url": "SPARK_DRIVER_URL",
            "--executor-id": "SPARK_EXECUTOR_ID",
            "--cores": "SPARK_EXECUTOR_CORES",
            "--app-id": "SPARK_APPLICATION_ID",
            "--hostname": "SPARK_EXECUTOR_POD_IP",
            "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
            "--podName": "SPARK_EXECUTOR_POD_NAME",
        }
        main = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
        command = [str(java_executable()), *options, f"-Xms{heap}", f"-Xmx{heap}", "-cp", f"{_JARS}/*", main]
        for word, variable in words.items():
            command += [word, told[variable]]
        local = self.logs / name
        local.mkdir()
        # No such directory is mounted here.
        around = {**os.environ, **told, "SPARK_LOCAL_DIRS": str(local), "SPARK_HOME": str(_JARS.parent)}
        with (self.logs / f"{name}.log").open("wb") as said:
            return subprocess.Popen(command, env=around, stdout=said, stderr=said, cwd=local)

    def _run(self, pod: _Object) -> None:
        name = pod["metadata"]["name"]
        told = {}
        for one in pod["spec"]["containers"][0]["env"]:
            where = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            fields = {"status.podIP": _ADDRESS, "metadata.name": name, None: one.get("value", "")}
            told[one["name"]] = fields[where]
        self._running[name] = self.executor(name, told)
        states = [{"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}, "ready": True}]
        pod["status"] = {"phase": "Running", "podIP": _ADDRESS, "containerStatuses": states}

    def _chosen(self, resource: str, name: str, selector: str) -> list[tuple[str, str]]:
        return [
            key
            for key, one in self.objects.items()
            if key[0] == resource
            and name in ("", key[1])
            and _has(one["metadata"].get("labels", {}), selector)
        ]

    def _delete(self, key: tuple[str, str]) -> None:
        del self.objects[key]
        # As with the real one, a pod may take longer to end than its deletion takes to be answered.
        if (process := self._running.pop(key[1], None)) is not None:
            process.terminate()
            self._ending.append(process)


@contextmanager
def api(version: str, rules: list[_Object] | None, logs: Path, kind: type[Api] = Api) -> Iterator[Api]:
    """Serve, on a free port of the loopback.

    Args:
        version: of the schemas.
        rules: of a Role; None allows all.
        logs: a directory for what executors say.
        kind: of the server; decides what an executor's pod is.
    """
    served = kind(version, rules, logs)

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"  # type: ignore[misc]

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = served.answer(self.command, self.path, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            pass

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    with ThreadingHTTPServer((_ADDRESS, 0), Handler) as server:
        served.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
            served.stop()


def _parts(path: str) -> tuple[str, str, str]:
    """API group, resource and name."""
    words = path.strip("/").split("/")
    group = "" if words[0] == "api" else words[1]
    rest = words[words.index("namespaces") + 2 :]
    return group, rest[0], rest[1] if len(rest) > 1 else ""


def _verb(method: str, name: str, query: dict[str, str]) -> str:
    if method == "GET":
        return "watch" if query.get("watch") == "true" else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def _has(labels: dict[str, str], selector: str) -> bool:
    pairs = (re.fullmatch(r"([^!=]+)(!?)==?(.*)", one) for one in selector.split(",") if one)
    return all(pair is not None and (labels.get(pair[1]) == pair[3]) is not bool(pair[2]) for pair in pairs)


def _made(found: _Object) -> _Object:
    found["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
    found["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return found


def _status(code: int, reason: str, message: str) -> _Object:
    how = "Success" if code < 300 else "Failure"
    whole = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": how, "code": code}
    return {**whole, "reason": reason, "message": message}
