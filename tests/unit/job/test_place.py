"""Where stores are: what is a path, and what a host and a path on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.errors import SettingsError
from reput.job.many import Place


@pytest.mark.parametrize(
    ("word", "host", "path", "shown"),
    [
        ("/a/b", None, "/a/b", "/a/b"),
        ("a", None, "a", "a"),
        ("/a:/b", None, "/a:/b", "/a:/b"),
        ("./a:b", None, "a:b", "a:b"),
        ("../h:/b", None, "../h:/b", "../h:/b"),
        ("h:/a", "h", "/a", "h:/a"),
        ("Node-2.Example.com.:/a/", "node-2.example.com", "/a", "node-2.example.com:/a"),
        ("h://a/./b/../c", "h", "/a/c", "h:/a/c"),
        ("h:/a:/b", "h", "/a:/b", "h:/a:/b"),
        ("10.0.0.2:/a", "10.0.0.2", "/a", "10.0.0.2:/a"),
        ("[FD00::0:2]:/a", "fd00::2", "/a", "[fd00::2]:/a"),
    ],
)
def test_it_is_understood(word: str, host: str | None, path: str, shown: str) -> None:
    place = Place.parse(word)
    assert (place.host, place.path) == (host, Path(path))
    assert str(place) == shown
    if host is not None:
        assert Place.parse(shown) == place


@pytest.mark.parametrize(
    "word", ["h:a", "h:", ":/a", "h h:/a", "-h:/a", "fd00::2:/a", "[h]:/a", "[]:/a", "a:b:c"]
)
def test_it_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="place can't be understood") as refused:
        Place.parse(word)
    assert refused.value.next_step == f"If it is a path on this host: ./{word}"
    assert Place.parse(f"./{word}").host is None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1.2.3", "[::1]", "0.0.0.0"]
)
def test_a_name_that_each_host_has_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="each host calls itself so"):
        Place.parse(f"{host}:/a")
