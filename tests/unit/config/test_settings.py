"""StoreSettings: broker.conf, the place of the store, and what is refused."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from reput.config.dialect import DIALECTS, dialect
from reput.config.kept import Kind
from reput.config.settings import RocksDBSettings, StoreSettings
from reput.errors import SettingsError, UnsupportedError

DEFAULT_DELAYS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
OLDER = "5.1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    return root


def load(store: Path, text: str = "", version: str | None = None) -> StoreSettings:
    conf = store.parent / "broker.conf"
    conf.write_text(text, encoding="iso-8859-1")
    return StoreSettings.load(store, conf, version)


def refused(store: Path, text: str, version: str | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load(store, text, version)
    assert caught.value.path == str(store.parent / "broker.conf")
    return caught.value


def unsupported(store: Path, text: str, version: str | None = None) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        load(store, text, version)
    assert caught.value.path == str(store.parent / "broker.conf")
    assert caught.value.next_step
    return caught.value


def segment(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "00000000000000000000").touch()
    return directory


# --- Values ----------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_broker(store: Path) -> None:
    assert StoreSettings.load(store, None, None) == StoreSettings(
        root=store,
        commit_log_dirs=(store / "commitlog",),
        segment_size=None,
        consume_queue_file_size=6_000_000,
        max_hash_slot_num=5_000_000,
        max_index_num=20_000_000,
        message_index_enable=True,
        delay_levels_ms=tuple(seconds * 1000 for seconds in DEFAULT_DELAYS),
        enable_multi_dispatch=False,
        enable_lmq=False,
        force_verify_prop_crc=False,
        dialect=dialect(None),
        broker_conf=None,
    )


def test_an_empty_file_changes_nothing_but_its_own_name(store: Path) -> None:
    assert replace(load(store), broker_conf=None) == StoreSettings.load(store, None, None)
    assert load(store).broker_conf == store.parent / "broker.conf"


def test_every_setting_is_read(store: Path) -> None:
    settings = load(
        store,
        """\
# what an operator writes
brokerClusterName = DefaultCluster
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=101
maxHashSlotNum=7
maxIndexNum=+9
messageIndexEnable=false
messageDelayLevel=1s 2m 3h 4d
enableMultiDispatch=true
enableLmq=TRUE
duplicationEnable=false
forceVerifyPropCRC=true
""",
    )
    assert settings.segment_size == 65536
    assert settings.consume_queue_file_size == 120
    assert settings.max_hash_slot_num == 7
    assert settings.max_index_num == 9
    assert settings.message_index_enable is False
    assert settings.delay_levels_ms == (1_000, 120_000, 10_800_000, 345_600_000)
    assert settings.enable_multi_dispatch is True
    assert settings.enable_lmq is True
    assert settings.force_verify_prop_crc is True


def test_unknown_keys_and_keys_of_another_case_are_ignored(store: Path) -> None:
    settings = load(store, "maxindexnum=9\nMaxIndexNum=9\nmyOwnKey=yes\ntransientStorePoolEnable=maybe\n")
    assert settings.max_index_num == 20_000_000


def test_the_last_of_a_repeated_key_counts(store: Path) -> None:
    assert load(store, "maxIndexNum=x\nmaxIndexNum=9\n").max_index_num == 9
    assert "line 2" in str(refused(store, "maxIndexNum=9\nmaxIndexNum=x\n"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1, 20), (19, 20), (20, 20), (21, 40), (6_000_000, 6_000_000), (2_147_483_640, 2_147_483_640)],
)
def test_consume_queue_files_hold_whole_units(store: Path, given: int, expected: int) -> None:
    assert load(store, f"mappedFileSizeConsumeQueue={given}").consume_queue_file_size == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1s", (1_000,)),
        ("0s", (0,)),
        ("-1s +2s", (-1_000, 2_000)),
        ("10d  ", (864_000_000,)),
        ("007m", (420_000,)),
        ("9223372036854775s", (9_223_372_036_854_775_000,)),
    ],
)
def test_delay_levels(store: Path, text: str, expected: tuple[int, ...]) -> None:
    assert load(store, f"messageDelayLevel={text}").delay_levels_ms == expected


def test_from_5_4_on_the_index_has_two_switches(store: Path) -> None:
    assert load(store, "indexFileWriteEnable=false").message_index_enable is False
    assert load(store, "indexFileWriteEnable=false", "5.3").message_index_enable is True
    assert load(store, "indexFileWriteEnable=true\nmessageIndexEnable=false").message_index_enable is False


def test_settings_that_the_version_does_not_have_are_ignored(store: Path) -> None:
    text = "enableMultiDispatch=true\nenableLmq=true\nforceVerifyPropCRC=true\n"
    switches = ("enable_multi_dispatch", "enable_lmq", "force_verify_prop_crc")
    on = {
        version: [name for name in switches if getattr(load(store, text, version), name)]
        for version in ("4.9.2", "4.9.3", "5.0", "5.2")
    }
    assert on == {
        "4.9.2": [],
        "4.9.3": ["enable_multi_dispatch", "enable_lmq"],
        "5.0": ["enable_multi_dispatch", "enable_lmq"],
        "5.2": list(switches),
    }
    # not even a wrong value of one is looked at
    assert load(store, "forceVerifyPropCRC=maybe\nstoreType=defaultRocksDB\n", "5.1")


def test_a_key_of_4_5_1_proves_nothing_beside_the_new_one(store: Path) -> None:
    old, new = "mapedFileSizeConsumeQueue=3000\n", "mappedFileSizeConsumeQueue=2000\n"
    assert load(store, old).dialect is dialect("4.5.1")
    both = load(store, old + new)
    assert both.dialect is dialect(None)
    assert both.consume_queue_file_size == 2000


@pytest.mark.parametrize(
    ("release", "wrong", "key"),
    [
        ("4.3.1", "mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
        ("4.5", "mapedFileSizeConsumeQueue", "mappedFileSizeConsumeQueue"),
    ],
)
def test_a_key_that_is_spelled_otherwise_is_named(store: Path, release: str, wrong: str, key: str) -> None:
    queue = store / "consumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    for place in (0, 2000):
        (queue / f"{place:020d}").write_bytes(bytes(2000))
    (one,) = load(store, f"{wrong}=2000\n", release).basis.contradictions
    assert one.setting == key
    assert f"{key}=6000000" in one.used
    assert one.next_step.startswith("Name the release that wrote this store")
    assert one.next_step.endswith(f"it reads {key}")


@pytest.mark.parametrize(
    ("release", "told"),
    [("4.3.1", "4.3.1"), ("4.6.1", "4.6.1"), ("4.1.0", "4.1"), ("5.3.3", "5.3"), ("5.3", "5.3")],
)
def test_the_release_for_people(store: Path, release: str, told: str) -> None:
    assert load(store, version=release).told_release == told


def test_the_version_picks_the_dialect(store: Path) -> None:
    assert load(store, version="4.9.7").dialect is dialect("4.9")
    with pytest.raises(SettingsError, match="isn't known"):
        load(store, version="3.5")


# --- Places ----------------------------------------------------------------------------------------------


def test_paths_are_absolute_and_without_dots(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    (store.parent / "b.conf").touch()
    settings = StoreSettings.load(Path("x/../store"), Path("b.conf"), None)
    assert settings.root == store
    assert settings.commit_log_dirs == (store / "commitlog",)
    assert settings.broker_conf == store.parent / "b.conf"
    assert settings.config.where(Kind.TOPICS) == store / "config" / "topics.json"


def test_the_given_store_wins_over_the_root_of_the_file(store: Path) -> None:
    settings = load(store, "storePathRootDir=/data/rocketmq/store\n")
    assert settings.root == store
    assert settings.commit_log_dirs == (store / "commitlog",)


@pytest.mark.parametrize(
    ("conf_root", "conf_log", "found"),
    [
        ("/data/rocketmq/store", "/data/rocketmq/store/commitlog", "commitlog"),
        ("/data/rocketmq/store/", "/data/rocketmq/store/a/../log", "log"),
        ("/data/rocketmq/store", "/data/rocketmq/store", "."),
        ("store", "store/log", "log"),
    ],
)
def test_a_commit_log_under_the_root_moves_with_the_store(
    store: Path, conf_root: str, conf_log: str, found: str
) -> None:
    settings = load(store, f"storePathRootDir={conf_root}\nstorePathCommitLog={conf_log}\n")
    assert settings.commit_log_dirs == (store / found,)


@pytest.mark.parametrize(
    ("conf_root", "conf_log", "found"),
    [
        (r"D:\\rocketmq\\store", r"D:\\rocketmq\\store\\commitlog", ["commitlog"]),
        (r"D:\\rocketmq\\store\\", r"d:/RocketMQ/store/disk1/log", ["disk1/log"]),
        ("D:/rocketmq/store", r"D:\\rocketmq\\x\\..\\store\\log", ["log"]),
        (r"\\\\files\\mq\\store", r"\\\\files\\mq\\store\\commitlog", ["commitlog"]),
        (r"store", r"store\\commitlog", None),
        (r".\\store", r".\\store\\commitlog", ["commitlog"]),
        ("D:/s", "D:/s/log1,D:/s/log2", ["log1", "log2"]),
    ],
)
def test_a_conf_from_windows(store: Path, conf_root: str, conf_log: str, found: list[str] | None) -> None:
    """``Properties.load`` makes one backslash of two; what lies below the root lies below STORE."""
    text = f"storePathRootDir={conf_root}\nstorePathCommitLog={conf_log}\n"
    if found is None:  # a root that may be Linux's isn't Windows'
        refused(store, text)
    else:
        assert load(store, text).commit_log_dirs == tuple(store / name for name in found)


@pytest.mark.parametrize(
    ("conf_root", "conf_log", "named"),
    [
        (r"D:\\store", r"E:\\log", r"E:\\log"),
        (r"D:\\store", r"D:\\store2\\log", r"D:\\store2\\log"),
        (r"D:\\store", r"\\\\files\\mq\\log", r"\\files\\mq\\log"),
        ("D:/store", "D:/store/log1,E:/log2", "E:/log2"),
        ("/data/store", "D:/store/commitlog", "D:/store/commitlog"),
        (None, "D:/store/commitlog", "D:/store/commitlog"),
        (r"D:\store", r"D:\store\commitlog", "D:storecommitlog"),
    ],
)
def test_a_log_on_windows_that_is_not_below_the_root(
    store: Path, conf_root: str | None, conf_log: str, named: str
) -> None:
    root = "" if conf_root is None else f"storePathRootDir={conf_root}\n"
    error = refused(store, f"{root}storePathCommitLog={conf_log}\n")
    assert "names a directory on Windows that isn't below storePathRootDir" in error.problem
    assert named in (error.found or "")
    step = "write each backslash twice" if "storec" in named else "let storePathCommitLog name the directory"
    assert step in (error.next_step or "")
    # The advice ends.
    here = segment(store.parent / "log" if "storec" not in named else store / "commitlog")
    log = str(here) if "storec" not in named else conf_log.replace("\\", "\\\\")
    root = root.replace("\\", "\\\\") if "storec" in named else root
    assert load(store, f"{root}storePathCommitLog={log}\n").commit_log_dirs == (here,)


def test_a_commit_log_elsewhere_stays_there(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "disk" / "commitlog")
    assert load(store, f"storePathCommitLog={log}\n").commit_log_dirs == (log,)
    assert load(store, f"storePathRootDir={store}\nstorePathCommitLog={log}/\n").commit_log_dirs == (log,)
    assert load(store, f"storePathRootDir=/data\nstorePathCommitLog={log}\n").commit_log_dirs == (log,)


def test_a_root_that_only_starts_alike_is_another(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "data-2")
    text = f"storePathRootDir={tmp_path}/data\nstorePathCommitLog={log}\n"
    assert load(store, text).commit_log_dirs == (log,)


def test_several_commit_log_directories(store: Path, tmp_path: Path) -> None:
    first, second = segment(tmp_path / "disk1"), segment(tmp_path / "disk2")
    text = f"storePathCommitLog={second},{first},{second},,,\n"
    assert load(store, text).commit_log_dirs == (second, first)
    assert load(store, text, "4.9.2").commit_log_dirs == (second, first)


def test_before_4_9_2_a_comma_is_part_of_the_name(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "a,b")
    text = f"storePathCommitLog={log}\n"
    assert load(store, text, "4.9.1").commit_log_dirs == (log,)


def test_read_only_directories_come_last_and_only_count_with_several(store: Path, tmp_path: Path) -> None:
    first, second, old = (segment(tmp_path / name) for name in ("disk1", "disk2", "old"))
    several = f"storePathCommitLog={first},{second}\nreadOnlyCommitLogStorePaths={old},{first}\n"
    assert load(store, several).commit_log_dirs == (first, second, old)
    assert load(
        store, f"storePathCommitLog={first}\nreadOnlyCommitLogStorePaths={old}\n"
    ).commit_log_dirs == (first,)
    blank = f"storePathCommitLog={first},{second}\nreadOnlyCommitLogStorePaths=\n"
    assert load(store, blank).commit_log_dirs == (first, second)


def test_several_directories_under_the_root_move_with_the_store(store: Path, tmp_path: Path) -> None:
    other = segment(tmp_path / "disk2")
    text = f"storePathRootDir=/data\nstorePathCommitLog=/data/log1,{other},/data/log2\n"
    assert load(store, text).commit_log_dirs == (store / "log1", other, store / "log2")


def test_text_is_trimmed_from_5_2_on(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "log")
    assert load(store, f"storePathCommitLog={log} \t\nmessageDelayLevel=1s\t\n").commit_log_dirs == (log,)
    assert "white space" in str(refused(store, f"storePathCommitLog={log} \n", OLDER))
    assert r"'1s\t'" in str(refused(store, "messageDelayLevel=1s\t\n", OLDER))


def test_a_path_is_read_byte_by_byte_as_the_broker_does(store: Path) -> None:
    conf = store.parent / "broker.conf"
    conf.write_text("storePathRootDir=/d\nstorePathCommitLog=/d/日志\n", encoding="utf-8")
    (found,) = StoreSettings.load(store, conf, None).commit_log_dirs
    assert found.name == "日志".encode().decode("iso-8859-1")
    conf.write_text("storePathRootDir=/d\nstorePathCommitLog=/d/\\u65e5\\u5fd7\n", encoding="ascii")
    (found,) = StoreSettings.load(store, conf, None).commit_log_dirs
    assert found.name == "日志"


# --- What comes out --------------------------------------------------------------------------------------


def test_describe_is_json(store: Path) -> None:
    settings = load(store, "mappedFileSizeCommitLog=1024\n", "5.3.3")
    described = settings.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["store"] == str(store)
    assert described["commit_log_dirs"] == [str(store / "commitlog")]
    assert described["rocketmq_version"] == "5.3"
    assert described["segment_size"] == 1024
    assert described["fingerprint"] == settings.fingerprint()


def test_the_fingerprint_is_stable() -> None:
    # Journals hold it: a change here makes every journal that exists one of another run.
    settings = StoreSettings.load(Path("/store"), None, "5.3")
    assert settings.fingerprint() == "66cab0bd78004360cedd6a7c3e132eb4bb24265ee672791bf6e056134ad35ea1"


def test_the_fingerprint_forgets_places_and_equal_dialects(store: Path, tmp_path: Path) -> None:
    here = StoreSettings.load(store, None, "5.2")
    there = load(store, "mappedFileSizeCommitLog=1024\nstorePathRootDir=/x\n", "5.3.3")
    assert here.fingerprint() == there.fingerprint()
    assert StoreSettings.load(tmp_path, None, "5.2.0").fingerprint() == here.fingerprint()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mappedFileSizeConsumeQueue=20", None),
        ("maxHashSlotNum=1", None),
        ("maxIndexNum=2", None),
        ("messageIndexEnable=false", None),
        ("messageDelayLevel=1s", None),
        ("enableMultiDispatch=true", None),
        ("enableLmq=true", None),
        ("forceVerifyPropCRC=true", None),
        ("", "5.4"),
        ("", "4.9"),
    ],
)
def test_the_fingerprint_sees_what_changes_bytes(store: Path, text: str, version: str | None) -> None:
    assert load(store, text, version).fingerprint() != load(store).fingerprint()


def test_settings_travel_by_pickle_and_do_not_change(store: Path) -> None:
    settings = load(store, "maxIndexNum=9")
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(FrozenInstanceError):
        settings.max_index_num = 10  # type: ignore[misc]


def test_neither_spark_nor_numba_is_imported() -> None:
    code = (
        "import sys, reput.config.settings, reput.config.kept; "
        "sys.exit(bool({'pyspark', 'numba', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# --- All the error paths ---------------------------------------------------------------------------------

NUMBERS = ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"]
SWITCHES = [
    "messageIndexEnable",
    "indexFileWriteEnable",
    "enableMultiDispatch",
    "enableLmq",
    "duplicationEnable",
    "forceVerifyPropCRC",
    "enableConsumeQueueExt",
    "enableDLegerCommitLog",
    "rocksdbCQDoubleWriteEnable",
]


@pytest.mark.parametrize("version", [each.name for each in DIALECTS])
def test_duplication_is_refused_in_every_dialect(store: Path, version: str) -> None:
    error = unsupported(store, "# head\nduplicationEnable=true\n", version)
    assert error.problem == (
        "line 2: duplicationEnable asks for queues that go no further than the broker's confirmOffset, "
        "which reput doesn't build"
    )
    assert error.found == "duplicationEnable=true"
    assert "duplicationEnable=false in a copy of the file" in str(error.next_step)
    assert load(store, "duplicationEnable=false\n", version).dialect is dialect(version)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    "value", ["", "x", "1.5", "1e3", "0x10", "1_000", "10 ", "1g", "2147483648", "9" * 30]
)
def test_what_is_not_a_number(store: Path, key: str, value: str) -> None:
    error = refused(store, f"# head\n{key}={value}\n")
    assert error.problem == f"line 2: {key} isn't a number"
    assert error.found == f"{key}={value!r}"
    assert "2147483" in str(error.expected)
    assert "without a word" in str(error.next_step)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "-2147483648"])
def test_sizes_below_one(store: Path, key: str, value: str) -> None:
    error = refused(store, f"{key}={value}\n")
    assert error.problem == f"line 1: {key} is out of range"
    assert error.found == f"{key}='{value}'"


def test_the_default_that_the_broker_would_take_is_named(store: Path) -> None:
    assert "its default, 20000000:" in str(refused(store, "maxIndexNum=20000000 \n"))


def test_sizes_that_overflow(store: Path) -> None:
    assert "out of range" in str(refused(store, "mappedFileSizeConsumeQueue=2147483641\n"))
    assert "out of range" in str(refused(store, "maxIndexNum=1\n"))
    assert load(store, "maxHashSlotNum=1\nmaxIndexNum=107374180\n")
    error = refused(store, "maxHashSlotNum=2\nmaxIndexNum=107374180\n")
    assert error.found == "maxHashSlotNum=2, maxIndexNum=107374180"


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize("value", ["", "yes", "1", "true ", "on", "no"])
def test_what_is_not_a_switch(store: Path, key: str, value: str) -> None:
    error = refused(store, f"\n{key}={value}\n")
    assert error.problem == f"line 2: {key} isn't a switch"
    assert error.found == f"{key}={value!r}"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", "''"),
        ("1s  2s", "''"),
        ("1s 2", "'2'"),
        ("1s 2w", "'2w'"),
        ("1s s", "'s'"),
        ("1s,2s", "'1s,2s'"),
        ("1S", "'1S'"),
        ("1.5s", "'1.5s'"),
        ("9223372036854776s", "'9223372036854776s'"),
    ],
)
def test_wrong_delay_levels(store: Path, text: str, level: str) -> None:
    error = refused(store, f"messageDelayLevel={text}\n")
    assert error.problem == f"line 1: messageDelayLevel has a wrong level, {level}"


@pytest.mark.parametrize(
    ("text", "version", "key"),
    [
        ("enableDLegerCommitLog=true", "4.9", "enableDLegerCommitLog"),
        ("storeType=defaultRocksDB", "5.2", "storeType"),
        ("storeType=DEFAULTROCKSDB ", None, "storeType"),
        (
            "rocksdbCQDoubleWriteEnable=true\ncombineCQLoadingCQTypes=defaultRocksDB",
            "5.3",
            "combineCQLoadingCQTypes",
        ),
        (
            "rocksdbCQDoubleWriteEnable=true\ncombineCQUseRocksdbForLmq=true\nenableMultiDispatch=true",
            "5.5",
            "combineCQUseRocksdbForLmq",
        ),
    ],
)
def test_what_is_not_derived_is_refused(store: Path, text: str, version: str | None, key: str) -> None:
    error = unsupported(store, text, version)
    assert f"{key} asks for" in error.problem
    assert error.found is not None
    assert error.found.startswith(key)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("enableConsumeQueueExt=true\nenableDLegerCommitLog=false\nstoreType=default", None),
        ("storeType=defaultRocksDB", "5.1"),
        ("rocksdbCQDoubleWriteEnable=true", None),
        ("rocksdbCQDoubleWriteEnable=true\ncombineCQLoadingCQTypes= DefaultRocksDB ; Default", None),
        ("rocksdbCQDoubleWriteEnable=false\ncombineCQLoadingCQTypes=defaultRocksDB", None),
        ("rocksdbCQDoubleWriteEnable=true\ncombineCQUseRocksdbForLmq=true", None),
        ("combineCQUseRocksdbForLmq=true\nenableMultiDispatch=true", None),
    ],
)
def test_what_leaves_the_files_as_they_are_is_taken(store: Path, text: str, version: str | None) -> None:
    assert load(store, text, version)


@pytest.mark.parametrize("value", ["", ",", ",/a", "/a,,/b", "/a, /b", "/a ,/b"])
def test_directories_without_a_clean_name(store: Path, value: str) -> None:
    error = refused(store, f"storePathCommitLog={value}\n")
    assert "white space around its name, or without one" in error.problem
    assert "line 1: storePathCommitLog" in error.problem


def test_a_wrong_read_only_directory_is_named_by_its_own_line(store: Path) -> None:
    error = refused(store, "storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/c, /d\n")
    assert "line 2: readOnlyCommitLogStorePaths" in error.problem


@pytest.mark.parametrize("name", [r"/a\u0000b", r"/a\ud800"])
def test_a_directory_that_no_system_has(store: Path, name: str) -> None:
    error = refused(store, f"storePathCommitLog={name}\n")
    assert "storePathCommitLog names a directory that can't be" in error.problem
    error = refused(store, f"storePathRootDir={name}\nstorePathCommitLog=/elsewhere/log\n")
    assert "isn't where storePathCommitLog says" in error.problem


def test_a_directory_whose_name_is_too_long(store: Path) -> None:
    error = refused(store, f"storePathCommitLog=/{'x' * 300}\n")
    assert "isn't where storePathCommitLog says" in error.problem


def test_a_broker_conf_that_no_system_has(store: Path) -> None:
    with pytest.raises(SettingsError, match="embedded null byte"):
        StoreSettings.load(store, Path("a\0b"), None)


def test_a_directory_relative_to_an_unknown_place(store: Path) -> None:
    error = refused(store, "storePathRootDir=store\nstorePathCommitLog=elsewhere/log\n")
    assert "relative to where the broker was started" in error.problem


def test_a_commit_log_that_is_not_there(store: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    error = refused(store, f"storePathRootDir=/data\nstorePathCommitLog={missing}\n")
    assert "isn't where storePathCommitLog says" in error.problem
    assert error.next_step is None
    segment(store / "commitlog")
    error = refused(store, f"storePathRootDir=/data\nstorePathCommitLog={missing}\n")
    assert str(store / "commitlog") in str(error.next_step)


def test_a_copy_beside_the_commit_log_of_the_original(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "disk" / "commitlog")
    segment(store / "commitlog")
    error = refused(store, f"storePathRootDir=/data\nstorePathCommitLog={log}\n")
    assert "two commit logs could be meant" in error.problem
    assert str(log) in str(error.found)
    # Either way out works.
    assert load(store, f"storePathRootDir={store}\nstorePathCommitLog={log}\n").commit_log_dirs == (log,)
    assert load(store, "storePathRootDir=/data\n").commit_log_dirs == (store / "commitlog",)


def test_a_store_reached_through_a_link_is_the_same(store: Path, tmp_path: Path) -> None:
    log = segment(tmp_path / "disk" / "commitlog")
    segment(store / "commitlog")
    link = tmp_path / "link"
    link.symlink_to(store)
    assert load(store, f"storePathRootDir={link}\nstorePathCommitLog={log}\n").commit_log_dirs == (log,)
    # and so is its commit log, with nothing said of the root
    text = f"storePathCommitLog={link}/commitlog\n"
    assert load(store, text).commit_log_dirs == (link / "commitlog",)


def test_a_file_that_is_not_there(store: Path) -> None:
    with pytest.raises(SettingsError, match="can't be read") as caught:
        StoreSettings.load(store, store / "none.conf", None)
    assert caught.value.found == "No such file or directory"
    with pytest.raises(SettingsError, match="can't be read"):
        StoreSettings.load(store, store, None)


def test_a_broken_escape(store: Path) -> None:
    assert "line 2" in str(refused(store, "a=1\nstorePathRootDir=C:\\users\n"))


# --- The page for operators ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_rocksdb"])
def test_queues_in_rocksdb_are_known_without_broker_conf(store: Path, name: str) -> None:
    (store / name / "CURRENT").mkdir(parents=True)
    StoreSettings.load(store, None, None)  # a topic may have this name
    (store / name / "CURRENT").rmdir()
    (store / name / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(UnsupportedError, match="consume queues are in RocksDB") as refused:
        StoreSettings.load(store, None, None)
    assert refused.value.path == str(store / name)
    assert "rocksdbCQDoubleWriteEnable=true" in str(refused.value)
    conf = store / "double.conf"
    conf.write_text("rocksdbCQDoubleWriteEnable=true\n")
    if name == "consumequeue":
        StoreSettings.load(store, conf, "5.5")
        conf.write_text("storeType=defaultRocksDB\nuseSeparateStorePathForRocksdbCQ=true\n")
    with pytest.raises(UnsupportedError, match=f"in RocksDB in {name}/") as refused:
        StoreSettings.load(store, conf, "5.5", rocksdb=True)
    assert "a broker doesn't start with both" in str(refused.value)


DOUBLE = "rocksdbCQDoubleWriteEnable=true\n"


@pytest.mark.parametrize(
    ("conf", "version", "expected"),
    [
        ("", None, RocksDBSettings()),
        ("storeType=defaultRocksDB", "5.1", RocksDBSettings()),
        ("storeType=defaultRocksDB", "5.2", RocksDBSettings("consumequeue", files=False)),
        ("storeType=defaultRocksDB\nenableLmq=true", "5.3.1", RocksDBSettings("consumequeue", files=False)),
        (
            "storeType=defaultRocksDB\nenableLmq=true",
            "5.3.2",
            RocksDBSettings("consumequeue", files=False, lmq=True),
        ),
        (DOUBLE, "5.3.3", RocksDBSettings("consumequeue")),
        (f"{DOUBLE}enableLmq=true", "5.5", RocksDBSettings("consumequeue", lmq=True)),
        (f"{DOUBLE}combineCQLoadingCQTypes=default", "5.5", RocksDBSettings()),
        (
            f"{DOUBLE}combineCQLoadingCQTypes=defaultRocksDB",
            "5.5",
            RocksDBSettings("consumequeue", files=False),
        ),
        (f"{DOUBLE}useSeparateStorePathForRocksdbCQ=true", "5.4", RocksDBSettings("consumequeue")),
        (f"{DOUBLE}useSeparateStorePathForRocksdbCQ=true", "5.5", RocksDBSettings("consumequeue_rocksdb")),
        ("indexRocksDBEnable=true", "5.3.3", RocksDBSettings()),
        ("indexRocksDBEnable=true", "5.4", RocksDBSettings(index=True)),
        ("indexRocksDBEnable=true\nmessageIndexEnable=false", "5.4", RocksDBSettings()),
    ],
)
def test_what_is_in_rocksdb(store: Path, conf: str, version: str | None, expected: RocksDBSettings) -> None:
    path = store / "rocksdb.conf"
    path.write_text(conf)
    found = StoreSettings.load(store, path, version, rocksdb=True)
    assert found.rocksdb == expected
    without = StoreSettings.load(store, None, version).fingerprint()
    assert (found.fingerprint() == without) == (expected == RocksDBSettings() and "Index" not in conf)


def test_light_queues_are_in_rocksdb_alone(store: Path) -> None:
    path = store / "rocksdb.conf"
    path.write_text(f"{DOUBLE}enableMultiDispatch=true\nenableLmq=true\ncombineCQUseRocksdbForLmq=true\n")
    found = StoreSettings.load(store, path, "5.5", rocksdb=True)
    assert not found.enable_multi_dispatch
    assert found.rocksdb.lmq


def test_topics_that_are_written_twice_are_not_told(store: Path) -> None:
    path = store / "rocksdb.conf"
    path.write_text(f"{DOUBLE}rocksdbCQSelectiveDoubleWriteEnable=true\n")
    with pytest.raises(UnsupportedError, match="line 2: rocksdbCQSelectiveDoubleWriteEnable"):
        StoreSettings.load(store, path, "5.5.1", rocksdb=True)


def test_the_page_names_every_setting_that_is_read() -> None:
    lib = Path(__file__).parents[3] / "lib" / "reput" / "config" / "settings.py"
    page = Path(__file__).parents[3] / "docs" / "data" / "settings.md"
    keys = set(
        re.findall(r'conf\.(?:entry|text|switch|integer|optional_integer)\(\s*"(\w+)"', lib.read_text())
    )
    assert len(keys) > 15
    assert sorted(key for key in keys if f"`{key}" not in page.read_text()) == []
