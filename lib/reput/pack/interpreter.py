"""A CPython for hosts that have none: JavaCPP's, which runs with glibc 2.17 on x86_64 and 2.27 on aarch64.

Of the registries that reput asks, Maven Central alone has one. It finds its own library and packages from
where it lies (``$ORIGIN/../lib``), and has OpenSSL in it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from reput.spark.jars import fetched

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
_TESTS = ("_ctypes_test", "_test", "_tkinter", "_xx", "xx")


def unpack(machine: str, root: Path) -> list[str]:
    """Put the interpreter and its standard library into a directory.

    Args:
        machine: one of :data:`MACHINES`.

    Returns:
        Modules that are left out, since a host may lack a library that they need.

    Raises:
        SparkError: it can't be fetched, or isn't what it should be.
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
    return None if parts[2] == "lib-dynload" and name.startswith(_TESTS) else path.as_posix()
