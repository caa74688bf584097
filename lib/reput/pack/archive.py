"""Packs reput for hosts that have none of what it needs: interpreter, packages, and Spark if it is wanted."""

from __future__ import annotations

import gzip
import json
import os
import platform
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import reput
from reput.doctor.machine import beside as files_beside
from reput.errors import PackError, Result, SettingsError
from reput.next_command import MANIFEST
from reput.pack import packages
from reput.pack.packages import LIBRARY, MACHINES, PROGRAM, SITE
from reput.spark.jars import delta_jars
from reput.store import files
from reput.store.outside import check_file
from reput.store.space import check_free
from reput.store.system import shortage_in
from reput.store.temporary import beside

_COMMAND = "bin/reput"
#: For the shell one command, for Python a text and the program.
_SCRIPT = b"""#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python" "$0" "$@"
' '''
from reput.cli import main

main()
"""
#: Packages in the home directory of whoever runs it don't count, as in a virtual environment.
_ALONE = b"include-system-site-packages = false\n"
#: Compiled modules are taken as long as their source is the same, whatever became of its time.
_COMPILE = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "checked-hash")
#: Loads what a task loads, by which kernels are compiled and kept beside their source.
_LOAD = "from reput.replay import kernels; kernels.load()"
#: The files, the archive, and what pip has unpacked beside them: with Spark's jars, without, without Spark.
_ROOM = (2600 << 20, 1400 << 20, 700 << 20)
#: Of gzip: 6 takes 20 s longer, for 3% less.
_LEVEL = 4
#: Of what is no file of reput's: the same at each run. A file of reput's keeps its own, by which numba goes.
_TIME = 1_577_836_800


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What is asked for."""

    out: Path  # the archive
    light: bool = False  # without Spark
    with_spark: bool = False  # Spark's jars and scripts go into it
    machine: str | None = None  # what it is to run on, as ``uname -m`` says it; None for this one
    force: bool = False  # replace a file that is there


@dataclass(frozen=True, slots=True)
class Facts:
    """What an archive holds, and what it needs of a host: :data:`MANIFEST` has the same."""

    reput_version: str  # reput_version, python_version: what is in it
    python_version: str
    machine: str  # what it runs on, as ``uname -m`` says it
    least_glibc: str  # the oldest glibc that it runs on
    with_spark: bool  # Spark's jars are in it
    packages: dict[str, str]  # versions by name
    left_out: list[str]  # places of modules that need a library which a host may lack

    @property
    def spark(self) -> str:
        """What is in it of Spark, in words."""
        version = self.packages.get("pyspark")
        if version is None:
            return "without; it looks at stores, and mends them"
        line = version.rpartition(".")[0]
        return (
            f"{version} with its jars" if self.with_spark else f"for a cluster of Spark {line}: without jars"
        )


@dataclass(frozen=True, slots=True)
class Packed(Result):
    """What came of it; ``to_dict`` is what ``--json`` prints."""

    out: Path  # the archive
    bytes: int  # bytes, unpacked_bytes: its size, and that of the files in it
    unpacked_bytes: int
    files: int  # how many
    facts: Facts  # what it holds and needs
    seconds: float  # how long it took

    hidden = ("facts",)

    def more(self) -> dict[str, object]:
        """What it holds and needs."""
        return asdict(self.facts)


class _Tree:
    """The files that go into the archive.

    Args:
        root: the directory that they lie in.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._times: dict[Path, int] = {}

    def copy(self, place: str, source: Path) -> None:
        """Copy a file to a place; its time is the source's in whole seconds, as the archive has it.

        numba goes by the times of sources to tell whether a kernel is theirs.
        """
        target = self._root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        found = source.stat()
        target.chmod(0o755 if found.st_mode & 0o111 else 0o644)
        self._times[target] = time = int(found.st_mtime)
        os.utime(target, (time, time))

    def write(self, place: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file of reput's own."""
        path = self._root / place
        path.write_bytes(data)
        path.chmod(mode)

    def archive(self, path: Path, show: Callable[[int, int, int], None]) -> tuple[int, int]:
        """Write all files to a compressed tar file; how many bytes they have, and how many they are."""
        found = sorted(one for one in self._root.rglob("*") if not one.is_dir())
        total, done = sum(one.stat().st_size for one in found), 0
        with (
            path.open("wb") as raw,
            gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for number, one in enumerate(found, 1):
                member = tar.gettarinfo(one, one.relative_to(self._root).as_posix())
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mode = 0o755 if member.mode & 0o111 else 0o644
                member.mtime = self._times.get(one, _TIME)
                with one.open("rb") as file:
                    tar.addfile(member, file)
                done += member.size
                show(done, number, total)
        return total, len(found)


def pack(
    options: PackOptions,
    say: Callable[[str], None] = lambda _: None,
    show: Callable[[int, int, int], None] = lambda *_: None,
) -> Packed:
    """Make the archive. It gets its name when it is whole, and nothing else stays.

    Its files are first put together in a directory beside it. For a machine of this kind the interpreter
    compiles modules and kernels there; for another one a host does it at the first use. The same reput gives
    the same archive, but for the kernels: numba never compiles one to the same bytes.

    Args:
        options: what is asked for.
        say: called with what is being done.
        show: called with bytes that were written to the archive, its files, and bytes in all.

    Raises:
        SettingsError: what is asked for can't be.
        PackError: a part of it isn't to be had, or what was put together doesn't run.
        SparkError: the interpreter or Delta Lake's jars can't be fetched.
        OutputError: the archive can't be written.
    """
    began = time.monotonic()
    target = Path(os.path.realpath(options.out))
    check_file(target, "an archive is", force=options.force)
    machine = platform.machine() if options.machine is None else options.machine
    if machine not in MACHINES:
        raise SettingsError(
            "there is no Python to pack for this machine",
            expected=f"--machine {' or '.join(MACHINES)}",
            found=machine,
        )
    if options.light and options.with_spark:
        raise SettingsError(
            "--light is without Spark, and --with-spark with it", next_step="Give one of them"
        )
    with files.reporting("the archive can't be made", target):
        needed = _ROOM[0 if options.with_spark else 2 if options.light else 1]
        check_free(target.parent, needed, "the archive, and the files that it is made from")
        with beside(target, directory=True) as scratch:
            root, archive = scratch / "environment", scratch / "archive"
            tree = _Tree(root)
            say("fetching the interpreter")
            left_out = packages.unpack(machine, root)
            say("fetching packages")
            found = packages.install(machine, light=options.light, site=root / SITE, scratch=scratch)
            say("putting all together")
            for place, path in packages.of_reput(Path(reput.__file__).parent):
                tree.copy(f"{SITE}/{place}", path)
            if not options.light:
                found["pyspark"] = version("pyspark")
                for place, path in packages.of_spark(with_jars=options.with_spark):
                    tree.copy(f"{SITE}/{place}", path)
                for path in delta_jars():
                    tree.copy(f"jars/{path.name}", path)
            for path in _beside():
                tree.copy(f"share/reput/{path.parent.name}/{path.name}", path)
            tree.write(_COMMAND, _SCRIPT, 0o755)
            tree.write("pyvenv.cfg", _ALONE)
            if machine == platform.machine():
                say("compiling modules and kernels")
                _run(root, *_COMPILE, "-s", str(root), str(root / LIBRARY))
                _run(root, "-c", _LOAD)
            glibc = ".".join(map(str, packages.GLIBC))
            facts = Facts(
                reput.__version__,
                packages.VERSION,
                machine,
                glibc,
                options.with_spark,
                {"reput": reput.__version__, **found},
                left_out,
            )
            tree.write(MANIFEST, json.dumps(asdict(facts), indent=2).encode() + b"\n")
            size, count = tree.archive(archive, show)
            with archive.open("rb") as file:
                files.fsync_file(file.fileno())
            written = archive.stat().st_size
            archive.replace(target)
            files.fsync_dir(target.parent)
    return Packed(target, written, size, count, facts, round(time.monotonic() - began, 1))


def _beside() -> list[Path]:
    """The jobs, and Spark's settings."""
    root = files_beside() or Path()
    return [path for name in ("jobs", "conf") for path in sorted((root / name).iterdir()) if path.is_file()]


def _run(root: Path, *words: str) -> None:
    """Let the interpreter do something where it is now, without variables that lead elsewhere."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    kept["NUMBA_CACHE_DIR"] = ""  # beside the package, not in the user's cache
    done = subprocess.run(
        [root / PROGRAM, "-I", "-B", *words],
        cwd=root,
        env={**kept, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise shortage_in(said, [root]) or PackError(
            "the packed interpreter fails", found=said.splitlines()[-1] if said else f"code {done.returncode}"
        )
