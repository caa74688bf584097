"""What is told of an output, whatever became of its writer."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from reput.catalog.table import APPLICATION
from reput.cli.tail import _lines
from reput.errors import JournalError, OutputError
from reput.format import names
from reput.format.commitlog import Record, encode
from reput.job import TailOptions
from reput.job.plan import intended, prepare
from reput.job.status import DIED, RUNNING, STOPPED, RunNote, Status, TableNote, look
from reput.log.end import Lag, LagProbe
from reput.output.writer import BatchWriter
from reput.replay.state import Opening, State
from reput.store.lock import OutputLock
from reput.store.system import human
from tests.local import Runner, open_store, parts_of, rebuild_locally, tree
from tests.stores import LogWriter

NOW = int(time.time() * 1000)


def message(number: int, stored: int) -> Record:
    return Record(b"T", b"body", b"KEYS\1k%d\2" % number, queue_offset=number, store_timestamp=stored)


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """Messages over two segments, a second apart, the last one stored ten seconds ago."""
    writer = LogWriter(tmp_path / "store")
    writer.append(*(message(number, NOW - 20_000 + 1000 * number) for number in range(11)))
    return writer


@pytest.fixture
def out(log: LogWriter, tmp_path: Path) -> Path:
    """An output with all of the log, in two batches."""
    store = open_store(log.root)
    end = log.records[5].physical_offset
    rebuild_locally(store, tmp_path / "out", ends=[end, log.end], ledger=True)
    return tmp_path / "out"


def test_an_output_at_rest(log: LogWriter, out: Path) -> None:
    before = tree(out)
    status = look(out)
    assert tree(out) == before, "nothing was written"
    assert (status.state, status.holder, status.exit_code) == (STOPPED, None, 0)
    assert (status.opening.store, status.opening.start, status.committed.cursor) == (
        str(log.root),
        0,
        log.end,
    )
    assert status.committed.last_timestamp == log.records[-1].store_timestamp
    assert NOW <= status.last_commit_ms <= time.time() * 1000
    done = status.committed
    assert (done.batches, done.messages, len(done.queues), done.units) == (2, 11, 1, 11)
    assert (len(done.index), done.index_entries) == (2, 11)
    assert (status.ledger_batches, status.ledger_problem) == (2, None)
    assert (status.lag, status.log_problem) == (Lag(log.end, 0, 0), None)
    assert status.disk_bytes.keys() == {names.CONSUME_QUEUE, names.INDEX, names.LEDGER, names.REPUT}
    assert all(status.disk_bytes.values())
    ext = out / names.CONSUME_QUEUE_EXT / "T" / "0" / names.offset_name(0)
    ext.parent.mkdir(parents=True)
    ext.write_bytes(b"x" * 5000)
    assert look(out).disk_bytes[names.CONSUME_QUEUE_EXT] >= 5000
    assert json.loads(json.dumps(status.to_dict()))["offset"] == log.end


def test_the_lag_is_the_logs(log: LogWriter, out: Path) -> None:
    committed = log.end
    log.append(*(message(number, NOW - 5000 + number) for number in range(11, 15)))
    oldest = log.records[11].store_timestamp
    before = int(time.time() * 1000)
    lag = look(out).lag
    assert lag is not None
    assert (lag.end, lag.bytes) == (log.end, log.end - committed)
    assert before - oldest <= lag.ms <= time.time() * 1000 - oldest


def test_a_store_that_was_moved(log: LogWriter, tmp_path: Path) -> None:
    """A run that accepts it writes its place down; one that is refused doesn't."""
    store, there, out = log.root, tmp_path / "there", tmp_path / "out"
    with prepare(intended(TailOptions(store, out), follows=True)) as plan:
        writer = BatchWriter(plan.target(flush_in_tasks=False), plan.journal, plan.log, Runner())
        writer.begin()
        writer.write(parts_of(plan.log, 0, log.end, 1 << 20, 0), 0)
        writer.finish()
    store.rename(there)
    assert look(out).log_problem
    with (
        pytest.raises(OutputError, match="other settings"),
        prepare(intended(TailOptions(there, out, index=False), follows=True)),
    ):
        pass
    assert look(out).opening.store == str(store)
    with prepare(intended(TailOptions(there, out), follows=True)):
        pass
    status = look(out)
    assert (status.opening.store, status.log_problem) == (str(there), None)
    assert status.lag == Lag(log.end, 0, 0)
    before = (out / names.REPUT / names.JOURNAL).read_bytes()
    with prepare(intended(TailOptions(there, out), follows=True)):
        pass
    assert (out / names.REPUT / names.JOURNAL).read_bytes() == before


def test_somebody_writes(out: Path) -> None:
    RunNote(7, NOW, metrics="http://127.0.0.1:1/metrics").write(out)
    (out / names.REPUT / names.SCRATCH).mkdir()
    with OutputLock(out):
        status = look(out)
        assert (status.state, status.exit_code) == (RUNNING, 0)
        assert status.holder is not None
        assert status.running is None, "the note is another run's"
        assert status.holder.pid
        note = RunNote(status.holder.pid, NOW, metrics="http://127.0.0.1:1/metrics")
        note.write(out)
        status = look(out)
        assert status.running == note
        assert status.to_dict()["metrics"] == note.metrics
    status = look(out)
    assert (status.state, status.exit_code) == (DIED, 1)


def test_in_the_middle_of_an_append(out: Path) -> None:
    whole = look(out)
    path = out / names.REPUT / names.JOURNAL
    path.write_bytes(path.read_bytes()[:-7])
    cut = look(out)
    assert (whole.committed.batches, cut.committed.batches) == (2, 1)
    assert cut.ledger_batches == 2
    assert cut.lag is not None
    assert cut.lag.bytes > 0


def test_findings(log: LogWriter, tmp_path: Path) -> None:
    log.overwrite(log.records[3].physical_offset + 4, b"????")
    rebuild_locally(open_store(log.root), tmp_path / "out")
    status = look(tmp_path / "out")
    assert status.exit_code == 1
    assert status.finding_counts["bad-magic"] == 1
    assert status.to_dict()["finding_counts"] == status.finding_counts


def gone(log: LogWriter, _out: Path) -> None:
    shutil.rmtree(log.root)


def emptied(log: LogWriter, _out: Path) -> None:
    for path in (log.root / names.COMMIT_LOG).iterdir():
        path.unlink()


def no_conf(_log: LogWriter, out: Path) -> None:
    RunNote(7, NOW, broker_conf="/gone/broker.conf").write(out)


@pytest.mark.parametrize(
    ("change", "said"),
    [(gone, "No such file"), (emptied, "the commit log is empty"), (no_conf, "/gone/broker.conf")],
)
def test_a_log_that_cannot_be_read(log: LogWriter, out: Path, change: object, said: str) -> None:
    assert callable(change)
    change(log, out)
    status = look(out)
    assert status.lag is None
    assert status.log_problem is not None
    assert said in status.log_problem
    assert (status.committed.cursor, status.exit_code) == (log.end, 0)


def test_the_log_went_back(log: LogWriter, out: Path) -> None:
    back = log.records[-2].physical_offset
    log.overwrite(back, bytes(log.end - back))
    status = look(out)
    assert status.lag == Lag(back, 0, 0)
    assert status.log_problem is not None
    assert "went back" in status.log_problem


def test_a_ledger_that_cannot_be_read(out: Path) -> None:
    for path in (out / names.LEDGER / "_delta_log").glob("*.json"):
        path.write_text("{")
    status = look(out)
    assert status.ledger_batches is None
    assert status.ledger_problem
    shutil.rmtree(out / names.LEDGER)
    assert look(out).ledger_batches == 0


def said(status: Status) -> str:
    """The text of ``reput tail --status``."""
    return "\n".join(_lines(status))


def test_the_table_of_messages(out: Path, tmp_path: Path) -> None:
    """What it holds is asked of the table, for others may have brought it further than the tail did."""
    status = look(out)
    assert (status.catalog, status.to_dict()["catalog"]) == (None, None)
    place = tmp_path / "table"
    TableNote(str(place), 2, NOW, "no room").write(out)
    begun = look(out).catalog
    assert begun is not None
    assert (begun.offset, begun.lag_bytes, begun.problem) == (None, status.committed.cursor, None)
    TableNote(str(place)).write(out)
    assert "behind the offset; not yet brought up to date by this tail\n" in said(look(out))
    TableNote(str(place), 2, NOW, "no room").write(out)
    write_deltalake(
        str(place),
        pa.table({"physicalOffset": [0]}),
        commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, 500)]),
    )
    assert look(out).to_dict()["catalog"] == {
        "table": str(place),
        "offset": 500,
        "lag_bytes": status.committed.cursor - 500,
        "last_success_ms": NOW,
        "failures": 2,
        "last_failure": "no room",
        "problem": None,
    }
    text = said(look(out))
    behind = human(status.committed.cursor - 500)
    assert f"  catalog    {place}: {behind} behind the offset; last brought up to date at 20" in text
    assert "    2 failures since the tail began, the last one: no room" in text
    for path in (place / "_delta_log").iterdir():
        path.write_text("{")
    unread = look(out)
    assert unread.catalog is not None
    assert (unread.catalog.offset, unread.catalog.lag_bytes) == (None, None)
    assert "the table can't be read" in str(unread.catalog.problem)
    assert f"  catalog    {place}: can't be read: {unread.catalog.problem}; last brought" in said(unread)
    assert unread.exit_code == 0


def test_a_note_that_cannot_be_read(out: Path) -> None:
    for text in ("", "[]", "{}", '{"table": 1}', '{"table": "a\\u0000"}', '{"table": "a", "failures": "1"}'):
        (out / names.REPUT / names.TABLE).write_text(text)
        assert look(out).catalog is None
    for text in ("", "[]", '{"pid": 1, "what": 2}', '{"pid": 1, "started_ms": 2, "broker_conf": 3}'):
        (out / names.REPUT / names.RUN).write_text(text)
        assert look(out).note is None


def test_no_output(log: LogWriter, out: Path) -> None:
    with pytest.raises(OutputError, match="found a directory without it"):
        look(log.root)
    with pytest.raises(OutputError, match="found nothing"):
        look(out / "gone")
    (out / names.REPUT / names.JOURNAL).write_bytes(b"something else")
    with pytest.raises(JournalError):
        look(out)


def test_the_oldest_waiting_message_may_lie_behind_a_blank_or_damage(log: LogWriter) -> None:
    store = open_store(log.root)
    now = float(NOW)
    probe = LagProbe(store.settings, lambda: now)
    first = log.records[0]
    assert probe.look(0, 0) == Lag(log.end, log.end, NOW - first.store_timestamp)
    (*_, before), (after, *_) = (
        [record for record in log.records if (record.physical_offset < log.segment_size) is first]
        for first in (True, False)
    )
    blank = before.physical_offset + len(encode(before))
    assert blank < log.segment_size - 4
    for cursor in (blank, log.segment_size - 4, log.segment_size):
        lag = probe.look(cursor, 0)
        assert (lag.bytes, lag.ms) == (log.end - cursor, NOW - after.store_timestamp)
    damaged = log.records[3]
    log.overwrite(damaged.physical_offset + 4, b"????")
    lag = probe.look(damaged.physical_offset, log.records[2].store_timestamp)
    assert lag.ms == NOW - log.records[2].store_timestamp, "not older than the one before"
    now += 500
    assert probe.look(0, 0).ms == NOW + 500 - first.store_timestamp


def test_every_field_is_told() -> None:
    """What --json prints is what programs read: nothing of a status is left out."""
    told = {
        "holder": "holder",
        "note": "started_ms",
        "opening": "store",
        "committed": "offset",
        "lag": "lag_bytes",
    }
    done = {
        "start",
        "batches",
        "messages",
        "bytes",
        "queues",
        "units",
        "index_files",
        "index_entries",
        "findings",
    }
    done |= {"last_store_timestamp", "rocketmq_version", "rocketmq_releases"}
    status = Status(Path(), STOPPED, None, None, Opening("", "", 0), State(0), 0)
    assert {told.get(name, name) for name in Status.__slots__} | done <= status.to_dict().keys()
