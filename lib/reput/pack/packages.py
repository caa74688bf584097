"""The packages that reput runs on, in the locked versions, for hosts of a machine and not for this one.

pip chooses the wheels: those for any glibc from :data:`GLIBC` on. PySpark has no wheel: it is copied from
here.

For hosts without a CPython, Maven Central has JavaCPP's, the only one in the registries that reput asks. It
runs with glibc 2.17 on x86_64 and 2.27 on aarch64, finds its own library and packages from
where it lies (``$ORIGIN/../lib``), and has OpenSSL in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

from reput.doctor.machine import beside
from reput.errors import PackError
from reput.next_command import install_step
from reput.spark.jars import fetched
from reput.spark.java import is_installed

VERSION = "3.11.3"
#: By machine, as ``uname -m`` says it: JavaCPP's word for it, and the hash of its jar.
_JARS = {
    "aarch64": ("linux-arm64", "c98d023d4f79bdae2fb8973443324e48bb39e5b8f149a24e9d0317eb165d7925"),
    "x86_64": ("linux-x86_64", "668b42f6a8b1a9789de7d3ca54a81fefb754cd8e885554b42858bbcbc0dd497c"),
}
MACHINES = tuple(_JARS)
PROGRAM = "bin/python"
LIBRARY = f"lib/python{VERSION.rpartition('.')[0]}"
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
    jar = {f"org.bytedeco:cpython:{VERSION}-1.5.9:{word}": digest}
    path = fetched(f"python/{VERSION}-{machine}", f"Python {VERSION}", jar, "Run it where that is so")[0]
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
    files = beside()
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
            *("--implementation", "cp", "--python-version", VERSION, *platforms, "-r", str(asked)),
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
