"""A host that has no Python: its root has a shell, tar and what these need, Java, and Spark's jars."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.hosts.elf import is_glibc
from tests.hosts.network import CONF, OWN, SHARED, Host
from tests.hosts.submitting import HOME

ROOT = "bare"
#: What scripts of Spark and YARN and Java call, and what unpacks an archive.
_PROGRAMS = (
    *("sh", "bash", "env", "dirname", "basename", "readlink", "cat", "ls", "mkdir", "rm", "cp", "mv", "ln"),
    *("chmod", "uname", "id", "ps", "tar", "gzip", "nice", "nohup", "hostname", "grep", "sed", "tr", "sleep"),
    *("install", "find", "setsid"),
)
_LIBRARY = re.compile(r"(/\S+) \(0x")
_LOOKS_LIKE_PYTHON = re.compile(r"(lib)?python[0-9.]*(\.so.*)?")


def make_bare(host: Host, *more: Path) -> None:
    """Let all that is started in a host see nothing but a root without any Python.

    Its shared directory, its own and its settings stay where they were; so do directories of ``more``.
    """
    root = host.own / ROOT
    java = Path(shutil.which("java") or "").resolve().parents[1]
    programs = [Path(path).resolve() for name in _PROGRAMS if (path := shutil.which(name))]
    (root / "bin").mkdir(parents=True)
    (root / "usr").mkdir()
    (root / "usr" / "bin").symlink_to("../bin")
    for name in _PROGRAMS:
        shutil.copy(shutil.which(name) or name, root / "bin" / name)
    needed = _libraries([*programs, java / "bin" / "java", *(java / "lib").rglob("*.so")])
    c_library = next(library for library in needed if library.name == "libc.so.6")
    glibc = {path for path in c_library.parent.iterdir() if is_glibc(path.name)}
    for library in needed | glibc:
        if not library.is_relative_to(java):
            target = root / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "etc").mkdir()
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", root / "etc")
    (root / "etc" / "hosts").touch()
    directories = [java, HOME, SHARED, OWN, CONF, *Path("/etc").glob("java*"), Path("/dev"), *more]
    for path in (*directories, Path("/etc/hosts")):
        if path in directories:
            (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
        host.run("mount", "--rbind", path, OWN / ROOT / path.relative_to("/"))
    for name, kind in (("proc", "proc"), ("tmp", "tmpfs")):
        (root / name).mkdir()
        host.run("mount", "-t", kind, kind, OWN / ROOT / name)
    host.before = ["chroot", str(OWN / ROOT), "/bin/env", "PATH=/bin", f"JAVA_HOME={java}"]


def pythons(host: Host) -> list[str]:
    """What looks like an interpreter in a bare host's root, but in what is mounted there."""
    root = host.own / ROOT
    return [
        str(Path(directory, name))
        for directory, _, names in os.walk(root)
        for name in names
        if _LOOKS_LIKE_PYTHON.fullmatch(name)
    ]


def _libraries(paths: list[Path]) -> set[Path]:
    done = subprocess.run(["ldd", *map(str, paths)], capture_output=True, text=True, check=False)
    return {Path(found) for found in _LIBRARY.findall(done.stdout)}
