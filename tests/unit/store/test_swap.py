"""A swap that dies at any step, or can't go on, leaves something that the next run makes whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.newer_python import UTC
from reput.store import files, swap
from reput.store.ownership import Owner
from reput.store.swap import Swap, SwapOvertakenError, abandon, is_pending, new_stamp, undo
from reput.store.system import System

STAMP, LATER = "20261121T093000Z", "20261121T094500Z"
KEPT, KEPT_LATER = f"replaced-{STAMP}", f"replaced-{LATER}"
NAMES = ("consumequeue", "batchconsumequeue", "index", "checkpoint")
REMOVE = ("consumequeue_ext", "not-there")
Tree = dict[str, str]

STORE: Tree = {
    "commitlog/00000000000000000000": "log",
    "consumequeue/TopicA/0/00000000000000000000": "old A",
    "consumequeue/TopicB/3/00000000000000000000": "old B",
    "consumequeue_ext/TopicA/0/00000000000000000000": "old ext",
    "index/20260101000000000": "old index",
    "checkpoint": "old checkpoint",
    "lock": "lock",
}
STAGED: Tree = {
    "consumequeue/TopicA/0/00000000000000000000": "new A",
    "consumequeue/TopicC/0/00000000000000000000": "new C",
    "batchconsumequeue/TopicD/0/00000000000000000000": "new D",
    "index/20261121093000000": "new index",
    "checkpoint": "new checkpoint",
}


class Died(BaseException):
    """Stands for the end of the process: nothing in the code may catch it."""


class Counting(System):
    """Dies, or fails, before the n-th call that changes something. Flushes nothing: no power is lost here."""

    def __init__(
        self, last: int | None = None, *, exchange: bool = True, error: OSError | None = None
    ) -> None:
        self.last = last
        self.error = error
        self.can_exchange = exchange
        self.count = 0

    def _step(self) -> None:
        if self.count == self.last:
            raise self.error or Died
        self.count += 1

    def sync(self, fd: int, data_only: bool) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._step()
        return super().pwrite(fd, data, offset)

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def exchange(self, left: Path, right: Path) -> None:
        if not self.can_exchange:
            raise OSError(errno.EINVAL, "Invalid argument")
        self._step()
        super().exchange(left, right)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        self._step()
        super().remove_directory(path)


def lay_out(root: Path, tree: Tree) -> None:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def tree_of(root: Path) -> Tree:
    return {
        str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()
    }


def under(prefix: str, tree: Tree) -> Tree:
    return {f"{prefix}/{name}": text for name, text in tree.items()}


def parts(tree: Tree, *names: str) -> Tree:
    return {name: text for name, text in tree.items() if name.split("/")[0] in names}


def without_record(tree: Tree) -> Tree:
    """Without the intent, wherever it is, and what a death while writing it leaves."""
    records = ("swap.json", ".swap.json.tmp")
    return {name: text for name, text in tree.items() if name.split("/")[-1] not in records}


SWAPPED = STAGED | parts(STORE, "commitlog", "lock") | under(KEPT, parts(STORE, *NAMES, "consumequeue_ext"))
UNDONE = STORE | under(KEPT_LATER, STAGED)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a rebuilt one in staging."""
    return make(tmp_path / "store")


def make(root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    lay_out(root, STORE)
    lay_out(root / ".reput" / "staging", STAGED)
    return root


def begin(root: Path) -> Path:
    return Swap(root, root / ".reput" / "staging", NAMES, STAMP, remove=REMOVE).run()


def broker_starts(root: Path) -> None:
    (root / "lock").write_text("lock")
    facts = (root / "lock").stat()
    os.utime(root / "lock", ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def steps_of(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, exchange: bool) -> int:
    system = Counting(exchange=exchange)
    monkeypatch.setattr(files, "system", system)
    act()
    return system.count


def dies(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], last: int, *, exchange: bool) -> None:
    monkeypatch.setattr(files, "system", Counting(last, exchange=exchange))
    with pytest.raises(Died):
        act()
    monkeypatch.setattr(files, "system", Counting(exchange=exchange))


# from end to end


@pytest.mark.parametrize("exchange", [True, False])
def test_all_names_change_and_the_old_ones_are_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    monkeypatch.setattr(files, "system", Counting(exchange=exchange))
    assert begin(root) == root / KEPT
    assert without_record(tree_of(root)) == SWAPPED
    assert not is_pending(root)
    assert not (root / ".reput" / "staging").exists()
    assert Swap.resume(root) is None


def test_every_change_is_flushed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each rename, both its directories, before the next one."""
    waiting: set[Path] = set()

    class Flushing(System):
        def rename(self, source: Path, target: Path) -> None:
            assert not waiting
            waiting.update({source.parent, target.parent})
            super().rename(source, target)

        def exchange(self, left: Path, right: Path) -> None:
            assert not waiting
            waiting.update({left.parent, right.parent})
            super().exchange(left, right)

        def make_directory(self, path: Path) -> None:
            waiting.add(path.parent)
            super().make_directory(path)

        def sync_directory(self, path: Path) -> None:
            waiting.discard(path)

    monkeypatch.setattr(files, "system", Flushing())
    begin(root)
    assert not waiting
    assert without_record(tree_of(root)) == SWAPPED


def test_single_queues_change_inside_the_directories_that_stay(root: Path) -> None:
    (root / "consumequeue" / "TopicE" / "1").mkdir(parents=True)
    chosen = ("consumequeue/TopicA/0", "consumequeue/TopicC/0")
    kept = Swap(root, root / ".reput/staging", chosen, STAMP, remove=["consumequeue/TopicE/1"]).run()
    found = tree_of(root / "consumequeue")
    assert found == {
        "TopicA/0/00000000000000000000": "new A",
        "TopicB/3/00000000000000000000": "old B",
        "TopicC/0/00000000000000000000": "new C",
    }
    assert without_record(tree_of(kept)) == {"consumequeue/TopicA/0/00000000000000000000": "old A"}
    assert (kept / "consumequeue" / "TopicE" / "1").is_dir()
    # What wasn't chosen would look like a run to go on with.
    assert [path.name for path in (root / ".reput/staging").iterdir()] == ["checkpoint"]


def test_new_directories_take_the_owners_mode(root: Path) -> None:
    owner = Owner(os.geteuid(), os.getegid(), 0o640, 0o750)
    kept = Swap(root, root / ".reput/staging", ["consumequeue/TopicA/0"], STAMP, owner=owner).run()
    assert [path.stat().st_mode & 0o7777 for path in (kept, kept / "consumequeue")] == [0o750, 0o750]
    assert (kept / "swap.json").stat().st_mode & 0o7777 == 0o640


def test_a_stamp_that_is_taken_is_not_given_again(root: Path) -> None:
    first = new_stamp(root)
    (root / f"replaced-{first}").mkdir()
    second = new_stamp(root)
    assert second > first
    with pytest.raises(OutputError, match="something is kept here already"):
        Swap(root, root / ".reput/staging", NAMES, first).run()


@pytest.mark.parametrize("name", ["20991121T093000Z", "20991121T093000Z-old", "99999999T999999Z"])
def test_a_stamp_sorts_behind_all_that_were_given_also_after_the_clock_was_set_back(
    root: Path, name: str
) -> None:
    (root / f"replaced-{name}").mkdir()
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    if name == "20991121T093000Z":
        assert new_stamp(root) == "20991121T093001Z"
    else:
        assert now <= new_stamp(root) < "2099", "that is none of reput's"


# death at every step


@pytest.mark.parametrize("exchange", [True, False])
def test_death_at_any_step_and_again_while_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    root = tmp_path / "store"
    steps = steps_of(monkeypatch, lambda: begin(make(root)), exchange=exchange)
    assert steps == 13  # one for the kept directory, two for the intent, eight for names, two at the end
    begun = 0
    for last in range(steps):
        make(root)
        dies(monkeypatch, lambda: begin(root), last, exchange=exchange)
        if is_pending(root):
            begun += 1
            again = 0
            while is_pending(root):
                # Each time one step further, until one gets to the end.
                monkeypatch.setattr(files, "system", Counting(again, exchange=exchange))
                try:
                    assert Swap.resume(root) == root / KEPT
                except Died:
                    again += 1
        elif not (root / KEPT / "swap.json").exists():
            assert without_record(tree_of(root)) == STORE | under(".reput/staging", STAGED)
            monkeypatch.setattr(files, "system", Counting(exchange=exchange))
            begin(root)
        assert without_record(tree_of(root)) == SWAPPED, last
        assert Swap.resume(root) is None
    assert begun == 11


@pytest.mark.parametrize("exchange", [True, False])
def test_death_at_any_step_while_single_queues_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    root = tmp_path / "store"
    chosen = ("consumequeue/TopicA/0", "consumequeue/TopicC/0", "checkpoint")

    def single() -> object:
        return Swap(root, root / ".reput/staging", chosen, STAMP, remove=["consumequeue/TopicB/3"]).run()

    make(root)
    steps = steps_of(monkeypatch, single, exchange=exchange)
    expected = without_record(tree_of(root))
    assert expected["checkpoint"] == "new checkpoint"
    for last in range(steps):
        make(root)
        dies(monkeypatch, single, last, exchange=exchange)
        if Swap.resume(root) is None and not (root / KEPT / "swap.json").exists():
            single()
        assert without_record(tree_of(root)) == expected, last


@pytest.mark.parametrize("after", [1, 2, 5, 8])
def test_a_killed_process(root: Path, after: int) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from reput.store import files\n"
        "from reput.store.swap import Swap\n"
        "from reput.store.system import System\n"
        f"left = {after}\n"
        "class Killed(System):\n"
        "    def _step(self):\n"
        "        global left\n"
        "        left -= 1\n"
        "        if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    def rename(self, *names): self._step(); super().rename(*names)\n"
        "    def exchange(self, *names): self._step(); super().exchange(*names)\n"
        "files.system = Killed()\n"
        "root = Path(sys.argv[1])\n"
        f"Swap(root, root / '.reput/staging', {NAMES!r}, {STAMP!r}, remove={REMOVE!r}).run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, root], check=False)
    assert done.returncode == -signal.SIGKILL
    assert is_pending(root)
    assert without_record(tree_of(root)) != SWAPPED
    assert Swap.resume(root) == root / KEPT
    assert without_record(tree_of(root)) == SWAPPED


# failures on the way


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failure_on_the_way_leaves_the_intent_and_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    root = tmp_path / "store"
    steps = steps_of(monkeypatch, lambda: begin(make(root)), exchange=exchange)
    refused = pending = 0
    said: dict[int, tuple[bool, str]] = {}
    for last in range(steps):
        make(root)
        # The disk comes back for the clean-up only when nothing has begun: fail just once.
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        system = Counting(last, exchange=exchange, error=error)
        monkeypatch.setattr(files, "system", _once(system))
        try:
            begin(root)
        except OutputError as error:
            said[last] = is_pending(root), str(error)
            if is_pending(root):
                pending += 1
                assert Swap.resume(root) == root / KEPT
            elif (root / KEPT / "swap.json").exists():
                pass  # failed at clearing the empty staging directory away: all is in place
            else:
                refused += 1
                assert without_record(tree_of(root)) == STORE | under(".reput/staging", STAGED)
                assert not (root / KEPT).exists()
                begin(root)
        assert parts(without_record(tree_of(root)), *NAMES) == parts(SWAPPED, *NAMES), last
        assert parts(without_record(tree_of(root)), KEPT) == parts(SWAPPED, KEPT), last
    assert refused > 2
    assert pending > 5
    same = f"The same command finishes what was begun, and `reput undo {root}` takes it back."
    for is_half, text in said.values():
        assert ("the store is half replaced now: start no broker" in text) is is_half
        assert text.endswith(same) is is_half


def _once(system: Counting) -> Counting:
    """Fails at the set step only."""
    step = system._step

    def single() -> None:
        try:
            step()
        except OSError:
            system.last = None
            raise

    system._step = single  # type: ignore[method-assign]
    return system


def test_no_second_swap_while_one_is_pending(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, lambda: begin(root), 6, exchange=True)
    with pytest.raises(OutputError, match="isn't finished"):
        Swap(root, root / ".reput/staging", NAMES, LATER).run()


# refusals, with nothing changed


def refused(root: Path, names: tuple[str, ...], message: str, remove: tuple[str, ...] = ()) -> OutputError:
    before = sorted(str(path) for path in root.rglob("*"))
    with pytest.raises(OutputError, match=message) as caught:
        Swap(root, root / ".reput" / "staging", names, STAMP, remove=remove).run()
    assert sorted(str(path) for path in root.rglob("*")) == before
    return caught.value


def test_what_was_not_built_is_not_swapped(root: Path) -> None:
    error = refused(root, ("consumequeue", "consumequeue_ext"), "nothing to put in place")
    assert error.path == str(root / ".reput/staging/consumequeue_ext")


def test_links_are_not_swapped(root: Path, tmp_path: Path) -> None:
    shutil.move(root / "consumequeue", tmp_path / "other-disk")
    (root / "consumequeue").symlink_to(tmp_path / "other-disk")
    error = refused(root, NAMES, "a symbolic link can't be swapped")
    assert error.found == f"a link to {tmp_path / 'other-disk'}"
    refused(root, ("consumequeue/TopicA/0",), "a symbolic link")
    refused(root, ("index",), "a symbolic link", remove=("consumequeue",))


def test_another_file_system_is_seen_beforehand(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.lstat

    def elsewhere(path: Path) -> os.stat_result:
        facts = list(real(path))
        if path.name == "staging":
            facts[2] += 1  # st_dev
        return os.stat_result(facts)

    monkeypatch.setattr(Path, "lstat", elsewhere)
    refused(root, NAMES, "can't be renamed to another file system")


def test_mount_points_are_seen_beforehand(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "_mount_points", lambda: frozenset({os.path.realpath(root / "index")}))
    refused(root, NAMES, "a mount point can't be swapped")


def test_the_systems_mount_points_are_read() -> None:
    found = swap._mount_points()
    assert "/" in found
    assert "/proc" in found


@pytest.mark.parametrize(
    "names",
    [
        ("",),
        ("/consumequeue",),
        ("../store",),
        ("consumequeue/../commitlog",),
        ("./index",),
        ("index/",),
        (".reput/journal",),
        ("replaced-20260101T000000Z",),
        ("index", "index"),
        ("consumequeue", "consumequeue/TopicA"),
        ("consumequeue/TopicA", "consumequeue"),
    ],
)
def test_names_that_cannot_be_meant(root: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"isn't a name inside a store|stands twice"):
        Swap(root, root / ".reput/staging", names, STAMP)


def test_places_and_stamps_that_cannot_be_meant(root: Path, tmp_path: Path) -> None:
    for staging in (root, tmp_path / "staging"):
        with pytest.raises(ValueError, match="isn't a directory inside"):
            Swap(root, staging, NAMES, STAMP)
    with pytest.raises(ValueError, match="isn't a time"):
        Swap(root, root / ".reput/staging", NAMES, "2026-11-21")


# a store that went on without us


@pytest.mark.parametrize("exchange", [True, False])
def test_a_swap_that_a_broker_overtook_is_given_up_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    root = tmp_path / "store"
    steps = steps_of(monkeypatch, lambda: begin(make(root)), exchange=exchange)
    old = set(parts(STORE, *NAMES, "consumequeue_ext").values())
    for last in range(steps):
        make(root)
        dies(monkeypatch, lambda: begin(root), last, exchange=exchange)
        if not is_pending(root):
            continue
        broker_starts(root)
        with pytest.raises(SwapOvertakenError, match=r"lock written to at .*reput mend .* --apply"):
            Swap.resume(root)
        assert is_pending(root)
        assert abandon(root) == root / KEPT
        assert not is_pending(root)
        found = tree_of(root)
        assert all((root / name).exists() for name in ("consumequeue", "index", "checkpoint"))
        safe = parts(found, *NAMES, "consumequeue_ext", KEPT)
        assert old <= set(safe.values()), last
    assert abandon(root) is None


def test_a_broker_that_made_a_new_directory_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace in lock, say on a restored copy: three of one name are one too many."""
    last = next(
        n
        for n in range(30)
        if _state(root, monkeypatch, n) == (False, True, True)  # old one kept, new one not yet in place
    )
    assert last
    (root / "consumequeue").mkdir()
    with pytest.raises(SwapOvertakenError, match=r"the new one here or in staging, found .*/consumequeue, "):
        Swap.resume(root)


def test_new_files_that_got_lost(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, lambda: begin(root), 3, exchange=True)
    assert is_pending(root)
    shutil.rmtree(root / ".reput/staging/consumequeue")
    with pytest.raises(SwapOvertakenError, match="the new one here or in staging"):
        Swap.resume(root)


def test_old_and_new_that_the_swap_does_not_know(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, lambda: begin(root), 3, exchange=True)
    (root / ".reput/staging/consumequeue").rename(root / ".reput/staging/away")
    (root / ".reput/staging/consumequeue").mkdir()
    with pytest.raises(SwapOvertakenError, match="expected the old or the new one, found another"):
        Swap.resume(root)


def _state(root: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> tuple[bool, bool, bool]:
    make(root)
    dies(monkeypatch, lambda: begin(root), last, exchange=False)
    places = (root, root / ".reput/staging", root / KEPT)
    return tuple((place / "consumequeue").exists() for place in places)  # type: ignore[return-value]


def test_reputs_own_lock_is_no_broker(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "lock").unlink()
    dies(monkeypatch, lambda: begin(root), 6, exchange=True)
    (root / "lock").touch()
    assert Swap.resume(root) == root / KEPT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        "[" * 3000,
        json.dumps({"version": 1, "staging": ".reput/staging", "names": "x"}),
    ],
)
def test_a_record_that_reput_did_not_write(root: Path, text: str) -> None:
    (root / ".reput/swap.json").write_text(text)
    for act in (Swap.resume, abandon):
        with pytest.raises(OutputError, match="isn't a record of replaced files"):
            act(root)


def test_a_record_that_names_something_outside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, lambda: begin(root), 6, exchange=True)
    record = root / ".reput/swap.json"
    facts = json.loads(record.read_text())
    facts["names"].append("../../elsewhere")
    record.write_text(json.dumps(facts))
    with pytest.raises(OutputError, match="isn't a name inside a store"):
        Swap.resume(root)


def test_a_record_whose_staging_lies_outside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(monkeypatch, lambda: begin(root), 6, exchange=True)
    record = root / ".reput/swap.json"
    facts = json.loads(record.read_text())
    for staging in ("../elsewhere", "/elsewhere", ".reput/../.."):
        record.write_text(json.dumps({**facts, "staging": staging}))
        for act in (Swap.resume, abandon):
            with pytest.raises(OutputError, match="isn't a directory inside a store"):
                act(root)


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize(
    "name", [".reput/staging", KEPT, "consumequeue", "index", f"{KEPT}/consumequeue", ".reput/staging/index"]
)
def test_a_link_that_came_in_the_middle_of_a_swap(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, exchange: bool
) -> None:
    """It isn't finished and not given up through a link: nothing behind it is moved."""
    steps = steps_of(monkeypatch, lambda: begin(make(root)), exchange=exchange)
    tried = 0
    for last in range(steps):
        make(root)
        dies(monkeypatch, lambda: begin(root), last, exchange=exchange)
        elsewhere = tmp_path / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        path = root / name
        if not is_pending(root) or not path.is_dir():
            continue
        shutil.move(path, elsewhere)
        path.symlink_to(elsewhere)
        tried += 1
        before = tree_of(tmp_path)
        for act in (Swap.resume, abandon):
            with pytest.raises(OutputError, match="a symbolic link can't be swapped") as caught:
                act(root)
            assert (caught.value.path, caught.value.found) == (str(path), f"a link to {elsewhere}")
            assert tree_of(tmp_path) == before
    assert tried > 1


# undo


def test_undo_puts_the_old_ones_back_and_keeps_the_new(root: Path) -> None:
    kept = begin(root)
    assert undo(root, kept, LATER) == root / KEPT_LATER
    assert without_record(tree_of(root)) == UNDONE
    assert not (root / KEPT).exists()
    assert not is_pending(root)


def test_an_undo_can_be_undone(root: Path) -> None:
    first = undo(root, begin(root), LATER)
    assert undo(root, first, STAMP) == root / KEPT
    assert without_record(tree_of(root)) == SWAPPED


@pytest.mark.parametrize("exchange", [True, False])
def test_an_undo_that_died_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    root = tmp_path / "store"
    kept = root / KEPT

    def swapped() -> None:
        monkeypatch.setattr(files, "system", Counting(exchange=exchange))
        begin(make(root))

    swapped()
    steps = steps_of(monkeypatch, lambda: undo(root, kept, LATER), exchange=exchange)
    for last in range(steps):
        swapped()
        dies(monkeypatch, lambda: undo(root, kept, LATER), last, exchange=exchange)
        if is_pending(root):
            assert Swap.resume(root) == root / KEPT_LATER
        elif not (root / KEPT_LATER).exists():
            undo(root, kept, LATER)
        assert without_record(tree_of(root)) == UNDONE, last
        assert not kept.exists(), last


def test_an_undo_after_a_broker_ran_is_refused(root: Path) -> None:
    kept = begin(root)
    broker_starts(root)
    with pytest.raises(SwapOvertakenError):
        undo(root, kept, LATER)
    assert without_record(tree_of(root)) == SWAPPED


def test_what_is_put_back_is_what_was_replaced(root: Path) -> None:
    kept = begin(root)
    changed, removed, foreign = (
        kept / name for name in ("index/20260101000000000", "checkpoint", "index/foreign")
    )

    def refused() -> SwapOvertakenError:
        with pytest.raises(SwapOvertakenError, match="put back as a whole") as caught:
            undo(root, kept, LATER)
        assert not is_pending(root)
        assert parts(tree_of(root), *STAGED) == parts(STAGED, *STAGED)
        return caught.value

    was = changed.stat()
    changed.write_text("bad index")
    os.utime(changed, ns=(was.st_mtime_ns, was.st_mtime_ns + 10**9))
    error = refused()
    assert error.path == str(changed)
    assert str(error.expected).startswith("9 bytes, written at 20")
    assert str(error.expected).endswith("Z, as it was replaced")
    assert error.found is not None
    assert error.found not in str(error.expected)
    changed.write_text("bad")
    os.utime(changed, ns=(was.st_mtime_ns, was.st_mtime_ns))
    assert str(refused().found).startswith("3 bytes, written at 20")
    changed.write_text("old index")
    os.utime(changed, ns=(was.st_mtime_ns, was.st_mtime_ns))
    foreign.touch()
    assert (refused().path, str(refused().expected)) == (str(foreign), "nothing, as it was replaced")
    foreign.unlink()
    inside = kept / "consumequeue/TopicB/3/00000000000000000000"
    inside.rename(root / "elsewhere")
    assert (refused().path, refused().found) == (str(inside), "nothing")
    (root / "elsewhere").rename(inside)
    removed.rename(root / "elsewhere")
    assert (refused().path, refused().found) == (str(removed), "nothing")
    (root / "elsewhere").rename(removed)
    undo(root, kept, LATER)
    assert without_record(tree_of(root)) == UNDONE


def test_a_record_of_1_0_says_nothing_of_what_was_replaced(root: Path) -> None:
    kept = begin(root)
    record = json.loads((kept / "swap.json").read_text())
    del record["old"]
    (kept / "swap.json").write_text(json.dumps(record))
    (kept / "checkpoint").write_text("another one")
    undo(root, kept, LATER)
    assert (root / "checkpoint").read_text() == "another one"


def test_only_what_a_swap_kept_can_be_put_back(root: Path) -> None:
    (root / KEPT).mkdir()
    with pytest.raises(OutputError, match="doesn't hold what a swap replaced"):
        undo(root, root / KEPT, LATER)
