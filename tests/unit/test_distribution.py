"""What wheel and source archive hold; `make dist` builds them twice, and tries them."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.distribution import ROOT, build, epoch

#: Of setuptools.
_MADE = ("PKG-INFO", "setup.cfg", "lib/reput.egg-info/")


@pytest.mark.slow
def test_all_that_is_committed_is_in_them(tmp_path: Path) -> None:
    archive, wheel = build(tmp_path / "built")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    committed = set(done.stdout.split("\0")) - {""}
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    names = {one.name.partition("/")[2] for one in members if one.isfile()}
    assert committed <= names | {name for name in committed if not (ROOT / name).exists()}
    assert {name for name in names - committed if not name.startswith(_MADE)} == set()
    assert {(one.uid, one.uname, one.mtime) for one in members} == {(0, "", int(epoch()))}
    assert {one.mode for one in members} == {0o644, 0o755}

    with zipfile.ZipFile(wheel) as zipped:
        held = {one.filename: one.external_attr >> 16 & 0o777 for one in zipped.infolist()}
    packages = {name.removeprefix("lib/"): name for name in committed if name.startswith("lib/")}
    data = {
        name.partition(".data/data/share/reput/")[2]: name
        for name in held
        if ".data/data/share/reput/" in name
    }
    assert packages.keys() <= held.keys()
    beside = ("jobs/", "conf/", "notebooks/", "LICENSE", "requirements/light.txt", "requirements/run.txt")
    assert data.keys() == {name for name in committed if name.startswith(beside)}
    others = held.keys() - packages.keys() - set(data.values())
    assert all(".dist-info/" in name for name in others)
    assert held["reput/spark/worker_python.sh"] == 0o755
