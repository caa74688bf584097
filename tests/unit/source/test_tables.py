"""Consume queues and index files as tables: each row as a slow parser sees it, in every golden store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
)

from reput.config.settings import StoreSettings
from reput.dump.places import queue_places
from reput.errors import ReputError, SettingsError, StoreError
from reput.format import batchconsumequeue, consumequeue, consumequeueext, indexfile
from reput.format.indexfile import IndexHeader
from reput.newer_python import UTC
from reput.source import (
    INDEX,
    NAME,
    QUEUES,
    CommitLogDataSource,
    ConsumeQueueDataSource,
    IndexDataSource,
    ranges,
    read_arrow,
)
from reput.source.columns import INDEX_COLUMNS, QUEUE_COLUMNS, arrow_schema
from reput.source.filters import FilteredReader
from tests.golden.store import FILTERED, NAMES, GoldenStore, unpack

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def reader_of(kind: type[DataSource], path: object, **options: object) -> FilteredReader:
    texts = {name: str(value) for name, value in options.items()}
    source = kind(CaseInsensitiveDict({"path": str(path), "pushFilters": "true", **texts}))
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteredReader)
    return reader


def rows_of(reader: FilteredReader, *filters: Filter) -> list[Row]:
    """What the reader gives once the filters are pushed; Spark's part is done here for those it leaves."""
    assert list(reader.pushFilters(list(filters))) == []
    found: list[Row] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            batch.validate(full=True)
            assert batch.num_rows
            found += batch.to_pylist()
    return found


def golden(name: str, directory: Path) -> tuple[GoldenStore, Path]:
    store = unpack(name, directory)
    return store, store.write_broker_conf()


# The slow twins: one unit, one entry after the other, from the formats alone.


def slow_units(root: Path, *, blanks: bool = False) -> Iterator[Row]:
    for path in sorted(root.glob("consumequeue/*/*/*")):
        data = path.read_bytes()
        later = any(
            any(other.read_bytes()) for other in path.parent.iterdir() if int(other.name) > int(path.name)
        )
        end = len(data) if later else len(data.rstrip(b"\0"))
        for at in range(0, len(data), consumequeue.UNIT_LENGTH):
            position, size, tags = consumequeue.UNIT.unpack_from(data, at)
            kind = "plain"
            if data[at : at + 20] == consumequeue.PRE_BLANK:
                kind = "pre-blank"
            elif not any(data[at : at + 20]):
                kind = "hole"
            elif position < 0 or size <= 0:
                kind = "damaged"
            if kind != "plain" and not (blanks and at < end):
                continue
            is_message = kind in ("plain", "damaged")
            code, stored, bit_map = slow_ext(path, tags) if is_message else (None, None, None)
            yield {
                "store": str(root),
                "topic": path.parent.parent.name,
                "queueId": int(path.parent.name),
                "queueOffset": (int(path.name) + at) // 20,
                "kind": kind,
                "physicalOffset": position if is_message else None,
                "size": size if is_message else None,
                "tagsCode": tags if is_message else None,
                "storeTimestamp": stored,
                "extTagsCode": code,
                "bitMap": bit_map,
                "baseOffset": None,
                "batchSize": None,
                "compactedOffset": None,
            }
    for path in sorted(root.glob("batchconsumequeue/*/*/*")):
        data = path.read_bytes()
        for at in range(0, len(data), batchconsumequeue.UNIT_LENGTH):
            unit = batchconsumequeue.UNIT.unpack_from(data, at)
            position, size, tags, stored_ms, base, count, compacted, _ = unit
            if size:
                yield {
                    "store": str(root),
                    "topic": path.parent.parent.name,
                    "queueId": int(path.parent.name),
                    "queueOffset": base,
                    "kind": "batch",
                    "physicalOffset": position,
                    "size": size,
                    "tagsCode": tags,
                    "storeTimestamp": time(stored_ms),
                    "extTagsCode": None,
                    "bitMap": None,
                    "baseOffset": base,
                    "batchSize": count,
                    "compactedOffset": compacted,
                }


def slow_ext(queue_file: Path, tags: int) -> tuple[int | None, datetime | None, bytes | None]:
    place = consumequeueext.place_of(tags)
    if place is None:
        return None, None, None
    root, queue = queue_file.parents[3], queue_file.parent
    for path in sorted((root / "consumequeue_ext" / queue.parent.name / queue.name).glob("*")):
        data = path.read_bytes()
        position = place - int(path.name)
        if 0 <= position < len(data):
            size, code, stored, bits = consumequeueext.HEAD.unpack_from(data, position)
            if size > 0:
                start = position + consumequeueext.HEAD_LENGTH
                return code, time(stored), data[start : start + bits] or None
    return None, None, None


def slow_entries(root: Path, settings: StoreSettings) -> Iterator[Row]:
    slots = settings.max_hash_slot_num
    for path in sorted(root.glob("index/*")):
        data = path.read_bytes()
        header = IndexHeader.decode(data)
        for ordinal in range(1, header.index_count):
            at = indexfile.HEADER_LENGTH + slots * 4 + ordinal * 20
            key_hash, position, seconds, previous = (
                int.from_bytes(data[at + start : at + end], "big", signed=True)
                for start, end in ((0, 4), (4, 12), (12, 16), (16, 20))
            )
            yield {
                "store": str(root),
                "file": path.name,
                "ordinal": ordinal,
                "slot": key_hash % slots,
                "keyHash": key_hash,
                "physicalOffset": position,
                "storeTimestamp": time(header.begin_timestamp + seconds * 1000),
                "previous": previous,
                **dict.fromkeys(("topic", "kind", "key", "uniqKey")),
            }


def in_order(rows: list[Row], *columns: str) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(row[column] for column in columns))


QUEUE_ORDER = ("kind", "topic", "queueId", "queueOffset", "physicalOffset")


@pytest.mark.parametrize("name", [*NAMES, *FILTERED])
def test_every_row_of_the_golden_stores(name: str, tmp_path: Path) -> None:
    store, conf = golden(name, tmp_path)
    settings = StoreSettings.load(store.root, conf, store.version, dledger=True)
    told = {"brokerConf": conf, "rocketmqVersion": store.version, "partBytes": 200_000}

    units = rows_of(reader_of(ConsumeQueueDataSource, store.root, **told))
    expected = list(slow_units(store.root))
    assert units
    assert in_order(units, *QUEUE_ORDER) == in_order(expected, *QUEUE_ORDER)
    assert all(list(unit) == list(QUEUE_COLUMNS) for unit in units)

    entries = rows_of(reader_of(IndexDataSource, store.root, **told))
    assert entries == list(slow_entries(store.root, settings))
    assert all(list(entry) == list(INDEX_COLUMNS) for entry in entries)


def test_what_is_in_the_golden_stores(tmp_path: Path) -> None:
    """That the comparison above has met every kind of unit."""
    ext, conf = golden("5.5.0-filter-bit-maps", tmp_path / "ext")
    found = rows_of(reader_of(ConsumeQueueDataSource, ext.root, brokerConf=conf))
    assert sum(row["bitMap"] is not None for row in found) > 10
    assert sum(row["extTagsCode"] is not None for row in found) > 10
    batch, conf = golden("5.5.0-batch-queue", tmp_path / "batch")
    found = rows_of(reader_of(ConsumeQueueDataSource, batch.root, brokerConf=conf))
    assert {row["kind"] for row in found} == {"plain", "batch"}
    assert max(row["batchSize"] or 0 for row in found) > 1


def test_places_without_a_unit(tmp_path: Path) -> None:
    lost, conf = golden("5.3.3-lost-head", tmp_path)
    queue = max((lost.root / "consumequeue").glob("*/*"), key=lambda path: len(list(path.iterdir())))
    files = sorted(queue.iterdir())
    with files[0].open("r+b") as file:
        file.seek(files[0].stat().st_size - 60)
        file.write(bytes(20) + consumequeue.unit(7, -1, 3))
    found = rows_of(reader_of(ConsumeQueueDataSource, lost.root, brokerConf=conf, blanks="true"))
    expected = list(slow_units(lost.root, blanks=True))
    assert {row["kind"] for row in found} == {"plain", "pre-blank", "hole", "damaged"}
    assert found == expected
    for kinds in (["hole"], ["pre-blank", "damaged"], ["plain"]):
        reader = reader_of(ConsumeQueueDataSource, lost.root, brokerConf=conf, blanks="true", partBytes=5000)
        assert rows_of(reader, In(("kind",), tuple(kinds))) == [
            row for row in expected if row["kind"] in kinds
        ]
    without = rows_of(reader_of(ConsumeQueueDataSource, lost.root, brokerConf=conf))
    assert without == [row for row in expected if row["kind"] == "plain"]
    assert without == list(slow_units(lost.root))


def test_zeros_in_holes_of_the_file_are_holes_in_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "consumequeue" / "orders" / "0" / "00000000000000000000"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(2_000_000)
        for ordinal in (0, 70_000):
            file.seek(ordinal * 20)
            file.write(consumequeue.unit(ordinal, 100, 1))
    reader = reader_of(ConsumeQueueDataSource, tmp_path, blanks="true")
    assert [(row["kind"], row["queueOffset"]) for row in rows_of(reader)] == [
        ("plain", 0),
        *(("hole", ordinal) for ordinal in range(1, 70_000)),
        ("plain", 70_000),
    ]
    assert [row["queueOffset"] for row in rows_of(reader_of(ConsumeQueueDataSource, tmp_path))] == [0, 70_000]


@pytest.mark.parametrize("name", ["5.5.0-batch-queue", "5.5.0-filter-bit-maps", "4.9.7-dledger", "5.3.3-lmq"])
def test_filters_choose_the_same_rows_as_a_slow_look_at_each(name: str, tmp_path: Path) -> None:
    store, conf = golden(name, tmp_path)
    told = {"brokerConf": conf, "rocketmqVersion": store.version}
    messages = rows_of(reader_of(CommitLogDataSource, store.root, **told))
    for kind in (CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource):
        every = rows_of(reader_of(kind, store.root, **told))
        order = ("physicalOffset",) if "file" not in every[0] else ("file", "ordinal")
        middle = sorted(message["storeTimestamp"] for message in messages)[len(messages) // 2]
        picked = every[len(every) // 3]
        for filters in (
            [
                EqualTo((column,), picked[column])
                for column in ("topic", "queueId")
                if picked.get(column) is not None
            ],
            [GreaterThanOrEqual(("storeTimestamp",), middle), IsNotNull(("storeTimestamp",))],
            [LessThan(("storeTimestamp",), middle + timedelta(microseconds=1))],
            [EqualTo(("physicalOffset",), picked["physicalOffset"])],
            [In(("physicalOffset",), (*(row["physicalOffset"] for row in every[::7]), None))],
            [GreaterThanOrEqual(("queueOffset",), 5), LessThan(("queueOffset",), 9)],
            [EqualTo(("store",), str(store.root))],
            [EqualTo(("store",), "/elsewhere")],
            [EqualTo(("physicalOffset",), -1)],
        ):
            filters = [one for one in filters if one.attribute[0] in {**picked, "store": ""}]  # type: ignore[attr-defined]
            reader = reader_of(kind, store.root, **told)
            expected = [row for row in every if all(fits(row, one, str(store.root)) for one in filters)]
            assert in_order(rows_of(reader, *filters), *order) == in_order(expected, *order), filters


def fits(row: Row, one: Any, store: str) -> bool:
    """Whether a filter is true of a row, as SQL has it."""
    value = {"store": store, **row}[one.attribute[0]]
    if value is None:
        return False
    match one:
        case EqualTo():
            return bool(value == one.value)
        case In():
            return value in [other for other in one.value if other is not None]
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
    return True


# What can't be read.


def test_wrong_lengths_of_index_files_name_the_setting(tmp_path: Path) -> None:
    store, _ = golden("5.5.0-mixed", tmp_path)
    (conf := tmp_path / "other.conf").touch()
    with pytest.raises(StoreError, match=r"index/\d{17}: the index file has another length .*maxHashSlotNum"):
        reader_of(IndexDataSource, store.root, brokerConf=conf).partitions()


def test_an_index_header_that_cannot_be_is_named(tmp_path: Path) -> None:
    store, conf = golden("5.5.0-mixed", tmp_path)
    path = min((store.root / "index").iterdir())
    with path.open("r+b") as file:
        file.seek(36)
        file.write((1 << 30).to_bytes(4, "big"))
    with pytest.raises(StoreError, match=rf"{path} at offset 36: .* expected an indexCount of 0 to 400"):
        reader_of(IndexDataSource, store.root, brokerConf=conf).partitions()


@pytest.mark.parametrize("length", [0, 5000])
def test_a_file_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    """Its rows would be missing, and nobody be told."""
    store, conf = golden("5.5.0-mixed", tmp_path)
    kinds = ((ConsumeQueueDataSource, "consumequeue/Orders/0", 1), (IndexDataSource, "index", 0))
    for kind, name, more in kinds:
        path = min((store.root / name).iterdir())
        whole = path.read_bytes()
        os.truncate(path, length + more)
        with pytest.raises(
            StoreError, match=rf"{path}: .* has another length .* found {length + more} bytes"
        ):
            reader_of(kind, store.root, brokerConf=conf).partitions()
        path.write_bytes(whole)
        assert reader_of(kind, store.root, brokerConf=conf).partitions()


def test_a_queue_file_where_no_unit_begins_is_named(tmp_path: Path) -> None:
    path = tmp_path / "consumequeue" / "orders" / "0" / "00000000000000000030"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(6_000_000))
    with pytest.raises(StoreError, match=r"orders/0/0{18}30: no unit of the queue begins .* multiple of 20"):
        reader_of(ConsumeQueueDataSource, tmp_path).partitions()


def test_a_file_that_is_gone_when_it_is_read_is_named(tmp_path: Path) -> None:
    store, conf = golden("5.5.0-mixed", tmp_path)
    for kind, name in ((ConsumeQueueDataSource, "consumequeue"), (IndexDataSource, "index")):
        reader = reader_of(kind, store.root, brokerConf=conf)
        partitions = reader.partitions()
        shutil.rmtree(store.root / name)
        with pytest.raises(StoreError, match=rf"{store.root}/{name}/.* can't be read; found No such file"):
            list(reader.read(partitions[0]))


def test_what_is_no_queue_is_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "consumequeue"
    (root / "orders" / "0" / "a directory").mkdir(parents=True)
    (root / "orders" / "x").mkdir()
    (root / "orders" / "99999999999").mkdir()
    (root / "a file").write_bytes(b"x")
    (root / "orders" / "0" / "notes").write_bytes(b"x" * 20)
    assert rows_of(reader_of(ConsumeQueueDataSource, tmp_path)) == []
    assert rows_of(reader_of(IndexDataSource, tmp_path)) == []


def test_a_queue_id_is_as_a_broker_writes_it(tmp_path: Path) -> None:
    """A broker takes 007 for 7, and opens 7: what lies in 007 is nobody's."""
    for name in ("-1", "7", "007", "+1"):
        queue = tmp_path / "consumequeue" / "orders" / name
        queue.mkdir(parents=True)
        (queue / "0".zfill(20)).write_bytes(consumequeue.unit(0, 100, 0))
    found = [row["queueId"] for row in rows_of(reader_of(ConsumeQueueDataSource, tmp_path))]
    assert sorted(found) == [-1, 7]
    dumped = [place.queue_id for place in queue_places(tmp_path) if place.queue_id is not None]
    assert sorted(dumped) == [-1, 7]


# Several directories of one log, and several stores.


def test_segments_in_several_directories_are_one_log(tmp_path: Path) -> None:
    store, conf = golden("5.3.3-mixed", tmp_path / "store")
    told: dict[str, object] = {"brokerConf": conf, "rocketmqVersion": store.version}
    every = rows_of(reader_of(CommitLogDataSource, store.root, **told))
    segments = sorted((store.root / "commitlog").iterdir())
    assert len(segments) > 3
    (tmp_path / "second").mkdir()
    for segment in segments[1::2]:
        segment.rename(tmp_path / "second" / segment.name)
    lines = [
        line for line in conf.read_text(encoding="utf-8").splitlines() if "storePathCommitLog" not in line
    ]
    lines.append(f"storePathCommitLog={store.root}/commitlog,{tmp_path}/second")
    conf.write_text("\n".join(lines), encoding="utf-8")
    assert rows_of(reader_of(CommitLogDataSource, store.root, **told)) == every
    for row in every[:: len(every) // 5]:
        wanted = EqualTo(("physicalOffset",), row["physicalOffset"])
        assert rows_of(reader_of(CommitLogDataSource, store.root, **told), wanted) == [row]


def test_several_stores_are_one_table(tmp_path: Path) -> None:
    stores = [unpack(name, tmp_path / "stores" / name) for name in ("4.9.7-tiny", "5.3.3-tiny")]
    for store in stores:
        store.write_broker_conf()
    told: dict[str, object] = {"brokerConf": "{store}/broker.conf", "storeColumn": "true"}
    roots = [str(store.root) for store in stores]
    for kind in (CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource):
        options = told if kind is CommitLogDataSource else {"brokerConf": told["brokerConf"]}
        singly = [rows_of(reader_of(kind, root, **options)) for root in roots]
        assert all(singly)
        for path in (",".join(roots), f"{tmp_path}/stores/*/", f"{roots[0]}, {tmp_path}/stores/5*"):
            together = rows_of(reader_of(kind, path, **options))
            assert [[row for row in together if row["store"] == root] for root in roots] == singly
            assert len(together) == len(singly[0]) + len(singly[1])
        if kind is CommitLogDataSource:
            parts = reader_of(kind, ",".join(roots), content="parts", brokerConf=told["brokerConf"])
            stores_of_parts = {Path(part["path"]).parents[1] for part in rows_of(parts)}
            assert stores_of_parts == {store.root for store in stores}
        listed = reader_of(kind, "", paths=f'["{roots[0]}", "{roots[1]}"]', **options)
        assert rows_of(listed, EqualTo(("store",), roots[1])) == singly[1]


def test_a_store_that_cannot_be_read_is_named_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = unpack("5.3.3-tiny", tmp_path / "good")
    good.write_broker_conf()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broker.conf").write_text("", encoding="utf-8")
    (tmp_path / "worse").mkdir()
    options: dict[str, object] = {"brokerConf": "{store}/broker.conf"}
    path = f"{good.root},{tmp_path}/bad"
    with pytest.raises(StoreError, match=f"{tmp_path}/bad/commitlog: the commit log can't be read"):
        reader_of(CommitLogDataSource, path, **options).partitions()
    with pytest.raises(SettingsError, match=f"{tmp_path}/worse/broker.conf: this broker.conf can't be read"):
        reader_of(CommitLogDataSource, f"{path},{tmp_path}/worse", **options)
    found = rows_of(reader_of(CommitLogDataSource, f"{path},{tmp_path}/worse", badStores="skip", **options))
    assert found == rows_of(reader_of(CommitLogDataSource, good.root, **options))
    assert [record.message[:20] for record in caplog.records] == ["a store is left out:"] * 2
    with pytest.raises(ReputError, match=f"{tmp_path}/bad/commitlog"):
        reader_of(CommitLogDataSource, f"{tmp_path}/bad", badStores="skip", **options).partitions()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"badStores": "ignore"}, "badStores isn't one of its two words; expected fail or skip"),
        ({"timeSlack": "10"}, "timeSlack isn't a time; expected .* e.g. 10m, found '10'"),
        ({"blanks": "1"}, "blanks isn't a switch"),
        ({"paths": "[1,"}, "paths can't be read"),
        ({"path": "/nowhere/*"}, r"/nowhere/\*: no directory matches"),
        ({"path": ", ,"}, "the source needs a path"),
        ({"content": "parts"}, "the source has no such option; .* found content"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ConsumeQueueDataSource({"path": "store", **options})


def test_a_name_with_commas_and_stars_is_a_name(tmp_path: Path) -> None:
    store = unpack("5.3.3-tiny", tmp_path / "a,b*[c]")
    for kind in (CommitLogDataSource, ConsumeQueueDataSource):
        assert rows_of(reader_of(kind, store.root))


def test_a_stream_follows_one_store(tmp_path: Path) -> None:
    source = CommitLogDataSource({"path": f"{tmp_path}/a,{tmp_path}/b"})
    with pytest.raises(SettingsError, match="a stream follows one store"):
        source.streamReader(source.schema())


def test_a_directory_that_is_no_store_is_named(tmp_path: Path) -> None:
    for kind in (ConsumeQueueDataSource, IndexDataSource):
        with pytest.raises(StoreError, match=f"{tmp_path}/none: there is no store here"):
            reader_of(kind, tmp_path / "none").partitions()


# Partitions.


def test_partitions_are_bounded_and_none_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, conf = golden("5.5.0-mixed", tmp_path)
    for kind in (ConsumeQueueDataSource, IndexDataSource):
        whole = reader_of(kind, store.root, brokerConf=conf)
        assert len(whole.partitions()) == 1
        expected = rows_of(whole)
        monkeypatch.setattr(ranges, "BATCH", 7)
        several = reader_of(kind, store.root, brokerConf=conf, partBytes=3000)
        assert len(several.partitions()) > 10
        assert rows_of(several) == expected
        assert list(several.read(InputPartition(None))) == []


def test_rows_have_sparks_own_types(tmp_path: Path) -> None:
    store, conf = golden("5.5.0-tiny", tmp_path)
    for kind, columns in ((ConsumeQueueDataSource, QUEUE_COLUMNS), (IndexDataSource, INDEX_COLUMNS)):
        reader = reader_of(kind, store.root, brokerConf=conf)
        for partition in reader.partitions():
            for batch in reader.read(partition):
                assert batch.schema == arrow_schema(tuple(columns), columns)


WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "delta"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoSpark())
import reput

store = reput.open(sys.argv[1], rocketmq_version="5.3.3")
orders = store.arrow(["queueId", "queueOffset"], where=[("topic", "=", "Orders")])
print(orders.read_all().num_rows, store.arrow().read_pandas().shape)
print(*(store.arrow(source=f"rocketmq-{name}").read_all().num_rows for name in ("consumequeue", "index")))
"""


def test_the_tables_without_spark(tmp_path: Path) -> None:
    store = unpack("5.3.3-mixed", tmp_path / "store")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(store.root)], capture_output=True, text=True, check=True
    )
    counts = [len(rows_of(reader_of(kind, store.root))) for kind in (ConsumeQueueDataSource, IndexDataSource)]
    assert run.stdout == f"457 (847, 19)\n{counts[0]} {counts[1]}\n"


def test_an_arrow_table_refuses_as_spark_does(tmp_path: Path) -> None:
    store = unpack("5.3.3-tiny", tmp_path / "store")
    with pytest.raises(SettingsError, match=r"no such column; expected one of .* found colour"):
        read_arrow(store.root, ["colour"])
    with pytest.raises(SettingsError, match="no such source; expected one of rocketmq-commitlog, "):
        read_arrow(store.root, source="parquet")
    with pytest.raises(SettingsError, match="where can't ask for this column"):
        read_arrow(store.root, where=[("keys", "=", "7")])
    with pytest.raises(SettingsError, match=r"no such column; expected one of path, .* found topic"):
        read_arrow(store.root, ["topic"], content="parts")
    with pytest.raises(ReputError, match="the commit log can't be read"):
        read_arrow(tmp_path / "none")
    with pytest.raises(SettingsError, match=r"readReport can't be written; .* found File exists"):
        read_arrow(store.root, readReport=__file__)


def test_parts_are_an_arrow_table_too(tmp_path: Path) -> None:
    store = unpack("5.3.3-tiny", tmp_path / "store")
    parts = read_arrow(store.root, content="parts").read_all().to_pylist()
    assert {Path(part["path"]).parent for part in parts} == {store.root / "commitlog"}
    some = read_arrow(store.root, ["end", "start"], content="parts").read_all().to_pylist()
    assert some == [{"end": part["end"], "start": part["start"]} for part in parts]


@pytest.mark.parametrize("source", [NAME, QUEUES, INDEX])
def test_a_path_that_is_not_utf8(source: str, tmp_path: Path) -> None:
    store = unpack("5.3.3-tiny", tmp_path / os.fsdecode(b"caf\xe9"))
    stores = read_arrow(store.root, ["store"], source=source).read_all()
    assert set(stores["store"].to_pylist()) == {str(tmp_path / "caf\ufffd")}
