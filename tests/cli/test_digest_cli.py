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


def compared(reput: Command, store: Path, file: Path) -> tuple[int, str, list[tuple[str, int, int]], str]:
    """Exit code, verdict, findings with their ranges, and what wasn't compared."""
    said = json.loads(reput("dump", "digest", store, "--against", file, "--json").stdout)
    spans = [
        (one["kind"], one["physical_offset"], one["physical_end"])
        if one["topic"] is None
        else (one["kind"], one["queue_offset"], one["queue_end"])
        for one in said["findings"]
    ]
    return said["exit_code"], said["verdict"], spans, " ".join(said["not_read"])


def written(reput: Command, store: Path, file: Path) -> tuple[int, str]:
    said = json.loads(reput("dump", "digest", store, "-o", file, "--json").stdout)
    return said["exit_code"], " ".join(said["not_read"])


def queue_of(store: Path) -> Path:
    return store / names.CONSUME_QUEUE / "Orders" / "0"


def places(store: Path, queues: str = "*/*") -> list[int]:
    """Physical offsets that units lead to, in order."""
    files = [path.read_bytes() for path in (store / names.CONSUME_QUEUE).glob(f"{queues}/*")]
    units = [data[place : place + 20] for data in files for place in range(0, len(data), 20)]
    return sorted(int.from_bytes(unit[:8]) for unit in units if any(unit))


def cut(store: Path, at: int) -> None:
    """Make a replica that is behind of a store: its log, and its queues, end before a message."""
    for segment in (store / names.COMMIT_LOG).iterdir():
        keep = max(at - int(segment.name), 0)
        data = segment.read_bytes()
        segment.write_bytes(data[:keep].ljust(len(data), b"\0"))
    for file in (store / names.CONSUME_QUEUE).glob("*/*/*"):
        units = [file.read_bytes()[place : place + 20] for place in range(0, file.stat().st_size, 20)]
        kept = [unit if int.from_bytes(unit[:8]) < at else bytes(20) for unit in units]
        file.write_bytes(b"".join(kept)) if any(map(any, kept)) else file.unlink()


def test_a_segment_that_one_lacks_is_a_finding(
    reput: Command, store: GoldenStore, other: Path, file: Path, tmp_path: Path
) -> None:
    _, gone, after = sorted((other / names.COMMIT_LOG).iterdir())
    gone.unlink()
    start, end = int(gone.name), int(after.name)
    code, verdict, found, _ = compared(reput, other, file)
    assert (code, verdict, found) == (1, "unknown", [("log-only-there", start, end)])
    said = reput("check", other, "--against", store.root).stdout
    assert ": what is derived of it was compared, not the log itself" in said
    own = tmp_path / "own"
    assert written(reput, other, own) == (1, f"{start} to {end} of the log, which isn't all here")
    assert compared(reput, store.root, own)[:3] == (1, "unknown", [("log-only-here", start, end)])
    code, verdict, found, said = compared(reput, other, own)
    assert (code, verdict, found) == (1, "unknown", [])
    assert said == f"{start} to {end} of the log, which isn't all here or there"


@pytest.mark.parametrize("which", [1, -1])
def test_a_file_of_a_queue_that_one_lacks_is_a_finding(
    reput: Command, store: GoldenStore, other: Path, file: Path, tmp_path: Path, which: int
) -> None:
    sorted(queue_of(other).iterdir())[which].unlink()
    code, verdict, found, _ = compared(reput, other, file)
    assert (code, verdict, {kind for kind, *_ in found}) == (1, "unknown", {"queue-only-there"})
    own = tmp_path / "own"
    assert written(reput, other, own)[0] == int(which == 1)
    code, verdict, found, _ = compared(reput, store.root, own)
    assert (code, verdict, {kind for kind, *_ in found}) == (1, "unknown", {"queue-only-here"})
    # What neither has can't be called the same where it should be there.
    assert compared(reput, other, own)[:3] == ((1, "unknown", []) if which == 1 else (0, "same", []))


@pytest.mark.parametrize("part", [0.3, 0.7, 0.99])
def test_a_slave_that_is_behind_is_the_same(
    reput: Command, store: GoldenStore, other: Path, file: Path, tmp_path: Path, part: float
) -> None:
    known = places(other)
    at = known[int(len(known) * part)]
    cut(other, at)
    assert compared(reput, other, file)[:3] == (0, "same", [])
    own = tmp_path / "own"
    assert written(reput, other, own) == (0, "")
    code, verdict, found, said = compared(reput, store.root, own)
    assert (code, verdict, found) == (0, "same", [])
    assert f"{at} to " in said
    # But a queue that ends before its log doesn't lie behind with it.
    max(queue_of(other).iterdir()).unlink()
    assert "queue-only-there" in {kind for kind, *_ in compared(reput, other, file)[2]}


def test_what_a_broker_that_was_killed_has_not_dispatched_is_no_difference(
    reput: Command, store: GoldenStore, other: Path, file: Path
) -> None:
    log = {path: path.read_bytes() for path in (other / names.COMMIT_LOG).iterdir()}
    cut(other, places(other, "Orders/0")[-1])
    for path, data in log.items():
        path.write_bytes(data)
    assert compared(reput, other, file)[0] == 1
    (other / names.ABORT).touch()
    assert compared(reput, other, file)[:3] == (0, "same", [])


def test_a_small_log_is_compared_up_to_its_end(
    reput: Command, store: GoldenStore, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "LOG_RANGE", 16 << 20)
    file = tmp_path / "whole"
    assert written(reput, store.root, file) == (0, "")
    cut(other, places(other)[-1])
    damaged(min((other / names.COMMIT_LOG).iterdir()), 25_003)
    assert compared(reput, other, file)[2][0][:2] == ("log-differs", 0)


def test_a_log_of_which_nothing_is_compared_is_not_the_same(
    reput: Command, store: GoldenStore, other: Path, file: Path
) -> None:
    head, *lines = map(json.loads, file.read_text().splitlines())
    one = {**lines[0], "start": 0, "end": head["end"]}
    queues = [line for line in lines if line["type"] == "queue"]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in [head, one, *queues]))
    cut(other, places(other)[-1])
    code, verdict, found, said = compared(reput, other, file)
    assert (code, verdict, found) == (1, "unknown", [])
    assert "the log: no range of it is whole on both sides" in said
    text = reput("dump", "digest", other, "--against", file).stdout
    assert text.startswith(f"Not all that {other} and {store.root} have could be compared; the same: ")


def test_a_file_of_1_0_does_not_tell_where_a_queue_should_end(
    reput: Command, store: GoldenStore, other: Path, file: Path
) -> None:
    def older(path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{k: v for k, v in one.items() if k not in ("dispatched", "first", "last")} for one in lines]
        path.write_text("".join(f"{json.dumps({**one, 'schema_version': 1})}\n" for one in kept))

    older(file)
    assert compared(reput, other, file) == (0, "same", [], "")
    max(queue_of(other).iterdir()).unlink()
    code, verdict, found, said = compared(reput, other, file)
    assert (code, verdict, found) == (0, "same", [])
    assert "of Orders:0, which aren't all here; whether they should be isn't told by a file of 1.0" in said
    own = file.with_name("own")
    assert written(reput, other, own) == (0, "")
    older(own)
    code, verdict, found, said = compared(reput, store.root, own)
    assert (code, verdict, found) == (0, "same", [])
    assert "of Orders:0, which aren't all there; whether they should be isn't told by a file of 1.0" in said


def test_a_queue_that_cannot_be_read_is_not_the_same(reput: Command, other: Path, file: Path) -> None:
    with min(queue_of(other).iterdir()).open("ab") as longer:
        longer.write(b"x")
    code, verdict, found, said = compared(reput, other, file)
    assert (code, verdict, found, "Orders" in said) == (1, "unknown", [], True)


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
