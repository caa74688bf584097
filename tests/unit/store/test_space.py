"""Space is asked for before anything is written, in figures that people read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.store.system import check_free, existing_parent, free_bytes, human


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (6_000_000, "5.7 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (420_000_040, "400.5 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (1024**4 * 5 // 2, "2.5 TiB"),
        (2**63, "8.0 EiB"),
    ],
)
def test_sizes_are_in_human_units(size: int, text: str) -> None:
    assert human(size) == text


def test_free_bytes_are_those_of_an_ordinary_user(tmp_path: Path) -> None:
    before = os.statvfs(tmp_path)
    free = free_bytes(tmp_path)
    after = os.statvfs(tmp_path)
    bounds = sorted(figures.f_bavail * figures.f_frsize for figures in (before, after))
    assert bounds[0] - 2**30 <= free <= bounds[1] + 2**30  # others write to this disk, too


def test_a_path_that_does_not_exist_yet_is_asked_for_at_its_parent(tmp_path: Path) -> None:
    assert existing_parent(tmp_path / "not" / "yet" / "there") == tmp_path
    assert free_bytes(tmp_path / "not" / "yet" / "there") > 0


def test_relative_paths_and_the_root_have_a_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert existing_parent(Path("nowhere/at/all")) == tmp_path
    assert existing_parent(Path("/no-such-directory-anywhere")) == Path("/")


def test_what_fits_passes(tmp_path: Path) -> None:
    check_free(tmp_path / "out", 1, "the output")


def test_what_does_not_fit_is_refused_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no room for the rebuilt index") as caught:
        check_free(tmp_path / "out", 2**62, "the rebuilt index")
    assert caught.value.path == str(tmp_path / "out")
    assert caught.value.expected == "4.0 EiB free"
    assert caught.value.found is not None
    assert caught.value.found.endswith("iB free")
    assert str(tmp_path) in (caught.value.next_step or "")


def test_a_file_system_that_cannot_be_asked_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> os.statvfs_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        free_bytes(tmp_path)
