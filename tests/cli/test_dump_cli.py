"""``reput dump``: output, exit codes, pipes, refusals."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from reput.cli.dump_lines import Lines
from reput.format import commitlog, innerbatch, names
from reput.format.commitlog import Record
from tests.golden.store import GoldenStore, unpack
from tests.local import write_store
from tests.property.logs import lay_out
from tests.rebuilds import LIB, Command, broker_conf, golden, tree

_PAGE = Path(__file__).parents[2] / "docs" / "look.md"
_EXAMPLE = re.compile(r"^\$ (reput dump .*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-lost-head", tmp_path)


def options(store: GoldenStore) -> tuple[str, ...]:
    return "--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version


def damaged(root: Path) -> Path:
    """A copy with another magic in the record at 134044."""
    copy = root.with_name("damaged")
    shutil.copytree(root, copy)
    with (copy / names.COMMIT_LOG / names.offset_name(131072)).open("r+b") as file:
        file.seek(134044 - 131072 + commitlog.MAGIC)
        file.write(b"\0\0\0\1")
    return copy


@pytest.mark.slow
def test_the_examples_of_its_page(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    roots = {"STORE": store.root, "DAMAGED": damaged(store.root)}
    roots["ROCKSDBSTORE"] = unpack("5.5.0-rocksdb-index", tmp_path / "indexed").root / names.ROCKSDB_STORE
    roots["SETTINGS"] = unpack("5.5.0-rocksdb-settings-v2", tmp_path / "settings").root
    before = [tree(root) for root in roots.values()]
    examples = _EXAMPLE.findall(_PAGE.read_text(encoding="utf-8"))
    assert len(examples) >= 7
    for command, shown in examples:
        _, _, kind, which, *words = shlex.split(command)
        more = options(store) if kind in ("commitlog", "index") and which != "ROCKSDBSTORE" else ()
        outcome = reput("dump", kind, roots[which], *words, *more)
        assert outcome.stdout.replace(str(roots[which]), which) == shown, command
        assert outcome.code == (which == "DAMAGED"), command
    assert [tree(root) for root in roots.values()] == before


def test_several_tags(reput: Command, store: GoldenStore) -> None:
    """One spelling, and one meaning, as in ``query``."""
    one, other, both, every, all_of_it = (
        reput("dump", "commitlog", store.root, *options(store), *words).stdout.splitlines()
        for words in (
            ("--tags", "TagA"), ("--tags", "TagB"), ("--tags", " TagB||TagA "), ("--tags", "*"), (),
        )
    )  # fmt: skip
    assert len(one) > 1 < len(other)
    assert sorted(both) == sorted(one + other)
    assert every == all_of_it
    refused = reput("dump", "commitlog", store.root, *options(store), "--tags", "||")
    assert (refused.code, "the tag expression names no tag" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_json_lines_say_what_they_are(reput: Command, store: GoldenStore) -> None:
    def lines(*words: str | Path) -> list[dict[str, object]]:
        outcome = reput("dump", *words, "--json")
        assert outcome.code in (0, 1)
        return [json.loads(line) for line in outcome.stdout.splitlines()]

    log = lines("commitlog", damaged(store.root), *options(store), "--all")
    assert {str(line["type"]) for line in log} == {"message", "damage", "blank", "unwritten"}
    (damage,) = [line for line in log if line["type"] == "damage"]
    assert (damage["kind"], damage["physical_offset"], damage["physical_end"]) == (
        "bad-magic",
        134044,
        134201,
    )
    places = [int(str(line["physical_offset"])) for line in log]
    assert places == sorted(places)
    sums = lines("commitlog", store.root, *options(store), "--stats", "--topic", "t", "--topic", "Late")
    assert [line.get("topic") for line in sums] == ["t", "Late", None]
    assert [line["type"] for line in sums] == ["topic", "topic", "total"]
    assert {line["type"] for line in lines("consumequeue", store.root, "--all")} == {
        "unit", "pre-blank", "unwritten",
    }  # fmt: skip
    index = lines("index", store.root, "--key", "t#order", *options(store))
    assert {line["type"] for line in index} == {"index", "slot", "entry"}
    assert [line["ordinal"] for line in index if line.get("matches")] == [23]
    (checkpoint,) = lines("checkpoint", store.root)
    assert checkpoint["logics_msg_timestamp"] == 1795257420646


def test_limits_and_what_is_not_printed(reput: Command, store: GoldenStore) -> None:
    def count(*words: str) -> int:
        return len(reput("dump", *words).stdout.splitlines())

    root = str(store.root)
    assert count("commitlog", root, *options(store)) == 225
    assert count("commitlog", root, *options(store), "--limit", "7") == 7
    assert count("commitlog", root, *options(store), "-n", "3", "--topic", "t") == 3
    assert count("consumequeue", root, "--limit", "7", "--queue", "Orders") == 7 + 1  # and pre-blanks
    assert count("index", root, *options(store), "--limit", "5") == 5 + 1
    assert count("index", root, *options(store), "--headers") == 2
    assert count("index", root, *options(store), "--headers", "--limit", "1") == 1
    for kind in ("commitlog", "consumequeue", "index"):
        more = () if kind == "consumequeue" else options(store)
        assert reput("dump", kind, root, "--quiet", *more).stdout == ""
    found = reput("dump", "commitlog", damaged(store.root), "--quiet", *options(store))
    assert (found.code, found.stdout.count("\n")) == (1, 1)
    sums = reput("dump", "commitlog", root, "--stats", "--limit", "9", *options(store)).stdout
    assert re.search(r"^ +9 .* all topics$", sums, re.MULTILINE)
    assert (
        reput("dump", "commitlog", root, "--stats", "--key", "nosuch", *options(store)).stdout
        == "no message\n"
    )


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ("0", [len(zlib.compress(b"0" * 2000)), 1023, 1024, 1025]),
        ("1023", [1024, 1025]),
        ("1k", [1025]),
        ("1025", []),
        ("999999999t", []),
    ],
)
def test_only_larger_bodies(reput: Command, tmp_path: Path, size: str, shown: list[int]) -> None:
    """As they are stored: the first one would have 2,000 bytes uncompressed."""
    packed = Record(b"t", zlib.compress(b"0" * 2000), sys_flag=0x1)
    log = [packed, *(Record(b"t", b"x" * length) for length in (0, 1023, 1024, 1025))]
    write_store(tmp_path, [(0, lay_out(log, zeros=50))])
    asked = (tmp_path, "--body-size-over", size)
    for said in (
        reput("dump", "commitlog", *asked, "--json"),
        reput("export", *asked, "--out", "-"),
    ):
        assert said.code == 0
        found = map(json.loads, said.stdout.splitlines())
        assert [one["body_size"] for one in found if one.get("type") != "nothing"] == shown
    sums = reput("dump", "commitlog", *asked, "--stats").stdout
    assert re.findall(r"^ +(\d+) .* all topics$", sums, re.MULTILINE) == [str(len(shown))] * bool(shown)


@pytest.mark.parametrize(
    ("words", "said", "facts"),
    [
        (
            "commitlog --start 202750",
            "nothing begins at 202750 or later: the log ends at 202750",
            "log past-end",
        ),
        ("commitlog --start 9999999 --quiet", "the log ends at 202750", "log past-end"),
        (
            "commitlog --end 131072 --stats",
            "nothing begins before 131072: the log begins at 131072",
            "log before-start",
        ),
        (
            "commitlog --since 2027-01-01",
            "the log's last message is of 2026-11-21T10:37:00.646Z",
            "log past-end",
        ),
        (
            "commitlog --until 2026-01-01",
            "the log's first message is of 2026-11-21T10:36:56.495Z",
            "log before-start",
        ),
        (
            "commitlog --topic nosuch",
            "no message fits: the log goes from 131072 to 202750, stored from 2026-11-21T10:36:56.495Z to",
            "log no-match",
        ),
        (
            "consumequeue --queue t:0 --start 22",
            "no unit at queueOffset 22 or later: t:0 ends at 22",
            "queue past-end",
        ),
        ("consumequeue --start 99999", "of 21 queues: the longest ends at 316", "queues past-end"),
        ("index --since 2027-01-01", "the index ends at 2026-11-21T10:37:00.646Z", "index past-end"),
        ("index --until 2026-11-21", "the index begins at 2026-11-21T10:36:56.495Z", "index before-start"),
    ],
)
def test_where_nothing_is_it_is_said_where_there_is_something(
    reput: Command, store: GoldenStore, words: str, said: str, facts: str
) -> None:
    kind, *more = words.split()
    more += options(store) if kind != "consumequeue" else ()
    outcome = reput("dump", kind, store.root, *more)
    assert outcome.code == 0
    assert outcome.stderr.startswith("reput: ")
    assert outcome.stderr.count("\n") == 1
    assert said in outcome.stderr
    *_, last = [
        json.loads(line) for line in reput("dump", kind, store.root, *more, "--json").stdout.splitlines()
    ]
    assert (last["type"], f"{last['of']} {last['why']}") == ("nothing", facts)
    assert said in last["message"]


def test_quiet_says_nothing_of_what_does_not_fit(reput: Command, store: GoldenStore) -> None:
    outcome = reput("dump", "commitlog", store.root, "--quiet", "--topic", "nosuch", *options(store))
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "commitlog nothing",
            "there is nothing here; expected a store, a directory of segments, or a segment",
        ),
        ("commitlog STORE/config", "there is no commit log here"),
        ("commitlog STORE/checkpoint", "`reput dump checkpoint "),
        ("commitlog STORE/consumequeue/t/0/00000000000000000000", "`reput dump consumequeue "),
        ("commitlog STORE/index", "`reput dump index "),
        ("consumequeue STORE/commitlog", "`reput dump commitlog "),
        ("consumequeue STORE/commitlog/00000000000000131072", "`reput dump commitlog "),
        ("index STORE/consumequeue/t", "found consume queues"),
        ("checkpoint STORE/commitlog/00000000000000131072", "expected the checkpoint, found the commit log"),
        ("checkpoint STORE/index/20261121103700412", "`reput dump index "),
        ("checkpoint /dev/null", "this is no checkpoint; expected a file"),
        ("commitlog STORE --start 5 --end 4", "expected --start before --end"),
        ("commitlog STORE --start end", "`end` only with --follow"),
        ("commitlog STORE --start x", "--start can't be understood"),
        ("commitlog STORE --queue t --queue-start 4", "expected one --queue TOPIC:ID beside them"),
        ("commitlog STORE --queue-end 4", "expected one --queue TOPIC:ID beside them"),
        (
            "commitlog STORE --queue t:0 --queue-start 4 --queue-end 3",
            "--queue-start before --queue-end",
        ),
        ("commitlog STORE --start 5 --end 5", "expected --start before --end"),
        ("commitlog STORE --queue :x", "a queue can't be understood"),
        ("commitlog STORE --transaction lost", "expected one of none, prepared, commit, rollback"),
        ("commitlog STORE --since 2026", "--since can't be understood"),
        ("commitlog STORE --since 2026-11-22 --until 2026-11-21", "--since before --until"),
        ("commitlog STORE --stats --bodies", "--stats alone"),
        ("commitlog STORE --quiet --all", "--quiet alone"),
        ("commitlog STORE --key ''", "an empty text finds nothing"),
        ("commitlog STORE --body-size-over -1", "--body-size-over can't be understood; expected bytes, or"),
        ("commitlog STORE --body-size-over 1.5k", "--body-size-over can't be understood"),
        ("commitlog STORE --body-size-over ''", "--body-size-over can't be understood"),
        ("commitlog STORE --topic t --topic ''", "--topic is empty"),
        ("commitlog STORE --queue ''", "--queue is empty"),
        ("consumequeue STORE --queue ''", "--queue is empty"),
        ("commitlog STORE --topic x --queue t:0 --queue-start 4", "one --queue TOPIC:ID and no --topic"),
        (f"commitlog STORE/{'x' * 300}", "this can't be read; found File name too long"),
        (f"checkpoint STORE/{'x' * 300}", "this can't be read; found File name too long"),
        ("index STORE/loop", "this can't be read; found Too many levels of symbolic links"),
        ("commitlog STORE/looped", "found a link that leads nowhere"),
        ("consumequeue STORE/pipe", "there is no consume queue here"),
        ("commitlog STORE/pipe", "there is no commit log here"),
        ("commitlog STORE/checkpoint/x", "there is nothing here"),
        ("index STORE --headers --since 2026-11-21", "--headers alone"),
        (
            "commitlog STORE/commitlog/00000000000000131072 --follow",
            "with a store or a directory of segments",
        ),
        ("consumequeue STORE/config", "there is no consume queue here"),
        ("consumequeue STORE --queue nosuch:1", "there is no such queue here"),
        ("consumequeue STORE/checkpoint", "`reput dump checkpoint "),
        ("index STORE --broker-conf /dev/null", "expected 420000040 bytes"),
        ("index STORE --key order", "expected TOPIC#KEY"),
        ("index STORE --key t#order --headers", "expected one of them"),
        ("index STORE/config", "there is no index file here"),
        ("checkpoint STORE/config", "expected a store with a checkpoint, or a checkpoint"),
    ],
)
def test_refusals(reput: Command, store: GoldenStore, words: str, said: str) -> None:
    (store.root / "config").mkdir()
    (store.root / "loop").symlink_to("loop")
    os.mkfifo(store.root / "pipe")
    (store.root / "looped").mkdir()
    (store.root / "looped" / names.offset_name(0)).symlink_to(names.offset_name(0))
    before = list_of(store.root)
    command = [word.replace("STORE", str(store.root)) for word in shlex.split(words)]
    outcome = reput("dump", *command)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    found = reput("dump", *command, "--json")
    assert found.code == 2
    (line,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert (line["type"], line["exit_code"]) == ("error", 2)
    assert said in line["message"]
    assert list_of(store.root) == before


def list_of(root: Path) -> list[tuple[str, int, int]]:
    """What lies in a store, without opening it."""
    found = ((path, path.lstat()) for path in root.rglob("*"))
    return sorted((str(path), status.st_size, status.st_mtime_ns) for path, status in found)


def test_what_may_not_be_looked_into_is_said(
    reput: Command, store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)  # as root may look everywhere
    outcome = reput("dump", "commitlog", store.root)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        f"reput: {store.root / 'commitlog'}: this can't be read; found Permission denied. "
        "Run the same command as root, or as the user that the broker runs as\n"
    )


def test_a_wrong_crc_is_said_before_the_message(reput: Command, tmp_path: Path) -> None:
    log = [Record(b"t", b"one"), Record(b"t", b"two", body_crc=1), Record(b"t", b"three")]
    write_store(tmp_path, [(0, lay_out(log, zeros=50))])
    outcome = reput("dump", "commitlog", tmp_path)
    assert outcome.code == 1
    first, damage, second, third = outcome.stdout.splitlines()
    assert damage.startswith(f"DAMAGE bad-crc at {second.split()[0]} to {third.split()[0]} of ")
    assert first.split()[0] == "0"


def test_bodies_are_uncompressed_and_shown_on_one_line(reput: Command, tmp_path: Path) -> None:
    inner = [
        innerbatch.InnerMessage(0, b"first\nline", b"TAGS\x01a\x02"),
        innerbatch.InnerMessage(0, b"\xff", b""),
    ]
    wrapped = commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP
    log = [
        Record(b"t", b"two\nlines\x1b[31m \xe2\x80\xa8", properties=b"KEYS\x01a \x1b[0m\x02TAGS\x01x=y"),
        Record(b"t", zlib.compress(b"packed"), sys_flag=0x1),
        Record(b"t", b"\xff\x00", sys_flag=0),
        Record(b"t", b"no zlib", sys_flag=0x1),
        Record(b"t", innerbatch.encode(inner), sys_flag=wrapped, queue_offset=40),
    ]
    write_store(tmp_path, [(0, lay_out(log, zeros=50))])
    outcome = reput("dump", "commitlog", tmp_path, "--bodies")
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    assert len(lines) == 5
    assert not any(_CONTROL.search(line) for line in lines)
    assert 'tags="x=y"' in lines[0]
    assert lines[0].endswith(r'body="two\nlines\u001b[31m \u2028"')
    assert 'compressed=ZLIB bodySize=14 body="packed"' in lines[1]
    assert lines[2].endswith("bodyBase64=/wA=")
    assert f"bodyBase64={base64.b64encode(b'no zlib').decode()} bodyProblem=" in lines[3]
    assert lines[4].endswith(r'inner=40:body="first\nline" inner=41:bodyBase64=/w==')
    found = [
        json.loads(line)
        for line in reput("dump", "commitlog", tmp_path, "--bodies", "--json").stdout.splitlines()
    ]
    assert [one.get("body", one.get("body_base64")) for one in found[:3]] == [
        "two\nlines\x1b[31m \u2028", "packed", "/wA=",
    ]  # fmt: skip
    assert "doesn't uncompress" in found[3]["body_problem"]
    assert [one["queue_offset"] for one in found[4]["inner_messages"]] == [40, 41]


def test_colours_are_for_terminals_and_for_those_who_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        said = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.said += text

        def flush(self) -> None:
            pass

    def said() -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        lines = Lines(as_json=False)
        lines.put("DAMAGE \x1b[2J", red=True)
        lines.flush()
        return terminal.said

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert said() == "\x1b[31mDAMAGE \\x1b[2J\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert said() == "DAMAGE \\x1b[2J\n"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert said() == "DAMAGE \\x1b[2J\n"


def process(*words: str | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(LIB), "REPUT_ROCKETMQ_VERSION": "5.5.0"}
    command = [sys.executable, "-m", "reput.cli", "dump", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


@pytest.mark.slow
def test_who_closes_the_pipe_ends_it_quietly(tmp_path: Path) -> None:
    data = lay_out([Record(b"t", b"x" * 100, queue_offset=number) for number in range(5000)])
    write_store(tmp_path, [(0, data)])
    with process("commitlog", tmp_path) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().startswith("0  ")
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(120) == 0


@pytest.mark.slow
def test_who_closes_the_pipe_of_a_quiet_log_ends_it_too(tmp_path: Path) -> None:
    write_store(tmp_path, [(0, lay_out([Record(b"t", b"x"), Record(b"u", b"y")]).ljust(1000, b"\0"))])
    with process("commitlog", tmp_path, "--follow", "--topic", "t") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            assert running.stdout.readline().startswith("0  ")
            running.stdout.close()
            assert running.wait(120) == 0
        finally:
            running.kill()
        assert running.stderr.read() == ""


def test_a_full_disk_is_said_and_is_no_bug(store: GoldenStore) -> None:
    environment = {**os.environ, "PYTHONPATH": str(LIB)}
    command = [sys.executable, "-m", "reput.cli", "dump", "consumequeue", str(store.root)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the result can't be written to stdout; found No space left on device" in done.stderr


@pytest.mark.slow
def test_it_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    log = [
        Record(b"t", b"%d" % number, store_timestamp=number + 1, queue_offset=number) for number in range(4)
    ]
    data = lay_out(log)
    half = len(data) // 2
    write_store(tmp_path, [(0, data[:half].ljust(1000, b"\0"))])
    before = tree(tmp_path)
    with process("commitlog", tmp_path, "--follow", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        found = [json.loads(running.stdout.readline()) for _ in range(2)]
        assert tree(tmp_path) == before
        with (tmp_path / names.COMMIT_LOG / names.offset_name(0)).open("r+b") as file:
            file.write(data)
        found += [json.loads(running.stdout.readline()) for _ in range(2)]
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == ""
        assert running.stderr.read() == ""
        assert running.wait(120) == 0
    assert [one["queue_offset"] for one in found] == [0, 1, 2, 3]


def test_help_shows_examples(reput: Command) -> None:
    shown = reput("dump", "--help")
    assert shown.code == 0
    for kind in ("commitlog", "consumequeue", "index", "checkpoint"):
        assert kind in shown.stdout
        page = reput("dump", kind, "--help")
        assert page.code == 0
        assert f"reput dump {kind}" in page.stdout
