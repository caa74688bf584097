"""Topics, groups and offsets of a broker whose storeType changes: nothing of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.config.broker_conf import BrokerConf, read
from reput.config.dialect import dialect
from reput.config.kept import ConfigPlace, Form, Kind, kept
from reput.errors import SettingsError, UnsupportedError
from reput.format import names
from reput.job.moved_config import config_move
from tests import rocksdbs
from tests.golden.store import unpack


def conf(path: Path, version: str, **lines: object) -> BrokerConf:
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return BrokerConf(read(path), path, dialect(version))


@pytest.mark.parametrize(
    ("name", "form", "more"),
    [
        ("5.3.3-rocksdb-settings-v1", Form.SEPARATE, {}),
        ("5.5.0-rocksdb-settings-single", Form.SINGLE, {"useSingleRocksDBForAllConfigs": "true"}),
    ],
)
def test_what_is_in_a_database_is_written_to_files(
    name: str, form: Form, more: dict[str, str], tmp_path: Path
) -> None:
    store = unpack(name, tmp_path / "store")
    now = conf(tmp_path / "now.conf", store.version, storeType="defaultRocksDB", **more)
    then = conf(tmp_path / "then.conf", store.version, storeType="default", **more)
    move = config_move(store.root, now, then)
    tables = {
        Kind.TOPICS: ("topics.json", "topicConfigTable"),
        Kind.GROUPS: ("subscriptionGroup.json", "subscriptionGroupTable"),
        Kind.OFFSETS: ("consumerOffset.json", "offsetTable"),
    }
    place = ConfigPlace(store.root / names.CONFIG, form, frozenset(Kind))
    found = 0
    for kind, (file, table) in tables.items():
        stored = kept(place, kind)
        assert stored is not None
        document = json.loads(move.write[f"config/{file}"])
        assert document[table] == dict(stored.entries)
        found += len(document[table])
        counter = 0 if stored.version is None else stored.version.counter
        assert document["dataVersion"]["counter"] > counter
    assert found > 5
    assert move.remove
    assert all((store.root / name).is_dir() for name in move.remove)


def test_v2_is_left_alone(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-settings-v2", tmp_path / "store")
    more = {"configManagerVersion": "v2"}
    now = conf(tmp_path / "now.conf", store.version, storeType="defaultRocksDB", **more)
    then = conf(tmp_path / "then.conf", store.version, storeType="default", **more)
    move = config_move(store.root, now, then)
    assert (move.write, move.remove) == ({}, [])


@pytest.mark.parametrize("counter", [None, 0, 7])
def test_a_file_gets_a_counter_that_a_start_imports(counter: int | None, tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    document: dict[str, object] = {"offsetTable": {"t@g": {"0": 5}}}
    if counter is not None:
        document["dataVersion"] = {"counter": counter, "timestamp": 9, "stateVersion": 0}
    # As fastjson writes it.
    (config / "consumerOffset.json").write_text(json.dumps(document).replace('"0"', "0"))
    (config / "topics.json.bak").write_text('{"dataVersion":{"counter":3},"topicConfigTable":{"t":{}}}')
    now = conf(tmp_path / "now.conf", "5.5.0", storeType="default")
    then = conf(tmp_path / "then.conf", "5.5.0", storeType="defaultRocksDB")
    move = config_move(tmp_path / "store", now, then)
    assert ("config/consumerOffset.json" in move.write) == (not counter)
    if not counter:
        written = json.loads(move.write["config/consumerOffset.json"])
        assert written["offsetTable"] == {"t@g": {"0": 5}}
        assert written["dataVersion"]["counter"] == 1
    assert json.loads(move.write["config/topics.json"])["dataVersion"]["counter"] == 3
    older = conf(tmp_path / "then.conf", "5.2.0", storeType="defaultRocksDB")
    with pytest.raises(UnsupportedError, match="from a JSON file into its RocksDB"):
        config_move(tmp_path / "store", conf(tmp_path / "now.conf", "5.2.0"), older)


LIGHT = {
    "dataVersion": {"counter": 4, "timestamp": 9, "stateVersion": 0},
    "groupTopicMap": {"g": ["t"]},
    "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 5, "%LMQ%a@b@%LMQ%g": 6, "t@%LMQ%g": 7, "t@g": 70, "t": 71},
    "offsetTable": {"t@g": {"0": 1, "3": 2}, "%LMQ%a@g": {"0": 3}, "t@%LMQ%g": {"1": 99}},
}


def test_offsets_of_light_groups_go_into_rocksdb_and_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = root / "config"
    config.mkdir(parents=True)
    files = conf(tmp_path / "files.conf", "5.5.0", enableLmq="true")
    rocksdb = conf(tmp_path / "rocksdb.conf", "5.5.0", enableLmq="true", storeType="defaultRocksDB")
    stale = config / "consumerOffset.json"
    stale.write_text('{"dataVersion":{"counter":70},"offsetTable":{"t@g":{"0":50}}}')
    assert config_move(root, files, rocksdb).remove == ["config/consumerOffset.json"]
    assert (config_move(root, rocksdb, rocksdb).write, config_move(root, files, files).write) == ({}, {})

    (config / "lmqConsumerOffset.json.bak").write_text(json.dumps(LIGHT))
    move = config_move(root, files, rocksdb)
    assert (list(move.write), move.remove) == (["config/consumerOffset.json"], [])
    written = json.loads(move.write["config/consumerOffset.json"])
    joined = {"t@g": {"0": 1, "3": 2}, "%LMQ%a@g": {"0": 3}}
    joined |= {"%LMQ%a@%LMQ%g": {"0": 5}, "%LMQ%a@b@%LMQ%g": {"0": 6}, "t@%LMQ%g": {"0": 7}}
    assert written == {
        "dataVersion": LIGHT["dataVersion"],
        "groupTopicMap": LIGHT["groupTopicMap"],
        "offsetTable": joined,
    }
    (said,) = [line for line in move.said if "passed over in lmqOffsetTable" in line]
    assert said.endswith(": t, t@g")
    assert any("queue 0's alone" in line and line.endswith("t@%LMQ%g") for line in move.said), move.said

    stale.unlink()
    offsets = {key: {int(queue): at for queue, at in queues.items()} for key, queues in joined.items()}
    offsets["%LMQ%a@%LMQ%g"][2] = 8
    rocksdbs.settings(root, "separate", offsets=offsets, counter=90)
    move = config_move(root, rocksdb, files)
    written = json.loads(move.write["config/lmqConsumerOffset.json"])
    assert "config/consumerOffset.json" not in move.write
    assert written["dataVersion"]["counter"] > 90
    assert written["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 5, "%LMQ%a@b@%LMQ%g": 6, "t@%LMQ%g": 7}
    assert written["offsetTable"] == {"t@g": {"0": 1, "3": 2}, "%LMQ%a@g": {"0": 3}}
    assert any(line.endswith("left out: %LMQ%a@%LMQ%g:2") for line in move.said), move.said


def test_an_offset_of_a_light_group_that_is_no_number_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    files = conf(tmp_path / "files.conf", "5.5.0", enableLmq="true")
    rocksdb = conf(tmp_path / "rocksdb.conf", "5.5.0", enableLmq="true", storeType="defaultRocksDB")
    path = config / "lmqConsumerOffset.json"
    path.write_text(json.dumps({**LIGHT, "lmqOffsetTable": {"t@%LMQ%g": {"0": 7}}}))
    with pytest.raises(SettingsError, match="broken") as refused:
        config_move(tmp_path / "store", files, rocksdb)
    assert (refused.value.path, refused.value.found) == (str(path), "{'0': 7}")


def test_before_5_3_2_rocksdb_keeps_no_offsets_of_light_groups(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    switches = {"transferOffsetJsonToRocksdb": "true", "enableLmq": "true"}
    files = conf(tmp_path / "files.conf", "5.3.1", **switches)
    rocksdb = conf(tmp_path / "rocksdb.conf", "5.3.1", storeType="defaultRocksDB", **switches)
    path = config / "lmqConsumerOffset.json"
    path.write_text(json.dumps(LIGHT))
    with pytest.raises(UnsupportedError, match="offsets of light groups nowhere"):
        config_move(tmp_path / "store", files, rocksdb)
    path.write_text(json.dumps({**LIGHT, "lmqOffsetTable": {}}))
    written = config_move(tmp_path / "store", files, rocksdb).write["config/consumerOffset.json"]
    assert json.loads(written)["offsetTable"] == {"t@g": {"0": 1, "3": 2}, "%LMQ%a@g": {"0": 3}}
