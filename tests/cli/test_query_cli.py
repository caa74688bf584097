"""``reput query``: output and exit codes."""

from __future__ import annotations

import base64
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.cli.times import time_of
from reput.errors import SettingsError
from reput.format import commitlog, innerbatch
from reput.format.commitlog import Record
from tests.golden.store import GoldenStore
from tests.local import write_store
from tests.property.logs import lay_out
from tests.rebuilds import Command, Outcome, broker_conf, golden, run, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = Path(__file__).parents[2] / "docs" / "look.md"
_EXAMPLE = re.compile(r"^\$ (reput query .*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-lost-head", tmp_path)


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    def no_spark() -> SparkSession:
        raise AssertionError("Spark was to be started")

    command = Command(monkeypatch, no_spark)
    yield command
    assert command.sessions == 0


def query(command: Callable[..., Outcome], store: GoldenStore, *words: str) -> Outcome:
    options = ("--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version)
    return command("query", store.root, *options, *words)


def test_the_examples_of_its_page(reput: Command, store: GoldenStore) -> None:
    examples = _EXAMPLE.findall(_PAGE.read_text(encoding="utf-8"))
    assert len(examples) >= 3
    before = tree(store.root)
    for command, shown in examples:
        _, _, _, *words = shlex.split(command)
        assert query(reput, store, *words).stdout == shown, command
    assert tree(store.root) == before


@pytest.mark.slow
def test_found_not_found_and_refused(reput: Command, store: GoldenStore) -> None:
    found = query(run, store, "--offset", "134044", "--bodies", "--json")
    assert found.code == 0
    answer = json.loads(found.stdout)
    assert (answer["exit_code"], answer["found"], answer["why"]) == (0, True, None)
    (message,) = answer["messages"]
    assert (message["physical_offset"], message["keys"], message["verdict"]) == (134044, ["order"], "MATCH")
    assert len(message["body"]) == message["body_size"] == 2
    missing = query(reput, store, "--queue", "t:1", "--at", "0", "--json")
    assert missing.code == 1
    answer = json.loads(missing.stdout)
    assert (answer["status"], answer["next_begin_offset"], answer["messages"]) == ("OFFSET_TOO_SMALL", 12, [])
    refused = query(reput, store, "--key", "order")
    assert refused.code == 2
    assert "expected --topic beside it" in refused.stderr


@pytest.mark.parametrize("sound", [True, False])
def test_a_batch_and_the_messages_in_it(reput: Command, tmp_path: Path, sound: bool) -> None:
    inner = [
        innerbatch.InnerMessage(0, b"first\nline", b"TAGS\x01a\nb\x02KEYS\x01k l\x02"),
        innerbatch.InnerMessage(0, b"\xff", b""),
    ]
    one = commitlog.Record(
        b"t",
        innerbatch.encode(inner)[: None if sound else -1],
        properties=b"INNER_NUM\x012\x02INNER_BASE\x0140\x02",
        queue_offset=40,
        sys_flag=commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP,
        store_timestamp=1,
    )
    write_store(tmp_path, [(0, commitlog.encode(one))])
    command = ("query", str(tmp_path), "--rocketmq-version", "5.3.3", "--offset", "0", "--bodies")
    shown, document = reput(*command), reput(*command, "--json")
    assert shown.code == document.code == (0 if sound else 1)
    assert "  batch      of 2 messages, 40 to 41\n" in shown.stdout
    (found,) = json.loads(document.stdout)["messages"]
    assert found["batch"] == {"base_offset": 40, "messages": 2}
    if sound:
        assert "body" not in found
        assert [(each["queue_offset"], each["tags"]) for each in found["inner_messages"]] == [
            (40, "a\nb"),
            (41, None),
        ]
        assert [each.get("body_base64", each.get("body")) for each in found["inner_messages"]] == [
            "first\nline",
            "/w==",
        ]
        assert shown.stdout.endswith(
            "  holds      queueOffset 40, tags a\\nb, keys k l, 10 bytes\n"
            "             first\n             line\n"
            "  holds      queueOffset 41, 1 byte\n"
            "  base64     /w==\n"
        )
    else:
        assert base64.b64decode(found["body_base64"]) == one.body
        assert "no whole message at byte" in found["body_problem"]


def test_a_time_in_all_queues_of_a_topic(reput: Command, store: GoldenStore) -> None:
    """Each queue's answer is that of the queue alone, also where it has no message there."""
    words = ("--time", "2026-11-21T10:36:56.506Z", "--boundary", "lower")
    both = query(reput, store, "--topic", "t", *words, "--json")
    facts = json.loads(both.stdout)
    lines, messages = [], []
    assert [one["queue_id"] for one in facts["queues"]] == [0, 1, 2, 3]
    for one in facts["queues"]:
        queue = ("--queue", f"t:{one['queue_id']}", *words)
        alone = json.loads(query(reput, store, *queue, "--json").stdout)
        assert all(alone[name] == value for name, value in one.items() if name != "queue_id")
        lines += [f"Queue {one['queue_id']}", *query(reput, store, *queue).stdout.splitlines()]
        messages += alone["messages"]
    assert (both.code, facts["found"], facts["messages"]) == (0, True, messages)
    assert query(reput, store, "--topic", "t", *words).stdout.splitlines() == lines

    after = query(reput, store, "--topic", "t", "--time", "2030-01-01", "--json")
    facts = json.loads(after.stdout)
    assert (after.code, facts["why"]) == (1, "none of the topic's queues has a message there")
    assert all("a broker answers with queueOffset" in one["why"] for one in facts["queues"])
    none = query(reput, store, "--topic", "Order", "--time", "0")
    assert (none.code, none.stdout) == (1, "Not found: there is no such topic; did you mean Orders?\n")


QUEUE = ("--queue", "t:0")
KEY = ("--topic", "t", "--key", "k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "expected one of --offset, --id, --key, --queue, or --time with --topic, found none"),
        (("--offset", "1", "--key", "k"), "found --offset and --key"),
        (("--offset", "1", "--limit", "5"), "expected --key or --at beside it, found --limit"),
        (
            ("--id", "0", "--since", "0", "--until", "0"),
            "expected --key beside them, found --since and --until",
        ),
        ((*QUEUE, "--index-type", "T"), "expected --key beside it, found --index-type"),
        (("--offset", "1", "--at", "5"), "expected --queue beside it, found --at"),
        ((*KEY, "--boundary", "upper"), "expected --queue or --topic beside it, found --boundary"),
        (("--time", "0"), "or --time with --topic, found none"),
        (("--topic", "t"), "or --time with --topic, found none"),
        (("--topic", "t", "--time", "0", "--at", "1"), "expected --queue beside it, found --at"),
        ((*KEY, "--time", "0"), "expected --queue or --topic beside it, found --time"),
        ((*QUEUE, "--limit", "5"), "expected --key or --at beside it, found --limit"),
        ((*QUEUE, "--tags", "a"), "expected --at beside it, found --tags"),
        (
            (*QUEUE, "--time", "0", "--tags", "a"),
            "expected --at instead of --time beside it, found --tags",
        ),
        ((*QUEUE, "--time", "0", "--limit", "5"), "expected --key or --at beside it, found --limit"),
        ((*QUEUE, "--at", "0", "--time", "0"), "expected one of them, found --at and --time"),
        ((*QUEUE, "--at", "0", "--boundary", "lower"), "expected --time beside it, found --boundary"),
        ((*QUEUE, "--bodies"), "expected --at or --time beside --queue"),
        ((*QUEUE, "--topic", "t"), "expected --key, --id or --time beside it, found --topic"),
        (("--offset", "1", "--topic", "t"), "expected --key, --id or --time beside it, found --topic"),
        (("--key", "k"), "expected --topic beside it: keys are indexed by topic, found --key alone"),
        (("--queue", "t"), "expected TOPIC:ID, e.g. orders:3, found t"),
        ((*QUEUE, "--time", "soon"), "--time can't be understood"),
        (
            (*KEY, "--since", "2026-11-21T10:00", "--until", "2026-11-21T10:00"),
            "found --since 2026-11-21T10:00, which isn't before --until 2026-11-21T10:00",
        ),
    ],
)
def test_options_that_have_no_meaning_together(reput: Command, words: tuple[str, ...], said: str) -> None:
    refused = reput("query", "/nowhere", *words)
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1795257416506", 1795257416506),
        ("2026-11-21", 1795219200000),
        ("20261121", 1795219200000),
        ("2026-11-21T10:36:56.506Z", 1795257416506),
        ("20261121T103656.506Z", 1795257416506),
        ("2026-11-21 11:36:56.506+01:00", 1795257416506),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_of("--time", text) == ms


@pytest.mark.parametrize(
    "text", ["1", "-1", "1795257416", "20261121103656", "20261121103656506", "٣", "", "x"]
)
def test_numbers_that_may_be_anything_are_no_times(text: str) -> None:
    with pytest.raises(SettingsError, match="expected ms since 1970 in 13 digits") as error:
        time_of("--time", text)
    assert (error.value.next_step is not None) is (text == "1795257416")


def damaged(root: Path) -> list[int]:
    """A store of three messages with the same tag, the second's body cut off; their physical offsets."""
    places, log = [], b""
    for n, body in enumerate((b"first\nline", zlib.compress(b"second" * 50)[:-6], b"third")):
        places.append(len(log))
        log += commitlog.encode(
            commitlog.Record(
                b"t\x1b[31m",
                body,
                b"TAGS\x01a\n  queue      forged\x02KEYS\x01k\x07\r\x02",
                queue_offset=n,
                physical_offset=len(log),
                sys_flag=n % 2,
            )
        )
    write_store(root, [(0, log)])
    return places


def test_a_body_that_is_cut_off_is_said_of_its_message(reput: Command, tmp_path: Path) -> None:
    _, second, third = damaged(tmp_path)
    words = ("query", tmp_path, "--offset", second, "--bodies")
    shown = reput(*words)
    assert shown.code == 1
    assert "  base64     eJ" in shown.stdout
    problem = (
        f"offset {second}: the body doesn't uncompress; expected ZLIB data to their end, by the message's "
        "sysFlag, found the data are cut off, after "
    )
    assert f"  but        {problem}" in shown.stdout
    answer = json.loads(reput(*words, "--json").stdout)
    (message,) = answer["messages"]
    assert (answer["exit_code"], answer["found"]) == (1, True)
    assert message["body_problem"].startswith(problem)
    assert message["body_problem"].endswith("; shown as it is stored")
    assert base64.b64decode(message["body_base64"]) == zlib.compress(b"second" * 50)[:-6]
    assert reput(*words[:-1]).code == 0, "nobody asked for the body"
    assert "body_problem" not in reput("query", tmp_path, "--offset", third, "--bodies", "--json").stdout


def test_a_body_with_a_wrong_crc(reput: Command, tmp_path: Path) -> None:
    first, *_ = damaged(tmp_path)
    segment = next((tmp_path / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"first", b"First"))
    words = ("query", tmp_path, "--offset", first)
    assert [reput(*words).code, reput(*words, "--bodies").code] == [0, 1]
    assert "  but        the body doesn't have its CRC" in reput(*words).stdout


def test_no_text_of_a_store_begins_a_line(reput: Command, tmp_path: Path) -> None:
    first, *_ = damaged(tmp_path)
    shown = reput("query", tmp_path, "--offset", first, "--bodies").stdout
    assert [line[:13] for line in shown.splitlines()] == [
        "Stored 1970-0",
        *(f"  {what:<10} " for what in ("queue", "place", "tags", "keys", "id", "body", "")),
        " " * 13,
    ]
    assert "t\\x1b[31m:0" in shown
    assert "a\\n  queue      forged" in shown
    assert "k\\x07\\r" in shown
    assert "             first\n             line\n" in shown
    (message,) = json.loads(reput("query", tmp_path, "--offset", first, "--json").stdout)["messages"]
    assert (message["topic"], message["tags"]) == ("t\x1b[31m", "a\n  queue      forged")


def test_one_bad_body_does_not_end_the_answer(
    reput: Command, store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--queue", "t:0", "--at", "17", "--limit", "3", "--bodies", "--json")
    whole = json.loads(query(reput, store, *words).stdout)
    assert whole["exit_code"] == 0
    assert len(whole["messages"]) > 1
    real = commitlog.decode

    def packed(view: memoryview, position: int) -> commitlog.Record:
        one = real(view, position)
        return replace(one, sys_flag=one.sys_flag | 1) if one.queue_offset == 17 else one

    monkeypatch.setattr(commitlog, "decode", packed)
    found = query(reput, store, *words)
    assert found.code == 1
    one, *others = json.loads(found.stdout)["messages"]
    assert "body_problem" in one
    assert [other["body"] for other in others] == [other["body"] for other in whole["messages"][1:]]


def test_one_message_goes_into_files(reput: Command, tmp_path: Path) -> None:
    log = [
        Record(b"t", b"first", queue_offset=0),
        Record(b"t", zlib.compress(b"second"), sys_flag=1, queue_offset=1),
    ]
    (tmp_path / "store").mkdir()
    write_store(tmp_path / "store", [(0, lay_out(log))])
    before = (tmp_path / "store" / "commitlog" / "0".zfill(20)).read_bytes()
    first = int.from_bytes(before[:4], "big")
    second = int.from_bytes(before[first : first + 4], "big")
    to = ("--body-to", tmp_path / "body", "--record-to", tmp_path / "record")
    assert reput("query", tmp_path / "store", "--offset", str(first), *to).code == 0
    assert (tmp_path / "body").read_bytes() == b"second"
    assert (tmp_path / "record").read_bytes() == before[first : first + second]
    one = ("--body-to", tmp_path / "one", "--record-to", tmp_path / "." / "one")
    both = reput("query", tmp_path / "store", "--offset", "0", *one)
    assert (both.code, "name one file" in both.stderr, (tmp_path / "one").exists()) == (2, True, False)
    again = reput("query", tmp_path / "store", "--offset", "0", *to)
    assert (again.code, "is there already" in again.stderr) == (2, True)
    inside = reput("query", tmp_path / "store", "--offset", "0", "--body-to", tmp_path / "store" / "x")
    assert (inside.code, "into a store" in inside.stderr) == (2, True)
    missing = reput("query", tmp_path / "store", "--offset", "1", "--body-to", tmp_path / "other")
    assert (missing.code, (tmp_path / "other").exists()) == (1, False)
