"""Files that reput leaves in a store look like the broker's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.store import files, ownership
from reput.store.ownership import Owner


def _file(path: Path, mode: int, dir_mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    path.chmod(mode)
    path.parent.chmod(dir_mode)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


def test_consume_queue_files_are_asked_first(store: Path) -> None:
    _file(store / "consumequeue" / "TopicA" / "0" / f"{0:020d}", 0o640, 0o750)
    _file(store / "commitlog" / f"{0:020d}", 0o600, 0o700)
    assert Owner.of_store(store, [store / "commitlog"]) == Owner(os.geteuid(), os.getegid(), 0o640, 0o750)


def test_then_segments_in_any_of_the_directories(store: Path, tmp_path: Path) -> None:
    (store / "consumequeue" / "TopicA").mkdir(parents=True)
    _file(tmp_path / "disk2" / f"{0:020d}", 0o664, 0o775)
    found = Owner.of_store(store, [store / "commitlog", tmp_path / "disk2"])
    assert (found.file_mode, found.dir_mode) == (0o664, 0o775)


def test_files_that_no_broker_wrote_say_nothing(store: Path) -> None:
    _file(store / "consumequeue" / "TopicA" / "0" / "notes.txt", 0o777, 0o777)
    assert Owner.of_store(store, [store / "commitlog"]) == Owner(os.geteuid(), os.getegid())


def test_a_protected_segment_does_not_make_files_that_no_broker_can_write(store: Path) -> None:
    _file(store / "commitlog" / f"{0:020d}", 0o444, 0o555)
    found = Owner.of_store(store, [store / "commitlog"])
    assert (found.file_mode, found.dir_mode) == (0o644, 0o755)


def test_a_store_that_cannot_be_looked_at_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file") as caught:
        Owner.of_store(tmp_path / "nowhere", [])
    assert caught.value.path == str(tmp_path / "nowhere")


def test_the_default_changes_nothing(tmp_path: Path) -> None:
    Owner.default().check_can_apply(tmp_path)
    os.close(files.create_file(tmp_path / "file", 1, Owner.default()))
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


def test_what_this_process_may_do_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Owner(os.geteuid(), os.getegid()).check_can_apply(tmp_path)
    monkeypatch.setattr(ownership, "_may_chown", lambda: True)
    Owner(os.geteuid() + 1, os.getegid() + 1).check_can_apply(tmp_path)


@pytest.mark.parametrize(("uid", "gid"), [(1, None), (None, 54321), (1, 54321)])
def test_who_may_not_give_files_away_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int | None, gid: int | None
) -> None:
    monkeypatch.setattr(ownership, "_may_chown", lambda: False)
    other = Owner(None if uid is None else os.geteuid() + uid, gid)
    with pytest.raises(OutputError, match="may not give them away") as caught:
        other.check_can_apply(tmp_path)
    assert caught.value.path == str(tmp_path)
    assert "root" in (caught.value.next_step or "")
    assert list(tmp_path.iterdir()) == []


def test_the_answer_agrees_with_the_system(tmp_path: Path) -> None:
    """Root in a container may lack the capability; an ordinary user never has it."""
    probe = tmp_path / "probe"
    probe.touch()
    try:
        os.chown(probe, os.geteuid() + 1, -1)
    except PermissionError:
        assert not ownership._may_chown()
    else:
        assert ownership._may_chown()
