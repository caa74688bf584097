"""What `reput pack` refuses; what it makes is tried in ``tests/hosts/test_packed.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from reput import pack
from reput.errors import PackError
from reput.store import system
from reput.words import MANIFEST, install_step
from tests.rebuilds import Command


def test_a_file_that_is_there(reput: Command, tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_text("mine")
    said = reput("pack", "-o", tmp_path / "env.tar.gz", "--json")
    assert said.code == 2
    assert "--force" in json.loads(said.stdout)["next_steps"][0]
    assert (tmp_path / "env.tar.gz").read_text() == "mine"


def test_places_where_no_archive_can_be(reput: Command, tmp_path: Path) -> None:
    for place, expected in ((tmp_path, "an archive is a file"), (tmp_path / "no" / "env", "isn't there")):
        said = reput("pack", "-o", place, "--force")
        assert said.code == 2
        assert expected in said.stderr


def test_no_room(reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "free_bytes", lambda path: 1 << 20)
    said = reput("pack", "-o", tmp_path / "env.tar.gz")
    assert said.code == 2
    assert "no room for the archive" in said.stderr
    assert "found 1.0 MiB free" in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_to(reput: Command, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    said = reput("pack", "-o", tmp_path / "env.tar.gz")
    tmp_path.chmod(0o700)
    assert said.code == 2
    assert "the archive can't be made" in said.stderr


def test_a_disk_that_gets_full(reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays, and what was there stays as it was."""
    (tmp_path / "env.tar.gz").write_text("mine")

    def full(machine: str, root: Path) -> list[str]:
        raise OSError(28, "No space left on device", str(root))

    monkeypatch.setattr(pack, "unpack", full)
    said = reput("pack", "-o", tmp_path / "env.tar.gz", "--force")
    assert said.code == 2
    assert "No space left on device" in said.stderr
    assert "Traceback" not in said.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_what_cannot_be_asked_for(reput: Command, tmp_path: Path) -> None:
    for words, expected in (
        (("--machine", "riscv64"), "expected --machine aarch64 or x86_64, found riscv64"),
        (("--machine", ""), "expected --machine aarch64 or x86_64"),
        (("--light", "--with-spark"), "--light is without Spark, and --with-spark with it"),
    ):
        said = reput("pack", "-o", tmp_path / "env.tar.gz", *words)
        assert said.code == 2
        assert expected in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pip", "found"),
    [
        (f"{sys.executable} -m no_pip", "No module named no_pip"),
        (
            "sh -c 'echo ERROR: No matching distribution >&2; echo more >&2; exit 1'",
            "No matching distribution",
        ),
    ],
)
def test_packages_that_are_not_to_be_had(
    pip: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {pip}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(PackError) as refused:
        pack.install("x86_64", light=True, site=tmp_path / "site", scratch=tmp_path)
    assert found in str(refused.value)
    asked = (tmp_path / "requirements.txt").read_text()
    assert "numba==" in asked
    assert "--hash=sha256:" in asked
    assert "rocksdict==" in asked
    assert "pyspark==" not in asked
    assert "pyarrow==" not in asked


def test_what_a_packed_reput_lacks_is_packed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" in install_step("spark")
    (tmp_path / MANIFEST).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_step("spark").startswith(
        "Where it was packed, run: reput pack -o reput.tar.gz --with-spark"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "No space left on device"),
        ("echo one >&2; echo last >&2; exit 1", "last"),
        ("exit 3", "code 3"),
    ],
)
def test_an_interpreter_that_fails(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(Exception, match=r"the packed interpreter fails|the system refused") as refused:
        pack._run(tmp_path)
    assert said in str(refused.value)
    assert isinstance(refused.value, PackError) is ("space" not in said)
