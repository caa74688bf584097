"""``reput resend`` as it is typed, as far as no broker is asked."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.export import send as run_module
from reput.export.outgoing import Outgoing
from reput.export.records import Apart
from reput.export.send import MOST_REPEATED, ResendOptions, resend
from reput.export.write import STORE, ExportOptions, export
from reput.format import commitlog
from reput.format.commitlog import Record
from tests.rebuilds import Command, tree
from tests.stores import LogWriter


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An export of ten messages, two of which aren't sent without being asked for."""
    log = LogWriter(tmp_path / "store")
    for n in range(8):
        log.append(Record(b"Orders" if n % 2 else b"Audit", b"body %d" % n, queue_id=n % 4, queue_offset=n))
    log.append(Record(b"RMQ_SYS_TRANS_HALF_TOPIC", b"half", b"REAL_TOPIC\x01Orders\x02"))
    log.append(Record(commitlog.SCHEDULE_TOPIC, b"late", b"REAL_TOPIC\x01Orders\x02DELAY\x013\x02"))
    out = tmp_path / "export.jsonl"
    export(ExportOptions(log.root, out))
    everything = frozenset(Apart)
    export(ExportOptions(log.root, tmp_path / "small", form=STORE, included=everything))
    return out


def test_a_dry_run_says_what_would_be_sent_and_writes_nothing(reput: Command, file: Path) -> None:
    before = tree(file.parent)
    said = reput("resend", file, "--dry-run")
    assert said.code == 1
    assert said.stdout.startswith(f"Nothing was sent. Would send 8 messages of {file}\n")
    assert "4 Audit" in said.stdout
    assert "1 half, from " in said.stdout
    assert "(--half includes them)" in said.stdout
    for source in (file, file.with_name("small")):
        document = json.loads(reput("resend", source, "--dry-run", "--half", "--delayed", "--json").stdout)
        assert (document["exit_code"], document["messages"], document["dry_run"]) == (0, 10, True)
        assert document["topics"] == {"Orders": 6, "Audit": 4}
    to_one = json.loads(reput("resend", file, "--dry-run", "--to-topic", "new", "--json").stdout)
    assert to_one["topics"] == {"new": 8}
    assert tree(file.parent) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--name-server HOST:PORT"),
        (["--name-server", "here"], "--name-server can't be understood"),
        (["--name-server", "127.0.0.1:1;"], "--name-server can't be understood"),
        (["--name-server", "127.0.0.1:1"], "which client to send with"),
        (["--name-server", "127.0.0.1:1", "--client", "."], "no RocketMQ client"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(
    reput: Command, file: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("REPUT_ROCKETMQ_VERSION", raising=False)
    monkeypatch.chdir(file.parent)
    before = tree(file.parent)
    outcome = reput("resend", file, *words)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    assert tree(file.parent) == before


def test_a_line_that_is_none_is_named(reput: Command, file: Path) -> None:
    whole = file.read_bytes()
    for data, at in ((whole + b"{}\n", len(whole)), (whole[:-1], whole.rindex(b"\n", 0, -1) + 1)):
        file.write_bytes(data)
        outcome = reput("resend", file, "--dry-run")
        assert outcome.code == 2
        assert f"{file} at offset {at}: this is no line of an export" in outcome.stderr


def test_files_that_are_not_there(reput: Command, tmp_path: Path) -> None:
    for source in (tmp_path / "no.jsonl", tmp_path):
        assert reput("resend", source, "--dry-run").code == 2


class Recorder:
    """Takes what a client would send; fails when it has taken so many messages."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.sent: list[Outgoing] = []
        self._left = fails_after

    def __call__(self, *_: object) -> Recorder:
        return self

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queue_of(self, topic: str, queue_id: int) -> tuple[str, int]:
        return "b", queue_id

    def send(self, messages: list[Outgoing]) -> int:
        for one in messages:
            if self._left == 0:
                raise KeyboardInterrupt
            if self._left is not None:
                self._left -= 1
            self.sent.append(one)
        return 0


@pytest.mark.parametrize("form", ["lines", "store"])
def test_a_run_goes_on_where_one_was_broken_off(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path / "store", segment_size=20_000)
    count = 3 * MOST_REPEATED + 7
    for n in range(count):
        log.append(Record(b"t", b"%d" % n, queue_offset=n))
    source = log.root
    if form == "lines":
        source = tmp_path / "export.jsonl"
        export(ExportOptions(log.root, source))
    monkeypatch.setattr(run_module, "client_jars", lambda *_: [])
    options = ResendOptions(source, "127.0.0.1:1")
    sent: list[bytes] = []
    breaks = 0
    for fails_after in (5, MOST_REPEATED + 5, 1, None):
        recorder = Recorder(fails_after)
        monkeypatch.setattr(run_module, "Client", recorder)
        if fails_after is None:
            last = resend(options)
        else:
            breaks += 1
            with pytest.raises(KeyboardInterrupt):
                resend(options)
        sent += [one.inner.body for one in recorder.sent]
    assert list(dict.fromkeys(sent)) == [b"%d" % n for n in range(count)]
    assert 0 < len(sent) - count <= breaks * MOST_REPEATED
    assert last.sent + last.sent_before == count
    again = resend(options)
    assert (again.sent, again.sent_before) == (0, count)
    # Other messages in the same place aren't taken for these.
    if form == "store":
        log.overwrite(log.records[-1].physical_offset + commitlog.FLAG, b"\0\0\0\7")
    else:
        source.write_bytes(source.read_bytes().replace(b'"flag": 0', b'"flag": 7'))
    with pytest.raises(Exception, match="begun to send"):
        resend(options)


def test_what_was_left_out_isnt_forgotten(
    reput: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "client_jars", lambda *_: [])
    monkeypatch.setattr(run_module, "Client", Recorder())
    words = ("resend", file, "--name-server", "127.0.0.1:1")
    first, second = reput(*words), reput(*words)
    assert first.stdout.startswith(f"Sent 8 messages of {file} to 127.0.0.1:1\n")
    assert second.stdout.startswith(f"Nothing to do: {file} was sent before\n")
    assert "8 messages, by earlier runs, which left out 2: " in second.stdout
    assert (first.code, second.code) == (1, 1)
    other = reput(*words, "--half")
    assert other.code == 2
    assert "included ['half'], and there []" in other.stderr


def test_a_rate_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(run_module, "client_jars", lambda *_: [])
    monkeypatch.setattr(run_module, "Client", Recorder())
    # Not the module's own: threads of others sleep, too.
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept), time=time.time)
    monkeypatch.setattr(run_module, "time", clock)
    resend(ResendOptions(file, "127.0.0.1:1", rate=2))
    assert sum(slept) == pytest.approx(3, abs=0.1), "four times two messages, the first two at once"


def test_damage_is_not_forgotten_where_a_run_goes_on(
    reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path / "store", segment_size=20_000)
    for n in range(12):
        log.append(Record(b"t", b"%d" % n, queue_offset=n))
    for n in (3, 4, 9):
        log.overwrite(log.records[n].physical_offset, b"\xff" * 40)
    monkeypatch.setattr(run_module, "client_jars", lambda *_: [])
    monkeypatch.setattr(run_module, "MOST_REPEATED", 1)
    words = ["resend", log.root, "--name-server", "127.0.0.1:1", "--rocketmq-version", "5.3.3"]
    damaged = []
    for taken in range(10):
        options = ResendOptions(log.root, "127.0.0.1:1", position=tmp_path / f"{taken}", version="5.3.3")
        monkeypatch.setattr(run_module, "Client", Recorder(taken))
        with suppress(KeyboardInterrupt):
            resend(options)
        said = reput(*words, "--position", options.position or "", "--dry-run", "--json")
        found = json.loads(said.stdout)
        damaged.append((found["findings_before"], len(found["findings"])))
        assert (said.code, found["sent_before"]) == (1, taken)
    assert damaged == [(0, 2)] * 4 + [(1, 1)] * 4 + [(2, 0)] * 2
    said = reput(*words, "--position", tmp_path / "9", "--dry-run")
    assert "  damage     2 damaged places met by earlier runs\n" in said.stdout


def test_a_topic_or_a_file_that_cannot_be_meant(reput: Command, file: Path, tmp_path: Path) -> None:
    for topic in ("a/b", "x" * 128, "SCHEDULE_TOPIC_XXXX"):
        refused = reput("resend", file, "--dry-run", "--to-topic", topic)
        assert (refused.code, "no topic that clients can send to" in refused.stderr) == (2, True)
    refused = reput("resend", tmp_path / "nowhere", "--dry-run")
    assert (refused.code, refused.stderr.partition("Check the ")[2].split()[0]) == (2, "FILE")
