"""Logs that DLedger writes: where they are, what is committed, what damage costs."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError, UnsupportedError
from reput.format import commitlog, dledger, names
from reput.format.commitlog import Record
from reput.log import segments
from reput.log.end import LogEnd
from reput.log.segments import CommitLog, committed_end, cut, discover
from reput.query.ask import by_key, by_offset, by_queue
from reput.query.store import QueryStore
from reput.source import messages
from tests import encoders
from tests.compat.conf import conf_text
from tests.local import Store, rebuild_locally, units

SEGMENT = 1000
CONF = {
    "enableDLegerCommitLog": True,
    "dLegerSelfId": "n0",
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 100,
    "maxHashSlotNum": 7,
    "maxIndexNum": 9,
}
ALONE = "n0-127.0.0.1:40911"
GROUP = f"{ALONE};n1-127.0.0.1:40912;n2-127.0.0.1:40913"


class Log:
    """A store as a member of a group has it; entries are of 233 bytes, so that four fill a segment."""

    def __init__(self, root: Path, *, old_segments: int = 0) -> None:
        self.root = root
        self.home = root / "dledger-n0"
        self.places: list[tuple[int, int]] = []
        self._segments: dict[Path, bytearray] = {}
        self._end = 0
        self._index = 0
        for _ in range(old_segments):
            self._old_segment()

    def append(self, count: int) -> None:
        for _ in range(count):
            left = SEGMENT - self._end % SEGMENT
            if 233 + 8 > left:
                self._write(self.home / "data", encoders.entry_blank(left))
            place = self._end
            body = self._record(place + dledger.HEADER_LENGTH)
            self._write(self.home / "data", encoders.entry_header(body, self._index, 3, place) + body)
            self.places.append((place + dledger.HEADER_LENGTH, len(body)))
            self._index += 1

    def save(self, *, committed: int | None = None) -> None:
        for path, data in self._segments.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(data).ljust(SEGMENT, b"\0"))
        if committed is not None:
            self.home.mkdir(parents=True, exist_ok=True)
            text = f"committedIndex={committed}\nendIndex={self._index - 1}\n"
            (self.home / "checkpoint").write_text(text)

    def damage(self, offset: int, data: bytes) -> None:
        path = self.home / "data" / names.offset_name(offset - offset % SEGMENT)
        at = offset % SEGMENT
        self._segments[path][at : at + len(data)] = data

    def settings(self, peers: str = ALONE, **changes: object) -> StoreSettings:
        conf = self.root.parent / "broker.conf"
        conf.write_text(conf_text({**CONF, "dLegerPeers": peers, **changes}))
        return StoreSettings.load(self.root, conf, None, dledger=True)

    def open(self, peers: str = ALONE) -> CommitLog:
        return discover(self.settings(peers))

    def _record(self, place: int) -> bytes:
        number = len(self.places)
        record = Record(
            topic=b"T",
            body=b"%03d" % number * 20,
            properties=b"KEYS\x01k%03d\x02TAGS\x01tag\x02UNIQ_KEY\x01u%03d\x02" % (number, number),
            queue_offset=number,
            physical_offset=place,
            store_timestamp=1_700_000_000_000 + number,
        )
        data = commitlog.encode(record)
        assert len(data) == 185
        return data

    def _old_segment(self) -> None:
        directory = self.root / names.COMMIT_LOG
        while SEGMENT - self._end % SEGMENT >= 185 + commitlog.BLANK_LENGTH:
            data = self._record(self._end)
            self.places.append((self._end, len(data)))
            self._write(directory, data)
        self._write(directory, commitlog.encode_blank(SEGMENT - self._end % SEGMENT))

    def _write(self, directory: Path, data: bytes) -> None:
        path = directory / names.offset_name(self._end - self._end % SEGMENT)
        self._segments.setdefault(path, bytearray()).extend(data)
        self._end += len(data)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def rebuilt(
    log: Log, out: Path, peers: str = ALONE, part_bytes: int = 300
) -> tuple[list[tuple[int, int]], list]:
    """(physical offset, size) of each unit in the one queue, and the findings."""
    store = Store(log.root, log.settings(peers))
    state = rebuild_locally(store, out, part_bytes=part_bytes)
    found = [unit[:2] for unit in units(out, "T")] if state.queues else []
    return [unit for unit in found if unit[1]], state.findings


# --- Where it is -----------------------------------------------------------------------------------------


def test_the_log_is_in_the_members_own_directory(log: Log) -> None:
    log.append(9)
    log.save()
    found = log.open()
    assert [segment.path for segment in found.segments] == [
        log.home / "data" / names.offset_name(base) for base in (0, 1000, 2000)
    ]
    assert found.entries
    assert found.findings == ()


def test_a_directory_of_broker_conf_is_looked_for_under_the_store(log: Log) -> None:
    log.root.mkdir()
    for text, expected in (("/s/raft", ["raft"]), ("/s/a,/s/b", ["a", "b"])):
        settings = log.settings(
            storePathRootDir="/s", storePathDLedgerCommitLog=text, storePathCommitLog="/s/commitlog"
        )
        assert settings.commit_log_dirs == tuple(log.root / name for name in expected)


def test_several_directories_take_read_only_ones_along(log: Log) -> None:
    log.root.mkdir()
    several = {
        "storePathRootDir": "/s",
        "storePathDLedgerCommitLog": "/s/a,/s/b",
        "readOnlyCommitLogStorePaths": "/s/c",
    }
    assert log.settings(**several).commit_log_dirs == tuple(log.root / name for name in "abc")
    several["storePathDLedgerCommitLog"] = "/s/a"
    assert log.settings(**several).commit_log_dirs == (log.root / "a",)


def test_an_older_log_comes_before_dledgers(tmp_path: Path) -> None:
    log = Log(tmp_path / "store", old_segments=2)
    log.append(7)
    log.save()
    found, findings = rebuilt(log, tmp_path / "out")
    assert found == log.places
    assert findings == []
    assert {segment.path.parent.name for segment in log.open().segments} == {names.COMMIT_LOG, "data"}


# --- What is taken ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part_bytes", [100, 300, 10_000])
def test_units_lead_to_records_not_to_entries(log: Log, tmp_path: Path, part_bytes: int) -> None:
    log.append(11)
    log.save()
    found, findings = rebuilt(log, tmp_path / "out", part_bytes=part_bytes)
    assert found == log.places
    assert findings == []


def test_the_source_reads_what_the_rebuild_takes(log: Log) -> None:
    log.append(11)
    log.save()
    settings = log.settings()
    found = discover(settings)
    end = LogEnd(settings).find(found)
    assert end == sum(log.places[-1])
    rows = [
        row
        for part in cut(found, 0, end, 300, None)
        for batch in messages.read(part, settings)
        for row in batch.to_pylist()
    ]
    assert [row["physicalOffset"] for row in rows] == [place for place, _ in log.places]
    assert [row["queueOffset"] for row in rows] == list(range(11))


def test_only_what_the_group_has_committed_is_taken(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.save(committed=5)
    found, findings = rebuilt(log, tmp_path / "out", GROUP)
    assert found == log.places[:6]
    (finding,) = findings
    assert finding.kind == "uncommitted-entries"
    assert finding.offset == log.places[6][0] - dledger.HEADER_LENGTH
    assert finding.path.endswith(names.offset_name(1000))


def test_a_later_run_takes_what_has_been_committed_since(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.save(committed=5)
    rebuilt(log, tmp_path / "out", GROUP)
    log.save(committed=10)
    found, _ = rebuilt(log, tmp_path / "out", GROUP)
    assert found == log.places


@pytest.mark.parametrize("committed", [10, 11, 4711])
def test_a_member_that_is_behind_its_group_has_nothing_uncommitted(log: Log, committed: int) -> None:
    log.append(11)
    log.save(committed=committed)
    assert log.open(GROUP) == log.open(ALONE)


def test_a_group_of_one_has_committed_all_it_has_written(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.save(committed=5)
    assert rebuilt(log, tmp_path / "out") == (log.places, [])


def test_a_question_is_told_what_the_group_has_not_committed(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.save(committed=5)
    rebuilt(log, tmp_path / "out")
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.copytree(tmp_path / "out" / name, log.root / name)
    place, end = log.places[7][0], log.places[6][0] - dledger.HEADER_LENGTH
    said = f"the group hasn't committed the message at physical offset {place}, as far as this member knows: "
    said += f"what is committed ends at {end}"
    store = QueryStore(log.settings(GROUP))
    for answer in (
        by_queue(store, "T", 0, 7, None, None),
        by_queue(store, "T", 0, 7, 2, "tag"),
        by_key(store, "T", "k007", None, None),
        by_offset(store, place),
    ):
        assert not answer.found
        assert answer.why is not None
        assert said in answer.why
    assert by_queue(store, "T", 0, 5, None, None).found
    assert by_queue(QueryStore(log.settings()), "T", 0, 7, None, None).found


def test_damage_before_the_end_does_not_hide_it(log: Log) -> None:
    log.append(11)
    log.damage(1000, bytes(300))
    log.save(committed=9)
    assert log.open(GROUP).end == log.places[10][0] - dledger.HEADER_LENGTH


# --- Damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (dledger.MAGIC, "bad-magic"),
        (dledger.SIZE, "bad-size"),
        (dledger.POSITION, "bad-physical-offset"),
        (dledger.BODY_LENGTH, "bad-lengths"),
    ],
)
def test_a_damaged_header_costs_no_message(log: Log, tmp_path: Path, field: int, kind: str) -> None:
    log.append(11)
    entry = log.places[5][0] - dledger.HEADER_LENGTH
    log.damage(entry + field, b"\x7f")
    log.save()
    found, findings = rebuilt(log, tmp_path / "out")
    assert found == log.places
    (finding,) = findings
    assert (finding.kind, finding.offset, finding.end) == (kind, entry, log.places[5][0])


def test_a_damaged_record_costs_that_message_alone(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.damage(log.places[5][0] + commitlog.MAGIC, b"\0")
    log.save()
    found, findings = rebuilt(log, tmp_path / "out")
    # The hole in the queue repeats the next unit.
    assert found == [*log.places[:5], log.places[6], *log.places[6:]]
    kinds = {finding.kind: finding for finding in findings}
    assert (kinds["bad-magic"].offset, kinds["bad-magic"].end) == tuple(
        place - dledger.HEADER_LENGTH for place, _ in log.places[5:7]
    )
    assert "in an entry" in kinds["bad-magic"].found


def test_a_blank_is_known_by_its_size_where_its_magic_is_damaged(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.damage(sum(log.places[3]), b"\x7f")
    log.save()
    found, findings = rebuilt(log, tmp_path / "out")
    assert found == log.places
    assert [finding.kind for finding in findings] == ["bad-magic"]


def test_a_torn_end_is_told_in_entries(log: Log, tmp_path: Path) -> None:
    log.append(11)
    log.damage(log.places[10][0] + 100, bytes(85))
    log.save()
    found, findings = rebuilt(log, tmp_path / "out")
    assert found == log.places[:10]
    (finding,) = findings
    assert finding.kind == "torn-tail"
    assert finding.offset == log.places[10][0] - dledger.HEADER_LENGTH
    assert "entry" in finding.expected


# --- All the error paths ---------------------------------------------------------------------------------


def test_a_reader_has_to_ask_for_it(log: Log, tmp_path: Path) -> None:
    log.append(1)
    log.save()
    log.settings()
    with pytest.raises(
        UnsupportedError, match="enableDLegerCommitLog asks for a commit log that DLedger"
    ) as refused:
        StoreSettings.load(log.root, tmp_path / "broker.conf", None)
    assert "docs/formats/dledger.md" in str(refused.value)


@pytest.mark.parametrize("member", [None, "", "0", "n", "n0/..", "../n0", "n-1"])
def test_a_member_without_a_name_is_refused(log: Log, tmp_path: Path, member: str | None) -> None:
    conf = tmp_path / "broker.conf"
    given = {name: value for name, value in CONF.items() if name != "dLegerSelfId"}
    if member is not None:
        given["dLegerSelfId"] = member
    conf.write_text(conf_text(given))
    with pytest.raises(SettingsError, match="dLegerSelfId doesn't name a member"):
        StoreSettings.load(log.root, conf, None, dledger=True)


@pytest.mark.parametrize("text", [None, "endIndex=3\n", "committedIndex=\n", "committedIndex=many\n"])
def test_a_group_without_its_checkpoint_is_refused(log: Log, text: str | None) -> None:
    log.append(3)
    log.save()
    if text is not None:
        (log.home / "checkpoint").write_text(text)
    with pytest.raises(StoreError, match="it can't be told which entries the group has committed"):
        log.open(GROUP)


def test_a_log_without_a_committed_entry_is_refused(log: Log) -> None:
    log.append(3)
    log.save(committed=-1)
    with pytest.raises(StoreError, match="nothing in this commit log is committed"):
        log.open(GROUP)


def test_a_segment_that_was_made_ahead_of_time_is_passed_over_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is committed the entry of index 0 is looked for: eight zeros, among a GiB of them."""
    size, read = 1 << 30, []
    entry = encoders.entry_header(b"record", 0, 1, size - 4096) + b"record"
    path = tmp_path / names.offset_name(0)
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - 4096)
        file.write(entry)

    def pread(descriptor: int, count: int, at: int) -> bytes:
        read.append(count)
        return real(descriptor, count, at)

    real = os.pread
    monkeypatch.setattr(os, "pread", pread)
    assert committed_end([(str(path), 0, size)], -1) == size - 4096
    assert sum(read) < 1 << 20
    assert segments.candidates(bytes(1 << 20), 1 << 20, 0) == []


def test_the_first_entry_after_an_index_is_found_as_by_looking_at_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_LOOK_AT", 64)
    path, base = tmp_path / "segment", 5000
    for seed in range(40):
        random = Random(seed)
        data = bytearray(random.choices([0, 0, 0, 1], k=random.randrange(40, 600)))
        for index in range(3):
            at = random.randrange(len(data))
            head = encoders.entry_header(b"", index, 1, base + at + random.choice([0, 0, 1]))
            data[at : at + len(head)] = head[: len(data) - at]
        path.write_bytes(data)
        for index in range(3):
            found = (at for at in range(len(data)) if dledger.entry_index(data, at, base) == index)
            expected = next((base + at for at in found), None)
            if (dledger.entry_index(data, 0, base) or 0) <= index:
                assert committed_end([(str(path), base, len(data))], index - 1) == expected


def test_a_missing_log_is_named(log: Log) -> None:
    log.root.mkdir()
    with pytest.raises(StoreError, match="dledger-n0/data"):
        log.open()


# --- The header ------------------------------------------------------------------------------------------


def test_an_entry_is_known_by_its_own_place() -> None:
    body = commitlog.encode(Record(b"T"))
    header = encoders.entry_header(body, 4711, 2, 5000)
    assert len(header) == dledger.HEADER_LENGTH
    assert dledger.entry_index(header, 0, 5000) == 4711
    assert dledger.entry_index(header, 0, 5001) is None
    assert dledger.entry_index(header[:-1], 0, 5000) is None
    assert dledger.entry_index(b"xx" + header, 2, 4998) == 4711
    assert dledger.record_at(header + body, 0) == dledger.HEADER_LENGTH
    assert dledger.record_at(body, 0) == 0
    assert dledger.frame_size(header + body, 0) == len(header + body)
    assert dledger.frame_size(body, 0) == len(body)


def test_rules_of_a_plain_log_know_no_entries(tmp_path: Path) -> None:
    plain = StoreSettings.load(tmp_path, None, None)
    assert not plain.entries
    assert "dledger" not in plain.describe()
    other = replace(plain, dledger=Log(tmp_path / "store").settings().dledger)
    assert other.fingerprint() != plain.fingerprint()
