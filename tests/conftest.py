"""Fixtures that several test packages share."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from reput.errors import SparkError
from reput.spark import class_archive
from reput.spark.jars import delta_jars
from tests import levels
from tests.compat.jars import NO_FETCH, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Times on a page of docs, and the names of index files, are those of this zone.
os.environ["TZ"] = "UTC"
time.tzset()

LIB = Path(__file__).parents[1] / "lib"

# All of these need a JVM; to import them takes time, too.
collect_ignore = ["compat", "spark"] if levels.QUICK else []

# Typer makes all commands anew for each line that a test gives it, in a tenth of a second.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# The same examples at every run, so that a failure is the change's that is tested. Those that nobody has seen
# yet are looked for by ``make test ARGS='--hypothesis-profile=explore tests/property'``.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeat")


def pytest_configure(config: pytest.Config) -> None:
    """Let the JVMs of all tests start with an archive of Java's classes, which the first run makes.

    It lies in pytest's own cache: the user's isn't touched, and no test depends on what is there. Where the
    user has this very one, as ``make install`` has made it, a copy takes no time.
    """
    os.environ[NO_FETCH] = "1"
    if levels.QUICK or hasattr(config, "workerinput") or class_archive.VARIABLE in os.environ:
        return
    place = config.rootpath / ".pytest_cache" / "java"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = class_archive.find()
    made = None if users is None else users.path()
    os.environ[class_archive.VARIABLE] = str(place)
    found = class_archive.find()
    if users is not None and made is not None and found is not None and found.path() is None:
        for path in (made, users.stem.with_suffix(".json")):
            if path.exists():
                shutil.copy2(path, place)
    # Of a few tests the first run would take longer by this.
    if getattr(config.option, "numprocesses", None) and found is not None and found.path() is None:
        with suppress(SparkError):  # then they start without
            class_archive.make()


def pytest_report_header() -> list[str]:
    """Name what isn't here before the first test."""
    found = [] if levels.QUICK else missing()
    return [f"NOT HERE, so tests with it fail: {', '.join(found)}. `make jars` fetches it"] if found else []


@pytest.fixture(scope="session")
def has_delta() -> None:
    """Delta Lake's jars are here: no test fetches them."""
    assert delta_jars(fetch=False)[0].exists(), "Delta Lake's jars aren't here: run `make jars` first"


@pytest.fixture(autouse=True, scope="session")
def _same_examples(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no example depend on which modules are loaded when its test comes.

    Hypothesis takes one value in twenty from the constants of all code that is loaded and isn't a library's:
    another one in each process and order of tests.
    """
    with pytest.MonkeyPatch.context() as patched:
        if settings().derandomize:
            patched.setattr(providers, "_get_local_constants", providers.Constants)
        yield


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_counts() -> None:
    """Where tests run in the background of a script, Ctrl-C is ignored, and what they start inherits that."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what isn't of this level. Let xdist's processes begin with what starts a JVM.

    These files take longest, and a long one that is left for the end would run alone. With
    --no-loadscope-reorder the order is kept.
    """
    kept = levels.chosen(items)
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = sorted(kept, key=lambda item: not any(map(item.get_closest_marker, ("spark", "compat"))))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for all tests, set up as the jobs' own."""
    from reput.spark.sessions import session

    # Executors and planners are other processes: they use this Python, and the package as it lies here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")]))
    started = session(
        "reput tests", "local[2]", {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    )
    yield started
    started.stop()


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.spark), "processes"])
def start_spark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], SparkSession] | None:
    """What jobs take for Spark; None for the same on processes of this host."""
    if request.param == "spark":
        return lambda: request.getfixturevalue("spark")
    monkeypatch.setattr("reput.replay.runner._SMALL", -1)
    return None
