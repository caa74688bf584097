"""Where the client's jars and the access keys come from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.errors import SettingsError, SparkError
from reput.export.send import AccessKeys, access_keys, client_jars, known
from reput.spark import jars
from tests.compat.jars import VERSIONS


def test_the_tested_releases_have_a_client() -> None:
    assert set(known()) == set(VERSIONS)
    for release, hashes in known().items():
        assert f"org.apache.rocketmq:rocketmq-client:{release}" in hashes
        assert all(len(one.split(":")) == 3 and len(digest) == 64 for one, digest in hashes.items())


def test_a_directory_of_jars(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no RocketMQ client"):
        client_jars(tmp_path, None)
    for name in ("rocketmq-client-5.3.3.jar", "netty.jar", "README"):
        (tmp_path / name).touch()
    assert [path.name for path in client_jars(tmp_path, "4.9.7")] == [
        "netty.jar",
        "rocketmq-client-5.3.3.jar",
    ]
    with pytest.raises(SettingsError, match="Name a directory with RocketMQ's jars"):
        client_jars(tmp_path / "no", None)


@pytest.mark.parametrize("release", [None, "5.3", "3.2.6"])
def test_a_client_that_is_not_known(release: str | None) -> None:
    with pytest.raises(SettingsError, match=r"5\.5\.0"):
        client_jars(None, release)


def test_a_jar_with_other_bytes_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "reput" / "jars" / "client" / "5.5.0"
    directory.mkdir(parents=True)
    first = next(iter(known()["5.5.0"]))
    with pytest.raises(SparkError, match="no file"):
        client_jars(None, "5.5.0")
    _, artifact, version = first.split(":")
    (directory / f"{artifact}-{version}.jar").write_bytes(b"foreign")
    with pytest.raises(SparkError, match="isn't what it should be"):
        client_jars(None, "5.5.0")


def test_a_fetch_without_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "java_command", lambda: "/bin/false")
    monkeypatch.setattr(jars, "_PAUSES", (0.0,))
    with pytest.raises(SparkError, match="can't be fetched"):
        client_jars(None, "5.5.0")
    assert list((tmp_path / "reput" / "jars" / "client").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "accessKey: RocketMQ\nsecretKey: 12=34 56:78\n",
        "# keys\n  accessKey = RocketMQ\n  secretKey = 12=34 56:78",
        '{\n"accessKey": "RocketMQ"\n"secretKey": "12=34 56:78"\n}',
    ],
)
def test_keys_in_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    assert access_keys(file) == AccessKeys("RocketMQ", "12=34 56:78")


def test_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_keys(None) is None
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "a")
    with pytest.raises(SettingsError, match="no secretKey"):
        access_keys(None)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "s3cret")
    keys = access_keys(None)
    assert keys == AccessKeys("a", "s3cret")
    assert "s3cret" not in repr(keys)
    assert keys is not None
    assert keys.hide("signed by s3cret") == "signed by ***"


def test_a_file_without_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("accessKey: a-key\n")
    with pytest.raises(SettingsError) as refused:
        access_keys(file)
    assert "no secretKey" in str(refused.value)
    assert "a-key" not in str(refused.value)
