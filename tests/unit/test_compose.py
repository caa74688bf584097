"""docker-compose.yml against the Compose Specification, this repository, and the real command lines.

No container is run. Facts about RocketMQ's image are its Dockerfile's (apache/rocketmq-docker, image-build).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import pyspark
import pytest
import typer
import yaml

import reput.cli
from reput.config.java_properties import parse
from reput.explore import workspace
from reput.newer_python import tomllib
from tests.compat.jars import VERSIONS

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "vendored" / "compose-spec.json"
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE: str = SERVICES["store"]["build"]["dockerfile_inline"]
#: Where the image's Dockerfile puts what it copies.
IMAGE_ROOT = PurePosixPath("/opt/reput")


def words(service: str) -> list[str]:
    return list(map(str, SERVICES[service]["command"]))


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where each volume is mounted, by its target."""
    pairs = (volume.split(":") for volume in service.get("volumes", ()))
    return {target: source for source, target, *_ in pairs}


def in_repository(path: str, service: dict[str, Any]) -> Path | None:
    """The file of this repository that a service sees under a path; None for one that only runs make."""
    for target, source in mounts(service).items():
        if PurePosixPath(path).is_relative_to(target):
            inner = PurePosixPath(path).relative_to(target)
            return ROOT / source / inner if source.startswith(".") else None
    if PurePosixPath(path).is_relative_to(IMAGE_ROOT):
        inner = PurePosixPath(path).relative_to(IMAGE_ROOT)
        assert f"COPY {inner.parts[0]} {inner.parts[0]}\n" in DOCKERFILE
        return ROOT / inner
    return None


def paths(value: object) -> Iterator[str]:
    """Absolute paths in a command or environment, also behind an option's equals sign."""
    if isinstance(value, dict):
        value = list(value.values())
    for word in value if isinstance(value, list) else [value]:
        for piece in str(word).split():
            piece = piece.partition("=")[2] if piece.startswith("--") else piece
            if piece.startswith("/"):
                yield piece


def test_the_file_is_what_the_specification_asks_for() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    check = jsonschema.Draft7Validator(schema)
    assert [error.message for error in check.iter_errors(COMPOSE)] == []
    broken = {**COMPOSE, "services": {**SERVICES, "tail": {**SERVICES["tail"], "comand": "x"}}}
    assert "comand" in next(check.iter_errors(broken)).message


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_services_that_can_be_waited_for(name: str) -> None:
    def reached(service: str, before: tuple[str, ...]) -> None:
        assert service not in before, f"{service} waits for itself"
        for other in SERVICES[service].get("depends_on", {}):
            reached(other, (*before, service))

    reached(name, ())
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert how["condition"] == "service_completed_successfully"
            assert "restart" not in SERVICES[other], "it would never be seen to complete"
    if not SERVICES[name]["image"].startswith("apache/rocketmq:"):
        assert SERVICES[name]["image"] == SERVICES["store"]["image"]
        assert SERVICES[name]["pull_policy"] == ("build" if "build" in SERVICES[name] else "never")


@pytest.mark.parametrize("name", SERVICES)
def test_paths_are_there(name: str) -> None:
    service = SERVICES[name]
    for source in mounts(service).values():
        if source.startswith("."):
            assert (ROOT / source).exists(), source
        else:
            assert source in COMPOSE["volumes"]
    told = [*paths(service["command"]), *paths(service.get("environment", {}))]
    for path in told:
        found = in_repository(path, service)
        assert found is None or found.exists(), path
    if name in ("broker", "tail", "check"):
        assert {str(found) for path in told if (found := in_repository(path, service))} >= {
            str(ROOT / "conf" / "broker.conf")
        }


def parsed(command: str, arguments: list[str]) -> dict[str, Any]:
    """The options of a `reput` command, as its own parser reads them."""
    root = typer.main.get_command(reput.cli.app.app)
    found = root.commands[command]
    return dict(found.make_context(command, list(arguments)).params)


def submitted(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """spark-submit's options, the script, and what the script gets."""
    at = next(number for number, word in enumerate(arguments) if word.endswith(".py"))
    return arguments[:at], arguments[at], arguments[at + 1 :]


def test_the_command_lines_are_real_ones() -> None:
    options, script, rest = submitted(words("tail"))
    assert options[0] == "spark-submit"
    assert all(
        re.fullmatch(r"--master=spark://[\w-]+:\d+|--conf=spark\.[\w.]+=\S+", one) for one in options[1:]
    )
    assert f'main(["{Path(script).stem}", ' in (ROOT / "jobs" / Path(script).name).read_text(encoding="utf-8")
    tail = parsed("tail", rest)
    reput, command, *rest = words("check")
    assert (reput, command) == ("reput", "check")
    check = parsed("check", rest)
    assert (check["stores"], check["against"]) == ([str(tail["store"])], tail["out"])
    for one in (tail, check):
        assert one["rocketmq_version"] == SERVICES["broker"]["image"].partition(":")[2]
        assert one["rocketmq_version"] in VERSIONS
    conf = parse((ROOT / "conf" / "broker.conf").read_bytes())
    assert conf["storePathRootDir"].value == str(tail["store"])
    cmd, reput, command, *rest = SERVICES["tail"]["healthcheck"]["test"]
    assert (cmd, reput, command) == ("CMD", "reput", "tail")
    assert parsed("tail", rest)["status"] == tail["out"]
    with pytest.raises(Exception, match="--no-such-option"):
        parsed("tail", [*submitted(words("tail"))[2], "--no-such-option"])


def test_commands_in_the_head_of_the_file_are_real_ones() -> None:
    head = re.findall(r"^#   docker compose (.+?)(?: {2,}#.*)?$", TEXT, re.MULTILINE)
    assert len(head) == 4
    service, reput, command, *rest = head[1].removeprefix("exec ").split()
    assert (reput, command, rest[0]) == ("reput", "tail", "--status")
    assert service in SERVICES
    parsed(command, rest)
    assert "run --rm check" in head[2]
    assert SERVICES["check"]["profiles"] == ["check"]


@pytest.mark.parametrize("name", ["spark-master", "spark-worker"])
def test_the_daemons_are_classes_of_the_installed_spark(name: str) -> None:
    program, main_class, *options = words(name)
    assert program == "spark-class"
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(core) as jar:
        jar.getinfo(f"{main_class.replace('.', '/')}.class")
    # Its parser knows no "--name=value" (MasterArguments, WorkerArguments).
    assert not any(word.startswith("--") and "=" in word for word in options)
    assert len(options) % 2 == (name == "spark-worker"), "pairs, and the worker's master"


def test_the_tail_names_the_master_and_leaves_cores_for_others() -> None:
    *_, host, _, port = words("spark-master")
    assert host == SERVICES["spark-master"]["hostname"]
    master = f"spark://{host}:{port}"
    assert words("spark-worker")[-1] == master
    assert f"--master={master}" in words("tail")
    assert f"--conf=spark.driver.host={SERVICES['tail']['hostname']}" in words("tail")
    cores = int(words("spark-worker")[words("spark-worker").index("--cores") + 1])
    cores *= SERVICES["spark-worker"]["deploy"]["replicas"]
    (wanted,) = re.findall(r"spark\.cores\.max=(\d+)", TEXT)
    assert int(wanted) < cores, "else the tail would take all"


def test_the_notebooks_look_at_the_brokers_store() -> None:
    told = SERVICES["jupyter"]["environment"]
    tail = parsed("tail", submitted(words("tail"))[2])
    assert told[workspace.STORE] == str(tail["store"])
    assert told[workspace.BROKER_CONF] == str(tail["broker_conf"])
    assert told[workspace.VERSION] == tail["rocketmq_version"]
    (root,) = (one.partition("=")[2] for one in words("jupyter") if one.startswith("--ServerApp.root_dir="))
    notebooks = in_repository(root, SERVICES["jupyter"])
    assert notebooks is not None
    assert list(notebooks.glob("*.ipynb"))


def test_ports_are_bound_to_the_loopback_and_users_are_not_root() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port
        assert service["cap_drop"] == ["ALL"]
        if name == "store":
            # As root it changes one owner, without a network.
            assert words(name) == ["chown", SERVICES["broker"]["user"], mounts(service).popitem()[0]]
            assert (service["cap_add"], service["network_mode"]) == (["CHOWN"], "none")
        else:
            assert service["user"] == SERVICES["broker"]["user"] == "3000:3000"
    assert "--ip=0.0.0.0" in words("jupyter")
    assert not any("token" in word or "password" in word for word in words("jupyter"))
    # Nothing else is taken from the environment, and `up` alone is enough.
    assert set(re.findall(r"\$\S+", TEXT)) == {"${JUPYTER_TOKEN:-}"}


def test_the_image_is_made_as_the_makefile_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (version,) = re.findall(r"^FROM python:(\d\.\d+)-", DOCKERFILE, re.MULTILINE)
    # The lock files are made on the oldest Python; this environment has proved that their hashes apply there.
    assert project["tool"]["ruff"]["target-version"] == f"py{version.replace('.', '')}"
    assert f"/python{version}/" in DOCKERFILE
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"--require-hashes (.*?-r requirements/\w+\.txt)", DOCKERFILE)
    light = "-r requirements/build.txt -r requirements/light.txt"
    assert installs == re.findall(rf"--require-hashes (?!{light})(.*?-r requirements/\w+\.txt)", makefile)
    for install in installs:
        locked = ROOT / install.rpartition(" ")[2]
        assert "--hash=sha256:" in locked.read_text(encoding="utf-8")
    assert "jupyterlab==" in locked.read_text(encoding="utf-8")
    for copied in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / one).exists() for one in copied.split()), copied
    needed = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    (own,) = re.findall(r"^COPY (.+) \./$", DOCKERFILE, re.MULTILINE)
    assert set(own.split()) == needed
    _, _, user = DOCKERFILE.strip().rpartition("\n")
    assert user == f"USER {SERVICES['broker']['user']}"
