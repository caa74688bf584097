"""Hosts made of namespaces: each has its network, mounts, name and processes, and one directory is shared.

Needs root, `ip` and `unshare`. Nothing listens outside of these networks, which have no way out. All is
taken down by process id; a network goes with the last process in it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.compat.jars import cache_dir

PROJECT = Path(__file__).parents[2]
#: Where each host has the shared directory.
SHARED = Path("/mnt")
#: Where each host has a directory of its own that is on a disk.
OWN = Path("/media/own")
#: Where each host has what ``work/conf`` holds.
CONF = Path("/media/conf")
#: As in docs/cluster.md, whose commands test_by_the_page.py runs.
_NETWORK = "10.0.0"
#: A user that isn't root; each host knows it by this name.
USER, USER_NAME = 31977, "rocketmq"
_READY_SECONDS = 120.0
_TAG = "reput"

_SETTLE = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /media
mkdir /media/project /media/conf {own}
mount --bind {project} /media/project
mount --bind {work} {own}
mount --bind {conf} /media/conf
{share}
mount --bind {names} /etc/hosts
mount --bind {passwd} /etc/passwd
mount -t tmpfs tmpfs /tmp
mkdir -p {project}
mountpoint -q {project} || [ -e {project}/pyproject.toml ] || mount --bind /media/project {project}
{opened}
hostname {name}
ip link set lo up
"""


def why_not() -> str | None:
    """Why no hosts can be made here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need Linux, and root"
    if missing := [
        program for program in ("ip", "unshare", "nsenter", "setpriv") if not shutil.which(program)
    ]:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(
        [
            "unshare",
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-f",
            "--mount-proc",
            "mount",
            "-t",
            "tmpfs",
            "t",
            "/media",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"namespaces can't be made: {tried.stderr.strip()}"


@dataclass(slots=True)
class Host:
    """One host.

    Attributes:
        name, address: on the hosts' network.
        number: from 1 on.
        own: its :data:`OWN`, as the test sees it.
        first: its first process, as this host's children see it; what is done in the host ends with it.
        before: words before those of each program.
    """

    name: str
    address: str
    number: int
    own: Path
    first: int
    _holder: subprocess.Popen[str]
    _started: list[subprocess.Popen[str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)

    def start(
        self,
        words: Sequence[str | Path],
        *,
        log: IO[str] | None = None,
        stdout: int | None = None,
        user: int = 0,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a program in the host; ``log`` gets what it says."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        process = subprocess.Popen(
            [*self._enter, *as_user, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=stdout or log,
            stderr=log,
            text=True,
            env={**_bare(), **environment},
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *words: str | Path, **environment: str) -> str:
        """Run a program in the host to its end; what it printed.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        done = subprocess.run(
            [*self._enter, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**_bare(), **environment},
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
        return done.stdout

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.first), "-m", "-u", "-i", "-n", "-p", *self.before]

    def cut(self) -> None:
        """Take its cable out."""
        self.run("ip", "link", "set", "eth0", "down")

    def mend(self) -> None:
        """Put it in again."""
        self.run("ip", "link", "set", "eth0", "up")

    def processes(self) -> Iterator[psutil.Process]:
        """What runs on it now; nothing of the machine or of another host."""
        with suppress(FileNotFoundError):
            own = _process_namespace(self.first)
            for process in psutil.process_iter():
                # Even root may be denied a look at the machine's first process.
                with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                    if _process_namespace(process.pid) == own:
                        yield process

    def kill(self) -> None:
        """Cut its power: its first process goes, and with it all others."""
        with suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        for process in (self._holder, *self._started):
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def hosts(work: Path, shared: Path, count: int) -> Iterator[list[Host]]:
    """Make hosts that see ``shared`` as :data:`SHARED`, on one network without a way out.

    Args:
        work: for what they need.
        shared: a directory.
    """
    _clear()
    tag = f"{_TAG}{os.getpid()}"
    switch = f"{tag}-switch"
    made: list[Host] = []
    names = work / "hosts"
    lines = [f"{_NETWORK}.{number} {_name(number)}\n" for number in range(1, count + 1)]
    names.write_text("".join(["127.0.0.1 localhost\n", *lines]), encoding="utf-8")
    known = Path("/etc/passwd").read_text(encoding="utf-8")
    (work / "passwd").write_text(f"{known}{USER_NAME}:x:{USER}:{USER}::/tmp:/bin/sh\n", encoding="utf-8")
    (work / "conf").mkdir()
    _ip("netns", "add", switch)
    try:
        _in(switch, "link", "add", "bridge0", "type", "bridge")
        _in(switch, "link", "set", "bridge0", "up")
        for number in range(1, count + 1):
            made.append(_make(number, tag, switch, work, shared))
        yield made
    finally:
        for host in made:
            host.kill()
        for number in range(1, count + 1):
            _ip("netns", "delete", f"{tag}-{number}", check=False)
        _ip("netns", "delete", switch, check=False)


def _make(number: int, tag: str, switch: str, work: Path, shared: Path) -> Host:
    names, own = work / "hosts", work / _name(number)
    own.mkdir()
    network, inner, outer = f"{tag}-{number}", "eth0", f"port{number}"
    address, name = f"{_NETWORK}.{number}", _name(number)
    _ip("netns", "add", network)
    _in(switch, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", network)
    _in(switch, "link", "set", outer, "master", "bridge0", "up")
    _in(network, "addr", "add", f"{address}/24", "dev", inner)
    _in(network, "link", "set", inner, "up")
    settle = _SETTLE.format(
        project=shlex.quote(str(PROJECT)),
        work=shlex.quote(str(own)),
        conf=shlex.quote(str(work / "conf")),
        own=OWN,
        share=f"mount --bind {shlex.quote(str(shared))} {SHARED}",
        names=shlex.quote(str(names)),
        opened=_opened(),
        passwd=shlex.quote(str(work / "passwd")),
        name=name,
    )
    # Killed with the tests, however these end.
    bound = ["setpriv", "--pdeathsig", "KILL"]
    held = ["unshare", "-m", "-u", "-i", "-p", "-f", "--mount-proc", "--kill-child"]
    with (work / f"{name}.err").open("w") as errors:
        holder = subprocess.Popen(
            [
                *bound,
                "ip",
                "netns",
                "exec",
                network,
                *held,
                "bash",
                "-c",
                f"{settle}\necho ready; exec sleep infinity",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=_bare(),
        )
    assert holder.stdout is not None
    said = holder.stdout.readline()
    if said != "ready\n":
        holder.kill()
        raise RuntimeError(f"{name} doesn't come up: {(work / f'{name}.err').read_text()}")
    deadline = time.monotonic() + _READY_SECONDS
    while not (children := psutil.Process(holder.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return Host(name, address, number, own, children[0].pid, holder)


def _opened() -> str:
    """Let every user reach interpreter and jars, also where they lie in a home directory of root's."""
    wanted = [Path(sys.base_prefix), cache_dir().parent]
    closed = {
        parent for path in wanted for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH
    }
    lines: list[str] = []
    if closed:
        parent = min(closed)
        kept = [path for path in wanted if path.is_relative_to(parent) and path.is_dir()]
        inner = [(shlex.quote(str(path)), f"/media/kept/{number}") for number, path in enumerate(kept)]
        lines += [f"mkdir -p {place}; mount --bind {path} {place}" for path, place in inner]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(parent))}")
        lines += [f"mkdir -p {path}; mount --bind {place} {path}" for path, place in inner]
    return "\n".join(lines)


def _clear() -> None:
    """Remove the networks of tests that were killed; nothing is in them any more."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name, *_ = line.split()
        pid = name.removeprefix(_TAG).partition("-")[0]
        if name.startswith(_TAG) and pid.isdecimal() and not psutil.pid_exists(int(pid)):
            _ip("netns", "delete", name, check=False)


def _process_namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def _name(number: int) -> str:
    return f"node-{number}"


def _bare() -> dict[str, str]:
    """The environment of a host's programs."""
    kept: Mapping[str, str] = {
        name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME") if name in os.environ
    }
    return {**kept, "HOME": "/tmp", "TZ": "UTC"}


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


def _in(network: str, *words: str) -> None:
    _ip("-n", network, *words)
