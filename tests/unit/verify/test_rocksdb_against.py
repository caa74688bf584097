"""Two stores' indexes in RocksDB side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.settings import RocksDBSettings, StoreSettings
from reput.format import names, rocksdbindex
from reput.format.rocksdbindex import ENTRIES, KEY, MS_AN_HOUR, TIMER, TRANS, UNIQUE, key, value
from reput.replay.runner import InlineRunner
from reput.verify.plan import Pair, VerifyOptions
from reput.verify.report import INDEX, Difference, Report
from reput.verify.rocksdb_index import compare_indexes
from tests import rocksdbs

HOUR = 1_795_500_000_000 // MS_AN_HOUR * MS_AN_HOUR
MESSAGES = 200


def entries() -> dict[bytes, bytes]:
    """Two entries for each message, of two days; message n is at 100 n."""
    found = {
        rocksdbindex.LAST_POSITION: value(100 * (MESSAGES - 1)),
        rocksdbindex.LAST_TIMESTAMP: value(HOUR),
    }
    for number in range(MESSAGES):
        at = HOUR + number * MS_AN_HOUR // 4
        for kind, text in ((KEY, b"k%d" % number), (UNIQUE, b"")):
            made = key(b"Topic", kind, text, b"U%d" % number, at, 100 * number)
            assert made is not None
            found[made] = value(at)
    return found


def store(root: Path, of_index: dict[bytes, bytes] | None) -> StoreSettings:
    (root / names.COMMIT_LOG).mkdir(parents=True)
    (root / names.COMMIT_LOG / names.offset_name(0)).write_bytes(bytes(64))
    if of_index is not None:
        rocksdbs.write(root / names.ROCKSDB_STORE, {ENTRIES: of_index, TIMER: {}, TRANS: {}})
    settings = StoreSettings.load(root, None, "5.5.0")
    return replace(settings, rocksdb=RocksDBSettings(index=True))


def compared(
    stores: tuple[StoreSettings, StoreSettings], bounds: tuple[int, int], *, running: bool
) -> tuple[list[Difference], int]:
    pair = Pair(VerifyOptions(stores[0].root), *stores, *bounds, running, queue_ext=False)
    report = Report(*bounds, running)
    compare_indexes(pair, InlineRunner(), report)
    return report.findings, report.index_entries


def test_what_one_of_them_lacks_and_what_differs(tmp_path: Path) -> None:
    one, other = entries(), entries()
    gone = sorted(one)[::40]
    for each in gone:
        del other[each]
    made = key(b"Topic", KEY, b"more", b"U7", HOUR, 700)
    assert made is not None
    other[made] = value(HOUR)
    wrong = next(each for each in other if each.endswith((700).to_bytes(8)) and each != made)
    other[wrong] = value(1)
    before = key(b"Topic", KEY, b"early", b"U", HOUR, 99)  # of a message that one log alone has
    assert before is not None
    one[before] = value(HOUR)
    stores = store(tmp_path / "one", one), store(tmp_path / "other", other)
    bounds = (100, 100 * MESSAGES)
    found, count = compared(stores, bounds, running=False)
    assert count == 2 * MESSAGES + 1
    lost = [rocksdbindex.parse_key(each) for each in gone]
    expected = [
        ("only-in-first", each.position) for each in lost if each is not None and each.position >= 100
    ]
    expected += [("only-in-second", 700), ("differs", 700)]
    assert sorted((each.kind, each.first) for each in found) == sorted(expected)
    assert {each.area for each in found} == {INDEX}
    (differs,) = [each for each in found if each.kind == "differs"]
    assert differs.expected.endswith("(first store)")
    assert differs.found.endswith("storeTimestamp 1 (second store)")
    back, _ = compared((stores[1], stores[0]), bounds, running=False)
    swapped = {"only-in-first": "only-in-second", "only-in-second": "only-in-first", "differs": "differs"}
    assert sorted((swapped[each.kind], each.first) for each in back) == sorted(expected)
    assert compared((stores[0], stores[0]), bounds, running=False)[0] == []


@pytest.mark.parametrize("running", [False, True])
def test_what_a_running_broker_has_not_flushed(running: bool, tmp_path: Path) -> None:
    behind = {
        each: of
        for each, of in entries().items()
        if int.from_bytes(each[-8:]) < 15_000 or each in rocksdbindex.MARKS
    }
    behind[rocksdbindex.LAST_POSITION] = value(14_900)
    stores = store(tmp_path / "one", entries()), store(tmp_path / "other", behind)
    found, _ = compared(stores, (0, 100 * MESSAGES), running=running)
    assert sum(each.count for each in found) == (0 if running else 100)


def test_an_index_that_one_of_them_lacks(tmp_path: Path) -> None:
    stores = store(tmp_path / "one", entries()), store(tmp_path / "other", None)
    (found,) = compared(stores, (0, 1), running=False)[0]
    assert (found.kind, found.path) == ("only-in-first", str(tmp_path / "other" / names.ROCKSDB_STORE))
    assert compared((stores[1], stores[1]), (0, 1), running=False) == ([], 0)
