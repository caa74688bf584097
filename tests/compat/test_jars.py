from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.compat import jars
from tests.compat.jars import JarsUnavailableError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(jars.NO_FETCH)
    return tmp_path / "reput" / "rocketmq"


def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))


def test_other_releases_are_refused(cache: Path) -> None:
    with pytest.raises(
        ValueError, match=r"RocketMQ 3\.5\.8 isn't one of the releases tested against: 4\.9\.7"
    ):
        jars.jars("3.5.8")


def test_a_missing_java_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JarsUnavailableError, match=r"no java in JAVA_HOME \(/nowhere\)"):
        jars.jars("5.5.0")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JarsUnavailableError, match="no java in PATH: install Java 17 or 21"):
        jars.jars("5.5.0")


def test_a_failed_fetch_says_what_ivy_said_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tmp_path / "tries"
    fake_java(tmp_path, monkeypatch, f"echo x >> {tries}; echo 'unresolved dependency'; exit 1")
    monkeypatch.setattr("reput.spark.jars._PAUSES", (0.0, 0.0))
    with pytest.raises(
        JarsUnavailableError, match=r"(?s)is Maven Central within reach\?.*unresolved dependency"
    ):
        jars.jars("5.5.0")
    assert list(cache.iterdir()) == []
    assert tries.read_text().splitlines() == ["x"] * 3


def test_a_fetched_release_is_complete_at_once_and_used_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last argument is Ivy's pattern: DIRECTORY/[artifact]-...
    retrieve = 'for last; do :; done; d=${last%/*}; mkdir -p "$d"; touch "$d/rocketmq-store-5.5.0.jar"'
    fake_java(tmp_path, monkeypatch, f"[ ! -e {cache}/5.5.0 ] && {retrieve}")
    monkeypatch.setattr(jars, "_DIGESTS", {})
    expected = [cache / "5.5.0" / "rocketmq-store-5.5.0.jar"]
    assert jars.jars("5.5.0") == expected
    assert [path.name for path in cache.iterdir()] == ["5.5.0"]
    assert jars.jars("5.5.0") == expected


def test_jars_that_are_not_those_of_before_are_not_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, monkeypatch, 'for last; do :; done; mkdir -p "${last%/*}"; touch "${last%/*}/a.jar"')
    with pytest.raises(JarsUnavailableError, match=r"RocketMQ 5\.5\.0 isn't what it was"):
        jars.jars("5.5.0")
    assert list(cache.iterdir()) == []


def test_what_is_missing_is_named_and_no_test_fetches_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.NO_FETCH, "1")
    fake_java(tmp_path, monkeypatch, f"touch {tmp_path}/called")
    with pytest.raises(JarsUnavailableError, match="run `make jars` first"):
        jars.jars("5.5.0")
    assert {"RocketMQ 5.5.0", "Delta Lake", "Hadoop 3.5.0"} <= set(jars.missing())
    assert not (tmp_path / "called").exists()


def test_a_directory_without_the_store_is_not_taken_for_a_release(cache: Path) -> None:
    (cache / "5.5.0").mkdir(parents=True)
    with pytest.raises(
        JarsUnavailableError, match=r"lacks rocketmq-store-5\.5\.0\.jar: remove the directory"
    ):
        jars.jars("5.5.0")
