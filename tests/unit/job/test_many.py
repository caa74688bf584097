"""``stores.toml``: what it may hold; all else is refused, with the file and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.errors import SettingsError
from reput.job.many import Place, StoreEntry, listed, plan_checks, plan_rebuilds, read_stores
from reput.job.options import RebuildOptions
from reput.verify.plan import VerifyOptions

WHOLE = """
cluster = "north"
rocketmq_version = "5.3.3"
broker_conf = "conf/{host}.conf"

[[store]]
place = "a/../broker-a/store"
broker = "broker-a"
broker_conf = "{store}/../broker.conf"

[[store]]
place = "node-b:/data/store"
cluster = "south"
broker_conf = "/etc/{host}.conf"

[[store]]
place = "s3://backup/broker-c/store/"
broker_conf = "broker-c.conf"
rocketmq_version = "4.9.7"
"""


def written(directory: Path, text: str | bytes) -> Path:
    path = directory / "stores.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, WHOLE)
    monkeypatch.chdir("/")
    here, on_host, elsewhere = entries = read_stores(path)
    assert here == StoreEntry(
        Place(tmp_path / "broker-a/store"), "north", "broker-a", Path("{store}/../broker.conf"), "5.3.3"
    )
    assert (str(on_host.place), on_host.cluster, on_host.broker) == ("node-b:/data/store", "south", None)
    assert str(elsewhere.place) == elsewhere.place.url == "s3://backup/broker-c/store"
    assert elsewhere.broker_conf == tmp_path / "broker-c.conf"
    assert listed(["/x", str(path), "h:/y.toml"]) == [
        StoreEntry(Place(Path("/x"))),
        *entries,
        StoreEntry(Place(Path("/y.toml"), "h")),
    ]

    common = VerifyOptions(Path(), broker_conf=Path("/all.conf"), rocketmq_version="5.5")
    found = [(one.options.broker_conf, one.options.rocketmq_version) for one in plan_checks(entries, common)]
    assert found == [
        (tmp_path / "broker-a/store/../broker.conf", "5.3.3"),
        (Path("/etc/node-b.conf"), "5.3.3"),
        (tmp_path / "broker-c.conf", "4.9.7"),
    ]
    # What a list says was said by hand; what comes from the environment wasn't.
    local = [here, StoreEntry(Place(Path("/x")))]
    env = RebuildOptions(Path(), broker_conf=Path("/all.conf"), conf_by_hand=False, version_by_hand=False)
    options = [one.options for one in plan_rebuilds(local, tmp_path / "out", env)]
    assert all(isinstance(one, RebuildOptions) for one in options)
    assert [
        (one.conf_by_hand, one.version_by_hand) for one in options if isinstance(one, RebuildOptions)
    ] == [
        (True, True),
        (False, False),
    ]


STORE = '[[store]]\nplace = "/a"\n'


@pytest.mark.parametrize(
    ("text", "problem", "expected", "found", "step"),
    [
        ("", "it lists no stores", "[[store]] tables", "none", None),
        ("store = []", "it lists no stores", "[[store]] tables", "an empty array", None),
        ('[store]\nplace = "/a"', "it lists no stores", "[[store]] tables", "one table", None),
        ("store = [1]", "it lists no stores", "[[store]] tables", "an array", None),
        ("[[stores]]", "a key is unknown", "store, cluster", "'stores'", "Did you mean store?"),
        ('place = "/a"\n' + STORE, "a key is unknown", "store, cluster", "'place'", None),
        (
            STORE + "brokerconf = 1",
            "unknown in [[store]] 1",
            "place, ",
            "'brokerconf'",
            "Did you mean broker_conf?",
        ),
        (STORE + "broker = 1", "broker in [[store]] 1 can't be used", 'a string: broker = "…"', "1", None),
        (STORE + "broker = true", "broker in [[store]] 1 can't be used", "a string", "true", None),
        (STORE + 'broker = " "', "broker in [[store]] 1 can't be used", "a string", "' '", None),
        (STORE + "[store.broker]", "broker in [[store]] 1 can't be used", "a string", "one table", None),
        ("cluster = [1]\n" + STORE, "cluster can't be used", "a string", "an array", None),
        (STORE + "[[store]]\n", "[[store]] 2 has no place", "a PATH, HOST:/PATH or URL", "none", None),
        (STORE + '[[store]]\nplace = "/b/../a/"', "listed twice", "once", "/a in [[store]] 1 and 2", None),
        ('[[store]]\nplace = "h:a"', "[[store]] 1: a store's place", "HOST:/PATH", "h:a", "If it is"),
        (
            '[[store]]\nplace = "ftp://a/b"',
            "[[store]] 1: no store can be read",
            "a URL of s3",
            "ftp:",
            "Mount it",
        ),
        (
            STORE + 'rocketmq_version = "x"',
            "[[store]] 1: that isn't a RocketMQ version",
            "a release",
            "'x'",
            None,
        ),
        ("[[store]\n", "isn't TOML", "TOML with [[store]] tables", "line 1", None),
        (STORE + STORE.partition("\n")[2] * 2, "isn't TOML", "TOML with", "overwrite", None),
        (b"# \xff", "can't be read", "TOML with", "byte 2 isn't UTF-8", None),
    ],
)
def test_what_is_refused(
    tmp_path: Path, text: str | bytes, problem: str, expected: str, found: str, step: str | None
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        read_stores(path)
    error = refused.value
    assert error.path == str(path)
    assert problem in error.problem
    assert expected in (error.expected or "")
    assert found in (error.found or "")
    if step is not None:
        assert step in (error.next_step or "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"stores\.toml: the list of stores can't be read; expected TOML"):
        listed([str(tmp_path / "stores.toml")])


def test_a_release_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        read_stores(written(tmp_path, STORE + 'rocketmq_version = "3.2.6"'))
    assert refused.value.path == str(tmp_path / "stores.toml")


def test_urls_in_each_other(tmp_path: Path) -> None:
    urls = [StoreEntry.parse(one) for one in ("s3://b/a", "s3://b/a/c")]
    with pytest.raises(SettingsError, match=r"^s3://b/a/c: a store is inside another one; found s3://b/a\."):
        plan_checks(urls, VerifyOptions(Path()))
