"""The interpreter that runs this, and its standard library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.errors import PackError

#: Directories of the standard library that nothing here needs, at its top, and anywhere in it.
_WITHOUT = frozenset(
    {"dist-packages", "ensurepip", "idlelib", "site-packages", "test", "tkinter", "turtledemo"}
)
_WITHOUT_ANYWHERE = frozenset({"__pycache__", "test", "tests"})
#: The same of extension modules, and of what is there to compile some.
_WITHOUT_MODULES = ("_test", "_ctypes_test", "_tkinter", "_xxtest", "xxlimited", "xxsubtype")
_CONFIG = "config-"
_PLACES = "import json, site, sys; print(json.dumps([sys.prefix, site.getsitepackages()]))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Where it is, and where its parts are below its prefix.

    Attributes:
        executable: the program itself, not a link to it.
        library: the standard library.
        library_place: where the interpreter looks for that, below its prefix.
        site_place: the same for packages.
    """

    executable: Path
    library: Path
    library_place: str
    site_place: str

    def files(self) -> Iterator[tuple[str, Path]]:
        """The files of the standard library: where below the prefix, and where they are."""
        for directory, names, files in os.walk(self.library):
            here = Path(directory)
            without = _WITHOUT if here == self.library else frozenset()
            names[:] = sorted(
                name
                for name in names
                if name not in _WITHOUT_ANYWHERE | without and not name.startswith(_CONFIG)
            )
            for name in sorted(files):
                path = here / name
                if path.is_file() and not (here.name == "lib-dynload" and name.startswith(_WITHOUT_MODULES)):
                    yield f"{self.library_place}/{path.relative_to(self.library).as_posix()}", path


def interpreter() -> Interpreter:
    """The interpreter of this process, wherever a virtual environment has it from.

    Raises:
        PackError: it isn't one that can be moved.
    """
    executable = Path(os.path.realpath("/proc/self/exe"))
    library = Path(sysconfig.get_path("stdlib"))
    base = Path(sys.base_prefix)
    if sys.implementation.name != "cpython" or not (library / "os.py").is_file():
        raise PackError(
            "this Python can't be packed",
            path=executable,
            expected="CPython, with its standard library as files",
            found=f"{sys.implementation.name}, and no os.py in {library}",
        )
    if not library.is_relative_to(base):
        raise PackError(
            "this Python can't be moved: it finds its standard library by an absolute path",
            path=library,
            expected=f"a directory below {base}",
        )
    # What counts is the interpreter without the virtual environment: Debian's looks elsewhere then.
    real = Path(os.path.realpath(base / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"))
    done = subprocess.run(
        [real if real.is_file() else executable, "-I", "-c", _PLACES],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackError("this Python can't be run", path=real, found=done.stderr.strip())
    prefix, places = json.loads(done.stdout)
    site = next((Path(place) for place in places if Path(place).is_relative_to(prefix)), None)
    if site is None:
        raise PackError(
            "this Python can't be moved: it finds packages by an absolute path",
            path=real,
            expected=f"a directory below {prefix}",
            found=", ".join(places),
        )
    return Interpreter(
        executable,
        library,
        library.relative_to(base).as_posix(),
        site.relative_to(prefix).as_posix(),
    )
