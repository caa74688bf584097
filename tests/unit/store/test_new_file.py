"""Files that commands make: none in a store, however either is named, and none in the place of another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.store.files import new_file


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "link").symlink_to("store")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.mark.parametrize("root", ["store", "link", "{}/store", "./link/../store"])
@pytest.mark.parametrize("file", ["store/f", "link/commitlog/f", "{}/link/f", "store/nowhere/../f"])
def test_nothing_is_written_into_a_store(file: str, root: str, store: Path) -> None:
    for force in (None, False, True):
        with pytest.raises(OutputError, match=r"nothing is written into a store\. Name a file elsewhere"):
            new_file(Path(file.format(store.parent)), Path(root.format(store.parent)), force=force)
    assert new_file(Path("f"), Path(root.format(store.parent))) == store.parent / "f"


@pytest.mark.parametrize(
    ("force", "step"), [(None, "Name a new one"), (False, "Name a new one, or add --force")]
)
def test_what_is_there_stays(force: bool | None, step: str, store: Path) -> None:
    file = store.parent / "f"
    file.touch()
    with pytest.raises(OutputError) as refused:
        new_file(file, store, force=force)
    assert (refused.value.problem, refused.value.next_step) == ("the file is there already", step)
    assert new_file(file, store, force=True) == file


def test_a_directory_is_never_replaced_and_one_that_is_not_there_is_named(store: Path) -> None:
    place = store.parent / "d"
    with pytest.raises(OutputError, match=r"/d: the directory isn't there\. Make it, or name another file"):
        new_file(place / "f", store)
    place.mkdir()
    with pytest.raises(OutputError, match=r"something else than a file is there already\. Name a new one$"):
        new_file(place, store, force=True)


def test_a_device_is_left_alone_and_a_link_leads_to_its_file(store: Path) -> None:
    os.mkfifo(store.parent / "fifo")
    (store.parent / "there").touch()
    (store.parent / "to").symlink_to("there")
    for file in ("/dev/null", store.parent / "fifo"):
        with pytest.raises(OutputError, match="something else than a file is there already"):
            new_file(Path(file), store, force=True)
    assert new_file(store.parent / "to", store, force=True) == store.parent / "there"
