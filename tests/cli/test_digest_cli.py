"""``reput dump digest``: two stores compared by a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.dump import digest
from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, tree
from tests.schemas import validator


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoldenStore:
    monkeypatch.setattr(digest, "LOG_RANGE", 10_000)
    monkeypatch.setattr(digest, "QUEUE_RANGE", 16)
    store = golden("5.3.3-restart", tmp_path)
    monkeypatch.setenv("REPUT_ROCKETMQ_VERSION", store.version)
    monkeypatch.setenv("REPUT_BROKER_CONF", str(broker_conf(store)))
    return store


@pytest.fixture
def other(store: GoldenStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store.root, tmp_path / "other"))


@pytest.fixture
def file(reput: Command, store: GoldenStore, tmp_path: Path) -> Path:
    path = tmp_path / "digests"
    before = tree(store.root)
    done = reput("dump", "digest", store.root, "-o", path, "--json")
    assert (done.code, json.loads(done.stdout)["not_read"]) == (0, [])
    assert tree(store.root) == before
    return path


def damaged(path: Path, offset: int) -> None:
    with path.open("r+b") as data:
        data.seek(offset)
        one = data.read(1)
        data.seek(offset)
        data.write(bytes([one[0] ^ 1]))


def test_a_copy_is_the_same(reput: Command, other: Path, file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    schema = validator("digest-line")
    assert all(schema.is_valid(line) for line in lines)
    assert len(lines) > 40
    assert {line["type"] for line in lines} == {"store", "commitlog", "queue"}
    said = reput("dump", "digest", other, "--against", file)
    assert (said.code, said.stdout.splitlines()[0].endswith(f": {len(lines) - 1} ranges")) == (0, True)


def test_what_differs_is_said_by_its_range(reput: Command, other: Path, file: Path) -> None:
    damaged(min((other / names.COMMIT_LOG).iterdir()), 25_003)
    damaged(min((other / names.CONSUME_QUEUE / "Orders" / "0").iterdir()), 16 * 20 + 19)
    said = reput("dump", "digest", other, "--against", file, "--json")
    found = [
        (one["kind"], one["physical_offset"], one["queue_offset"])
        for one in json.loads(said.stdout)["findings"]
    ]
    assert (said.code, found) == (1, [("log-differs", 20_000, None), ("queue-differs", None, 16)])


def test_a_slave_that_is_behind_and_an_expired_head_are_no_difference(
    reput: Command, store: GoldenStore, other: Path, file: Path, tmp_path: Path
) -> None:
    segments = sorted((other / names.COMMIT_LOG).iterdir())
    segments[0].unlink()
    said = reput("dump", "digest", other, "--against", file)
    assert said.code == 0
    assert "where both have something" in said.stdout
    assert "0 to 10000 of the log, which isn't all here" in said.stdout
    again = tmp_path / "again"
    assert reput("dump", "digest", other, "-o", again).code == 0
    assert reput("dump", "digest", store.root, "--against", again).code == 0


def test_nothing_to_compare_is_not_the_same(reput: Command, other: Path, file: Path) -> None:
    head, *_ = file.read_text().splitlines()
    file.write_text(f"{head}\n")
    said = reput("dump", "digest", other, "--against", file)
    assert (said.code, said.stdout.startswith(f"Nothing of {other} could be compared with ")) == (1, True)
    told = json.loads(reput("dump", "digest", other, "--against", file, "--json").stdout)
    assert (told["verdict"], told["summary"]) == ("unknown", said.stdout.splitlines()[0])


def test_a_queue_that_only_one_has(reput: Command, store: GoldenStore, other: Path, file: Path) -> None:
    shutil.rmtree(other / names.CONSUME_QUEUE / "Payments")
    shutil.copytree(other / names.CONSUME_QUEUE / "Orders", other / names.CONSUME_QUEUE / "New")
    said = json.loads(reput("dump", "digest", other, "--against", file, "--json").stdout)
    kinds = {(one["kind"], one["topic"]) for one in said["findings"]}
    assert kinds == {("queue-only-there", "Payments"), ("queue-only-here", "New")}


def test_a_queue_that_cannot_be_read_is_said(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    with min((store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir()).open("ab") as longer:
        longer.write(b"x")
    said = reput("dump", "digest", store.root, "-o", tmp_path / "digests", "--json")
    (text,) = json.loads(said.stdout)["not_read"]
    assert (said.code, "Orders" in text) == (1, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "found nothing"),
        (lambda text: text[: len(text) // 2], "line "),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 3', 1), "schema_version 3"),
        (lambda text: "[]\n", "line 1"),
        (lambda text: text.replace('"end": ', '"end": -', 2), "line 2"),
    ],
)
def test_a_file_that_is_none_or_torn(
    reput: Command, other: Path, file: Path, change: object, said: str
) -> None:
    assert callable(change)
    file.write_text(change(file.read_text()))
    found = reput("dump", "digest", other, "--against", file)
    assert (found.code, found.stdout) == (2, "")
    assert "isn't a file that `reput dump digest --out` wrote" in found.stderr
    assert said in found.stderr


def test_places_and_options(reput: Command, store: GoldenStore, file: Path, tmp_path: Path) -> None:
    assert "is there already" in reput("dump", "digest", store.root, "-o", file).stderr
    assert reput("dump", "digest", store.root, "-o", file, "--force").code == 0
    assert (
        "nothing is written into a store"
        in reput("dump", "digest", store.root, "-o", store.root / "x").stderr
    )
    assert "what to do" in reput("dump", "digest", store.root).stderr
    assert "what to do" in reput("dump", "digest", store.root, "-o", file, "--against", file).stderr
    assert reput("dump", "digest", tmp_path / "nowhere", "-o", tmp_path / "x").code == 2
    assert reput("dump", "digest", store.root, "--against", tmp_path / "nowhere").code == 2
