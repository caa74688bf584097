"""conf/kubernetes against the API's schemas, this repository, Spark's settings, and the real command line.

No pod is run; tests/spark/test_kubernetes.py has what Spark makes of these files.
"""

from __future__ import annotations

import re
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate.utils
import pyspark
import pytest
import yaml

from tests.unit.test_compose import IMAGE_ROOT, SERVICES, in_repository, parsed, submitted

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "conf" / "kubernetes"
FILES: dict[str, list[dict[str, Any]]] = {
    path.stem: list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for path in sorted(DIRECTORY.glob("*.yaml"))
}
OBJECTS = [(name, one) for name, objects in FILES.items() for one in objects]
(JOB,) = FILES["rebuild"]
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
OPTIONS, SCRIPT, WORDS = submitted(CONTAINER["args"])
TEMPLATES = ("driver", "executor")
#: The command of deploy mode cluster, by a comment of the driver's template.
(COMMAND,) = (
    found.replace("\n#", "\n")
    for found in re.findall(
        r"^# +(spark-submit --master k8s://.*\n(?:#      .*\n)+)",
        (DIRECTORY / "driver.yaml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
#: Those that know all that the Job asks for.
VERSIONS = [
    one for one in kubernetes_validate.utils.all_versions() if tuple(map(int, one.split("."))) >= (1, 29)
]


def settings() -> dict[str, str]:
    """The Job's settings of Spark."""
    found = (one.removeprefix("--conf=") for one in OPTIONS if one.startswith("--conf="))
    return dict(one.split("=", 1) for one in found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "found"), OBJECTS, ids=[f"{n}-{one['kind']}" for n, one in OBJECTS])
def test_the_api_takes_it(name: str, found: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(found, version, strict=True) == ".".join(version.split(".")[:2])


@pytest.mark.parametrize(("name", "found"), OBJECTS, ids=[f"{n}-{one['kind']}" for n, one in OBJECTS])
def test_the_schemas_see_what_is_wrong(name: str, found: dict[str, Any]) -> None:
    """A word that no field has, at the top and in each part below."""

    def parts(value: object) -> list[dict[str, Any]]:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        below = [part for one in inner for part in parts(one)]
        return [value, *below] if isinstance(value, dict) else below

    free = {"labels", "requests", "limits"}
    total = len(parts(found))
    seen = 0
    for number in range(total):
        wrong = deepcopy(found)
        part = parts(wrong)[number]
        if any(part is holder.get(key) for holder in parts(wrong) for key in free):
            continue
        part["noSuchField"] = 1
        with pytest.raises(kubernetes_validate.ValidationError, match="noSuchField"):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)
        seen += 1
    assert seen >= 2


def test_what_is_named_is_there() -> None:
    account, role, binding = FILES["access"]
    assert (account["kind"], role["kind"], binding["kind"]) == ("ServiceAccount", "Role", "RoleBinding")
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", **account["metadata"]}
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert POD["serviceAccountName"] == account["metadata"]["name"]
    namespaces = {one["metadata"]["namespace"] for name, one in OBJECTS if name not in TEMPLATES}
    assert namespaces == {settings()["spark.kubernetes.namespace"]}
    (claim,) = FILES["store"]
    for spec in (POD, *(FILES[name][0]["spec"] for name in TEMPLATES)):
        (container,) = spec["containers"]
        named = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(named) == set(mounted)
        assert named["store"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mounted["store"] == "/store"
        # The Pod Security Standard "restricted".
        assert spec["securityContext"] == POD["securityContext"]
        assert container["securityContext"] == CONTAINER["securityContext"]
    user = POD["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == SERVICES["broker"]["user"]
    rule = JOB["spec"]["podFailurePolicy"]["rules"][1]
    assert rule["onExitCodes"]["containerName"] == CONTAINER["name"]
    assert FILES["executor"][0]["spec"]["automountServiceAccountToken"] is False


def test_the_command_line_is_a_real_one() -> None:
    assert OPTIONS[0] == "spark-submit"
    assert all(re.fullmatch(r"--[a-z-]+=\S*", one) for one in OPTIONS[1:])
    script = in_repository(SCRIPT, {})
    assert script is not None
    assert f'main(["{script.stem}", ' in script.read_text(encoding="utf-8")
    rebuild = parsed("rebuild", WORDS)
    for path in (*rebuild["stores"], rebuild["out"], rebuild["broker_conf"]):
        assert Path(path).is_relative_to("/store")
    with pytest.raises(Exception, match="--no-such-option"):
        parsed("rebuild", [*WORDS, "--no-such-option"])
    names = {one["name"] for one in CONTAINER["env"]}
    used = set(re.findall(r"\$\((\w+)\)", " ".join(CONTAINER["args"])))
    assert used == {"POD_NAME", "POD_IP"} <= names
    (conf,) = (one["value"] for one in CONTAINER["env"] if one["name"] == "SPARK_CONF_DIR")
    assert in_repository(conf, {}) == ROOT / "conf"


def test_settings_are_those_of_the_installed_spark() -> None:
    told = settings()
    known = b""
    for path in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(path) as jar:
            for entry in jar.namelist():
                if re.search(r"/(config/package|config/Network|k8s/Config|TransportConf)\$?\.class$", entry):
                    known += jar.read(entry)
    asked = {*told, *re.findall(r"--conf (spark[\w.]+)=", COMMAND)}
    asked.remove("spark.kubernetes.authenticate.driver.serviceAccountName")  # Spark puts it together
    assert len(asked) > len(told)
    assert [key for key in asked if not re.search(re.escape(key.encode()) + rb"\b", known)] == []
    assert b"spark.kubernetes.no.such.setting" not in known
    assert told["spark.kubernetes.container.image"] == CONTAINER["image"]
    (mounted,) = (one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "pods")
    assert told["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor.yaml"


def test_the_image_is_that_of_compose() -> None:
    text = (DIRECTORY / "Dockerfile").read_text(encoding="utf-8")
    spark, ours = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert spark.startswith(f"spark:{pyspark.__version__}-")
    assert ours == SERVICES["store"]["image"]
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == SERVICES["broker"]["user"]
    assert str(IMAGE_ROOT) in SCRIPT
    assert CONTAINER["image"].partition("/")[2].startswith(ours)
