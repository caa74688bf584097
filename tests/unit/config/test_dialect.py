"""The table of versions: which release has which rules, and what is refused.

What each row expects was read in the Java classes named in reput.config.dialect.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from reput.config.broker_conf import SETTINGS
from reput.config.dialect import DIALECTS, Dialect, dialect, in_full, is_newer
from reput.errors import SettingsError

RELEASES = [
    *("4.0.0", "4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.3.2", "4.4.0", "4.5.0", "4.5.1", "4.5.2"),
    *("4.6.0", "4.6.1", "4.7.0", "4.7.1", "4.8.0"),
    *("4.9.0", "4.9.1", "4.9.2", "4.9.3", "4.9.4", "4.9.5", "4.9.6", "4.9.7", "4.9.8"),
    *("5.0.0",),
    *("5.1.0", "5.1.1", "5.1.2", "5.1.3", "5.1.4"),
    *("5.2.0",),
    *("5.3.0", "5.3.1", "5.3.2", "5.3.3", "5.3.4"),
    *("5.4.0",),
    *("5.5.0", "5.5.1"),
]


def releases_with(rule: str, value: object) -> list[str]:
    return [release for release in RELEASES if getattr(dialect(release), rule) == value]


def since(release: str) -> list[str]:
    return RELEASES[RELEASES.index(release) :]


def test_every_release_is_in_exactly_one_dialect_in_order() -> None:
    assert [release for row in DIALECTS for release in row.versions] == RELEASES


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_names_the_newest_release(name: str) -> None:
    said = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    assert RELEASES[-1] in said, f"{name} gives the range of releases: end it with {RELEASES[-1]}"


def test_names_are_unique_and_lead_back_to_their_dialect() -> None:
    assert len({row.name for row in DIALECTS}) == len(DIALECTS)
    for row in DIALECTS:
        assert dialect(row.name) is row


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_gets_the_dialect_that_covers_it(release: str) -> None:
    assert release in dialect(release).versions


@pytest.mark.parametrize(
    ("line", "newest"), [*{one.rpartition(".")[0]: one for one in RELEASES}.items(), (None, RELEASES[-1])]
)
def test_a_line_means_its_newest_release(line: str | None, newest: str) -> None:
    assert dialect(line) is dialect(newest)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("multi_path_commit_log", "4.9.2"),
        ("multi_dispatch", "4.9.3"),
        ("inner_batch_properties", "5.0.0"),
        ("topic_length_v2", "5.1.0"),
        ("lmq_rejects_slash", "5.1.2"),
        ("append_prop_crc", "5.2.0"),
        ("trims_text_settings", "5.2.0"),
        ("index_tags", "5.4.0"),
    ],
)
def test_a_rule_holds_from_its_first_release_on(rule: str, first: str) -> None:
    assert releases_with(rule, True) == since(first)


def test_when_a_start_knows_the_delay_levels() -> None:
    """``DefaultMessageStore.load``: first, behind the recovery from 4.9.2 on, and first again in 5.0."""
    known = [release for release in RELEASES if dialect(release).recovery.knows_delay_levels]
    assert known == [*RELEASES[: RELEASES.index("4.9.2")], *since("5.0.0")]


def test_the_checkpoint_grows() -> None:
    assert {count: releases_with("checkpoint_fields", count)[0] for count in (3, 4, 5, 6)} == {
        3: "4.0.0",
        4: "5.0.0",
        5: "5.1.1",
        6: "5.5.0",
    }


def test_an_empty_index_file_holds_a_count_from_5_0_on() -> None:
    assert releases_with("empty_index_count", 1) == since("5.0.0")
    assert releases_with("empty_index_count", 0) == RELEASES[: RELEASES.index("5.0.0")]


@pytest.mark.parametrize(
    ("topic", "excluding"),
    [
        ("orders", []),
        ("%RETRY%group", since("5.1.1")),
        ("a%RETRY%group", []),
        ("%DLQ%group", []),
        ("SCHEDULE_TOPIC_XXXX", since("5.1.2")),
        ("SCHEDULE_TOPIC_XXXX2", []),
        ("rmq_sys_wheel_timer", since("5.1.2")),
        ("rmq_sys_anything", since("5.2.0")),
        ("RMQ_SYS_TRANS_HALF_TOPIC", []),
    ],
)
def test_topics_without_light_message_queues(topic: str, excluding: list[str]) -> None:
    without_any = RELEASES[: RELEASES.index("4.9.3")]
    found = [release for release in RELEASES if dialect(release).lmq_excludes(topic)]
    assert found == without_any + excluding


@pytest.mark.parametrize(
    ("key", "first"),
    [
        ("readOnlyCommitLogStorePaths", "4.9.2"),
        ("enableMultiDispatch", "4.9.3"),
        ("enableLmq", "4.9.3"),
        ("forceVerifyPropCRC", "5.2.0"),
        ("storeType", "5.2.0"),
        ("rocksdbCQDoubleWriteEnable", "5.3.0"),
        ("combineCQLoadingCQTypes", "5.3.0"),
        ("indexFileWriteEnable", "5.4.0"),
        ("combineCQUseRocksdbForLmq", "5.5.0"),
    ],
)
def test_settings_that_older_brokers_do_not_have(key: str, first: str) -> None:
    assert [release for release in RELEASES if SETTINGS[key].is_known(dialect(release))] == since(first)


def test_equal_rules_do_not_depend_on_the_name() -> None:
    assert dialect("5.2").rules() == dialect("5.3").rules()
    assert dialect("5.3").rules() != dialect("5.4").rules()


def test_rules_hold_every_field_that_reaches_the_files() -> None:
    reading = {"name", "versions", "multi_path_commit_log", "trims_text_settings"}
    reading |= {"settings_in_rocksdb", "imports_json_settings", "recovery", "queries"}
    reading |= {"filter_parts", "rocksdb_lmq"}  # of some stores: see StoreSettings.fingerprint
    reading |= {"maped_settings"}
    no_rule = {"dup_info_check"}  # of the fingerprints that journals hold
    assert "counts_keys" not in dialect("4.7.1").rules()  # nor do they
    assert set(dialect("4.7.0").rules()) - no_rule == set(Dialect.__dataclass_fields__) - reading


def test_a_dialect_travels_by_pickle() -> None:
    for row in DIALECTS:
        assert pickle.loads(pickle.dumps(row)) == row


# --- All the error paths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version", ["", "5", "5.", "v5.3", "5.3.x", "5.3.3.1", " 5.3", "5.3\n", "\uff15.3", "5.0.0-ALPHA"]
)
def test_what_is_not_a_version(version: str) -> None:
    with pytest.raises(SettingsError, match="isn't a RocketMQ version") as caught:
        dialect(version)
    assert caught.value.found == repr(version)
    assert "5.3.0 to 5.3.4" in str(caught.value)


@pytest.mark.parametrize("version", ["3.2", "3.5.8", "4.10", "04.9"])
def test_a_line_that_is_not_known(version: str) -> None:
    with pytest.raises(SettingsError, match="isn't known") as caught:
        dialect(version)
    assert caught.value.found == version
    assert "4.9.0 to 4.9.8" in str(caught.value)
    assert "only when you name it" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "line", "newest"),
    [("5.3.5", "5.3", "5.3.4"), ("4.9.9", "4.9", "4.9.8"), ("5.4.1", "5.4", "5.4.0")],
)
def test_an_unknown_release_of_a_known_line_names_the_way_out(version: str, line: str, newest: str) -> None:
    with pytest.raises(SettingsError, match=f"say {line} for the rules of {newest}"):
        dialect(version)


@pytest.mark.parametrize(
    ("version", "release"),
    [(None, None), ("4.3", "4.3.2"), ("4.9", "4.9.8"), ("5.3.3", "5.3.3"), ("6.0", "6.0")],
)
def test_a_line_is_named_in_full(version: str | None, release: str | None) -> None:
    """``4.3`` has the rules of 4.3.2, and 4.3.1 starts otherwise."""
    assert in_full(version) == release


@pytest.mark.parametrize("version", [f"{RELEASES[-1][:-1]}999", "6.998", "6.999.0", "10.0.0"])
def test_a_newer_release_has_the_rules_of_the_newest(version: str) -> None:
    assert is_newer(version)
    assert dialect(version) is DIALECTS[-1]
    assert not any(map(is_newer, RELEASES))


@pytest.mark.parametrize(("release", "counts"), [("4.2.0", True), ("4.7.0", True), ("4.7.1", False)])
def test_what_the_hash_slot_count_counts(release: str, counts: bool) -> None:
    """``IndexFile.putKey``: every key up to 4.7.0, then slots that were empty."""
    assert dialect(release).counts_keys is counts


@pytest.mark.parametrize(("release", "maped"), [("4.2.0", True), ("4.5.1", True), ("4.5.2", False)])
def test_where_keys_have_one_p(release: str, maped: bool) -> None:
    """``MessageStoreConfig``."""
    assert dialect(release).maped_settings is maped
