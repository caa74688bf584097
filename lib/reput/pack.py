"""The archive of interpreter and packages, and Spark if it is wanted, for hosts that have none of these."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import distribution, version
from pathlib import Path, PurePosixPath

import reput
from reput.doctor import beside as files_beside
from reput.errors import PackError, Result, SettingsError
from reput.spark.jars import delta_jars, fetched
from reput.spark.java import is_installed
from reput.store import files
from reput.store.places import beside, check_file
from reput.store.system import check_free, shortage_in
from reput.words import MANIFEST, install_step

# pip chooses the wheels: those for any glibc from :data:`GLIBC` on. PySpark has no wheel: it is copied from
# here.
#
# For hosts without a CPython, Maven Central has JavaCPP's, the only one in the registries that reput asks. It
# runs with glibc 2.17 on x86_64 and 2.27 on aarch64, finds its own library and packages from
# where it lies (``$ORIGIN/../lib``), and has OpenSSL in it.

PYTHON = "3.11.3"
#: By machine, as ``uname -m`` says it: JavaCPP's word for it, and the hash of its jar.
_JARS = {
    "aarch64": ("linux-arm64", "c98d023d4f79bdae2fb8973443324e48bb39e5b8f149a24e9d0317eb165d7925"),
    "x86_64": ("linux-x86_64", "668b42f6a8b1a9789de7d3ca54a81fefb754cd8e885554b42858bbcbc0dd497c"),
}
MACHINES = tuple(_JARS)
PROGRAM = "bin/python"
LIBRARY = f"lib/python{PYTHON.rpartition('.')[0]}"
SITE = f"{LIBRARY}/site-packages"
_MODULES = f"{LIBRARY}/lib-dynload"
#: Of the standard library, what nothing here needs.
_WITHOUT = frozenset(
    {"distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "tkinter"}
)
_WITHOUT_ANYWHERE = frozenset({"__pycache__", "test", "tests", "turtledemo"})
#: Modules with a library that a host may lack, and those of tests.
_LEFT_OUT = ("_bz2", "_crypt", "_dbm", "_gdbm", "_uuid", "nis", "ossaudiodev")
_TEST_DIRECTORIES = ("_ctypes_test", "_test", "_tkinter", "_xx", "xx")


def unpack(machine: str, root: Path) -> list[str]:
    """Put the interpreter and its standard library into a directory.

    Returns the modules that are left out, since a host may lack a library that they need.
    """
    word, digest = _JARS[machine]
    jar = {f"org.bytedeco:cpython:{PYTHON}-1.5.9:{word}": digest}
    path = fetched(f"python/{PYTHON}-{machine}", f"Python {PYTHON}", jar, "Run it where that is so")[0]
    left_out = []
    with zipfile.ZipFile(path) as files:
        for one in files.infolist():
            place = _place(PurePosixPath(one.filename.removeprefix(f"org/bytedeco/cpython/{word}/")))
            if place is None or one.is_dir():
                continue
            if place.startswith(f"{_MODULES}/") and PurePosixPath(place).name.partition(".")[0] in _LEFT_OUT:
                left_out.append(place)
                continue
            target = root / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files.read(one))
    (root / PROGRAM).chmod(0o755)
    return sorted(left_out)


def _place(path: PurePosixPath) -> str | None:
    """Where a file of the jar goes; None for what isn't needed."""
    name, parts = path.name, path.parts
    if parts[:2] == ("bin", LIBRARY.partition("/")[2]):
        return PROGRAM
    if len(parts) == 1 and name.startswith("libpython"):
        return f"lib/{name}"
    if len(parts) == 1 and name.startswith("libffi.so."):
        # On aarch64 a module looks beside itself alone.
        return f"{_MODULES}/{name}"
    if parts[:2] != tuple(LIBRARY.split("/")) or len(parts) < 3:
        return None
    without = _WITHOUT | _WITHOUT_ANYWHERE if len(parts) > 3 else frozenset()
    if parts[2] in without or parts[2].startswith("config-") or _WITHOUT_ANYWHERE & set(parts[3:-1]):
        return None
    return None if parts[2] == "lib-dynload" and name.startswith(_TEST_DIRECTORIES) else path.as_posix()


#: The oldest that numpy and pyarrow have wheels for: RHEL 8, Debian 10.
GLIBC = (2, 28)
#: A package of a lock file, with its hashes.
_LOCKED = re.compile(r"^([a-z0-9-]+)==(\S+)(?: \\\n    --hash=\S+)+\n", re.MULTILINE)
_PYSPARK = "pyspark"
#: What a look at a store needs besides the packages of light.txt: queues, index and settings in RocksDB.
_ROCKSDB = "rocksdict"
_TESTS, _SCRIPTS = "tests", "bin"
_FOR_COMPILERS = frozenset({".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyx"})
#: Written by pip for itself. Of an editable package they name what isn't in the archive.
_OF_PIP = frozenset({"direct_url.json", "INSTALLER", "RECORD", "REQUESTED"})
#: What PySpark has besides its Python modules: jars, scripts, archives of the same modules, examples.
_OF_SPARK = re.compile(r"pyspark/(?:jars|bin|sbin|python|data|examples|licenses)/")


def install(machine: str, *, light: bool, site: Path, scratch: Path) -> dict[str, str]:
    """Have pip put the packages but PySpark into the directory ``site``; returns their versions by name.

    ``machine`` is the hosts', as ``uname -m`` says it. With ``light``, those that only Spark needs are left
    out; ``scratch`` is for the list that pip gets.
    """
    files = files_beside()
    try:
        run, least = ((files or Path()) / "requirements" / f"{name}.txt" for name in ("run", "light"))
        locked = {found[1]: found for found in _LOCKED.finditer(run.read_text(encoding="utf-8"))}
        names = {found[1] for found in _LOCKED.finditer(least.read_text(encoding="utf-8"))} | {_ROCKSDB}
    except OSError as error:
        raise PackError(
            "the lock files of reput aren't here",
            path=files,
            expected="requirements/run.txt and requirements/light.txt, as in a clone and in the wheel",
            next_step=install_step("spark"),
        ) from error
    left_out = {_PYSPARK} | (locked.keys() - names if light else set())
    wanted = {name: found for name, found in locked.items() if name not in left_out}
    asked = scratch / "requirements.txt"
    asked.write_text("".join(found[0] for found in wanted.values()), encoding="utf-8")
    platforms = [
        word
        for minor in range(GLIBC[1], 4, -1)
        for word in ("--platform", f"manylinux_{GLIBC[0]}_{minor}_{machine}")
    ]
    platforms += ["--platform", f"manylinux2014_{machine}"]  # as some call 2.17
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes", "--target", str(site)),
            *("--implementation", "cp", "--python-version", PYTHON, *platforms, "-r", str(asked)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ")]
        raise PackError(
            "pip can't bring the packages",
            expected="pip, and PyPI or the index that pip's settings name within reach",
            found=(errors or said or [f"exit code {done.returncode}"])[-1],
        )
    for path in sorted(site.rglob("*"), reverse=True):
        if path.is_file() and not _is_wanted(PurePosixPath(path.relative_to(site))):
            path.unlink()
    shutil.rmtree(site / _SCRIPTS, ignore_errors=True)
    return {name: found[2] for name, found in wanted.items()}


def of_spark(*, with_jars: bool) -> Iterator[tuple[str, Path]]:
    """The files of PySpark: where below site-packages, and where they are.

    ``with_jars``: Spark's jars and scripts, too. Raises PackError where it isn't known what its files are.
    """
    pyspark = distribution(_PYSPARK) if is_installed() else None
    if pyspark is None or pyspark.files is None:
        raise PackError("PySpark isn't here as pip installs it", next_step=install_step("spark"))
    for file in pyspark.files:
        place, path = PurePosixPath(file.as_posix()), Path(str(file.locate()))
        if place.parts[0] == ".." or "__pycache__" in place.parts:
            continue
        if with_jars if _OF_SPARK.match(str(place)) else _is_wanted(place):
            if not path.is_file():
                raise PackError(
                    "a file of PySpark is missing",
                    path=path,
                    next_step=f"Install it anew: pip install --force-reinstall pyspark=={pyspark.version}",
                )
            yield str(place), path


def of_reput(package: Path) -> Iterator[tuple[str, Path]]:
    """The files of reput: where below site-packages, and where they are."""
    for path in sorted(package.rglob("*")):
        place = PurePosixPath(package.name, path.relative_to(package))
        if path.is_file() and "__pycache__" not in place.parts:
            yield str(place), path
    for file in distribution(package.name).files or ():
        if file.parts[0].endswith(".dist-info") and _is_wanted(file):
            yield file.as_posix(), Path(str(file.locate()))


def _is_wanted(place: PurePosixPath) -> bool:
    if place.parts[0].endswith(".dist-info"):
        return place.name not in _OF_PIP
    return not ({_TESTS, "__pycache__"} & set(place.parts[:-1]) or place.suffix in _FOR_COMPILERS)


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
_LOAD = "from reput.replay.runner import load_kernels; load_kernels()"
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
    """The files that go into the archive, all below ``root``."""

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

    ``say`` is called with what is being done, ``show`` with bytes that were written to the archive, its
    files, and bytes in all.
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
            left_out = unpack(machine, root)
            say("fetching packages")
            found = install(machine, light=options.light, site=root / SITE, scratch=scratch)
            say("putting all together")
            for place, path in of_reput(Path(reput.__file__).parent):
                tree.copy(f"{SITE}/{place}", path)
            if not options.light:
                found["pyspark"] = version("pyspark")
                for place, path in of_spark(with_jars=options.with_spark):
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
            glibc = ".".join(map(str, GLIBC))
            facts = Facts(
                reput.__version__,
                PYTHON,
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
