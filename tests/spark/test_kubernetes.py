"""What Spark makes of conf/kubernetes: the Job's words and Role, against a stand-in for the API server."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from reput.format import names
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.kubernetes import SETTINGS, Api, api
from tests.rebuilds import environment
from tests.unit.test_kubernetes import COMMAND, DIRECTORY, FILES, JOB, ROOT, VERSIONS

pytestmark = [pytest.mark.spark, pytest.mark.proof]

_POD = JOB["spec"]["template"]
_ARGS: list[str] = _POD["spec"]["containers"][0]["args"]
_SCRIPT = "local:///opt/reput/jobs/rebuild.py"
_RULES = FILES["access"][1]["rules"]
_CONF = ROOT / "conf"
_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
#: As the Job's pod sees them, and where they are here.
_HERE = {
    "/opt/reput": str(ROOT),
    "/etc/reput": str(DIRECTORY),
    "$(POD_IP)": "127.0.0.1",
    "$(POD_NAME)": "driver-1",
}
#: The Job's pod, as it is there by then.
_DRIVER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "driver-1"},
    "spec": _POD["spec"],
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def words(store: GoldenStore, served: Api) -> list[str]:
    """The Job's, for what is here."""
    here = {
        **_HERE,
        "/store/broker.conf": str(store.root.parent / "broker.conf"),
        "/store/broker": str(store.root),
    }
    here |= {"/store/rebuilt": str(store.root.parent / "rebuilt")}
    found = []
    for word in _ARGS:
        for there, place in here.items():
            word = word.replace(there, place)
        found.append(f"--master={served.master}" if word.startswith("--master=") else word)
    at = next(number for number, word in enumerate(found) if word.endswith(".py"))
    found[-1] = f"--rocketmq-version={store.version}"
    python = f"--conf=spark.pyspark.python={sys.executable}"
    return [str(_SUBMIT), *found[1:at], *SETTINGS, python, *found[at:]]


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    found = unpack("5.3.3-mixed", tmp_path / "broker")
    found.write_broker_conf(tmp_path / "broker.conf")
    return found


def submit(command: list[str], tmp_path: Path, conf: Path | None = None) -> subprocess.CompletedProcess[str]:
    around = environment(SPARK_CONF_DIR=None if conf is None else str(conf), SPARK_LOCAL_DIRS=str(tmp_path))
    (tmp_path / "submitted").mkdir()
    return subprocess.run(
        command,
        env=around,
        cwd=tmp_path / "submitted",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_job_rebuilds_a_store(store: GoldenStore, tmp_path: Path) -> None:
    with api(VERSIONS[-1], _RULES, tmp_path) as served:
        served.add("pods", _DRIVER)
        done = submit([*words(store, served), "--json"], tmp_path, _CONF)
        assert done.returncode == 0, done.stderr
        assert len(served.created["pods"]) == 2
        assert served.refused == []
        assert json.loads(done.stdout)["findings"] == []
        for pod in served.created["pods"]:
            _assert_as_template(pod, "executor")
            assert [one["name"] for one in pod["metadata"]["ownerReferences"]] == ["driver-1"]
        # Nothing is left but what was there before.
        assert set(served.objects) == {("pods", "driver-1")}
    found = compare(store.root, tmp_path / "rebuilt")
    assert found.differences == ()
    assert found.queue_bytes > 0
    assert found.index_bytes > 0


def test_the_job_is_refused_what_its_role_lacks(store: GoldenStore, tmp_path: Path) -> None:
    """The stand-in's refusals are seen, so that none above means something."""
    rules = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]} for rule in _RULES]
    with api(VERSIONS[-1], rules, tmp_path) as served:
        served.add("pods", _DRIVER)
        done = submit(words(store, served), tmp_path, _CONF)
        assert done.returncode == 2
        assert "create configmaps" in served.refused
        (said,) = (line for line in done.stderr.splitlines() if line.startswith("reput: Spark failed"))
        assert "create configmaps" in said
        assert "pods" not in served.created
    assert not (tmp_path / "rebuilt" / names.CONSUME_QUEUE).exists()


def test_spark_makes_a_drivers_pod(tmp_path: Path) -> None:
    """By the command in its template; the pod isn't run."""
    command = shlex.split(COMMAND.replace("\\\n", " "))
    with api(VERSIONS[-1], None, tmp_path) as served:
        command[command.index("--master") + 1] = served.master
        here = [word.replace("conf/kubernetes/", f"{DIRECTORY}/") for word in command[1:]]
        done = submit(
            [str(_SUBMIT), "--conf", "spark.kubernetes.submission.waitAppCompletion=false", *here], tmp_path
        )
        assert done.returncode == 0, done.stderr
    assert served.refused == []
    (pod,) = served.created["pods"]
    _assert_as_template(pod, "driver")
    assert pod["spec"]["serviceAccountName"] == _POD["spec"]["serviceAccountName"]
    script = command.index(_SCRIPT)
    assert pod["spec"]["containers"][0]["args"][-len(command[script:]) :] == command[script:]
    held = [text for one in served.created["configmaps"] for text in one["data"].values()]
    assert (DIRECTORY / "executor.yaml").read_text(encoding="utf-8") in held


def _assert_as_template(pod: dict[str, Any], name: str) -> None:
    """Spark has kept what the template says, and given the pod image, memory and cores."""
    template = FILES[name][0]
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert spec["securityContext"] == template["spec"]["securityContext"]
    assert container["securityContext"] == template["spec"]["containers"][0]["securityContext"]
    assert template["spec"]["volumes"][0] in spec["volumes"]
    assert template["spec"]["containers"][0]["volumeMounts"][0] in container["volumeMounts"]
    assert spec.get("automountServiceAccountToken") == template["spec"].get("automountServiceAccountToken")
    assert container["image"] == _POD["spec"]["containers"][0]["image"]
    assert container["resources"]["requests"]["memory"] == "3072Mi"
