"""docker-compose.yml against the Compose Specification, this repository, and the real command lines.

No container is run: ``make compose`` does that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import pytest
import typer
import yaml

import reput.cli
from explore import workspace
from reput.config.broker_conf import parse
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


def test_the_file_is_what_the_specification_asks_for() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    check = jsonschema.Draft7Validator(schema)
    assert [error.message for error in check.iter_errors(COMPOSE)] == []
    broken = {**COMPOSE, "services": {**SERVICES, "tail": {**SERVICES["tail"], "comand": "x"}}}
    assert "comand" in next(check.iter_errors(broken)).message


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
        assert one["rocketmq_version"] == SERVICES["namesrv"]["image"].partition(":")[2]
        assert one["rocketmq_version"] in VERSIONS
    conf = parse((ROOT / "conf" / "broker.conf").read_bytes())
    assert conf["storePathRootDir"].value == str(tail["store"])
    guarded = SERVICES["broker"]["environment"]
    assert (guarded["REPUT_STORE"], guarded["REPUT_ROCKETMQ_VERSION"]) == (
        str(tail["store"]),
        tail["rocketmq_version"],
    )
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
    assert set(re.findall(r"(?<!\$)\$[^$\s]+", TEXT)) == {"${JUPYTER_TOKEN:-}"}


def test_the_image_is_made_as_the_makefile_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (version,) = re.findall(r"^FROM python:(\d\.\d+)-", DOCKERFILE, re.MULTILINE)
    # The lock files are made on the oldest Python; this environment has proved that their hashes apply there.
    assert project["tool"]["ruff"]["target-version"] == f"py{version.replace('.', '')}"
    assert f"/python{version}/" in DOCKERFILE
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"--require-hashes (.*?-r requirements/\w+\.txt)", DOCKERFILE)
    others = "-r requirements/build.txt -r requirements/light.txt|-r requirements/compose.txt"
    assert installs == re.findall(rf"--require-hashes (?!{others})(.*?-r requirements/\w+\.txt)", makefile)
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
