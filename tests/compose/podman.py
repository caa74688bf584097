"""Podman and podman-compose, with a storage, networks and volumes of their own that go with a directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: The programs, by the Debian package that has them.
PACKAGES = {
    "podman": ("podman",),
    "runc": ("runc",),
    "netavark": ("/usr/lib/podman/netavark", "/usr/libexec/podman/netavark"),
    "aardvark-dns": ("/usr/lib/podman/aardvark-dns", "/usr/libexec/podman/aardvark-dns"),
    "catatonit": ("catatonit",),
    "iptables": ("iptables",),
    "debootstrap": ("debootstrap",),
}
#: crun doesn't start containers everywhere; where limits can't be raised, podman's own defaults are too high.
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
# Where podman looks when a container ended: what starts it again is given the storage alone.
static_dir = "{place}/storage/libpod"
tmp_dir = "{place}/run/libpod"
volume_path = "{place}/volumes"
[network]
network_backend = "netavark"
network_config_dir = "{place}/networks"
"""
_STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{place}/storage"\nrunroot = "{place}/run/storage"\n'


class ContainersError(RuntimeError):
    """Something that is needed is missing, a command failed, or something didn't happen in time."""


def missing() -> str | None:
    """Why no containers can be run here, in a line; None if they can."""
    lacking = [package for package, programs in PACKAGES.items() if not any(map(shutil.which, programs))]
    if os.getuid():
        return "containers are run by root: sudo make compose"
    if lacking:
        install = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        return f"not installed: {', '.join(lacking)}; on Debian: {install}"
    return None


@dataclass
class Podman:
    """Commands for containers whose files all lie in one directory."""

    place: Path
    compose_command: Path
    project: str = "reput-compose"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in (("containers.conf", _CONTAINERS), ("storage.conf", _STORAGE)):
            (self.place / name).write_text(text.format(place=self.place), encoding="utf-8")
        self.environment |= {
            "CONTAINERS_CONF": str(self.place / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.place / "storage.conf"),
        }

    def run(self, *words: object, seconds: float = 120, said_too: bool = False) -> str:
        """What a podman command prints, on stderr too if that is ``said_too``.

        Raises:
            ContainersError: it failed, or took longer.
        """
        done = self._run(["podman", *map(str, words)], seconds)
        return done.stdout + (done.stderr if said_too else "")

    def compose(self, *words: object, seconds: float = 120) -> str:
        """What podman-compose prints, for docker-compose.yml.

        Raises:
            ContainersError: it failed, or took longer.
        """
        command = [self.compose_command, "--in-pod=0", "-p", self.project, "-f", ROOT / "docker-compose.yml"]
        return self._run([*map(str, command), *map(str, words)], seconds).stdout

    def succeeds(self, *words: object) -> bool:
        """Whether a podman command ends with exit code 0."""
        try:
            self.run(*words)
        except ContainersError:
            return False
        return True

    def container(self, service: str, number: int = 1) -> str:
        """A service's container, as podman-compose calls it."""
        return f"{self.project}_{service}_{number}"

    def state(self, container: str) -> dict[str, Any]:
        """What podman knows of it: ``Status``, ``Pid``, ``ExitCode``."""
        found: list[dict[str, Any]] = json.loads(self.run("container", "inspect", container))
        state: dict[str, Any] = found[0]["State"]
        return state

    def remove(self, *, images: bool) -> None:
        """Stop and remove containers, networks and volumes; with images the directory can be removed then."""
        words = [
            ("rm", "--all", "--force", "--time", "0"),
            ("volume", "rm", "--all", "--force"),
            ("network", "prune", "--force"),
        ]
        for command in [*words, *([("system", "reset", "--force")] if images else [])]:
            subprocess.run(
                ["podman", *command], env=self._around(), capture_output=True, check=False, timeout=300
            )

    def _around(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _run(self, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                command,
                env=self._around(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ContainersError(f"not done after {seconds:.0f} s: {' '.join(command)}") from error
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise ContainersError(f"exit code {done.returncode}: {' '.join(command)}\n{last}".rstrip())
        return done
