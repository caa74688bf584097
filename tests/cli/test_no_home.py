"""A user who can write neither to the package nor to a home directory: commands say one line more."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput import caches
from tests.rebuilds import LIB, Command, Outcome, broker_conf, environment, golden, run, without_root_powers

#: Of a warning that begins otherwise where a directory goes with the process.
KEPT = "reput: numba's cache can't be written to beside the package or in your home directory"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package as root installed it, to be found by PYTHONPATH."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(LIB / "reput", place / "reput", ignore=shutil.ignore_patterns("__pycache__"))
    directories = [place, *(path for path in place.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(0o555)
    yield place
    for directory in directories:
        directory.chmod(0o755)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For temporary files; of all tests, so that kernels are compiled once."""
    place = tmp_path_factory.mktemp("tmp")
    place.chmod(0o1777)
    return place


def homeless(installed: Path, temporary: Path, *words: str | Path) -> Outcome:
    env = environment(
        PYTHONPATH=str(installed),
        HOME=str(installed / "none"),
        TMPDIR=str(temporary),
        XDG_CACHE_HOME=None,
        NUMBA_CACHE_DIR=None,
    )
    return run(*words, env=env, cwd=temporary, preexec_fn=without_root_powers)


@pytest.mark.parametrize(
    ("words", "has_kernels"),
    [
        (["check", "--json"], True),
        (["lag", "--json"], False),
        (["query", "--offset", "0", "--json"], False),
        (["mend", "--json"], True),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
@pytest.mark.slow
def test_commands_say_the_same_and_one_line_more(
    reput: Command, installed: Path, temporary: Path, tmp_path: Path, words: list[str], has_kernels: bool
) -> None:
    """Those without kernels have nothing to keep, and say nothing of it."""
    store = golden("5.5.0-tiny", tmp_path)
    (store.root / "config").mkdir()
    (store.root / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{"One@readers":{0:1}}}')
    command, *more = words
    given = [command, store.root, *more, "--broker-conf", broker_conf(store)]
    given += ["--rocketmq-version", store.version]
    expected = reput(*given)
    outcome = homeless(installed, temporary, *given)
    assert outcome.code == expected.code != 2, outcome.stderr
    assert json.loads(outcome.stdout).keys() == json.loads(expected.stdout).keys()
    said, without = (
        [line for line in one.stderr.splitlines() if not re.search("[0-9] [KM]iB of ", line)]
        for one in (outcome, expected)
    )
    if has_kernels:
        warning = said.pop(0)
        assert warning.startswith(KEPT)
        assert str(temporary / f"reput-{os.geteuid()}" / "numba") in warning
        assert "Set NUMBA_CACHE_DIR" in warning
    assert said == without


@pytest.mark.slow
def test_a_refusal_is_whole_too(installed: Path, temporary: Path, tmp_path: Path) -> None:
    """Of the command whose kernels take longest to compile; they are loaded before the store is looked at."""
    outcome = homeless(installed, temporary, "report", tmp_path / "gone", "--json")
    assert outcome.code == 2
    assert json.loads(outcome.stdout)["error"] == "there is no store here"
    assert outcome.stderr.startswith(KEPT)
    assert all(line.startswith("reput: ") for line in outcome.stderr.splitlines())


@pytest.mark.slow
def test_the_doctor_looks_where_kernels_are_kept(installed: Path, temporary: Path) -> None:
    outcome = homeless(installed, temporary, "doctor", "--no-spark", "--json")
    assert outcome.stderr.startswith(KEPT)
    (cache,) = [one for one in json.loads(outcome.stdout)["checks"] if one["name"] == "numba-cache"]
    assert cache["status"] == "ok"
    assert cache["found"].startswith(str(temporary / f"reput-{os.geteuid()}" / "numba"))


@pytest.mark.slow
def test_a_directory_that_somebody_else_made_is_not_taken(installed: Path, tmp_path: Path) -> None:
    planted = tmp_path / f"reput-{os.geteuid()}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    (planted / "numba").mkdir()
    tmp_path.chmod(0o1777)
    outcome = homeless(installed, tmp_path, "doctor", "--no-spark")
    assert outcome.stderr.startswith(KEPT)
    assert f"{planted}-" in outcome.stderr
    assert not list((planted / "numba").iterdir())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("reput-")] == [planted.name]


@pytest.mark.slow
def test_what_pip_installed_keeps_kernels_in_the_users_cache(tmp_path: Path) -> None:
    """For beside the package an uninstall would leave them. The doctor names what is kept, and removes it."""
    place, cache = tmp_path / "site-packages", tmp_path / "home" / ".cache" / "reput"
    shutil.copytree(LIB / "reput", place / "reput", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    env = environment(
        PYTHONPATH=str(place),
        PYTHONDONTWRITEBYTECODE="1",
        HOME=str(tmp_path / "home"),
        TMPDIR=str(tmp_path / "tmp"),
        XDG_CACHE_HOME=None,
        NUMBA_CACHE_DIR=None,
    )
    looked = run("doctor", "--no-spark", "--json", env=env)
    checks = {one["name"]: one["found"] for one in json.loads(looked.stdout)["checks"]}
    assert checks["numba-cache"].startswith(str(cache / "numba"))
    assert checks["cache"].startswith(f"{cache / 'numba'} (")
    assert stat.S_IMODE((cache / "numba").stat().st_mode) == 0o700
    (cache / "numba" / "a kernel").write_bytes(bytes(2048))
    (cache / "java").mkdir()
    removed = run("doctor", "--remove-cache", env=env)
    assert removed.stdout.endswith(f"Removed {cache / 'numba'}, {cache / 'java'}: 2.0 KiB\n"), removed.stdout
    assert not cache.exists()
    assert not list((tmp_path / "tmp").iterdir())
    assert not list(place.rglob("*.nb[ci]"))
    refused = run("doctor", "--remove-cache", "--class-archive", "make", env=env)
    assert refused.code == 2
    assert "--remove-cache removes that archive, too" in refused.stderr


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caches.own_directory.cache_clear()
    yield tmp_path
    caches.own_directory.cache_clear()


def test_the_directory_is_this_users_alone(base: Path) -> None:
    path = caches.own_directory()
    assert path == base / f"reput-{os.geteuid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    caches.own_directory.cache_clear()
    assert caches.own_directory() == path


@pytest.mark.parametrize("planted", ["link", "open to others", "another's", "file"])
def test_what_is_not_this_users_alone_is_left(base: Path, planted: str) -> None:
    path = base / f"reput-{os.geteuid()}"
    elsewhere = base / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "link":
        path.symlink_to(elsewhere, target_is_directory=True)
    elif planted == "file":
        path.touch(0o600)
    else:
        path.mkdir(0o700)
        if planted == "another's" and os.geteuid() == 0:
            os.chown(path, 12_345, 12_345)
        else:
            path.chmod(0o750)
    own = caches.own_directory()
    assert own is not None
    assert own != path
    assert own.name.startswith(f"{path.name}-")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert not list(elsewhere.iterdir())


def test_nothing_is_kept_where_anybody_may_rename(base: Path) -> None:
    base.chmod(0o777)
    assert caches.own_directory() is None


def test_kernels_are_compiled_anew_where_nothing_can_be_written(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base.chmod(0o777)
    monkeypatch.setattr(caches, "can_write", lambda directory: False)
    assert not caches.settle.__wrapped__()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reput: compiled kernels can't be kept")


def test_every_kernel_asks_whether_it_can_be_kept() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (LIB / "reput").rglob("*.py")}
    assert not [path for path, text in texts.items() if "cache=True" in text]
    assert [path for path, text in texts.items() if "cache=CACHED" in text]
