"""config/topics.json, as fastjson writes it, and its backup."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from reput.config.kept import TopicsNow, batch_queue_topics, known_topics
from reput.errors import SettingsError
from reput.replay.target import LiveSelection

# Written by TopicConfigSerializeWrapper.toJson(true) of RocketMQ 4.9.7.
WRITTEN_BY_4_9_7 = """{
\t"dataVersion":{
\t\t"counter":0,
\t\t"timestamp":1795254735183
\t},
\t"topicConfigTable":{
\t\t"TopicTest":{
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":16,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":16
\t\t},
\t\t"主题\\"x":{
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":16,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"主题\\"x",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":16
\t\t}
\t}
}"""

# Written by the same class of RocketMQ 5.3.3 and, but for the timestamp, of 5.5.0.
WRITTEN_BY_5_3_3 = """{
\t"dataVersion":{
\t\t"counter":0,
\t\t"stateVersion":0,
\t\t"timestamp":1795254736468
\t},
\t"topicConfigTable":{
\t\t"TopicTest":{
\t\t\t"attributes":{
\t\t\t\t"message.type":"NORMAL",
\t\t\t\t"queue.type":"BatchCQ"
\t\t\t},
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":16,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":16
\t\t},
\t\t"Other":{
\t\t\t"attributes":{},
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":16,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"Other",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":16
\t\t}
\t}
}"""


@pytest.fixture
def topics_json(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "topics.json"


def table(**topics: object) -> str:
    return json.dumps({"topicConfigTable": topics})


def backup(path: Path) -> Path:
    return path.with_name("topics.json.bak")


def test_a_file_of_4_9_7(topics_json: Path) -> None:
    topics_json.write_text(WRITTEN_BY_4_9_7, encoding="utf-8")
    assert known_topics(topics_json) == {"TopicTest", '主题"x'}
    assert batch_queue_topics(topics_json) == set()


def test_a_file_of_5_x(topics_json: Path) -> None:
    topics_json.write_text(WRITTEN_BY_5_3_3, encoding="utf-8")
    assert known_topics(topics_json) == {"TopicTest", "Other"}
    assert batch_queue_topics(topics_json) == {"TopicTest"}


@pytest.mark.parametrize(
    "attributes",
    [{"queue.type": "SimpleCQ"}, {"queue.type": "batchcq"}, {"+queue.type": "BatchCQ"}, {}, None, []],
)
def test_other_queue_types_are_not_batch(topics_json: Path, attributes: object) -> None:
    topics_json.write_text(table(a={"attributes": attributes}))
    assert batch_queue_topics(topics_json) == set()


def test_nothing_is_known_without_a_file(tmp_path: Path) -> None:
    assert known_topics(tmp_path / "config" / "topics.json") is None
    assert batch_queue_topics(tmp_path / "config" / "topics.json") == set()


def test_a_file_without_a_table_knows_no_topic(topics_json: Path) -> None:
    topics_json.write_text('{"dataVersion": {}}')
    assert known_topics(topics_json) == set()


def test_what_is_not_utf_8_is_replaced(topics_json: Path) -> None:
    topics_json.write_bytes(b'{"topicConfigTable": {"a\xff": {}, "b\x01": {}}}')
    assert known_topics(topics_json) == {"a\ufffd", "b\x01"}


@pytest.mark.parametrize(
    "text", [None, "", '{"topicConfigTable": {"a": {', "[]", '{"topicConfigTable": null}']
)
def test_the_backup_stands_in(topics_json: Path, text: str | None) -> None:
    if text is not None:
        topics_json.write_text(text)
    backup(topics_json).write_text(table(b={"attributes": {"queue.type": "BatchCQ"}}))
    assert known_topics(topics_json) == {"b"}
    assert batch_queue_topics(topics_json) == {"b"}


def test_a_good_file_wins_over_its_backup(topics_json: Path) -> None:
    topics_json.write_text(table(a={}))
    backup(topics_json).write_text(table(b={}))
    assert known_topics(topics_json) == {"a"}


def test_empty_files_know_nothing(topics_json: Path) -> None:
    topics_json.write_text("")
    backup(topics_json).write_text("")
    assert known_topics(topics_json) is None


def test_a_changed_file_is_read_again(topics_json: Path) -> None:
    now = TopicsNow(topics_json)
    assert now.known is None
    topics_json.write_text(table(a={}))
    assert now.known == {"a"}
    backup(topics_json).write_text(topics_json.read_text())
    topics_json.write_text(table(a={}, b={"attributes": {"queue.type": "BatchCQ"}})[:-3])  # half written
    assert now.known == {"a"}
    topics_json.write_text(table(a={}, b={"attributes": {"queue.type": "BatchCQ"}}))
    assert now.known == {"a", "b"}
    assert now.batch == {"b"}
    assert pickle.loads(pickle.dumps(now)).batch == {"b"}


def live(topics_json: Path, **fields: object) -> LiveSelection:
    fields = {"batches": True, "batch_file_size": 920, **fields}
    return LiveSelection(topics=TopicsNow(topics_json), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [None, frozenset({"a"})])
def test_a_topic_is_looked_up_when_it_is_first_seen(topics_json: Path, known: frozenset[str] | None) -> None:
    topics_json.write_text(table(a={}))
    selection = live(topics_json, known=known)
    assert selection.is_all
    assert selection.wants_topic(b"a")
    assert selection.wants_topic(b"b") == (known is None)
    topics_json.write_text(table(b={}, c={"attributes": {"queue.type": "BatchCQ"}}))
    assert selection.wants_topic(b"a"), "it was written before"
    assert selection.wants_topic(b"b")
    assert [selection.is_batch(topic) for topic in "abc"] == [False, False, True]
    assert pickle.loads(pickle.dumps(selection)).is_batch("c")
    topics_json.write_text(table(b={"attributes": {"queue.type": "BatchCQ"}}, c={}))
    assert [selection.is_batch(topic) for topic in "abc"] == [False, False, True], "it is what it was"
    assert not live(topics_json, batches=False).is_batch("b")


def test_a_batch_topic_that_comes_later_asks_for_files_that_its_units_fill(topics_json: Path) -> None:
    topics_json.write_text(table(a={}))
    selection = live(topics_json, batch_file_size=100, broker_conf=Path("broker.conf"))
    assert not selection.is_batch("a")
    topics_json.write_text(table(a={}, c={"attributes": {"queue.type": "BatchCQ"}}))
    for _ in range(2):
        with pytest.raises(SettingsError, match="multiple of 46") as caught:
            selection.is_batch("c")
    assert "broker.conf" in str(caught.value)
    assert "mapperFileSizeBatchConsumeQueue=100" in str(caught.value)
    assert not selection.is_batch("a")


def test_without_a_file_what_was_known_before_holds(topics_json: Path) -> None:
    selection = live(topics_json, known=frozenset({"a", "c"}), batch=frozenset({"c"}))
    assert [selection.wants_topic(topic) for topic in (b"a", b"b", b"c")] == [True, False, True]
    assert [selection.is_batch(topic) for topic in "abc"] == [False, False, True]


# --- All the error paths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("{", "JSON", "line 1 column 2"),
        ("[]", "an object", "list"),
        ('{"topicConfigTable": 3}', "topicConfigTable to be an object", "3"),
        ('{"topicConfigTable": {"a": null}}', "the settings of topic a to be an object", "null"),
        (" ", "JSON", "line 1 column 2"),
        ("[" * 3000, "JSON", "recursion"),
    ],
)
def test_a_broken_file_is_named(topics_json: Path, text: str, expected: str, found: str) -> None:
    topics_json.write_text(text)
    for function in (known_topics, batch_queue_topics):
        with pytest.raises(SettingsError, match="file of topics is broken") as caught:
            function(topics_json)
        assert caught.value.path == str(topics_json)
        assert caught.value.expected == expected
        assert found in str(caught.value.found)


def test_every_cut_of_a_real_file_is_refused(topics_json: Path) -> None:
    data = WRITTEN_BY_5_3_3.encode()
    for size in range(1, len(data)):
        topics_json.write_bytes(data[:size])
        with pytest.raises(SettingsError, match="file of topics is broken"):
            known_topics(topics_json)


def test_the_first_of_two_broken_files_is_named(topics_json: Path) -> None:
    topics_json.write_text("{")
    backup(topics_json).write_text("[")
    with pytest.raises(SettingsError) as caught:
        known_topics(topics_json)
    assert caught.value.path == str(topics_json)


def test_a_file_that_can_not_be_read(topics_json: Path) -> None:
    topics_json.mkdir()
    with pytest.raises(SettingsError, match="can't be read") as caught:
        known_topics(topics_json)
    assert caught.value.found == "a directory"


def test_what_java_takes_for_no_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.symlink_to(path)
    assert known_topics(path) is None
    (tmp_path / "topics.json.bak").write_text(WRITTEN_BY_4_9_7)
    assert set(known_topics(path) or ()) == {"TopicTest", '主题"x'}
    assert known_topics(tmp_path / "topics.json.bak" / "topics.json") is None
