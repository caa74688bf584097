"""What takes the URL of a store refuses, before it looks anywhere; and no secret that is in it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.source.options import paths_of
from tests.cli.test_every_command import ALL
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, golden

SECRET = "a-secret-in-a-url"
#: What else each command has to be given; `doctor`, `demo`, `pack` take no store.
MORE = {
    "catalog": ["--table", "OUT"],
    "dump digest": ["--out", "OUT"],
    "export": ["--out", "OUT"],
    "query": ["--offset", "0"],
    "rebuild": ["--out", "OUT"],
    "report": ["--out", "OUT"],
    "migrate": ["--to", "rocksdb", "--plan"],
    "resend": ["--name-server", "127.0.0.1:9"],
    "restore": ["--out", "OUT"],
    "tail": ["--out", "OUT"],
}
TAKE_STORES = [name for name in ALL if name not in ("demo", "doctor", "pack")]
#: They write to a store, follow one, or look at files that only a broker's host has.
NEED_A_DIRECTORY = {
    "mend": ["--apply"],
    "mend ": [],
    "rebuild": ["--in-place"],
    "rebuild ": ["--out-root", "OUT"],
    "tail --status": [],
    "tail --stop": [],
    "tail": ["--out", "OUT"],
    "undo": [],
}


def said(reput: Command, tmp_path: Path, name: str, url: str, more: list[str]) -> str:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in more]
    done = reput(*name.split(), url, *words)
    assert done.code == 2, done.stdout
    assert not (tmp_path / "out").exists()
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("name", NEED_A_DIRECTORY)
def test_what_needs_a_directory(reput: Command, tmp_path: Path, name: str) -> None:
    told = said(reput, tmp_path, name, "s3://bucket/store", NEED_A_DIRECTORY[name])
    assert "s3://bucket/store: this needs a directory of this host" in told
    assert "docs/remote.md" in told


@pytest.mark.parametrize("name", TAKE_STORES)
@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@bucket/store", f"hdfs://user:{SECRET}@host/store"])
def test_a_password_in_a_url(reput: Command, tmp_path: Path, name: str, url: str) -> None:
    told = said(reput, tmp_path, name, url, MORE.get(name, []))
    assert "a URL of a store has no password" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://host/store", "no store can be read from here"),
        ("s3://bucket/a?versionId=1", "a URL of a store has no password"),
        ("s3://bucket/a b", "a URL of a store has no password"),
        ("s3://[bucket/store", "can't be understood"),
    ],
)
def test_other_urls(reput: Command, tmp_path: Path, url: str, expected: str) -> None:
    assert expected in said(reput, tmp_path, "stats", url, [])


@pytest.mark.parametrize(
    "words",
    [
        ["rebuild", "STORE", "--out", "s3://bucket/out"],
        ["dump", "digest", "STORE", "--out", "s3://bucket/out"],
        ["export", "STORE", "--out", "s3://bucket/out"],
        ["report", "STORE", "--out", "s3://bucket/out"],
        ["catalog", "STORE", "--table", "hdfs://host/out"],
    ],
)
def test_nothing_is_written_elsewhere(
    reput: Command, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store: GoldenStore = golden("5.3.3-tiny", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = reput(*[str(store.root) if word == "STORE" else word for word in words])
    assert done.code == 2
    assert "director" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_sources_take_urls_as_they_are() -> None:
    found = paths_of({"path": "s3://bucket/a,/b,hdfs://host:1/c"})
    assert found == (Path("s3://bucket/a"), Path("/b"), Path("hdfs://host:1/c"))
