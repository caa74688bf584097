"""Packs the environment that this runs in: interpreter, standard library, reput and what it needs."""

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
from importlib.metadata import Distribution
from pathlib import Path

import reput
from reput.errors import PackError
from reput.pack.check import check
from reput.pack.distributions import files_of, required
from reput.pack.interpreter import interpreter
from reput.pack.libraries import take_along
from reput.store import files
from reput.store.outside import check_file
from reput.store.space import check_free
from reput.store.system_errors import shortage_in
from reput.store.temporary import beside

#: In the archive: what it holds, and what it needs of a host.
MANIFEST = "reput-env.json"
_PROGRAM = "bin/python"
_COMMAND = "bin/reput"
_EXTRAS = ("spark",)
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
_LOAD = "import deltalake, pandas, pyarrow, pyspark.sql; from reput.replay import kernels; kernels.load()"
#: Of what is packed: with compiled modules, libraries and kernels, and with the archive itself.
_ROOM = 2.0
#: Of gzip: 6 takes 20 s longer, for 3% less.
_LEVEL = 4


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What is asked for.

    Attributes:
        out: the archive.
        with_spark: Spark's jars and scripts go into it.
        force: replace a file that is there.
    """

    out: Path
    with_spark: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What an archive holds, and what it needs of a host: :data:`MANIFEST` has the same.

    Attributes:
        reput_version, python_version: what is in it.
        machine: what it runs on, as ``uname -m`` says it.
        least_glibc: the oldest glibc that it runs on.
        with_spark: Spark's jars are in it.
        packages: versions by name.
        left_out: places of modules that can't be loaded here either, for a library that isn't there.
    """

    reput_version: str
    python_version: str
    machine: str
    least_glibc: str
    with_spark: bool
    packages: dict[str, str]
    left_out: list[str]

    @property
    def spark(self) -> str:
        """What is in it of Spark, in words."""
        version = self.packages["pyspark"]
        line = version.rpartition(".")[0]
        return (
            f"{version} with its jars" if self.with_spark else f"for a cluster of Spark {line}: without jars"
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """What came of it; ``to_dict`` is what ``--json`` prints.

    Attributes:
        out: the archive.
        bytes, unpacked_bytes: its size, and that of the files in it.
        files: how many.
        facts: what it holds and needs.
        seconds: how long it took.
    """

    out: Path
    bytes: int
    unpacked_bytes: int
    files: int
    facts: Facts
    seconds: float

    exit_code = 0

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        return {
            "out": str(self.out),
            "bytes": self.bytes,
            "unpacked_bytes": self.unpacked_bytes,
            "files": self.files,
            **asdict(self.facts),
            "seconds": self.seconds,
        }


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
        newest = max(self._times.values())
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
                member.mtime = self._times.get(one, newest)
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

    Its files are first put together in a directory beside it, where the interpreter, at another path than
    its own, compiles modules and kernels. The same environment gives the same archive, but for the kernels:
    numba never compiles one to the same bytes.

    Args:
        options: what is asked for.
        say: called with what is being done.
        show: called with bytes that were written to the archive, its files, and bytes in all.

    Raises:
        PackError: the environment can't be packed, or what was put together needs what isn't in it.
        OutputError: the archive can't be written.
    """
    began = time.monotonic()
    target = _target(options)
    python = interpreter()
    packages = required("reput", _EXTRAS)
    sources = {_PROGRAM: python.executable, **dict(python.files())}
    package = Path(reput.__file__).parent
    for one in packages:
        found = files_of(one, with_spark=options.with_spark, package=package)
        sources |= {f"{python.site_place}/{place}": path for place, path in found}
    with files.reporting("the archive can't be made", target):
        needed = int(sum(path.stat().st_size for path in sources.values()) * _ROOM)
        check_free(target.parent, needed, "the archive, and the files that it is made from")
        with beside(target, directory=True) as scratch:
            root, archive = scratch / "environment", scratch / "archive"
            tree = _Tree(root)
            say("putting together interpreter and packages")
            for place, path in sources.items():
                tree.copy(place, path)
            unusable = take_along(root, sources, _PROGRAM, tree.copy)
            tree.write(_COMMAND, _SCRIPT, 0o755)
            tree.write("pyvenv.cfg", _ALONE)
            say("compiling modules and kernels")
            code = dict.fromkeys((python.library_place, python.site_place))
            _run(root, *_COMPILE, "-s", str(root), *(str(root / place) for place in code))
            _run(root, "-c", _LOAD)
            facts = _facts(options, packages, check(root, _PROGRAM), unusable)
            tree.write(MANIFEST, json.dumps(asdict(facts), indent=2).encode() + b"\n")
            size, count = tree.archive(archive, show)
            with archive.open("rb") as file:
                files.fsync_file(file.fileno())
            written = archive.stat().st_size
            archive.replace(target)
            files.fsync_dir(target.parent)
    return Packed(target, written, size, count, facts, round(time.monotonic() - began, 1))


def _target(options: PackOptions) -> Path:
    target = Path(os.path.realpath(options.out))
    check_file(target, "an archive is", force=options.force)
    return target


def _facts(
    options: PackOptions, packages: list[Distribution], glibc: tuple[int, ...], unusable: list[str]
) -> Facts:
    return Facts(
        reput.__version__,
        platform.python_version(),
        platform.machine(),
        ".".join(map(str, glibc)),
        options.with_spark,
        {one.metadata["Name"]: one.version for one in packages},
        unusable,
    )


def _run(root: Path, *words: str) -> None:
    """Let the interpreter do something where it is now, without variables that lead elsewhere."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    kept["NUMBA_CACHE_DIR"] = ""  # beside the package, not in the user's cache
    done = subprocess.run(
        [root / _PROGRAM, "-I", "-B", *words],
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
