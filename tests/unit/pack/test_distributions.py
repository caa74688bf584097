"""Which distributions are packed, and which of their files."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from reput.errors import PackError
from reput.pack.distributions import files_of, required


class Site:
    """A directory of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self, name: str, *needs: str, version: str = "1.0", files: tuple[str, ...] = (), **more: str
    ) -> None:
        """Install a distribution: what it needs, its files, and more files of its metadata."""
        info = self.path / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
        for file, text in more.items():
            (info / file.replace("_json", ".json")).write_text(text)
        for file in files:
            path = self.path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        own = [f"{info.name}/METADATA", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, *own)))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "site").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return Site(tmp_path / "site")


def names(found: list[Distribution]) -> list[str]:
    return [one.metadata["Name"] for one in found]


def places(name: str, package: Path, *, with_spark: bool = False) -> list[str]:
    return sorted(place for place, _ in files_of(distribution(name), with_spark=with_spark, package=package))


def test_what_is_needed_directly_or_not(site: Site) -> None:
    site.add("App", "one>=1", 'tool; extra == "dev"', 'two[fast]; extra == "spark"')
    site.add("one", "Three_x", "App")
    site.add("two", 'four; extra == "fast"', 'tool; extra == "slow"')
    site.add("three.x")
    site.add("four", 'tool; python_version < "3"', 'five; sys_platform == "linux"')
    site.add("five")
    site.add("tool")
    site.add("bystander")
    assert names(required("app")) == ["App", "one", "three.x"]
    assert names(required("app", ["spark"])) == ["App", "five", "four", "one", "three.x", "two"]


def test_an_extra_that_is_asked_for_later_counts(site: Site) -> None:
    site.add("app", "one", "two")
    site.add("one", 'three; extra == "more"')
    site.add("two", "one[more]")
    site.add("three")
    assert names(required("app")) == ["app", "one", "three", "two"]


def test_a_package_that_is_missing(site: Site) -> None:
    site.add("app", "one")
    site.add("one", "two>=3")
    with pytest.raises(PackError) as refused:
        required("app")
    assert (refused.value.expected, refused.value.found) == ("two>=3", "no such package")
    assert "that one needs" in str(refused.value)


def test_a_package_of_another_version(site: Site) -> None:
    site.add("app", "one<2")
    site.add("one", version="2.0")
    with pytest.raises(PackError) as refused:
        required("app")
    assert (refused.value.expected, refused.value.found) == ("one<2", "2.0")


def test_tests_headers_scripts_and_notes_of_pip_are_left_out(site: Site, tmp_path: Path) -> None:
    site.add(
        "one",
        files=(
            *("one/__init__.py", "one/a.so", "one/data.txt", "one.libs/b.so.1", "one/tests.py"),
            *("one/tests/test_a.py", "one/include/a.h", "one/a.pyx", "one/__pycache__/a.cpython-311.pyc"),
            *("../bin/one", "../share/man/one.1"),
        ),
        INSTALLER="pip",
    )
    kept = ["one-1.0.dist-info/METADATA", "one.libs/b.so.1", "one/__init__.py", "one/a.so", "one/data.txt"]
    assert places("one", tmp_path / "reput") == [*kept, "one/tests.py"]


def test_what_a_cluster_has_of_spark(site: Site, tmp_path: Path) -> None:
    files = (
        "pyspark/__init__.py",
        "pyspark/jars/a.jar",
        "pyspark/bin/spark-submit",
        "pyspark/sql/tests/x.py",
    )
    site.add("pyspark", files=files)
    own = ["pyspark-1.0.dist-info/METADATA", "pyspark/__init__.py"]
    assert places("pyspark", tmp_path / "reput") == own
    all_of_it = [own[0], "pyspark/__init__.py", "pyspark/bin/spark-submit", "pyspark/jars/a.jar"]
    assert places("pyspark", tmp_path / "reput", with_spark=True) == all_of_it


_EDITABLE = json.dumps({"url": "file:///source", "dir_info": {"editable": True}})


def test_an_editable_reput_is_taken_from_where_it_is(site: Site, tmp_path: Path) -> None:
    package = tmp_path / "source" / "reput"
    (package / "scan" / "__pycache__").mkdir(parents=True)
    (package / "scan" / "__init__.py").write_text("")
    (package / "scan" / "__pycache__" / "kernel.nbi").write_text("")
    site.add("reput", files=("__editable__.reput.pth",), direct_url_json=_EDITABLE)
    assert places("reput", package) == ["reput-1.0.dist-info/METADATA", "reput/scan/__init__.py"]


def test_another_editable_package_is_refused(site: Site, tmp_path: Path) -> None:
    site.add("one", direct_url_json=_EDITABLE)
    with pytest.raises(PackError, match="pip install -e"):
        places("one", tmp_path / "reput")


def test_a_pth_file_is_refused(site: Site, tmp_path: Path) -> None:
    site.add("one", files=("one.pth",))
    with pytest.raises(PackError, match=r"\.pth file"):
        places("one", tmp_path / "reput")


def test_without_a_list_of_files(site: Site, tmp_path: Path) -> None:
    site.add("one")
    (site.path / "one-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(PackError, match="no list of its files"):
        places("one", tmp_path / "reput")


def test_a_file_that_is_missing(site: Site, tmp_path: Path) -> None:
    site.add("one", files=("one.py",))
    (site.path / "one.py").unlink()
    with pytest.raises(PackError, match="missing"):
        places("one", tmp_path / "reput")
