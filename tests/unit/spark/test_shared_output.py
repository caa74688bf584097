"""What workers and the driver prove to each other about an output, without Spark."""

from __future__ import annotations

import pickle
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.errors import OutputError, ReputError, SegmentGoneError, StoreError
from reput.format import names
from reput.spark import runner as module
from reput.spark.runner import Answer, ProvenTask, SharedOutput, SparkRunner, shared_output

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker proves once in its life; each test has a new one."""
    monkeypatch.setattr(module, "_left", {})


def left_in(root: Path) -> list[Path]:
    return sorted((root / names.REPUT).glob(f"{names.SHARED}*/*"))


def test_both_see_what_the_other_left_and_nothing_stays(tmp_path: Path) -> None:
    with shared_output(tmp_path, None) as output:
        sent: SharedOutput = pickle.loads(pickle.dumps(output))
        left = sent.show()
        output.see(HOST, left)
        assert sent.show() == left, "once in a process"
        assert len(left_in(tmp_path)) == 2
    assert left_in(tmp_path) == []
    assert list((tmp_path / names.REPUT).iterdir()) == []


def test_a_worker_that_sees_another_directory_is_refused(tmp_path: Path) -> None:
    with shared_output(tmp_path / "out", None) as output:
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        with pytest.raises(OutputError, match=r"doesn't see the output that the driver sees.* found nothing"):
            output.show()
        (tmp_path / "out").mkdir()
        with pytest.raises(OutputError, match="found nothing"):
            output.show()
        assert list((tmp_path / "out").iterdir()) == [], "nothing was written there"


def test_a_worker_that_reads_another_nonce_is_refused(tmp_path: Path) -> None:
    with shared_output(tmp_path, None) as output:
        left_in(tmp_path)[0].write_text("0123 elsewhere\n")
        with pytest.raises(OutputError, match="found something else"):
            output.show()


def test_a_driver_that_reads_nothing_of_a_worker_refuses_it(tmp_path: Path) -> None:
    with shared_output(tmp_path, None) as output:
        left = output.show()
        (path,) = (path for path in left_in(tmp_path) if path.name == left.name)
        path.write_text("")
        with pytest.raises(OutputError, match="found something else"):
            output.see("far", left)
        path.unlink()
        with pytest.raises(OutputError, match=r"^on host far: .*doesn't see what this host writes"):
            output.see("far", left)


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    killed = tmp_path / names.REPUT / f"{names.SHARED}0123"
    killed.mkdir(parents=True)
    (killed / "driver").write_text("0123 here\n")
    with shared_output(tmp_path, None):
        assert not killed.exists()


class Sees:
    """A proof that fails, or not, on either side."""

    def __init__(self, *, shows: bool = True, sees: bool = True) -> None:
        self._shows, self._sees = shows, sees
        self.seen = 0

    def show(self) -> int:
        if not self._shows:
            raise OutputError("another directory", path="/out")
        return 1

    def see(self, host: str, shown: int) -> None:
        self.seen += shown
        if not self._sees:
            raise OutputError("nothing there", path="/out", host=host)


def demanding(proof: Sees) -> SparkRunner:
    """The driver of a cluster, which demands a proof."""
    runner = SparkRunner(SimpleNamespace(master="spark://host"))  # type: ignore[arg-type]
    runner.demand(proof)
    return runner


def ran(function: object, proof: Sees) -> object:
    return demanding(proof).result(ProvenTask(function, (proof,))(7))  # type: ignore[arg-type]


def test_nothing_runs_before_the_worker_has_shown_its_proof() -> None:
    done: list[object] = []
    result = ran(done.append, Sees(shows=False))
    assert done == []
    assert isinstance(result, OutputError)
    assert str(result) == f"on host {HOST}: /out: another directory"
    assert result.facts()["host"] == HOST
    assert str(pickle.loads(pickle.dumps(result))) == str(result)


def test_no_result_counts_before_the_driver_has_seen_the_proof() -> None:
    with pytest.raises(OutputError, match=f"on host {HOST}: /out: nothing there"):
        ran(abs, Sees(sees=False))


def test_the_driver_looks_once_for_each_worker() -> None:
    proof = Sees()
    runner, task = demanding(proof), ProvenTask(abs, (proof,))
    assert [runner.result(task(-1)), runner.result(task(-2))] == [1, 2]
    assert runner.result(Answer("far", (1,), 3)) == 3
    assert proof.seen == 2


@pytest.mark.parametrize("raises", [True, False])
def test_errors_of_tasks_name_their_host(raises: bool) -> None:
    def fail(_item: object) -> ReputError:
        error = StoreError("the segment can't be read", path="/store/0")
        if raises:
            raise error
        return error

    assert str(ran(fail, Sees())) == f"on host {HOST}: /store/0: the segment can't be read"


def test_a_segment_that_the_driver_has_has_not_expired(tmp_path: Path) -> None:
    segment = tmp_path / names.offset_name(0)
    segment.touch()
    there = ran(lambda _: SegmentGoneError("gone", path=segment), Sees())
    assert type(there) is StoreError
    assert str(there).startswith(f"on host {HOST}: {segment}: this host doesn't have a file of the store")
    shutil.rmtree(tmp_path)
    assert type(ran(lambda _: SegmentGoneError("gone", path=segment), Sees())) is SegmentGoneError
