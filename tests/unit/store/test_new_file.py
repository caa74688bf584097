"""Files that commands make: none in a store, however either is named, and none in the place of another."""

from __future__ import annotations

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
    with pytest.raises(OutputError, match=r"a directory is there already\. Name a new one$"):
        new_file(place, store, force=True)
