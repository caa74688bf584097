"""What runs out, for real: one line that names it, exit code 2, and nothing of Java's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.rebuilds import Outcome, environment, golden, run, words

ROOT = Path(__file__).parents[2]
_NAMELESS = 'hostname nosuch.invalid && exec "$@"'
_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'


def on_small_disk(directory: Path, options: str) -> list[str]:
    """The beginning of a command that sees a file system of its own at a directory."""
    return unshared("-m", "sh", "-c", _MOUNT, "sh", options, str(directory))


def unshared(what: str, *words: str) -> list[str]:
    """The beginning of a command that has mounts (-m), network (-n) or host name (-u) of its own."""
    command = ["unshare", *(() if os.geteuid() == 0 else ("-r",)), what, *words]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip(f"NOT TESTED: this host lets nobody have such a thing of his own: unshare {what}")
    return command


def limited(tmp_path: Path, limit: str, *given: str | Path) -> Outcome:
    """A command in a shell with a limit; in a directory of the test's, for the JVM leaves a report."""
    return run(*given, before=["sh", "-c", f'ulimit {limit} && exec "$@"', "sh"], cwd=tmp_path)


def assert_one_line(outcome: Outcome, *said: str) -> None:
    assert outcome.code == 2
    lines = outcome.stderr.splitlines()
    assert all(line.startswith("reput: ") for line in lines), "nothing of Java's"
    for text in said:
        assert text in lines[-1]
    assert not [line for line in lines[:-1] if "found" in line], "the others say how far it is"


@pytest.mark.spark
def test_no_inode_is_left_for_sparks_checkpoint(tmp_path: Path) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    out = tmp_path / "disk" / "out"
    out.parent.mkdir()
    outcome = run(*words(store, "--out", out), before=on_small_disk(out.parent, "nr_inodes=60"))
    assert_one_line(
        outcome, str(out / ".reput"), "(ENOSPC)", f"Free inodes on the file system that holds {out}"
    )


@pytest.mark.spark
def test_no_space_is_left_for_sparks_temporary_files(tmp_path: Path) -> None:
    """The path is theirs, not that of the output, which has room."""
    store = golden("5.5.0-mixed", tmp_path)
    small = tmp_path / "disk"
    small.mkdir()
    scratch = ["env", f"TMPDIR={small}", f"SPARK_LOCAL_DIRS={small}"]
    outcome = run(
        *words(store, "--out", tmp_path / "out", "--json"),
        before=[*on_small_disk(small, "size=4k"), *scratch],
    )
    assert_one_line(
        outcome, f"reput: {small}", "(ENOSPC)", f"Free space on the file system that holds {small}"
    )
    assert json.loads(outcome.stdout)["path"].startswith(str(small))


@pytest.mark.spark
def test_open_files(tmp_path: Path) -> None:
    store = golden("5.5.0-tiny", tmp_path)
    outcome = limited(tmp_path, "-n 64", *words(store, "--out", tmp_path / "out", "--json"))
    assert_one_line(outcome, "Spark doesn't start; expected 1024 open files or more (ulimit -n), found 64")
    assert json.loads(outcome.stdout)["error"] == "Spark doesn't start"


@pytest.mark.proof
@pytest.mark.spark
def test_no_network(tmp_path: Path) -> None:
    """Java says of it only that a class can't be initialized; its cause is further down."""
    store = golden("5.5.0-tiny", tmp_path)
    given = words(store, "--out", tmp_path / "out", "--json")
    expected = "Spark doesn't start; expected a network interface that is up"
    for before in (unshared("-n"), unshared("-n", "env", "SPARK_LOCAL_IP=127.0.0.1")):
        assert_one_line(run(*given, before=before), expected, "ip link set lo up")
    nameless = unshared("-u", "sh", "-c", _NAMELESS, "sh")
    expected = "Spark doesn't start; expected an address for this host's name, found none for nosuch.invalid"
    assert_one_line(run(*given, before=nameless), expected, "SPARK_LOCAL_IP=127.0.0.1")
    # spark-submit's own Java dies before reput is asked: conf/spark-env.sh says why.
    submit = [
        "env",
        f"SPARK_CONF_DIR={ROOT / 'conf'}",
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    ]
    command = [*unshared("-n"), *submit, str(ROOT / "jobs" / "rebuild.py"), *map(str, given)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "expected a network interface that is up" in done.stderr
    # Both steps help.
    up = unshared("-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    for before in (up, [*nameless, "env", "SPARK_LOCAL_IP=127.0.0.1"]):
        outcome = run(*words(store, "--out", tmp_path / before[1]), before=before)
        assert outcome.code == 0, outcome.stderr


@pytest.mark.spark
def test_memory(tmp_path: Path) -> None:
    """What a JVM has to say when it doesn't come up it says on stdout, which is for results."""
    store = golden("5.5.0-tiny", tmp_path)
    outcome = limited(tmp_path, "-v 3000000", *words(store, "--out", tmp_path / "out", "--json"))
    assert_one_line(outcome, "Spark doesn't start", "(ENOMEM)", "ulimit -v")
    assert json.loads(outcome.stdout)["error"] == "Spark doesn't start"


@pytest.mark.slow
def test_file_size(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    store = golden("5.5.0-tiny", tmp_path)
    outcome = limited(tmp_path, "-f 1", "report", store.root, "-o", report)
    assert_one_line(outcome, str(report), "(EFBIG)", "ulimit -f")
