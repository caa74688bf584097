"""Topics, groups and offsets in RocksDB: which form is in force, and which of two that lie there is newer."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from reput.broker.config_files import config_problems, missing_config
from reput.config.kept import ConfigPlace, Form, Kind, TopicsNow, batch_queue_topics, kept, known_topics
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, UnsupportedError
from reput.format import rocksdbconfig
from reput.format.rocksdbconfig import Table
from tests import encoders, rocksdbs
from tests.rocksdbs import version, write, writing

TOPICS = {
    "plain": {"topicName": "plain", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": {}},
    "batch": {"topicName": "batch", "attributes": {"queue.type": "BatchCQ"}},
}
FORMS = ["separate", "single", "v2"]
CONF = {
    "separate": "storeType=defaultRocksDB\n",
    "single": "storeType=defaultRocksDB\nuseSingleRocksDBForAllConfigs=true\n",
    "v2": "configManagerVersion=v2\n",
    "files": "brokerName=a\n",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    return root


def load(root: Path, conf: str | None = None, release: str | None = "5.5.0") -> StoreSettings:
    path = None
    if conf is not None:
        path = root.parent / "broker.conf"
        path.write_text(conf)
    return StoreSettings.load(root, path, release, rocksdb=True)


def write_json(root: Path, topics: list[str], counter: int, timestamp: int = 1_795_000_000_000) -> Path:
    path = root / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    table = {topic: {"topicName": topic} for topic in topics}
    path.write_text(json.dumps({"topicConfigTable": table, "dataVersion": version(counter, timestamp)}))
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [True, False])
def test_each_form_is_read(store: Path, form: str, given: bool) -> None:
    groups = {"g": {"groupName": "g"}}
    rocksdbs.settings(store, form, topics=TOPICS, groups=groups, offsets={"plain@g": {3: 17}})
    settings = load(store, CONF[form] if given else None)
    assert settings.config_form == Form(form)
    assert known_topics(settings.config) == {"plain", "batch"}
    assert batch_queue_topics(settings.config) == settings.batch_topics() == {"batch"}
    stored, offsets = kept(settings.config, Kind.GROUPS), kept(settings.config, Kind.OFFSETS)
    assert stored is not None
    assert offsets is not None
    assert stored.entries == groups
    assert offsets.entries == {"plain@g": {"3": 17}}
    assert offsets.version == (5, 1_795_000_000_000, 0)
    assert f"topics, groups and offsets: {form} in config/" in str(settings.basis.line())
    assert not list(config_problems(settings))
    assert [one.path.name for one in missing_config(settings)] == ["delayOffset.json"]  # a file in all forms


def test_the_setting_decides_where_all_are_there(store: Path) -> None:
    for form in FORMS:
        rocksdbs.settings(store, form, topics={form: {}}, counter=5)
    write_json(store, ["files"], counter=2)
    for form, conf in CONF.items():
        topics = known_topics(load(store, conf).config)
        assert topics == {form}, form
    # Other releases don't know the settings.
    assert load(store, CONF["v2"], "5.3.0").config_form is Form.FILES
    assert load(store, CONF["single"], "5.3.3").config_form is Form.SEPARATE
    assert load(store, CONF["separate"], "5.1.4").config_form is Form.SEPARATE
    assert load(store, CONF["separate"], "4.9.7").config_form is Form.FILES


@pytest.mark.parametrize("form", ["separate", "single"])
@pytest.mark.parametrize(("counter", "taken"), [(4, False), (5, False), (6, True)])
def test_the_higher_counter_wins(store: Path, form: str, counter: int, taken: bool) -> None:
    config = rocksdbs.settings(store, form, topics=TOPICS, offsets={"plain@g": {3: 17}, "batch@g": {0: 1}})
    write_json(store, ["plain", "other"], counter)
    offsets = {"offsetTable": {"plain@g": {"3": 40}}, "dataVersion": version(counter)}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    settings = load(store, CONF[form])
    database = settings.config.database(Kind.TOPICS).name
    which = "is taken, as a start imports it" if taken else "is stale"
    said = f"config/topics.json {which}: counter {counter}, and config/{database} has 5"
    assert said in settings.basis.kept
    assert known_topics(settings.config) == {"plain", "batch"} | ({"other"} if taken else set())
    found = kept(settings.config, Kind.OFFSETS)
    assert found is not None
    assert found.entries == ({"plain@g": {"3": 40}} if taken else {"plain@g": {"3": 17}, "batch@g": {"0": 1}})
    assert (found.path.suffix == ".json") is taken


def test_v2_and_older_releases_never_look_at_the_files(store: Path) -> None:
    rocksdbs.settings(store, "v2", topics=TOPICS)
    rocksdbs.settings(store, "separate", topics=TOPICS, counter=None)
    write_json(store, ["other"], counter=99)
    assert known_topics(load(store, CONF["v2"]).config) == {"plain", "batch"}
    settings = load(store, CONF["separate"], "5.3.0")
    assert known_topics(settings.config) == {"plain", "batch"}
    assert "config/topics.json is stale: this release never reads it" in settings.basis.kept
    # 5.3.1 imports where it is told to.
    conf = CONF["separate"] + "transferMetadataJsonToRocksdb=true\n"
    assert known_topics(load(store, conf, "5.3.1").config) == {"plain", "batch", "other"}


def test_a_start_of_the_single_form_imports_newer_separate_ones(store: Path) -> None:
    rocksdbs.settings(store, "single", topics={"a": {}}, counter=5)
    rocksdbs.settings(store, "separate", topics={"b": {}}, counter=7)
    settings = load(store, CONF["single"])
    assert known_topics(settings.config) == {"a", "b"}
    assert (
        "config/topics is taken, as a start imports it: counter 7, and config/metadata has 5"
        in settings.basis.kept
    )


def test_before_the_first_start_the_files_are_all_there_is(store: Path) -> None:
    write_json(store, ["other"], counter=3)
    settings = load(store, CONF["separate"])
    assert known_topics(settings.config) == {"other"}
    assert "config/topics isn't there" in settings.basis.kept
    assert known_topics(load(store, CONF["v2"]).config) is None
    assert known_topics(load(store, CONF["separate"], "5.2.0").config) is None


def test_without_a_broker_conf_the_newest_is_read(store: Path) -> None:
    rocksdbs.settings(store, "v2", topics={"v2": {}}, timestamp=1_795_000_002_000)
    rocksdbs.settings(store, "separate", topics={"separate": {}}, timestamp=1_795_000_003_000)
    assert load(store).config_form is Form.SEPARATE
    write_json(store, ["files"], counter=9, timestamp=1_795_000_004_000)
    assert known_topics(load(store).config) == {"files"}
    write_json(store, ["files"], counter=9, timestamp=1_795_000_002_500)
    assert load(store).config_form is Form.SEPARATE


def test_a_setting_that_the_store_speaks_against_is_said(store: Path) -> None:
    rocksdbs.settings(store, "v2", topics={"v2": {}}, timestamp=1_795_000_002_000)
    write_json(store, ["files"], counter=9, timestamp=1_795_000_001_000)
    settings = load(store, CONF["files"])
    assert known_topics(settings.config) == {"files"}
    said = "BUT config/rdb was changed later: at 1795000002000 ms, and what is read at 1795000001000 ms"
    assert said in settings.basis.kept
    write_json(store, ["files"], counter=9, timestamp=1_795_000_003_000)
    assert not [one for one in load(store, CONF["files"]).basis.kept if "BUT" in one]


def test_a_store_without_rocksdb_says_nothing(store: Path) -> None:
    write_json(store, ["files"], counter=9)
    assert load(store).basis.kept == load(store, CONF["files"]).basis.kept == ()


def test_a_change_is_seen_at_once_by_who_follows(store: Path) -> None:
    path = store / "config" / rocksdbconfig.V2
    place = ConfigPlace(store / "config", Form.V2)
    now = TopicsNow(place)
    assert now.known is None
    with writing(path) as db:
        for number in range(3):
            key = encoders.encode_name(Table.TOPICS, f"t{number}".encode())
            db[key] = encoders.encode_json(b'{"attributes": {"queue.type": "BatchCQ"}}')
            db.flush_wal()
            expected = {f"t{one}" for one in range(number + 1)}
            assert now.known == now.batch == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_torn_database_is_named_and_keeps_the_broker_from_starting(store: Path, form: str) -> None:
    rocksdbs.settings(store, form, topics=TOPICS)
    settings = load(store, CONF[form])
    for kind in Kind:
        for manifest in settings.config.database(kind).glob("MANIFEST-*"):
            manifest.unlink()
    with pytest.raises(SettingsError, match="CURRENT names a MANIFEST that isn't there"):
        known_topics(settings.config)
    assert settings.batch_topics() == frozenset()
    problems = list(config_problems(load(store, CONF[form])))
    assert problems
    assert all(problem.stops and "MANIFEST" in problem.said for problem in problems)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (b"\x01\x00\x03\x02\x00\x09a", b"\x01{}", "a name of 9 bytes"),
        (encoders.encode_name(Table.TOPICS, b"a"), b"\x02{}", "serialization 2, not 1"),
        (encoders.encode_name(Table.TOPICS, b"a"), b"\x01{", "expected JSON"),
        (encoders.encode_name(Table.TOPICS, b"a"), b"\x017", "topic a to be an object"),
        (rocksdbconfig.version_key(Table.TOPICS), b"7", "1 bytes for a version"),
    ],
)
def test_broken_entries_of_v2_are_named(store: Path, key: bytes, value: bytes, said: str) -> None:
    path = write(store / "config" / "rdb", {"default": {key: value}})
    with pytest.raises(SettingsError, match=said) as raised:
        known_topics(load(store, CONF["v2"]).config)
    assert raised.value.path == str(path)


def test_a_broken_value_of_the_separate_form_is_named(store: Path) -> None:
    write(store / "config" / "topics", {"default": {b"a": b"{"}})
    with pytest.raises(SettingsError, match=r"broken, 'a'; expected JSON"):
        known_topics(load(store, CONF["separate"]).config)


def test_without_rocksdict_nothing_is_guessed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocksdbs.settings(store, "v2", topics=TOPICS)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    settings = load(store)
    assert settings.config_form is Form.V2
    assert any("not looked at" in one and "reput[rocksdb]" in one for one in settings.basis.kept)
    for ask in (lambda: known_topics(settings.config), lambda: list(config_problems(settings))):
        with pytest.raises(UnsupportedError, match=r"reput\[rocksdb\]"):
            ask()


def test_what_was_read_is_kept_until_it_changes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = rocksdbs.settings(store, "v2", topics=TOPICS)
    place = ConfigPlace(config, Form.V2)
    one = kept(place, Kind.TOPICS)
    with monkeypatch.context() as patched:
        patched.setattr("reput.config.kept.opened", None)  # the database isn't opened again
        assert kept(place, Kind.TOPICS) is one
    shutil.rmtree(config / "rdb")
    assert kept(place, Kind.TOPICS) is None
