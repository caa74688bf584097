"""The distributions that reput needs when it runs, and the files of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reput.errors import PackError
from reput.next_command import install_step

#: What only those who change a package need.
_TESTS, _COMPILED = "tests", "__pycache__"
_FOR_COMPILERS = frozenset({".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyx"})
#: Written by pip for itself. Of an editable package they name what isn't in the archive.
_OF_PIP = frozenset({"direct_url.json", "INSTALLER", "RECORD", "REQUESTED"})
#: What PySpark has besides its Python modules: jars, scripts, archives of the same modules, examples.
_OF_SPARK = re.compile(r"pyspark/(?:jars|bin|sbin|python|data|examples|licenses)/")


def required(name: str, extras: Iterable[str] = ()) -> list[Distribution]:
    """A distribution and all that it needs, directly or not, sorted by name.

    Args:
        name: of the distribution.
        extras: of its extras, those that count.

    Raises:
        PackError: one of them isn't installed, or not in a version that is asked for.
    """
    found: dict[str, Distribution] = {}
    looked_at: set[tuple[str, str]] = set()
    left = [(Requirement(f"{name}[{','.join(extras)}]"), "")]
    while left:
        requirement, by = left.pop()
        key = canonicalize_name(requirement.name)
        try:
            one = found.setdefault(key, distribution(requirement.name))
        except PackageNotFoundError:
            raise _lacking(requirement, by, "no such package") from None
        if not requirement.specifier.contains(one.version, prereleases=True):
            raise _lacking(requirement, by, one.version)
        for extra in {"", *requirement.extras}:
            if (key, extra) not in looked_at:
                looked_at.add((key, extra))
                needs = map(Requirement, one.requires or ())
                left += [(need, key) for need in needs if _counts(need, extra)]
    return [one for _, one in sorted(found.items())]


def _counts(need: Requirement, extra: str) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": extra})


def _lacking(requirement: Requirement, by: str, found: str) -> PackError:
    return PackError(
        "the environment lacks a package" + (f" that {by} needs" if by else ""),
        expected=str(requirement),
        found=found,
        next_step=install_step("spark"),
    )


def files_of(one: Distribution, *, with_spark: bool, package: Path) -> Iterator[tuple[str, Path]]:
    """The files of a distribution that it needs when it runs: where below site-packages, and where they are.

    Tests, headers, compiled modules and scripts are left out, and without ``with_spark`` also what a cluster
    has of Spark.

    Args:
        one: the distribution.
        with_spark: Spark's jars and scripts count, too.
        package: the directory of the package ``reput``, which may be installed by ``pip install -e``.

    Raises:
        PackError: it isn't known what its files are, or they would lead out of the archive.
    """
    name = one.metadata["Name"]
    if _is_editable(one):
        if canonicalize_name(name) != package.name:
            raise PackError(
                f"{name} is installed by `pip install -e`: its files lie outside of the environment",
                next_step=f"Install it without -e: pip install {name}",
            )
        for path in sorted(package.rglob("*")):
            place = f"{package.name}/{path.relative_to(package).as_posix()}"
            if path.is_file() and _is_wanted(place, with_spark=with_spark):
                yield place, path
    files = one.files
    if files is None:
        raise PackError(
            f"{name} has no list of its files",
            expected="a RECORD, as pip writes it",
            next_step="Install it by pip, into a virtual environment",
        )
    for file in files:
        place = file.as_posix()
        if file.name.endswith(".pth"):
            if _is_editable(one):
                continue
            raise PackError(f"{name} has a .pth file, which may lead out of the archive", path=file.locate())
        if place.startswith(("../", "/")) or not _is_wanted(place, with_spark=with_spark):
            continue
        path = Path(str(file.locate()))
        if not path.is_file():
            raise PackError(
                f"a file of {name} is missing",
                path=path,
                next_step=f"Install it anew: pip install --force-reinstall {name}=={one.version}",
            )
        yield place, path


def _is_editable(one: Distribution) -> bool:
    origin = one.read_text("direct_url.json")
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))


def _is_wanted(place: str, *, with_spark: bool) -> bool:
    path = PurePosixPath(place)
    if path.parts[0].endswith(".dist-info"):
        return path.name not in _OF_PIP
    if _OF_SPARK.match(place):
        return with_spark and _COMPILED not in path.parts
    return not ({_TESTS, _COMPILED} & set(path.parts[:-1]) or path.suffix in _FOR_COMPILERS)
