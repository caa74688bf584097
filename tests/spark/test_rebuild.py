"""``reput rebuild``: what it does with a store, through a real Spark session."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from deltalake import DeltaTable

from reput import stream
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import PRE_BLANK, unit
from reput.job import RebuildOptions, rebuild
from reput.job.in_place import staging_of
from reput.output.batch import BatchScan
from reput.output.journal import read
from reput.store import files, swap
from reput.store.compare import compare
from tests.golden.store import GoldenStore
from tests.rebuilds import (
    Command,
    assert_same,
    broker_conf,
    broker_lock,
    golden,
    overwrite,
    record_starts,
    tree,
    words,
)
from tests.stores import add_left_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEGMENT = 65_536
#: Of the store ``restart``, and in the middle of it.
MIDDLE = SEGMENT
QUEUES = ("--queue", "Orders", "--queue", "Payments:2")


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def derived(root: Path) -> dict[str, str]:
    """What a broker reads of an output."""
    return tree(root, names.COMMIT_LOG, names.LEDGER, names.REPUT)


def cut_log(store: GoldenStore, offset: int, keep: int = 0) -> Callable[[], None]:
    """Take back what was written from a physical offset on, but for ``keep`` bytes; returns what restores it.

    The segment after it stays, as a broker has it: made ahead of time.
    """
    log = store.root / names.COMMIT_LOG
    whole = store.root.parent / "whole-log"
    shutil.copytree(log, whole)
    for path in sorted(log.iterdir()):
        base = int(path.name)
        size = path.stat().st_size
        begin = min(max(offset + keep - base, 0), size)
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(size - begin))
        if base > offset + SEGMENT:
            path.unlink()

    def restore() -> None:
        for path in whole.iterdir():
            shutil.copyfile(path, log / path.name)

    return restore


def rows(root: Path, kind: str) -> list[dict[str, Any]]:
    table = DeltaTable(str(root / names.LEDGER)).to_pyarrow_table()
    found = [row for row in table.to_pylist() if row["kind"] == kind]
    return sorted(found, key=lambda row: (row["batch_end"], str(row["topic"]), row["queue_id"], row["file"]))


def test_what_still_keeps_a_broker_from_starting_is_the_result(
    reput: Command, store: GoldenStore, out: Path
) -> None:
    """A rebuild makes queues and index anew, and neither the log nor what else a start stumbles over."""
    segment = min((store.root / names.COMMIT_LOG).iterdir())
    segment.write_bytes(segment.read_bytes()[:-1])
    queue = min((store.root / names.CONSUME_QUEUE).rglob("0" * 20))
    queue.write_bytes(queue.read_bytes()[:-20])
    for where in (("--out", out), ("--in-place",)):
        outcome = reput(*words(store, *where, "--json"))
        assert outcome.code == 1
        facts = json.loads(outcome.stdout)
        assert [(one["kind"], one["path"]) for one in facts["stops"]] == [("wrong-length", str(segment))]
    (step,) = facts["stops"][0]["next_steps"]
    shown = reput(*words(store, "--in-place")).stdout.splitlines()
    assert shown[0].endswith("as RocketMQ 5.3 writes it, but no broker starts on it")
    assert shown[1:3] == [
        "  stops at   1",
        f"    commitlog/{segment.name}: wrong-length: {facts['stops'][0]['said']}",
    ]
    assert shown[3] == f"  next       {step}"

    segment.write_bytes(segment.read_bytes() + b"\0")
    (segment.parent / "notes.txt").write_text("hello")
    outcome = reput(*words(store, "--in-place", "--json"))
    facts = json.loads(outcome.stdout)
    assert (outcome.code, facts["findings"]) == (1, [])
    assert [one["path"] for one in facts["stops"]] == [f"{segment.parent}/notes.txt"]


# --- beside the store ------------------------------------------------------------------------------------


def test_the_ledger_tells_what_each_batch_did(reput: Command, store: GoldenStore, out: Path) -> None:
    outcome = reput(*words(store, "--out", out, "--max-bytes-per-trigger", "50k", "--json"))
    assert outcome.code == 0
    summary = json.loads(outcome.stdout)
    assert_same(store.root, out)

    batches = rows(out, "batch")
    assert len(batches) == summary["batches"] > 2
    assert [row["batch_start"] for row in batches[1:]] == [row["batch_end"] for row in batches[:-1]]
    assert batches[0]["batch_start"] == store.manifest["log"]["start"] == summary["start"]
    assert batches[-1]["batch_end"] == store.manifest["log"]["end"] == summary["end"]
    assert sum(row["messages"] for row in batches) == summary["messages"]
    assert sum(row["bytes"] for row in batches) == summary["bytes"]
    queues = rows(out, "queue")
    assert sum(row["units"] for row in queues) == summary["units"]
    assert len({(row["topic"], row["queue_id"]) for row in queues}) == summary["queues"]
    files = {str(row["file"]): row for row in rows(out, "index")}
    assert sorted(files) == sorted(path.name for path in (out / names.INDEX).iterdir())
    assert sum(int(str(row["index_count"])) - 1 for row in files.values()) == summary["index_entries"]
    assert rows(out, "finding") == []


def test_the_ledger_is_a_table_to_sql(
    reput: Command, store: GoldenStore, out: Path, spark: SparkSession
) -> None:
    """Its files are plain Parquet, whose versions delta-spark reads."""
    assert reput(*words(store, "--out", out)).code == 0
    table = DeltaTable(str(out / names.LEDGER))
    read_by_spark = spark.read.parquet(*table.file_uris())
    assert read_by_spark.count() == table.to_pyarrow_table().num_rows


def test_any_path_will_do(reput: Command, tmp_path: Path) -> None:
    """Of the store as of the output: nothing on the way takes a part of it for something else."""
    odd = tmp_path / "a%20b%2Fc 100% [1]^|\\ {é𝄞} & 'so' \"on\"; `~$<*>@:=+!#?" / "tab\tand\nline"
    odd.mkdir(parents=True)
    store = golden("5.3.3-no-keys", odd)
    conf = tmp_path / "broker.conf"
    broker_conf(store).rename(conf)
    with conf.open("a") as file:
        file.write(f"storePathRootDir={tmp_path}\nstorePathCommitLog={tmp_path / 'commitlog'}\n")
    out = odd / "out"
    command = ["rebuild", store.root, "--broker-conf", conf, "--rocketmq-version", store.version]
    for _ in range(2):
        outcome = reput(*command, "--out", out)
        assert outcome.code == 0, outcome.stderr
    assert_same(store.root, out)
    assert reput(*command, "--in-place").code == 0
    assert_same(out, store.root)


def test_a_finished_output_is_left_alone(reput: Command, store: GoldenStore, out: Path) -> None:
    first = reput(*words(store, "--out", out, "--json"))
    assert (first.code, reput.sessions) == (0, 1)
    before = tree(out)
    second = reput(*words(store, "--out", out, "--json"))
    assert (second.code, reput.sessions) == (0, 1), "without Spark"
    assert tree(out) == before
    changing = {"seconds", "stages", "new_messages", "new_bytes"}
    one, other = (json.loads(outcome.stdout) for outcome in (first, second))
    assert {name: one[name] for name in one.keys() - changing} == {
        name: other[name] for name in other.keys() - changing
    }
    assert (other["new_messages"], other["new_bytes"]) == (0, 0)
    assert reput(*words(store, "--out", out)).stdout.startswith("Nothing to do: ")


def test_what_is_missing_of_a_finished_output_comes_back(
    reput: Command, store: GoldenStore, out: Path
) -> None:
    assert reput(*words(store, "--out", out, "--max-bytes-per-trigger", "100k")).code == 0
    before, batches = derived(out), rows(out, "batch")
    (out / names.CHECKPOINT).unlink()
    shutil.rmtree(out / names.LEDGER)
    assert reput(*words(store, "--out", out)).code == 0
    assert derived(out) == before
    assert rows(out, "batch") == batches
    assert reput.sessions == 1


@pytest.mark.parametrize("at_a_boundary", [True, False])
def test_a_log_that_has_grown(reput: Command, store: GoldenStore, out: Path, at_a_boundary: bool) -> None:
    """Only what is new is read, from where a broker goes on writing: not from the segment made ahead."""
    records = record_starts(store.root, MIDDLE)
    restore = cut_log(store, MIDDLE if at_a_boundary else records[len(records) // 2])
    outcome = reput(*words(store, "--out", out, "--json"))
    assert outcome.code == 0
    first = json.loads(outcome.stdout)
    assert first["end"] == (MIDDLE if at_a_boundary else records[len(records) // 2])
    restore()
    second = json.loads(reput(*words(store, "--out", out, "--json")).stdout)
    assert second["new_messages"] == second["messages"] - first["messages"] > 0
    assert rows(out, "batch")[-1]["batch_start"] == first["end"]
    assert_same(store.root, out)
    assert second["findings"] == []


def test_beside_a_running_broker(reput: Command, store: GoldenStore, out: Path) -> None:
    """What it is just writing is no damage."""
    records = record_starts(store.root, MIDDLE)
    half = records[len(records) // 2]
    restore = cut_log(store, half, keep=60)
    with broker_lock(store.root):
        outcome = reput(*words(store, "--out", out, "--json"))
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["end"] == half
    restore()
    assert reput(*words(store, "--out", out)).code == 0
    assert_same(store.root, out)


def test_a_torn_end(reput: Command, store: GoldenStore, out: Path) -> None:
    """Without a broker that is at work on it, it is damage; said once, and every time."""
    records = record_starts(store.root, MIDDLE)
    half = records[len(records) // 2]
    restore = cut_log(store, half, keep=60)
    # The last batch begins where the damage does: it moves no offset, and is told of nevertheless.
    command = words(store, "--out", out, "--json", "--max-bytes-per-trigger", str(half))
    for _ in range(2):
        outcome = reput(*command)
        assert outcome.code == 1
        summary = json.loads(outcome.stdout)
        assert summary["end"] == half
        assert [(finding["kind"], finding["physical_offset"]) for finding in summary["findings"]] == [
            ("torn-tail", half)
        ]
    assert [(row["finding"], row["begin_offset"]) for row in rows(out, "finding")] == [("torn-tail", half)]
    assert reput.sessions == 1
    restore()
    assert reput(*command).code == 1, "the output was made from a log with that end"
    assert_same(store.root, out)


def test_a_log_that_was_cut_and_written_anew(reput: Command, store: GoldenStore, out: Path) -> None:
    records = record_starts(store.root, MIDDLE)
    restore = cut_log(store, records[20])
    assert reput(*words(store, "--out", out)).code == 0
    before = tree(out)
    cut = restore
    restore()
    shutil.rmtree(store.root.parent / "whole-log")
    cut = cut_log(store, records[10])
    outcome = reput(*words(store, "--out", out))
    assert outcome.code == 2
    assert "the log isn't the one that this output was made from" in outcome.stderr
    assert f"remove {out} and run again".lower() in outcome.stderr.lower()
    assert tree(out) == before
    cut()
    assert reput(*words(store, "--out", out)).code == 0
    assert_same(store.root, out)


def test_a_log_whose_next_segments_have_expired(reput: Command, store: GoldenStore, out: Path) -> None:
    restore = cut_log(store, record_starts(store.root, 0)[-1])
    assert reput(*words(store, "--out", out)).code == 0
    restore()
    (store.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    outcome = reput(*words(store, "--out", out))
    assert outcome.code == 2
    assert "the log has lost segments that this output hasn't got yet" in outcome.stderr


def test_other_settings_than_it_was_begun_with(reput: Command, store: GoldenStore, out: Path) -> None:
    assert reput(*words(store, "--out", out)).code == 0
    before = tree(out)
    for more, said in (
        (["--no-index"], ("expected index=true", "found index=false")),
        (["--queue", "Orders"], ('queues=["Orders"]',)),
    ):
        outcome = reput(*words(store, "--out", out, *more))
        assert outcome.code == 2
        for text in ("begun with other settings", *said, f"remove {out}"):
            assert text in outcome.stderr
    with broker_conf(store).open("a") as file:
        file.write("maxIndexNum=500\n")
    outcome = reput(*words(store, "--out", out))
    assert outcome.code == 2
    assert "expected max_index_num=400, found max_index_num=500" in outcome.stderr
    assert tree(out) == before
    other = golden("5.3.3-no-keys", out.parent / "other")
    outcome = reput(*words(other, "--out", out))
    assert outcome.code == 2
    assert "begun from another store" in outcome.stderr
    assert tree(out) == before


def test_chosen_queues(reput: Command, store: GoldenStore, out: Path) -> None:
    outcome = reput(*words(store, "--out", out, *QUEUES, "--json"))
    assert outcome.code == 0
    wanted = {
        name: digest
        for name, digest in tree(store.root).items()
        if name.startswith(("consumequeue/Orders/", "consumequeue/Payments/2/")) and digest
    }
    assert {name: digest for name, digest in derived(out).items() if digest} == wanted
    summary = json.loads(outcome.stdout)
    assert summary["queues"] == len({Path(name).parent for name in wanted})
    assert summary["without_units"] == {}, "the rest was left out by choice"
    assert "  index      none\n" in reput(*words(store, "--out", out, *QUEUES)).stdout


def test_a_queue_that_is_not_in_the_log(reput: Command, store: GoldenStore, out: Path) -> None:
    outcome = reput(
        *words(store, "--out", out, "--queue", "Orders:0", "--queue", "Ordres", "--queue", "Orders:77")
    )
    assert outcome.code == 1
    assert "the log has no message for Orders:77, Ordres" in outcome.stdout
    assert "Did you mean Orders:3 for Orders:77, Orders for Ordres?" in outcome.stdout
    assert "has Ordres; did you mean Orders?" in outcome.stderr


def test_a_misspelt_queue_of_a_store_without_queues(reput: Command, store: GoldenStore, out: Path) -> None:
    """The log's own topics are offered then."""
    for name in (names.CONSUME_QUEUE, "config"):
        shutil.rmtree(store.root / name, ignore_errors=True)
    summary = json.loads(reput(*words(store, "--out", out, "--queue", "Ordres", "--json")).stdout)
    assert (summary["absent_queues"], summary["did_you_mean"]) == (["Ordres"], {"Ordres": "Orders"})


def test_no_index(reput: Command, store: GoldenStore, out: Path) -> None:
    assert reput(*words(store, "--out", out, "--no-index")).code == 0
    found = compare(store.root, out)
    assert {line.split()[0] for line in found.differences} == {"index"}
    assert not (out / names.INDEX).exists()
    assert not (out / names.CHECKPOINT).exists(), "it would cover an index that isn't there"


def test_topics_that_the_broker_does_not_know(reput: Command, store: GoldenStore, out: Path) -> None:
    config = store.root / names.CONFIG / "topics.json"
    config.parent.mkdir(exist_ok=True)
    topics = {path.name for path in (store.root / names.CONSUME_QUEUE).iterdir()}
    config.write_text(json.dumps({"topicConfigTable": {topic: {} for topic in topics - {"Orders"}}}))
    outcome = reput(*words(store, "--out", out))
    assert outcome.code == 0
    assert "unknown    not in config/topics.json: Orders\n" in outcome.stdout
    assert_same(store.root, out)

    only = out.with_name("only")
    outcome = reput(*words(store, "--out", only, "--known-topics-only"))
    assert outcome.code == 0
    assert "left out   Orders: " in outcome.stdout
    left = {line.split("/")[1] for line in compare(store.root, only).differences}
    assert left == {"Orders"}


def test_damage_in_the_middle(reput: Command, store: GoldenStore, out: Path) -> None:
    """The rest of the log is rebuilt, and what is lost is said and kept."""
    records = record_starts(store.root, MIDDLE)
    broken = records[len(records) // 2]
    overwrite(store.root, SEGMENT, broken + 4, b"\xba\xad\xf0\x0d")
    outcome = reput(*words(store, "--out", out))
    assert outcome.code == 1
    segment = store.root / names.COMMIT_LOG / names.offset_name(MIDDLE)
    end = records[len(records) // 2 + 1]
    said = f"{segment} at physical offset {broken} to {end}: bad-magic: "
    assert said in outcome.stdout
    assert "0xbaadf00d" in outcome.stdout
    assert "  salvaged   1 damaged range kept in lost-and-found" in outcome.stdout
    assert outcome.stderr.count("\n") <= 1
    found = [row for row in rows(out, "finding") if row["finding"] == "bad-magic"]
    assert [(row["begin_offset"], row["end_offset"], row["file"]) for row in found] == [
        (broken, end, str(segment))
    ]
    queues = [line for line in compare(store.root, out).differences if line.startswith("consumequeue/")]
    assert len(queues) <= 1, "only the queue that the message was in"
    again = reput(*words(store, "--out", out))
    assert again.code == 1, "still not sound"
    assert said in again.stdout


def test_what_spark_asks_for_was_begun_before(
    store: GoldenStore, out: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[BatchScan] = []
    make = BatchScan.__init__

    def remember(batch_scan: BatchScan, *arguments: Any) -> None:
        made.append(batch_scan)
        make(batch_scan, *arguments)

    monkeypatch.setattr(BatchScan, "__init__", remember)
    options = RebuildOptions(store.root, out, broker_conf(store), store.version, part_bytes=20_000)
    rebuild(options, lambda: spark)
    assert_same(store.root, out)
    assert len(made) == 1, "Spark asked for the very parts that were expected"


def test_workers_load_pyspark_where_it_is_installed(spark: SparkSession) -> None:
    path = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).first()
    assert path == pyspark.__file__


def test_progress_goes_to_the_listener(store: GoldenStore, out: Path, spark: SparkSession) -> None:
    seen: list[tuple[int, int, int]] = []
    options = RebuildOptions(
        store.root, out, broker_conf(store), store.version, max_bytes_per_trigger=60_000, part_bytes=20_000
    )
    summary = rebuild(
        options,
        lambda: spark,
        lambda progress, total: seen.append((progress.bytes_done, progress.messages, total)),
    )
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1][1] == summary.messages
    assert all(done <= total for done, _, total in seen)
    assert_same(store.root, out)


# --- in place --------------------------------------------------------------------------------------------


def spoil(store: GoldenStore) -> dict[str, str]:
    """Damage what is derived; returns what was there after that."""
    shutil.rmtree(store.root / names.INDEX)
    (store.root / names.INDEX).mkdir()
    for path in (store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    return tree(store.root)


def assert_clean(store: GoldenStore) -> None:
    """Nothing of the work is left."""
    assert not (store.root / names.REPUT / "staging").exists()
    assert not swap.is_pending(store.root)


def test_in_place(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    beside = add_left_alone(store.root)
    before = spoil(store)
    outcome = reput(*words(store, "--in-place", "--json"))
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["left_alone"] == beside
    assert_same(good, store.root)
    assert_clean(store)
    summary = json.loads(outcome.stdout)
    kept = Path(summary["kept"])
    assert kept.parent == store.root
    assert kept.name.startswith("replaced-")
    after = tree(store.root)
    for name, digest in before.items():
        first = name.split("/")[0]
        if first in (names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT):
            assert after[f"{kept.name}/{name}"] == digest, "kept"
        else:
            assert after[name] == digest, "the log and all else untouched"
    assert len(rows(store.root, "batch")) == summary["batches"]

    swap.undo(store.root, kept, swap.new_stamp(store.root))
    assert before.items() <= tree(store.root).items()


def test_in_place_keeps_owner_and_mode(reput: Command, store: GoldenStore) -> None:
    uid, gid = (12_345, 23_456) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for path in (store.root, *store.root.rglob("*")):
        os.chown(path, uid, gid)
        path.chmod(0o750 if path.is_dir() else 0o640)
    assert reput(*words(store, "--in-place")).code == 0
    for path in store.root.rglob("*"):
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == (uid, gid), path
        mode = stat.S_IMODE(facts.st_mode)
        if path.relative_to(store.root).parts[0] not in (names.REPUT, names.LOCK):
            assert mode == (0o750 if path.is_dir() else 0o640), path


def test_in_place_chosen_queues(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    before = spoil(store)
    outcome = reput(*words(store, "--in-place", "--queue", "Orders:0", "--json"))
    assert outcome.code == 0
    after = tree(store.root, names.REPUT, names.LOCK, Path(json.loads(outcome.stdout)["kept"]).name)
    changed = {name for name in after if after[name] != before.get(name)}
    assert {str(Path(name).parent) for name in changed} == {"consumequeue/Orders/0"}
    assert [line for line in compare(good, store.root).differences if not line.startswith("index")] == []
    assert_clean(store)


def test_in_place_of_nothing(reput: Command, store: GoldenStore) -> None:
    before = tree(store.root, names.REPUT, names.LOCK)
    outcome = reput(*words(store, "--in-place", "--queue", "Ordres"))
    assert outcome.code == 1
    assert "Replaced nothing" in outcome.stdout
    assert "the log has no message for Ordres" in outcome.stdout
    assert tree(store.root, names.REPUT, names.LOCK) == before
    assert_clean(store)


def test_in_place_carries_over_the_last_files_of_expired_queues(reput: Command, tmp_path: Path) -> None:
    """With one would go what the next queueOffset is. tests/compat has the real store go on with them."""
    store = golden("5.3.3-lost-head", tmp_path)
    start, end = store.manifest["log"]["start"], store.manifest["log"]["end"]
    queues = store.root / names.CONSUME_QUEUE
    for name, positions in {
        "Expired/3": range(start - 700, start, 100),
        "Damaged/0": [start - 100, start],
        "Empty/0": [],
        "Lost/0": [end],
    }.items():
        units = b"".join(unit(position, 100, 7) for position in positions)
        (queues / name).mkdir(parents=True)
        (queues / name / names.offset_name(2000)).write_bytes(units.ljust(1000, b"\0"))
    (queues / "Expired" / "3" / names.offset_name(1000)).write_bytes(unit(5, 100, 7) * 50)
    last = queues / "Expired" / "3" / names.offset_name(2000)
    os.utime(last, ns=(0, 1_700_000_000_123_456_789))
    before, allocated = tree(queues), last.stat().st_blocks

    outcome = reput(*words(store, "--in-place", "--json"))
    assert outcome.code == 1
    summary = json.loads(outcome.stdout)
    assert summary["carried_queues"] == ["Damaged:0", "Expired:3"]
    assert summary["doubtful_queues"] == ["Damaged:0"]
    past_end = (
        f"all its units (1) lead behind {start}, where the log begins, and the log has no message of it"
    )
    assert summary["vanished_queues"] == {"Empty:0": "it has no file with a unit", "Lost:0": past_end}
    gone = {f"{topic}{path}" for topic in ("Empty", "Lost") for path in ("", "/0", f"/0/{last.name}")}
    gone.add(f"Expired/3/{names.offset_name(1000)}")
    damaged = queues / "Damaged" / "0" / last.name
    kept = unit(start - 100, 100, 7) * 2
    assert damaged.read_bytes() == kept.ljust(1000, b"\0"), "the lost one keeps its place"
    gone.add(damaged.relative_to(queues).as_posix())
    left = {name: digest for name, digest in tree(queues).items() if queues / name != damaged}
    assert left == {name: digest for name, digest in before.items() if name not in gone}
    facts = last.stat()
    assert (facts.st_mtime_ns, facts.st_blocks) == (1_700_000_000_123_456_789, allocated)

    assert reput("undo", store.root).code == 0
    assert tree(queues) == before
    outcome = reput(*words(store, "--in-place"))
    for said in (
        "expired    the log has no message any more for Damaged:0, Expired:3\n",
        "doubtful   expected in the log and not found: messages of Damaged:0\n",
        "gone       Empty:0 begins at offset 0 again: it has no file with a unit\n",
        f"Lost:0 begins at offset 0 again: {past_end}\n",
    ):
        assert said in outcome.stdout


def test_what_was_carried_over_before_a_crash_is_not_built_upon(
    reput: Command, store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue may have messages again when the rebuild goes on."""
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    restore = cut_log(store, MIDDLE)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    carried = store.root / names.CONSUME_QUEUE / "Late" / "0"
    carried.mkdir(parents=True)
    (carried / names.offset_name(0)).write_bytes((PRE_BLANK + unit(0, 100, 7)).ljust(1000, b"\0"))
    with monkeypatch.context() as patched:
        patched.setattr("reput.job.rebuilding._swap", stop)
        assert reput(*words(store, "--in-place")).code == 130
    staged = names.queue_directory(staging_of(store.root), "Late", 0)
    assert staged.exists()
    shutil.rmtree(carried.parent)
    restore()
    assert reput(*words(store, "--in-place")).code == 0
    assert_same(good, store.root)


def test_in_place_after_a_crash(reput: Command, tmp_path: Path) -> None:
    """A broker that finds ``abort`` deletes index files newer than indexMsgTimestamp: none may be."""
    store = golden("5.3.3-crash", tmp_path)
    assert (store.root / names.ABORT).exists()
    assert reput(*words(store, "--in-place")).code == 0
    checkpoint = StoreCheckpoint.decode((store.root / names.CHECKPOINT).read_bytes())
    last = max((store.root / names.INDEX).iterdir()).read_bytes()
    assert checkpoint.index_msg_timestamp == int.from_bytes(last[8:16], "big") > 0
    assert (store.root / names.ABORT).exists()


def test_in_place_goes_on_after_a_failure(
    reput: Command, store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    before = spoil(store)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(store.root))

    with monkeypatch.context() as patched:
        patched.setattr("reput.job.rebuilding._swap", fail)
        assert reput(*words(store, "--in-place")).code == 2
    assert tree(store.root, names.REPUT, names.LOCK) == {
        name: digest for name, digest in before.items() if name != names.LOCK
    }, "nothing was replaced"
    outcome = reput(*words(store, "--in-place"))
    assert (outcome.code, reput.sessions) == (0, 1), "what was staged is used"
    assert_same(good, store.root)
    assert_clean(store)


def test_in_place_that_died_when_all_was_in_place(
    reput: Command, store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staging directory's journal tells of files that aren't there any more."""
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    spoil(store)
    remove = files.remove_tree

    def stop(path: Path) -> None:
        if path == staging_of(store.root) and swap.kept_directories(store.root):
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove_tree", stop)
        assert reput(*words(store, "--in-place")).code == 130
    assert_same(good, store.root)
    assert reput(*words(store, "--in-place")).code == 0
    assert_same(good, store.root)
    assert_clean(store)


def test_in_place_looks_again_before_it_replaces(
    reput: Command, store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spoil(store)
    staging = store.root / names.REPUT / "staging"

    def stop(*_: object) -> None:
        raise OSError(5, "Input/output error", str(store.root))

    with monkeypatch.context() as patched:
        patched.setattr("reput.job.rebuilding._swap", stop)
        assert reput(*words(store, "--in-place")).code == 2
    _, batches = read(staging / names.REPUT / "journal")
    (topic, queue_id), queue = next(iter(batches[-1].queues.items()))
    at = (queue.next - 1) * 20
    path = names.queue_directory(staging, topic, queue_id) / names.offset_name(at - at % 1000)
    with path.open("r+b") as file:
        file.seek(at % 1000)
        file.write(b"\x01" * 20)
    outcome = reput(*words(store, "--in-place"))
    assert outcome.code == 2
    assert "the queue's last unit is not what was written" in outcome.stderr
    assert {name: digest for name, digest in before.items() if name != names.LOCK} == tree(
        store.root, names.REPUT, names.LOCK
    )


def test_spark_logs_again_once_a_query_was_stopped(spark: SparkSession) -> None:
    """What is broken off is logged as errors; a notebook's session is there when the query isn't any more."""
    root = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger()  # type: ignore[union-attr]
    before, levels = root.getLevel().name(), []
    query = SimpleNamespace(stop=lambda: levels.append(root.getLevel().name()))
    stream.stop(spark.sparkContext, query)  # type: ignore[arg-type]
    assert (levels, root.getLevel().name()) == (["OFF"], before)
    assert before != "OFF"
