"""A directory that hosts share by GlusterFS: each mounts it by itself, with a page cache of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.network import OWN, SHARED, Host

_VOLUME = "shared"
_READY_SECONDS = 60.0


def why_not() -> str | None:
    """Why there is no GlusterFS here; None if there is."""
    missing = [program for program in ("glusterd", "gluster", "glusterfs") if not shutil.which(program)]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: glusterfs-server)"
    return None if Path("/dev/fuse").exists() else "there is no /dev/fuse"


@contextmanager
def volume(hosts: list[Host]) -> Iterator[None]:
    """Let the first host serve a volume, and mount it as :data:`SHARED` on all.

    What hosts have of their own has to be on a file system with extended attributes.
    """
    server = hosts[0]
    for host in hosts:
        for place, name in (("/var/lib/glusterd", "state"), ("/var/log/glusterfs", "log"), ("/run", "run")):
            host.run("mkdir", "-p", OWN / name, place)
            host.run("mount", "--bind", OWN / name, place)
    server.run("mkdir", OWN / "brick")
    server.start(["glusterd", "--no-daemon"])
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            server.run("gluster", "--mode=script", "volume", "list")
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    gluster = ("gluster", "--mode=script", "volume")
    server.run(*gluster, "create", _VOLUME, f"{server.name}:{OWN}/brick", "force")
    server.run(*gluster, "start", _VOLUME)
    for host in hosts:
        host.run("umount", SHARED)
        host.run("mount", "-t", "glusterfs", f"{server.name}:/{_VOLUME}", SHARED)
    yield
