"""The documentation against what it describes.

A page under docs/formats holds one worked example: a ``text`` block whose first line names a golden store's
file, and whose other lines are the byte offset, the bytes in hexadecimal, and ``field = value``. A line
without a field goes on with the field before it; dots stand for bytes that are left out; ``#`` begins a
remark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from reput.format import (
    batchconsumequeue,
    checkpoint,
    commitlog,
    consumequeue,
    consumequeueext,
    dledger,
    indexfile,
    javastring,
    properties,
)
from tests import encoders, pages
from tests.golden.store import GoldenStore, read_dump, unpack

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FORMATS = DOCS / "formats"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md"])

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"# store (\S+), RocketMQ (\S+), file (\S+)")
_LINE = re.compile(r" *(\d+)  ([0-9a-f]{2}(?: [0-9a-f]{2})*)(?: +(\S.*?) = (.*?)(?: +# (.*))?)?")
_TABLE_ROW = re.compile(r"^\| *(\S+) *\| *([^|]+?) *\| *(\w+)[^|]*\| *`(\w+)` *\|", re.MULTILINE)


@dataclass(slots=True)
class Field:
    """A field of a worked example: where it lies in the file, its bytes, what the page says it means."""

    offset: int
    data: bytes
    name: str
    value: str
    remark: str


@dataclass(slots=True)
class Example:
    """A worked example; ``stretches`` are its fields, those that follow each other without a gap together."""

    store: str
    version: str
    file: str
    stretches: list[list[Field]] = field(default_factory=lambda: [[]])

    @property
    def fields(self) -> list[Field]:
        return [one for stretch in self.stretches for one in stretch]

    def values(self) -> dict[str, str]:
        return {one.name: one.value for one in self.fields}


class Reader:
    """The examples, and the golden files that they were taken from."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stores: dict[str, GoldenStore] = {}

    def example(self, page: str) -> Example:
        """The one example of docs/formats/PAGE."""
        text = (FORMATS / page).read_text(encoding="utf-8")
        blocks = [body for language, body in _BLOCK.findall(text) if language == "text" and "# store" in body]
        assert len(blocks) == 1, f"{page} has {len(blocks)} worked examples"
        first, *lines = blocks[0].splitlines()
        heading = _HEADING.fullmatch(first)
        assert heading, f"{page}: {first!r}"
        example = Example(*heading.groups())
        for line in lines:
            if line.strip() == "...":
                example.stretches.append([])
                continue
            match = _LINE.fullmatch(line)
            assert match, f"{page}: {line!r}"
            offset, data, name, value, remark = match.groups()
            if name is None:
                before = example.stretches[-1][-1]
                assert int(offset) == before.offset + len(before.data), f"{page}: {line!r}"
                before.data += bytes.fromhex(data)
            else:
                example.stretches[-1].append(
                    Field(int(offset), bytes.fromhex(data), name, value, remark or "")
                )
        return example

    def file(self, example: Example) -> bytes:
        """The golden file that an example was taken from."""
        if example.store not in self._stores:
            self._stores[example.store] = unpack(example.store, self._directory / example.store)
        store = self._stores[example.store]
        assert store.version == example.version
        return (store.root / example.file).read_bytes()

    def root(self, example: Example) -> Path:
        """The golden store that an example was taken from."""
        return self._stores[example.store].root

    def config(self, example: Example, name: str) -> int:
        """A number of the settings that the store was written with."""
        return int(str(self._stores[example.store].config[name]))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("golden"))


FORMAT_PAGES = (
    "commitlog.md",
    "consumequeue.md",
    "consumequeueext.md",
    "filter-bit-maps.md",
    "batchconsumequeue.md",
    "indexfile.md",
    "checkpoint.md",
    "dledger.md",
)


def test_every_format_has_a_page() -> None:
    assert {path.name for path in FORMATS.glob("*.md")} == {*FORMAT_PAGES, "rocksdb.md"}


def test_the_keys_and_values_on_the_page_of_rocksdb_are_the_real_stores() -> None:
    text = (FORMATS / "rocksdb.md").read_text(encoding="utf-8")
    blocks = [body for language, body in _BLOCK.findall(text) if language == "text"]
    assert len(blocks) == 3
    for body in blocks:
        first, *lines = body.splitlines()
        heading = re.fullmatch(r"# dump (\S+), (\S+) (\S+)", first)
        assert heading, first
        key, value = (
            bytes.fromhex("".join(re.split(" {2,}", line.strip())[0] for line in lines if indented(line)))
            for indented in (lambda line: line[0] != " ", lambda line: line[0] == " ")
        )
        name, directory, family = heading.groups()
        assert read_dump(name)[directory][family][key] == value


@pytest.mark.parametrize("page", FORMAT_PAGES)
def test_example_is_what_the_real_store_wrote(reader: Reader, page: str) -> None:
    example = reader.example(page)
    data = reader.file(example)
    for stretch in example.stretches:
        at = stretch[0].offset
        for one in stretch:
            assert one.offset == at, f"{one.name} at {one.offset}, the one before ends at {at}"
            at += len(one.data)
            assert data[one.offset : at] == one.data, one.name


@pytest.mark.parametrize("page", FORMAT_PAGES)
def test_example_says_what_its_bytes_mean(reader: Reader, page: str) -> None:
    """Numbers are big-endian and signed, 0x… ones are as they stand, text is UTF-8."""
    for one in reader.example(page).fields:
        if one.value.startswith("0x"):
            assert one.data.hex() == one.value[2:].zfill(2 * len(one.data)), one.name
        elif re.fullmatch(r"-?\d+", one.value):
            assert int.from_bytes(one.data, "big", signed=True) == int(one.value), one.name


@pytest.mark.parametrize("page", FORMAT_PAGES)
def test_example_has_the_fields_of_the_table_in_its_order(reader: Reader, page: str) -> None:
    text = (FORMATS / page).read_text(encoding="utf-8")
    rows = [(offset, size, name) for offset, size, _type, name in _TABLE_ROW.findall(text)]
    assert rows
    example = reader.example(page)
    names = [one.name.split()[-1] for one in example.fields]
    assert set(names) == {name for _, _, name in rows}
    order = [name for _, _, name in rows]
    for stretch in example.stretches:
        places = [order.index(one.name.split()[-1]) for one in stretch]
        # A stretch may hold several units or entries, one after the other.
        assert all(b - a in (0, 1) or b < a for a, b in pairwise(places)), page
    sizes = {name: int(size) for _, size, name in rows if size.isdecimal()}
    for one in example.fields:
        name = one.name.split()[-1]
        assert len(one.data) == sizes.get(name, len(one.data)), name


def test_commitlog_example_by_decoder(reader: Reader) -> None:
    example = reader.example("commitlog.md")
    data = reader.file(example)
    (stretch,) = example.stretches
    start = stretch[0].offset
    raw = b"".join(one.data for one in stretch)
    record = commitlog.decode(data, start)
    base = int(Path(example.file).name)
    values = {one.name: one.value for one in stretch if one.name != "properties"}
    assert values == {
        "totalSize": str(len(raw)),
        "magic": f"0x{commitlog.MAGIC_V1:08x}",
        "bodyCRC": str(record.body_crc),
        "queueId": str(record.queue_id),
        "flag": str(record.flag),
        "queueOffset": str(record.queue_offset),
        "physicalOffset": str(record.physical_offset),
        "sysFlag": str(record.sys_flag),
        "bornTimestamp": str(record.born_timestamp),
        "bornHost": "{}:{}".format(*record.born_host),
        "storeTimestamp": str(record.store_timestamp),
        "storeHost": "{}:{}".format(*record.store_host),
        "reconsumeTimes": str(record.reconsume_times),
        "preparedTransactionOffset": str(record.prepared_transaction_offset),
        "bodyLength": str(len(record.body)),
        "body": record.body.decode(),
        "topicLength": str(len(record.topic)),
        "topic": record.topic.decode(),
        "propertiesLength": str(len(record.properties)),
    }
    assert record.physical_offset == base + start
    assert record.body_crc == commitlog.body_crc(record.body)
    assert [one.value for one in stretch if one.name == "properties"] == [
        f"{name.decode()}: {value.decode()}" for name, value in properties.pairs(record.properties)
    ]
    assert commitlog.encode(record) == raw


def test_commitlog_table_by_constants() -> None:
    text = (FORMATS / "commitlog.md").read_text(encoding="utf-8")
    offsets = {name: int(at) for at, _, _, name in _TABLE_ROW.findall(text) if at.isdecimal()}
    assert offsets == {
        "totalSize": commitlog.TOTAL_SIZE,
        "magic": commitlog.MAGIC,
        "bodyCRC": commitlog.BODY_CRC,
        "queueId": commitlog.QUEUE_ID,
        "flag": commitlog.FLAG,
        "queueOffset": commitlog.QUEUE_OFFSET,
        "physicalOffset": commitlog.PHYSICAL_OFFSET,
        "sysFlag": commitlog.SYS_FLAG,
        "bornTimestamp": commitlog.BORN_TIMESTAMP,
        "bornHost": commitlog.BORN_HOST,
    }
    for value in (commitlog.MAGIC_V1, commitlog.MAGIC_V2, commitlog.MAGIC_BLANK):
        assert f"0x{value:08X}" in text


def test_dledger_example_by_decoder(reader: Reader) -> None:
    example = reader.example("dledger.md")
    data = reader.file(example)
    base = int(Path(example.file).name)
    entry, blank = example.stretches
    start, values = entry[0].offset, {one.name: one.value for one in entry}
    size = int(values["size"])
    assert dledger.entry_index(data, start, base) == int(values["index"])
    assert dledger.frame_size(data, start) == size == dledger.HEADER_LENGTH + int(values["bodyLength"])
    at = dledger.record_at(data, start)
    record = commitlog.decode(data, at)
    assert at == start + dledger.HEADER_LENGTH
    assert record.physical_offset == base + at == int(values["pos"]) + dledger.HEADER_LENGTH
    body = commitlog.encode(record)
    header = encoders.entry_header(body, int(values["index"]), int(values["term"]), base + start)
    assert header + body == data[start : start + size]
    left = int(blank[1].value)
    assert encoders.entry_blank(left)[:8] == data[blank[0].offset : blank[0].offset + 8]
    assert blank[0].offset + left == len(data)


def test_consumequeue_example_by_decoder(reader: Reader) -> None:
    example = reader.example("consumequeue.md")
    data = reader.file(example)
    fields = example.fields
    base = int(Path(example.file).name)
    assert len(fields) % 3 == 0
    units = [fields[at : at + 3] for at in range(0, len(fields), 3)]
    assert len(units) > 1
    for offset, size, tags in units:
        (number,) = {one.name.split()[1] for one in (offset, size, tags)}
        assert offset.offset + base == int(number) * consumequeue.UNIT_LENGTH
        raw = data[offset.offset : offset.offset + consumequeue.UNIT_LENGTH]
        assert consumequeue.UNIT.unpack(raw) == (int(offset.value), int(size.value), int(tags.value))
        if raw == consumequeue.PRE_BLANK:
            continue
        name = _quoted(tags)
        assert raw == consumequeue.unit(int(offset.value), int(size.value), javastring.hash_code(name))
    assert consumequeue.PRE_BLANK in {b"".join(one.data for one in unit) for unit in units}


def test_consumequeue_example_points_to_the_commitlog_example(reader: Reader) -> None:
    record = reader.example("commitlog.md").values()
    queue = reader.example("consumequeue.md")
    unit = f"unit {record['queueOffset']}"
    assert queue.file.startswith(f"consumequeue/{record['topic']}/{record['queueId']}/")
    assert queue.values()[f"{unit} physicalOffset"] == record["physicalOffset"]
    assert queue.values()[f"{unit} size"] == record["totalSize"]


def test_consumequeueext_example_by_decoder(reader: Reader) -> None:
    example = reader.example("consumequeueext.md")
    data, length = reader.file(example), consumequeueext.HEAD_LENGTH
    *fields, mark = example.fields
    for at in range(0, len(fields), 4):
        size, tags, timestamp, _width = fields[at : at + 4]
        number = int(size.name.split()[1])
        assert size.offset == number * length
        unit = encoders.ext_unit(int(tags.value), int(timestamp.value))
        assert unit == data[size.offset : size.offset + length]
        queue = (reader.root(example) / example.file.replace("consumequeue_ext", "consumequeue")).read_bytes()
        found = consumequeue.UNIT.unpack_from(queue, number * consumequeue.UNIT_LENGTH)
        assert found[2] == consumequeueext.address(size.offset)
        assert consumequeueext.place_of(found[2]) == size.offset
    assert mark.data == consumequeueext.END_MARK
    assert mark.offset + length + consumequeueext.END_BLANK > len(data)
    assert consumequeueext.place_of(consumequeueext.MAX_ADDRESS + 1) is None


def test_batchconsumequeue_example_by_decoder(reader: Reader) -> None:
    example = reader.example("batchconsumequeue.md")
    data, length = reader.file(example), batchconsumequeue.UNIT_LENGTH
    for number in range(len(example.fields) // 8):
        values = [int(one.value) for one in example.fields[8 * number : 8 * number + 8]]
        assert values[-2:] == [batchconsumequeue.NOT_COMPACTED, 0]
        assert encoders.batch_unit(*values[:-2]) == data[number * length : (number + 1) * length]


def test_indexfile_example_by_decoder(reader: Reader) -> None:
    example = reader.example("indexfile.md")
    data = reader.file(example)
    slots = reader.config(example, "maxHashSlotNum")
    header = indexfile.IndexHeader.decode(data)
    values = example.values()
    assert {name: value for name, value in values.items() if name.startswith("header ")} == {
        "header beginTimestamp": str(header.begin_timestamp),
        "header endTimestamp": str(header.end_timestamp),
        "header beginPhyOffset": str(header.begin_physical_offset),
        "header endPhyOffset": str(header.end_physical_offset),
        "header hashSlotCount": str(header.slot_count),
        "header indexCount": str(header.index_count),
    }
    entries = [one for one in example.fields if one.name.endswith(" keyHash")]
    assert len(entries) > 1
    for entry in entries:
        ordinal = int(entry.name.split()[1])
        at = indexfile.HEADER_LENGTH + slots * indexfile.SLOT_LENGTH + ordinal * indexfile.ENTRY_LENGTH
        assert entry.offset == at
        parts = {
            "keyHash": (indexfile.KEY_HASH, 4),
            "phyOffset": (indexfile.PHYSICAL_OFFSET, 8),
            "timeDiff": (indexfile.TIME_DIFF, 4),
            "prevIndex": (indexfile.PREVIOUS, 4),
        }
        for name, (offset, size) in parts.items():
            stored = int.from_bytes(data[at + offset : at + offset + size], "big")
            assert values[f"entry {ordinal} {name}"] == str(stored)
        key_hash = indexfile.key_hash(javastring.hash_code(_quoted(entry)))
        assert entry.value == str(key_hash)
        slot = key_hash % slots
        slot_at = indexfile.HEADER_LENGTH + slot * indexfile.SLOT_LENGTH
        (line,) = [one for one in example.fields if one.name == f"slot {slot} indexOrdinal"]
        assert line.offset == slot_at


def test_indexfile_example_holds_the_keys_of_the_commitlog_example(reader: Reader) -> None:
    record = reader.example("commitlog.md")
    named = dict(one.value.split(": ") for one in record.fields if one.name == "properties")
    topic, position = record.values()["topic"], record.values()["physicalOffset"]
    example = reader.example("indexfile.md")
    keys = [
        _quoted(one).decode()
        for one in example.fields
        if one.name.endswith(" keyHash")
        and example.values()[one.name.replace("keyHash", "phyOffset")] == position
    ]
    assert keys == [f"{topic}#{named['UNIQ_KEY']}", f"{topic}#{named['KEYS']}"]


def test_checkpoint_example_by_decoder(reader: Reader) -> None:
    example = reader.example("checkpoint.md")
    data = reader.file(example)
    found = checkpoint.StoreCheckpoint.decode(data)
    assert example.values() == {
        "physicMsgTimestamp": str(found.physic_msg_timestamp),
        "logicsMsgTimestamp": str(found.logics_msg_timestamp),
        "indexMsgTimestamp": str(found.index_msg_timestamp),
        "masterFlushedOffset": str(found.master_flushed_offset),
        "confirmPhyOffset": str(found.confirm_physical_offset),
        "logicsPhysicalOffset": str(found.logics_physical_offset),
    }
    assert found.encode() == data


def _quoted(one: Field) -> bytes:
    """The text in the quotes of a field's remark."""
    match = re.search(r'"(.*)"', one.remark)
    assert match, f"{one.name} has no text in quotes"
    return match[1].encode()


def _anchors(page: Path) -> set[str]:
    return {anchor for _, anchor in pages.headings(pages.prose(page))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for path, anchor in pages.links(pages.prose(page)):
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT)
        if not inside or not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


def test_index_names_every_page() -> None:
    index = DOCS / "README.md"
    named = {path for path, _ in pages.links(pages.prose(index))}
    found = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page != index}
    assert {page for page in found if not page.startswith("adr/")} <= named


def test_decisions_are_numbered_and_short() -> None:
    """Each number stands in the list; a replaced decision's leads to the page that replaced it."""
    index = (DOCS / "data" / "decisions.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(\d{4})\]\(../adr/([^)]+)\)", index, re.MULTILINE)
    assert [number for number, _ in listed] == [f"{number:04}" for number in range(1, len(listed) + 1)]
    assert all(number <= name[:4] for number, name in listed)
    for page in sorted((DOCS / "adr").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]} "), page.name
        assert text.split("\n\n")[1].startswith("Accepted."), page.name
        assert len(text.split()) <= 140, page.name


def test_each_sentence_about_security_has_its_test() -> None:
    """Or says that it has none."""
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    sentences = re.findall(r"^- (.*?)(?=^- |^$)", text, re.MULTILINE | re.DOTALL)
    assert len(sentences) > 20
    for sentence in sentences:
        module = ""
        found = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", sentence)
        assert found or "No test" in sentence, sentence
        for given, name in found:
            module = given or module
            assert f"def {name}(" in (ROOT / module).read_text(encoding="utf-8"), (module, name)


def test_pages_stay_short() -> None:
    """Words of the pages, without what is data, and of what a newcomer reads."""

    def words(*found: Path) -> int:
        return sum(len(page.read_text(encoding="utf-8").split()) for page in found)

    def section(page: Path, heading: str) -> int:
        return len(
            page.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0].split()
        )

    data, readme = DOCS / "data", (ROOT / "README.md").read_text(encoding="utf-8")
    assert (
        words(*(page for page in PAGES if data not in page.parents and page.name != "CONTRIBUTING.md"))
        < 50_000
    )
    to_mend = len(readme.partition("\n## What else it does")[0].split())
    assert to_mend + words(DOCS / "quickstart.md", DOCS / "howto.md") <= 3_000
    assert words(DOCS / "cluster.md") + section(DOCS / "install.md", "One file for a broker's host") <= 1_500
    assert words(ROOT / "ARCHITECTURE.md") < 600
